// What every action of the table does.

#include "analysis/options/option_text.hpp"
#include "data/atomic_file.hpp"
#include "data/error.hpp"
#include "viewer/app/app.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unistd.h>

namespace kvreplay::viewer {
namespace {

constexpr float kLeastText = 9, kMostText = 28;

bool popup_open() {
  return ImGui::IsPopupOpen("", ImGuiPopupFlags_AnyPopupId | ImGuiPopupFlags_AnyPopupLevel);
}

}  // namespace

void App::key(const Shortcut& shortcut, bool down) {
  const Action* found = action_of(shortcut);
  // Held, a key flips to the second setting; released, it flips back.
  if (found != nullptr && found->id == ActionId::flip_settings && !ImGui::GetIO().WantTextInput) {
    state_.flipped = down;
    return;
  }
  if (!down) return;
  if (ImGui::GetIO().WantTextInput && !shortcut.control && !shortcut.alt) return;
  // Escape is first that of what stands above the panels; the prompts of this program take it themselves.
  if (shortcut == Shortcut{"Escape"} && tour_.running() && !popup_open()) return tour_.end();
  if (shortcut == Shortcut{"Escape"} && popup_open()) {
    close_popup_ = !palette_open_ && !help_open_ && !path_open_ && !locate_open_;
    return;
  }
  if (shortcut == Shortcut{"Escape"} && panel(focused_).take_escape()) return;
  if (found != nullptr) perform(*found);
}

void App::show(PanelKind kind) {
  layout_.show(kind);
  focused_ = kind;
}

void App::perform(const Action& action) {
  Panel& front = panel(focused_);
  HeatmapView* heatmap = front.heatmap();
  view_step_ = true;
  switch (action.id) {
    case ActionId::open_palette:
      palette_open_ = true;
      return;
    case ActionId::help:
      help_open_ = true;
      return;
    case ActionId::open_path:
      path_open_ = true;
      return;
    case ActionId::locate_dump:
      if (!state_.run() || state_.run()->results() == nullptr)
        return state_.say("Only results have a dump to locate.");
      locate_open_ = true;
      return;
    case ActionId::reload:
      desk_.forget_errors();
      return reload(false);
    case ActionId::close_run: {
      const std::size_t which = state_.selection().run;
      if (which >= state_.runs.size()) return;
      desk_.forget(state_.runs[which]->key());
      if (state_.pinned.run() == state_.runs[which]) state_.pinned.pin(nullptr);
      state_.runs.erase(state_.runs.begin() + static_cast<std::ptrdiff_t>(which));
      Selection next = state_.selection();
      next.run = which > 0 ? which - 1 : 0;
      state_.select(next);
      watcher_->watch(state_.runs);
      return;
    }
    case ActionId::next_run: {
      if (state_.runs.empty()) return;
      Selection next = state_.selection();
      next.run = (next.run + 1) % state_.runs.size();
      return state_.select(next);
    }
    case ActionId::quit:
      quit_ = true;
      return;
    case ActionId::save_session:
      session_wanted_ = true;
      return;
    case ActionId::export_png:
      return export_figure(focused_, export_path(".png"));
    case ActionId::export_csv:
      return export_csv();
    case ActionId::copy_csv: {
      PanelContext context{state_, desk_};
      const std::string text = front.csv(context);
      if (text.empty()) return state_.say("This panel has no table to copy yet.");
      ImGui::SetClipboardText(text.c_str());
      return state_.say(
          fmt::format("Copied {}.", counted(std::count(text.begin(), text.end(), '\n'), "line")));
    }
    case ActionId::find_text:
      show(PanelKind::text);
      panel(PanelKind::text).find();
      return;
    case ActionId::undo:
      state_.history().undo();
      return restore_views();
    case ActionId::redo:
      state_.history().redo();
      return restore_views();
    case ActionId::clear_selection: {
      Selection next = state_.selection();
      next.row.reset();
      next.token.reset();
      next.channels.reset();
      next.tokens.clear();
      return state_.select(next);
    }
    case ActionId::pin_selection: {
      const Selection& s = state_.selection();
      if (!s.row || !s.token) return state_.say("Select a cell of the token map first.");
      const Cell pin{s.layer, s.kv_head, s.query_head, *s.row, *s.token};
      if (std::find(state_.pins.begin(), state_.pins.end(), pin) == state_.pins.end())
        state_.pins.push_back(pin);
      return layout_.show(PanelKind::inspector);
    }
    case ActionId::next_head:
      return step_head(1, false);
    case ActionId::previous_head:
      return step_head(-1, false);
    case ActionId::next_worst_head:
      return step_head(1, true);
    case ActionId::previous_worst_head:
      return step_head(-1, true);
    case ActionId::next_layer:
    case ActionId::previous_layer:
      if (!state_.run()) return;
      return state_.select(
          next_layer(state_.selection(), state_.run()->shape(), action.id == ActionId::next_layer ? 1 : -1),
          "head");
    case ActionId::fit_view:
      if (heatmap != nullptr) heatmap->fit();
      if (state_.links.joined) state_.links.columns.clear();
      return;
    case ActionId::one_to_one:
      if (heatmap != nullptr) heatmap->one_to_one();
      return;
    case ActionId::zoom_in:
      if (heatmap != nullptr) heatmap->zoom(1.25);
      return;
    case ActionId::zoom_out:
      if (heatmap != nullptr) heatmap->zoom(0.8);
      return;
    case ActionId::maximise:
      return layout_.maximise(layout_.maximised() ? std::optional<PanelKind>() : focused_);
    case ActionId::next_panel:
      return show(kPanels.all()[(static_cast<std::size_t>(focused_) + 1) % kPanels.size()]);
    case ActionId::toggle_theme:
      dark_ = !dark_;
      return;
    case ActionId::toggle_joint_zoom:
      state_.links.joined = !state_.links.joined;
      state_.links.columns.clear();
      return state_.say(state_.links.joined ? "Token axes are zoomed together."
                                            : "Every panel has its own zoom.");
    case ActionId::lock_ranges:
      state_.links.locked = !state_.links.locked;
      state_.links.ranges.clear();
      return state_.say(state_.links.locked ? "Ranges are locked: the same colours mean the same values."
                                            : "Ranges follow each panel's own choice.");
    case ActionId::flip_settings:
      state_.show_b = !state_.show_b;
      return;
    case ActionId::larger_text:
      text_points_ = std::min(text_points_ + 1, kMostText);
      return;
    case ActionId::smaller_text:
      text_points_ = std::max(text_points_ - 1, kLeastText);
      return;
    case ActionId::keep_tokens:
      return state_.paint(PaintMark::keep);
    case ActionId::pin_tokens:
      return state_.paint(PaintMark::pin);
    case ActionId::evict_tokens:
      return state_.paint(PaintMark::evict);
    case ActionId::leave_tokens:
      return state_.paint(std::nullopt);
    case ActionId::save_kept_set:
      return save_kept_set();
    case ActionId::reset_layout:
      layout_ = Layout::standard();
      return;
    case ActionId::show_panel:
      return show(*action.panel);
    case ActionId::pin_run:
      if (!state_.run()) return state_.say("There is no run to pin: open a dump or a result folder.");
      if (state_.pinned.run() == state_.run()) {
        state_.pinned.pin(nullptr);
        return state_.say("No run is pinned any more.");
      }
      state_.pinned.pin(state_.run());
      state_.show_difference = true;
      return state_.say(
          fmt::format("Pinned {}: panels hold other runs of its prompt against it.", state_.run()->name()));
    case ActionId::copy_drawing_command:
      return copy_drawing_command();
    case ActionId::copy_measuring_command:
      return copy_measuring_command();
    case ActionId::copy_link:
      if (!state_.run()) return state_.say("There is nothing to link to: open a dump or a result folder.");
      return copy(text_of(link()), "Copied the link: kvreplay view '...' opens it.");
    case ActionId::arrange:
      return arrange(*action.preset);
    case ActionId::tour:
      if (!state_.run() && opening_.empty() && options_.sample.empty())
        return state_.say("The tour needs a dump: open one first.");
      if (!state_.run() && opening_.empty()) open(options_.sample);
      tour_seen_ = true;
      layout_ = Layout::standard();
      return tour_.begin();
  }
}

void App::perform(const FindEntry& entry) {
  follow(entry, state_);
  if (std::holds_alternative<TokenMetric>(entry.what)) show(PanelKind::scatter);
  if (std::holds_alternative<EvictionBase>(entry.what)) show(PanelKind::what_if);
}

void App::step_head(int step, bool worst) {
  if (!state_.run()) return;
  const auto& order = state_.worst_first;
  if (!worst || order.empty())
    return state_.select(next_head(state_.selection(), state_.run()->shape(), step), "head");
  const std::pair now(state_.selection().layer, state_.selection().kv_head);
  const auto at = std::find(order.begin(), order.end(), now);
  const auto count = std::ssize(order);
  const std::ptrdiff_t next = at == order.end() ? 0 : (at - order.begin() + step + count) % count;
  state_.select_head(order[next].first, order[next].second);
}

/// A name that is still free, in the result folder or the working folder.
std::filesystem::path App::export_path(std::string_view extension) const {
  const std::string run = state_.run() ? state_.run()->name() : "kvreplay";
  const Selection& s = state_.selection();
  const std::string stem = fmt::format("{}-{}-layer{}-head{}", run, name_of(focused_), s.layer, s.kv_head);
  std::filesystem::path folder;
  if (state_.run() && state_.run()->results() != nullptr && access(state_.run()->path().c_str(), W_OK) == 0)
    folder = state_.run()->path();
  std::filesystem::path path = folder / (stem + std::string(extension));
  for (int i = 2; std::filesystem::exists(path); ++i)
    path = folder / fmt::format("{}-{}{}", stem, i, extension);
  return path;
}

void App::export_csv() {
  PanelContext context{state_, desk_};
  const std::string text = panel(focused_).csv(context);
  if (text.empty()) return state_.say("This panel has no table to save yet.");
  const std::filesystem::path path = export_path(".csv");
  try {
    write_file(path, text);
    state_.say("Saved " + std::filesystem::absolute(path).string());
  } catch (const InputError& error) {
    state_.say(error.what(), true);
  }
}

}  // namespace kvreplay::viewer
