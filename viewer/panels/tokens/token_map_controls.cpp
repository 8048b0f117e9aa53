#include "viewer/panels/tokens/token_map_controls.hpp"

#include "viewer/model/session_keys.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {
namespace {

using Against = EntryView::Against;

/// As they are offered. Ranks of any two quantities can be compared, so that they come first.
constexpr std::array kAgainst = {Against::nothing, Against::rank, Against::difference, Against::relative};
constexpr std::array<std::string_view, kAgainst.size()> kAgainstNames = {"as it is", "rank against",
                                                                         "difference to", "relative to"};

const std::vector<Choice>& entry_choices() {
  static const std::vector<Choice> all = [] {
    std::vector<Choice> choices = choices_of(kEntries);
    for (const EntryFacts& entry : kEntries) {
      const MetricKind kind = entry.metric ? kTokenMetrics[*entry.metric].kind : MetricKind::score;
      choices[static_cast<std::size_t>(entry.id)].group = kind == MetricKind::score ? "Estimates" : "Truth";
    }
    return choices;
  }();
  return all;
}

bool choose_entry(const char* id, EntryTerm& entry, float width) {
  auto at = static_cast<std::size_t>(entry);
  if (!choose(id, entry_choices(), at, width)) return false;
  entry = kEntries.all()[at];
  return true;
}

}  // namespace

EntryView TokenMapControls::view(const Selection& selection) const {
  return {selection.layer, selection.kv_head, selection.query_head, shown_, against_, other_};
}

std::string TokenMapControls::quantity() const {
  const std::string shown(name_of(shown_)), other(name_of(other_));
  switch (against_) {
    case EntryView::Against::difference:
      return shown + " \xE2\x88\x92 " + other;
    case EntryView::Against::rank:
      return "rank of " + shown + " \xE2\x88\x92 rank of " + other;
    case EntryView::Against::relative:
      return "(" + shown + " \xE2\x88\x92 " + other + ") / " + other;
    case EntryView::Against::nothing:
      break;
  }
  return shown;
}

std::string TokenMapControls::unit() const {
  if (against_ == EntryView::Against::relative) return "";
  if (against_ == EntryView::Against::rank) return "share of the row's tokens";
  return std::string(kEntries[shown_].unit);
}

void TokenMapControls::draw(AppState& state) {
  constexpr float kEntryWidth = 132, kAgainstWidth = 118;
  auto against =
      static_cast<std::size_t>(std::find(kAgainst.begin(), kAgainst.end(), against_) - kAgainst.begin());
  choose_entry("##shown", shown_, kEntryWidth);
  tip(about(entry_choices()[static_cast<std::size_t>(shown_)]));
  flow(theme().px(kAgainstWidth));
  if (choose("##against", kAgainstNames, against, kAgainstWidth)) against_ = kAgainst[against];
  if (compares()) {
    flow(theme().px(kEntryWidth));
    choose_entry("##other", other_, kEntryWidth);
    tip(about(entry_choices()[static_cast<std::size_t>(other_)]));
  }
  flow(check_width("Fade evicted"));
  fade_evicted(state.show_kept);
  flow(check_width("Strips"));
  ImGui::Checkbox("Strips", &strips_);
  tip("Above the map what the rows of the window add up to, beside it one number a row");
}

nlohmann::json TokenMapControls::save() const {
  return {{"shown", name_of(shown_)},
          {"against", static_cast<int>(against_)},
          {"other", name_of(other_)},
          {"strips", strips_}};
}

void TokenMapControls::load(const nlohmann::json& json) {
  Keys keys(json);
  const auto named = [](const std::string& name) { return kEntries.named(name); };
  keys.read_name("shown", shown_, named);
  keys.read_name("other", other_, named);
  int against = static_cast<int>(against_);
  keys.read("against", against, 0, static_cast<int>(kAgainst.size()) - 1);
  against_ = static_cast<EntryView::Against>(against);
  keys.read("strips", strips_);
}

}  // namespace kvreplay::viewer
