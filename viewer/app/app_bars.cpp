// The menu bar above the panels and the status line below them.

#include "analysis/options/option.hpp"
#include "viewer/app/app.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/policy_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace kvreplay::viewer {
namespace {

constexpr float kRunWidth = 170, kLeastRunWidth = 64, kQueryHeadWidth = 86, kWindowWidth = 52,
                kKeptWidth = 86, kPinnedWidth = 130;  // points

/// A number that is stepped with buttons on both sides of it, in the menu bar.
struct Stepper {
  const char *id, *name, *short_name;
  Index count;

  static constexpr const char* kBack = "\xE2\x80\xB9";
  static constexpr const char* kOn = "\xE2\x80\xBA";

  int digits() const { return count > 100 ? 3 : 2; }
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
    if (small_button(kBack)) value = (value + count - 1) % count;
    ImGui::SameLine(0, theme().px(3));
    ImGui::PushFont(mono_font());
    ImGui::Text("%*d", digits(), static_cast<int>(value));
    ImGui::PopFont();
    if (ImGui::IsItemHovered() && ImGui::GetIO().MouseWheel != 0)
      value = (value + (ImGui::GetIO().MouseWheel < 0 ? 1 : count - 1)) % count;
    ImGui::SameLine(0, theme().px(3));
    if (small_button(kOn)) value = (value + 1) % count;
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

}  // namespace

void App::draw_menu_bar() {
  if (!ImGui::BeginMenuBar()) return;
  for (const std::string_view menu : kMenus) {
    if (!ImGui::BeginMenu(std::string(menu).c_str())) continue;
    for (const Action& one : actions())
      if (one.menu == menu && ImGui::MenuItem(std::string(one.title).c_str(), one.shortcut.text().c_str()))
        perform(one);
    ImGui::EndMenu();
  }
  ImGui::Dummy({theme().px(10), 0});
  if (state_.run()) draw_head_controls();
  ImGui::EndMenuBar();
}

/// In a narrow window names are cut short, then what is used least goes; all of it has keys or actions.
void App::draw_head_controls() {
  Selection next = state_.selection();
  const Theme& t = theme();
  const DumpShape& shape = state_.run()->shape();
  const Stepper layer{"layer", "layer", "L", shape.layers}, head{"head", "KV head", "H", shape.n_kv};
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
  if (!(next == state_.selection())) state_.select(next, "head");
  if (budgets) {
    dim_text("kept");
    ImGui::SetNextItemWidth(t.px(kKeptWidth));
    ImGui::PushFont(mono_font());
    edit_kept(state_.budget, shape.l);
    ImGui::PopFont();
    if (ImGui::IsItemClicked(ImGuiMouseButton_Right))
      count_otherwise(state_.budget, shape.l, state_.setting_a.semantics);
    tip("What a KV head keeps of the prompt, in all panels but those that have a budget of their own (the "
        "chain beside it is open). Right click: tokens or share.");
  }
  if (!windows) return;
  dim_text("window w");
  ImGui::SetNextItemWidth(t.px(kWindowWidth));
  auto typed = static_cast<int>(state_.comparison.window);
  if (ImGui::InputInt("##window", &typed, 0, 0, ImGuiInputTextFlags_EnterReturnsTrue))
    state_.comparison.window = std::clamp<Index>(typed, 1, std::max<Index>(shape.l, 1));
  tip("How many of the last prompt queries count, in all panels, and to policies that take the usual window "
      "by "
      "themselves (not to those that look at all rows, or the last). Enter applies.");
}

void App::draw_status_bar(float height) {
  const Theme& t = theme();
  const ImGuiViewport* view = ImGui::GetMainViewport();
  const float y = view->Pos.y + view->Size.y - height + (height - ImGui::GetTextLineHeight()) / 2;
  if (std::exchange(seen_answers_, desk_.answers()) != seen_answers_) state_.status_line().went_well();
  if (std::string failure = desk_.take_failure(); !failure.empty()) state_.say(std::move(failure), true);
  const std::size_t open_jobs = desk_.open_jobs();
  const std::string right =
      open_jobs > 0 ? fmt::format("{} job{} \xC2\xB7 {}", open_jobs, open_jobs == 1 ? "" : "s",
                                  bytes_text(static_cast<double>(desk_.cached_bytes())))
                    : fmt::format("ready \xC2\xB7 {}", bytes_text(static_cast<double>(desk_.cached_bytes())));
  const float right_at = view->Size.x - t.px(12) - ImGui::CalcTextSize(right.c_str()).x;
  ImGui::GetWindowDrawList()->AddText({view->Pos.x + right_at, y}, t.dim, right.c_str());

  std::string left = state_.message();
  const bool is_error = !left.empty() && state_.message_is_error();
  if (left.empty() && state_.run()) {
    const DumpShape& s = state_.run()->shape();
    left = fmt::format(
        "{}   {} layer{} \xC2\xB7 {} KV head{} \xC2\xB7 {} query head{} each \xC2\xB7 d = {} \xC2\xB7 "
        "prompt {} + {} decoded",
        state_.run()->model(), s.layers, s.layers == 1 ? "" : "s", s.n_kv, s.n_kv == 1 ? "" : "s", s.group(),
        s.group() == 1 ? "" : "s", s.d, s.l, s.T - s.l);
  }
  if (left.empty()) return;
  const std::string shown = elided(left, right_at - t.px(10) - t.px(16));
  ImGui::SetCursorScreenPos({view->Pos.x + t.px(10), y});
  colored_text(shown, is_error ? t.error : t.dim);
  if (shown != left) tip(left.c_str());
}

}  // namespace kvreplay::viewer
