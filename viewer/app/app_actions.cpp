// Effect of every action of the table.

#include "analysis/options/option.hpp"
#include "data/atomic_file.hpp"
#include "data/error.hpp"
#include "data/facts_table.hpp"
#include "viewer/app/app.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
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

/// Handlers of all actions, in the order of ActionId.
struct App::Handlers {
  struct Handler {
    ActionId id;
    void (*act)(App& app, const Action& action);
  };
  static const Handler& of(ActionId id);
  template <std::size_t count>
  static constexpr bool complete(const Handler (&handlers)[count]) {
    for (std::size_t i = 0; i < count; ++i)
      if (static_cast<std::size_t>(handlers[i].id) != i) return false;
    return !is_enumerator<static_cast<ActionId>(count)>();
  }
  static void on_map(App& app, const std::function<void(HeatmapView&)>& act) {
    if (HeatmapView* heatmap = app.panel(app.focused_).heatmap()) act(*heatmap);
  }
};

const App::Handlers::Handler& App::Handlers::of(ActionId id) {
  using A = const Action&;
  static constexpr Handler handlers[] = {
      {ActionId::open_palette, [](App& app, A) { app.palette_open_ = true; }},
      {ActionId::help, [](App& app, A) { app.help_open_ = true; }},
      {ActionId::show_jobs, [](App& app, A) { app.jobs_open_ = true; }},
      {ActionId::open_path, [](App& app, A) { app.path_open_ = true; }},
      {ActionId::locate_dump,
       [](App& app, A) {
         app.locate_open_ = app.state_.run() && app.state_.run()->results() != nullptr;
         if (!app.locate_open_) app.state_.say("Only results have a dump to locate.");
       }},
      {ActionId::reload,
       [](App& app, A) {
         app.queue_.forget_errors();
         app.reload(false);
       }},
      {ActionId::close_run, [](App& app, A) { app.close_run(); }},
      {ActionId::next_run, [](App& app, A) { app.next_run(); }},
      {ActionId::quit, [](App& app, A) { app.quit_ = true; }},
      {ActionId::save_session, [](App& app, A) { app.session_wanted_ = true; }},
      {ActionId::export_png, [](App& app, A) { app.export_figure(app.focused_, app.export_path(".png")); }},
      {ActionId::export_svg, [](App& app, A) { app.export_figure(app.focused_, app.export_path(".svg")); }},
      {ActionId::export_csv, [](App& app, A) { app.export_csv(); }},
      {ActionId::copy_csv, [](App& app, A) { app.copy_csv(); }},
      {ActionId::find_text,
       [](App& app, A) {
         app.show(PanelKind::text);
         app.panel(PanelKind::text).find();
       }},
      {ActionId::undo,
       [](App& app, A) {
         app.state_.history().undo();
         app.restore_views();
       }},
      {ActionId::redo,
       [](App& app, A) {
         app.state_.history().redo();
         app.restore_views();
       }},
      {ActionId::clear_selection, [](App& app, A) { app.clear_selection(); }},
      {ActionId::pin_selection, [](App& app, A) { app.pin_selection(); }},
      {ActionId::next_head, [](App& app, A) { app.step_head(1, false); }},
      {ActionId::previous_head, [](App& app, A) { app.step_head(-1, false); }},
      {ActionId::next_worst_head, [](App& app, A) { app.step_head(1, true); }},
      {ActionId::previous_worst_head, [](App& app, A) { app.step_head(-1, true); }},
      {ActionId::next_layer, [](App& app, A) { app.step_layer(1); }},
      {ActionId::previous_layer, [](App& app, A) { app.step_layer(-1); }},
      {ActionId::fit_view,
       [](App& app, A) {
         on_map(app, [](HeatmapView& map) { map.fit(); });
         if (app.state_.links.joined) app.state_.links.columns.clear();
       }},
      {ActionId::one_to_one, [](App& app, A) { on_map(app, [](HeatmapView& map) { map.one_to_one(); }); }},
      {ActionId::zoom_in, [](App& app, A) { on_map(app, [](HeatmapView& map) { map.zoom(1.25); }); }},
      {ActionId::zoom_out, [](App& app, A) { on_map(app, [](HeatmapView& map) { map.zoom(0.8); }); }},
      {ActionId::maximise,
       [](App& app, A) {
         app.layout_.maximise(app.layout_.maximised() ? std::optional<PanelKind>() : app.focused_);
       }},
      {ActionId::next_panel,
       [](App& app, A) {
         app.show(kPanels.all()[(static_cast<std::size_t>(app.focused_) + 1) % kPanels.size()]);
       }},
      {ActionId::toggle_theme, [](App& app, A) { app.dark_ = !app.dark_; }},
      {ActionId::toggle_joint_zoom, [](App& app, A) { app.toggle_joint_zoom(); }},
      {ActionId::lock_ranges, [](App& app, A) { app.lock_ranges(); }},
      {ActionId::flip_settings, [](App& app, A) { app.state_.show_b = !app.state_.show_b; }},
      {ActionId::larger_text,
       [](App& app, A) { app.text_points_ = std::min(app.text_points_ + 1, kMostText); }},
      {ActionId::smaller_text,
       [](App& app, A) { app.text_points_ = std::max(app.text_points_ - 1, kLeastText); }},
      {ActionId::reset_layout, [](App& app, A) { app.layout_ = Layout::standard(); }},
      {ActionId::keep_tokens, [](App& app, A) { app.state_.paint(PaintMark::keep); }},
      {ActionId::pin_tokens, [](App& app, A) { app.state_.paint(PaintMark::pin); }},
      {ActionId::evict_tokens, [](App& app, A) { app.state_.paint(PaintMark::evict); }},
      {ActionId::leave_tokens, [](App& app, A) { app.state_.paint(std::nullopt); }},
      {ActionId::save_kept_set, [](App& app, A) { app.save_kept_set(); }},
      {ActionId::show_panel, [](App& app, A action) { app.show(*action.panel); }},
      {ActionId::copy_drawing_command, [](App& app, A) { app.copy_drawing_command(); }},
      {ActionId::copy_measuring_command, [](App& app, A) { app.copy_measuring_command(); }},
      {ActionId::copy_link, [](App& app, A) { app.copy_link(); }},
      {ActionId::arrange, [](App& app, A action) { app.arrange(*action.preset); }},
      {ActionId::tour, [](App& app, A) { app.begin_tour(); }},
      {ActionId::pin_run, [](App& app, A) { app.pin_run(); }},
  };
  static_assert(complete(handlers));
  return handlers[static_cast<std::size_t>(id)];
}

void App::perform(const Action& action) {
  view_step_ = true;
  Handlers::of(action.id).act(*this, action);
}

void App::close_run() {
  const std::size_t which = state_.selection().run;
  if (which >= state_.runs.size()) return;
  queue_.forget(state_.runs[which]->key());
  if (state_.pinned.run() == state_.runs[which]) state_.pinned.pin(nullptr);
  state_.runs.erase(state_.runs.begin() + static_cast<std::ptrdiff_t>(which));
  Selection next = state_.selection();
  next.run = which > 0 ? which - 1 : 0;
  state_.select(next);
  watcher_->watch(state_.runs);
}

void App::next_run() {
  if (state_.runs.empty()) return;
  state_.select(state_.in_run((state_.selection().run + 1) % state_.runs.size()));
}

void App::pin_run() {
  if (!state_.run()) return state_.say("There is no run to pin: open a dump or a result folder.");
  if (state_.pinned.run() == state_.run()) {
    state_.pinned.pin(nullptr);
    return state_.say("No run is pinned any more.");
  }
  state_.pinned.pin(state_.run());
  state_.show_difference = true;
  state_.say(
      fmt::format("Pinned {}: panels hold other runs of its prompt against it.", state_.run()->name()));
}

void App::copy_csv() {
  PanelContext context{state_, queue_};
  const std::string text = panel(focused_).csv(context);
  if (text.empty()) return state_.say("This panel has no table to copy yet.");
  copy(text, fmt::format("Copied {}.", counted(std::count(text.begin(), text.end(), '\n'), "line")));
}

void App::clear_selection() {
  Selection next = state_.selection();
  next.row.reset();
  next.token.reset();
  next.channels.reset();
  next.tokens.clear();
  state_.select(next);
}

void App::pin_selection() {
  const Selection& s = state_.selection();
  if (!s.row || !s.token) return state_.say("Select a cell of the token map first.");
  const Cell pin{s.layer, s.kv_head, s.query_head, *s.row, *s.token};
  if (std::find(state_.pins.begin(), state_.pins.end(), pin) == state_.pins.end()) state_.pins.push_back(pin);
  layout_.show(PanelKind::inspector);
}

void App::toggle_joint_zoom() {
  state_.links.joined = !state_.links.joined;
  state_.links.columns.clear();
  state_.say(state_.links.joined ? "Token axes are zoomed together." : "Every panel has its own zoom.");
}

void App::lock_ranges() {
  state_.links.locked = !state_.links.locked;
  state_.links.ranges.clear();
  state_.say(state_.links.locked ? "Ranges are locked: the same colours mean the same values."
                                 : "Ranges follow each panel's own choice.");
}

void App::begin_tour() {
  if (!state_.run() && opening_.empty() && options_.sample.empty())
    return state_.say("The tour needs a dump: open one first.");
  if (!state_.run() && opening_.empty()) open(options_.sample);
  tour_seen_ = true;
  layout_ = Layout::standard();
  tour_.begin();
}

void App::perform(const FindEntry& entry) {
  follow(entry, state_);
  if (std::holds_alternative<TokenMetric>(entry.what)) show(PanelKind::scatter);
  if (std::holds_alternative<EvictionBase>(entry.what)) show(PanelKind::what_if);
}

void App::step_layer(int step) {
  if (state_.run()) state_.select(next_layer(state_.selection(), state_.run()->shape(), step), "head");
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

std::string App::export_stem(std::string_view what) const {
  const std::string run = state_.run() ? state_.run()->name() : "kvreplay";
  const Selection& s = state_.selection();
  return fmt::format("{}-{}-layer{}-head{}", run, what,
                     state_.run() ? state_.run()->layer_number(s.layer) : ModelLayer{s.layer}, s.kv_head);
}

std::filesystem::path App::export_path(std::string_view what, std::string_view extension) const {
  const std::string stem = export_stem(what);
  std::filesystem::path folder;
  if (state_.run() && state_.run()->results() != nullptr && access(state_.run()->path().c_str(), W_OK) == 0)
    folder = state_.run()->path();
  std::filesystem::path path = folder / (stem + std::string(extension));
  for (int i = 2; std::filesystem::exists(path); ++i)
    path = folder / fmt::format("{}-{}{}", stem, i, extension);
  return path;
}

void App::export_csv() {
  PanelContext context{state_, queue_};
  const std::string text = panel(focused_).csv(context);
  if (text.empty()) return state_.say("This panel has no table to save yet.");
  const std::filesystem::path path = export_path(".csv");
  try {
    write_file(path, text);
    state_.say("Saved " + std::filesystem::absolute(path).string());
    if (options_.wrote) options_.wrote(path);
  } catch (const InputError& error) {
    state_.say(error.what(), true);
  }
}

}  // namespace kvreplay::viewer
