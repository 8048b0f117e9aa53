#include "analysis/options/option.hpp"
#include "viewer/app/app.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/policy_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

// The panels in their places with the tabs above them, the menu bar and the status line.

namespace kvreplay::viewer {
namespace {

constexpr float kRunWidth = 170, kLeastRunWidth = 64, kQueryHeadWidth = 86, kWindowWidth = 52,
                kKeptWidth = 86, kPinnedWidth = 130;  // points

/// A number that is stepped with buttons on both sides of it, in the menu bar.
struct Stepper {
  const char *id, *name, *short_name;
  LayerNumbers numbers;  ///< what is shown in place of 0, 1, ..
  Index count() const { return numbers.count(); }

  static constexpr const char* kBack = "\xE2\x80\xB9";
  static constexpr const char* kOn = "\xE2\x80\xBA";

  int digits() const { return numbers.largest() > 99 ? 3 : 2; }
  /// With what separates it from the next item.
  float width(bool brief) const {
    const ImGuiStyle& style = ImGui::GetStyle();
    ImGui::PushFont(mono_font());
    const float number = ImGui::CalcTextSize("0").x * static_cast<float>(digits());
    ImGui::PopFont();
    return ImGui::CalcTextSize(brief ? short_name : name).x + number + theme().px(10) +
           2 * (ImGui::CalcTextSize(kBack).x + 2 * style.FramePadding.x) + style.ItemSpacing.x;
  }
  /// True where `value` changed. Wraps round.
  bool draw(Index& value, bool brief) const {
    const Index before = value;
    ImGui::PushID(id);
    dim_text(brief ? short_name : name);
    if (brief) tip(name);
    ImGui::SameLine(0, theme().px(4));
    if (small_button(kBack)) value = (value + count() - 1) % count();
    ImGui::SameLine(0, theme().px(3));
    ImGui::PushFont(mono_font());
    ImGui::Text("%*d", digits(), static_cast<int>(numbers.number(value).number));
    ImGui::PopFont();
    if (ImGui::IsItemHovered() && ImGui::GetIO().MouseWheel != 0)
      value = (value + (ImGui::GetIO().MouseWheel < 0 ? 1 : count() - 1)) % count();
    ImGui::SameLine(0, theme().px(3));
    if (small_button(kOn)) value = (value + 1) % count();
    ImGui::PopID();
    return value != before;
  }
};

void choose_run(const AppState& state, std::size_t& chosen, float width) {
  ImGui::SetNextItemWidth(width);
  if (begin_combo("##run", state.run()->name())) {
    for (std::size_t i = 0; i < state.runs.size(); ++i) {
      ImGui::PushID(static_cast<int>(i));
      if (ImGui::Selectable(state.runs[i]->name().c_str(), i == chosen)) chosen = i;
      tip(state.runs[i]->path().string().c_str());
      ImGui::PopID();
    }
    ImGui::EndCombo();
  }
  tip(fmt::format("{}\n{}", state.run()->model(), state.run()->path().string()).c_str());
}

/// In pixels: what every panel can be used in.
Extent least_panel() { return {std::ceil(theme().px(252)), std::ceil(theme().px(186))}; }

}  // namespace

bool App::has_data(PanelKind kind) const {
  if (kind != PanelKind::validation && kind != PanelKind::recipes) return true;
  const ResultReader* results = state_.run() ? state_.run()->results() : nullptr;
  if (results == nullptr) return false;
  std::error_code ignored;
  return kind == PanelKind::recipes ? results->has(Table::evictions)
                                    : std::filesystem::exists(results->folder() / "validate.csv", ignored);
}

void App::draw_menu_bar() {
  if (!ImGui::BeginMenuBar()) return;
  for (const std::string_view menu : kMenus) {
    if (!ImGui::BeginMenu(std::string(menu).c_str())) continue;
    for (const Action& one : actions()) {
      if (one.menu != menu || (one.panel && !has_data(*one.panel))) continue;
      if (one.begins_group) ImGui::Separator();
      if (ImGui::MenuItem(std::string(one.title).c_str(), one.shortcut.text().c_str(), is_on(one)))
        perform(one);
    }
    ImGui::EndMenu();
  }
  ImGui::Dummy({theme().px(10), 0});
  if (state_.run()) draw_head_controls();
  ImGui::EndMenuBar();
}

bool App::is_on(const Action& action) const {
  const auto is = [&](ActionId id, bool on) { return action.id == id && on; };
  return is(ActionId::toggle_joint_zoom, state_.links.joined) ||
         is(ActionId::lock_ranges, state_.links.locked) || is(ActionId::flip_settings, state_.shows_b()) ||
         is(ActionId::maximise, layout_.maximised().has_value()) ||
         is(ActionId::pin_run, state_.run() && state_.pinned.run() == state_.run()) ||
         is(ActionId::show_panel, action.panel && layout_.in_front(*action.panel));
}

/// In a narrow window names are cut short, then what is used least goes; all of it has keys or actions.
void App::draw_head_controls() {
  Selection next = state_.selection();
  const Theme& t = theme();
  const DumpShape& shape = state_.run()->shape();
  const Stepper layer{"layer", "layer", "L", state_.run()->layers()},
      head{"head", "KV head", "H", LayerNumbers::own(shape.n_kv)};
  const float spacing = ImGui::GetStyle().ItemSpacing.x;
  float room = ImGui::GetContentRegionAvail().x;
  const auto take = [&room](float width) {
    if (width > room) return false;
    room -= width;
    return true;
  };
  const float names = layer.width(false) + head.width(false);
  const bool brief = room < names + t.px(kLeastRunWidth) + spacing;
  const bool steppers = take(brief ? layer.width(true) + head.width(true) : names);
  const bool runs = take(t.px(kLeastRunWidth) + spacing);
  const bool query_heads =
      shape.group() > 1 && take(ImGui::CalcTextSize("query head").x + t.px(kQueryHeadWidth) + 2 * spacing);
  const std::string pinned =
      state_.pinned.run() ? elided("less " + state_.pinned.run()->name(), t.px(kPinnedWidth)) : std::string();
  const bool pins = !pinned.empty() && take(ImGui::CalcTextSize(pinned.c_str()).x + spacing);
  const bool budgets = take(ImGui::CalcTextSize("kept").x + t.px(kKeptWidth) + 2 * spacing);
  const bool windows = take(ImGui::CalcTextSize("window w").x + t.px(kWindowWidth) + 2 * spacing);
  if (runs) choose_run(state_, next.run, std::min(t.px(kRunWidth), t.px(kLeastRunWidth) + room));
  if (pins) {
    colored_text(pinned, t.accent);
    tip(fmt::format(
        "Pinned: {}\nPanels hold other runs of its prompt against it. \"{}\" in the File menu, with it "
        "selected, ends that.",
        state_.pinned.run()->path().string(), action(ActionId::pin_run).title));
  }
  if (steppers) {
    layer.draw(next.layer, brief);
    head.draw(next.kv_head, brief);
  }
  if (query_heads) {
    dim_text("query head");
    ImGui::SetNextItemWidth(t.px(kQueryHeadWidth));
    const std::string now = next.query_head ? std::to_string(*next.query_head) : "all (sum)";
    if (begin_combo("##query head", now)) {
      if (ImGui::Selectable("all (sum)", !next.query_head)) next.query_head.reset();
      for (Index g = 0; g < shape.group(); ++g)
        if (ImGui::Selectable(std::to_string(g).c_str(), next.query_head == g)) next.query_head = g;
      ImGui::EndCombo();
    }
  }
  if (next.run != state_.selection().run) next = state_.in_run(next.run);
  if (!(next == state_.selection())) state_.select(next, "head");
  if (budgets) {
    dim_text("kept");
    ImGui::SetNextItemWidth(t.px(kKeptWidth));
    ImGui::PushFont(mono_font());
    edit_kept(state_.budget, shape.l);
    ImGui::PopFont();
    if (ImGui::IsItemClicked(ImGuiMouseButton_Right))
      count_otherwise(state_.budget, shape.l, state_.setting_a.semantics);
    tip("Tokens of the prompt that a KV head keeps, in all panels but those that have a budget of their own "
        "(the "
        "chain beside it is open). Right click: tokens or share.");
  }
  if (!windows) return;
  dim_text("window w");
  ImGui::SetNextItemWidth(t.px(kWindowWidth));
  auto typed = static_cast<int>(state_.comparison.window);
  if (ImGui::InputInt("##window", &typed, 0, 0, ImGuiInputTextFlags_EnterReturnsTrue))
    state_.comparison.window = std::clamp<Index>(typed, 1, std::max<Index>(shape.l, 1));
  tip("Number of the prompt's last queries that count, in all panels, and to policies that take the usual "
      "window "
      "(not to those that look at all queries, or at the last). Enter applies.");
}

std::string App::hardware() {
  const ComingBackend& backend = options_.backend;
  if (!backend.valid() || backend.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return "";
  const std::vector<ComputeDevice> devices = backend.get()->devices();
  if (devices.empty()) return "";
  const std::string failure = backend.get()->failure();
  if (failure.empty()) return devices.front().name + " \xC2\xB7 ";
  if (!std::exchange(failure_said_, true))
    state_.say("The GPU failed, and the CPU goes on: " + failure, true);
  return "CPU, the GPU failed \xC2\xB7 ";
}

void App::draw_status_bar(float height) {
  const Theme& t = theme();
  const ImGuiViewport* view = ImGui::GetMainViewport();
  const float y = view->Pos.y + view->Size.y - height + (height - ImGui::GetTextLineHeight()) / 2;
  if (std::exchange(seen_answers_, queue_.answers()) != seen_answers_) state_.status_line().went_well();
  if (std::string failure = queue_.take_failure(); !failure.empty()) state_.say(std::move(failure), true);
  const auto open_jobs = static_cast<Index>(queue_.open_jobs());
  const std::string right =
      fmt::format("{}{} \xC2\xB7 {}", hardware(), open_jobs > 0 ? counted(open_jobs, "job") : "ready",
                  bytes_text(static_cast<double>(queue_.cached_bytes())));
  const float right_at = view->Size.x - t.px(12) - ImGui::CalcTextSize(right.c_str()).x;
  ImGui::SetCursorScreenPos({view->Pos.x + right_at, y});
  if (ImGui::InvisibleButton("jobs", ImGui::CalcTextSize(right.c_str()))) jobs_open_ = true;
  ImGui::GetWindowDrawList()->AddText({view->Pos.x + right_at, y}, ImGui::IsItemHovered() ? t.text : t.dim,
                                      right.c_str());
  tip("Computations, with a stop button, and the memory for their answers (Ctrl+0)");

  std::string left = state_.message();
  const bool is_error = !left.empty() && state_.message_is_error();
  if (left.empty() && state_.run()) {
    const DumpShape& s = state_.run()->shape();
    left = fmt::format("{}   {} \xC2\xB7 {} \xC2\xB7 {} each \xC2\xB7 d = {} \xC2\xB7 prompt {} + {} decoded",
                       state_.run()->model(), counted(s.layers, "layer"), counted(s.n_kv, "KV head"),
                       counted(s.group(), "query head"), s.d, s.l, s.T - s.l);
  }
  if (left.empty()) return;
  const std::string shown = elided(left, right_at - t.px(10) - t.px(16));
  ImGui::SetCursorScreenPos({view->Pos.x + t.px(10), y});
  colored_text(shown, is_error ? t.error : t.dim);
  if (shown != left) tip(left.c_str());
}

void App::draw_panels(const Area& area) {
  const float gap = theme().px(6);
  const Extent least = least_panel();
  for (const Layout::Splitter& splitter : layout_.splitters(area, gap, least)) {
    ImGui::SetCursorScreenPos({splitter.area.x, splitter.area.y});
    ImGui::PushID(splitter.split);
    ImGui::InvisibleButton("splitter",
                           {std::max(splitter.area.width, 1.0F), std::max(splitter.area.height, 1.0F)});
    if (ImGui::IsItemHovered() || ImGui::IsItemActive())
      ImGui::SetMouseCursor(splitter.vertical ? ImGuiMouseCursor_ResizeEW : ImGuiMouseCursor_ResizeNS);
    const ImVec2 moved = ImGui::GetIO().MouseDelta;
    if (ImGui::IsItemActive() && (splitter.vertical ? moved.x : moved.y) != 0)
      layout_.drag(splitter.split, splitter.vertical ? moved.x : moved.y, area, gap, least);
    ImGui::PopID();
  }
  for (Layout::Slot& slot : layout_.slots(area, gap, least)) {
    const PanelKind front = slot.panels[slot.front];
    std::erase_if(slot.panels, [&](PanelKind kind) { return kind != front && !has_data(kind); });
    slot.front = static_cast<std::size_t>(std::ranges::find(slot.panels, front) - slot.panels.begin());
    draw_slot(slot);
  }
}

void App::draw_slot(const Layout::Slot& slot) {
  const Theme& t = theme();
  const PanelKind kind = slot.panels[slot.front];
  const Area& a = slot.area;
  ImGui::GetWindowDrawList()->AddRectFilled({a.x, a.y}, {a.x + a.width, a.y + a.height}, t.panel, t.px(5));
  ImGui::SetCursorScreenPos({a.x, a.y});
  ImGui::PushID(slot.leaf);
  ImGui::BeginChild("slot", {a.width, a.height}, false,
                    ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse);
  const float tabs = ImGui::GetTextLineHeight() + t.px(12);
  draw_tabs(slot, tabs);
  ImGui::SetCursorPos({t.px(9), tabs + t.px(4)});
  ImGui::BeginChild("panel", {a.width - t.px(18), a.height - tabs - t.px(12)}, false);
  if (ImGui::IsWindowHovered(ImGuiHoveredFlags_ChildWindows |
                             ImGuiHoveredFlags_AllowWhenBlockedByActiveItem) &&
      (ImGui::IsMouseClicked(ImGuiMouseButton_Left) || ImGui::GetIO().MouseWheel != 0))
    focused_ = kind;
  draw_panel(kind);
  ImGui::EndChild();
  ImGui::EndChild();
  ImGui::PopID();
  areas_[static_cast<std::size_t>(kind)] = a;
}

/// While new results are being computed, the panel shows the previous ones, greyed out.
void App::draw_panel(PanelKind kind) {
  Debounce& patience = debounce_[static_cast<std::size_t>(kind)];
  const auto now = state_.clock();
  PanelContext context{state_, queue_};
  context.veiled = patience.over(now);
  const std::uint64_t before = queue_.unanswered().in_view;
  ImGui::PushID(static_cast<int>(kind));
  panel(kind).draw(context);
  ImGui::PopID();
  patience.wait(queue_.unanswered().in_view != before, now);
  if (const auto ends = patience.ends(now)) state_.wake_at(*ends);
  if (context.veiled && !patience.over(now)) state_.links.unfinished = true;
}

/// The tabs that there is room for, the one in front in any case; the others in a menu after them.
void App::draw_tabs(const Layout::Slot& slot, float height) {
  const Theme& t = theme();
  const float right = slot.area.x + slot.area.width - t.px(36);  // of which the button at the end has some
  std::vector<float> widths;
  ImGui::PushFont(bold_font());
  for (const PanelKind kind : slot.panels)
    widths.push_back(ImGui::CalcTextSize(title_of(kind).data()).x + t.px(16));
  ImGui::PopFont();
  float x = slot.area.x + t.px(8);
  const float all = std::accumulate(widths.begin(), widths.end(), 0.0F), menu = t.px(26);
  const bool fit = x + all <= right;
  std::vector<PanelKind> hidden = slot.panels;
  for (const std::size_t i : columns_that_fit(widths, right - x - (fit ? 0 : menu), slot.front)) {
    std::erase(hidden, slot.panels[i]);
    draw_tab(slot, i, x, std::min(widths[i], right - x - (fit ? 0 : menu)), height);
    x += widths[i];
  }
  if (!hidden.empty()) draw_hidden_tabs(hidden, {x, slot.area.y}, {menu, height});
  draw_maximise(slot, x + (fit ? 0 : menu), height);
}

void App::draw_tab(const Layout::Slot& slot, std::size_t which, float x, float width, float height) {
  const Theme& t = theme();
  const PanelKind kind = slot.panels[which];
  ImGui::PushFont(bold_font());
  const std::string title = elided(std::string(title_of(kind)), width - t.px(6));
  const ImVec2 extent = ImGui::CalcTextSize(title.c_str());
  ImGui::PopFont();
  ImGui::SetCursorScreenPos({x, slot.area.y});
  ImGui::PushID(static_cast<int>(kind));
  if (ImGui::InvisibleButton("tab", {extent.x + t.px(10), height})) show(kind);
  const bool over = ImGui::IsItemHovered();
  if (ImGui::BeginPopupContextItem("move")) {
    ImGui::TextDisabled("Move this panel to where there is");
    for (const Layout::Slot& other : layout_.slots({0, 0, 1000, 1000}, 0, {1, 1}))
      if (std::find(slot.panels.begin(), slot.panels.end(), other.panels[other.front]) == slot.panels.end() &&
          ImGui::MenuItem(std::string(title_of(other.panels[other.front])).c_str()))
        layout_.move(kind, other.leaf);
    ImGui::EndPopup();
  }
  tip(facts_of(kind).question);
  ImGui::PopID();
  const bool front = which == slot.front;
  ImDrawList* list = ImGui::GetWindowDrawList();
  ImGui::PushFont(bold_font());
  list->AddText({x + t.px(5), slot.area.y + (height - extent.y) / 2}, tab_ink(t, front, over), title.c_str());
  ImGui::PopFont();
  if (front)
    list->AddRectFilled({x + t.px(5), slot.area.y + height - t.px(3)},
                        {x + t.px(5) + extent.x, slot.area.y + height - t.px(1)},
                        kind == focused_ ? t.accent : t.border);
}

void App::draw_hidden_tabs(const std::vector<PanelKind>& hidden, ImVec2 at, ImVec2 size) {
  const Theme& t = theme();
  ImGui::SetCursorScreenPos(at);
  if (ImGui::InvisibleButton("hidden tabs", size)) ImGui::OpenPopup("tabs");
  const ImU32 ink = tab_ink(t, false, ImGui::IsItemHovered());
  tip(counted(std::ssize(hidden), "more panel"));
  const ImVec2 middle = {at.x + size.x / 2, at.y + size.y / 2};
  ImGui::GetWindowDrawList()->AddTriangleFilled({middle.x - t.px(4), middle.y - t.px(2.5F)},
                                                {middle.x + t.px(4), middle.y - t.px(2.5F)},
                                                {middle.x, middle.y + t.px(3)}, ink);
  if (!ImGui::BeginPopup("tabs")) return;
  for (const PanelKind kind : hidden)
    if (ImGui::MenuItem(std::string(title_of(kind)).c_str())) show(kind);
  ImGui::EndPopup();
}

/// At the right end: a frame that fills the window, or the small one again.
void App::draw_maximise(const Layout::Slot& slot, float free_from, float height) {
  const Theme& t = theme();
  ImDrawList* list = ImGui::GetWindowDrawList();
  const float side = t.px(11);
  const ImVec2 at = {slot.area.x + slot.area.width - side - t.px(10), slot.area.y + (height - side) / 2};
  if (at.x < free_from) return;
  ImGui::SetCursorScreenPos({at.x - t.px(4), at.y - t.px(4)});
  if (ImGui::InvisibleButton("maximise", {side + t.px(8), side + t.px(8)})) {
    focused_ = slot.panels[slot.front];
    perform(ActionId::maximise);
  }
  const ImU32 color = ImGui::IsItemHovered() ? t.text : t.faint;
  tip(layout_.maximised() ? "Back to all panels" : "Fill the window with this panel");
  list->AddRect(at, {at.x + side, at.y + side}, color, 0, 0, t.px(1.3F));
  if (layout_.maximised())
    list->AddRectFilled({at.x + side * 0.25F, at.y + side * 0.25F},
                        {at.x + side * 0.75F, at.y + side * 0.75F}, color);
}

}  // namespace kvreplay::viewer
