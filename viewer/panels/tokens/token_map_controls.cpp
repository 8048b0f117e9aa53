#include "viewer/panels/tokens/token_map_controls.hpp"

#include "viewer/model/session_keys.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <array>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr std::array<std::string_view, 3> kAgainst = {"as it is", "difference to", "relative to"};

std::vector<std::string_view> entry_names() {
  std::vector<std::string_view> names;
  for (const Entry entry : all_entries()) names.push_back(name_of(entry));
  return names;
}

struct EntryWords {
  const char *unit, *meaning;
};

EntryWords words_of(Entry entry) {
  constexpr const char* kOutput = "squared output";
  switch (entry) {
    case Entry::logit:
      return {"logit", "z: the logit, scaled and capped as the layer does"};
    case Entry::attn:
      return {"weight", "a: the attention weight"};
    case Entry::attn_sq:
      return {"squared weight", "a\xC2\xB2"};
    case Entry::value:
      return {kOutput, "a\xC2\xB2 \xE2\x80\x96v\xE2\x80\x96\xC2\xB2 (OBCache eq. 4)"};
    case Entry::key:
      return {kOutput, "(a z)\xC2\xB2 \xE2\x80\x96v \xE2\x88\x92 o\xE2\x80\x96\xC2\xB2 (OBCache eq. 5)"};
    case Entry::joint:
      return {kOutput, "a\xC2\xB2 \xE2\x80\x96v + z (v \xE2\x88\x92 o)\xE2\x80\x96\xC2\xB2 (OBCache eq. 6)"};
    case Entry::exact_value:
      return {kOutput, "exact squared change of the output when v := 0"};
    case Entry::exact_key:
      return {kOutput, "exact squared change of the output when k := 0"};
    case Entry::exact_joint:
      return {kOutput, "exact squared change of the output when k := 0 and v := 0"};
    case Entry::exact_remove:
      return {kOutput, "exact squared change of the output when the token leaves the cache"};
  }
  return {};
}

}  // namespace

EntryView TokenMapControls::view(const Selection& selection) const {
  return {selection.layer, selection.kv_head, selection.query_head, shown_, against_, other_};
}

std::string TokenMapControls::quantity() const {
  const std::string shown(name_of(shown_)), other(name_of(other_));
  switch (against_) {
    case EntryView::Against::nothing:
      return shown;
    case EntryView::Against::difference:
      return shown + " \xE2\x88\x92 " + other;
    case EntryView::Against::relative:
      return "(" + shown + " \xE2\x88\x92 " + other + ") / " + other;
  }
  return {};
}

std::string TokenMapControls::unit() const {
  return against_ == EntryView::Against::relative ? "" : words_of(shown_).unit;
}

void TokenMapControls::draw(AppState& state) {
  constexpr float kEntryWidth = 132, kAgainstWidth = 110;
  static const std::vector<std::string_view> names = entry_names();
  auto shown = static_cast<std::size_t>(shown_), against = static_cast<std::size_t>(against_),
       other = static_cast<std::size_t>(other_);
  if (choose("##shown", names, shown, kEntryWidth)) shown_ = all_entries()[shown];
  tip(words_of(shown_).meaning);
  flow(theme().px(kAgainstWidth));
  if (choose("##against", kAgainst, against, kAgainstWidth))
    against_ = static_cast<EntryView::Against>(against);
  if (compares()) {
    flow(theme().px(kEntryWidth));
    if (choose("##other", names, other, kEntryWidth)) other_ = all_entries()[other];
    tip(words_of(other_).meaning);
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
  std::vector<std::string> ignored;
  Keys keys(json, "tokens", ignored);
  keys.read_name("shown", shown_, entry_named);
  keys.read_name("other", other_, entry_named);
  int against = static_cast<int>(against_);
  keys.read("against", against, 0, static_cast<int>(kAgainst.size()) - 1);
  against_ = static_cast<EntryView::Against>(against);
  keys.read("strips", strips_);
}

}  // namespace kvreplay::viewer
