#include "viewer/questions/find.hpp"

#include "analysis/options/option.hpp"
#include "viewer/model/choice.hpp"
#include "viewer/questions/named_choices.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <utility>

namespace kvreplay::viewer {
namespace {

std::optional<Index> whole(std::string_view text) {
  Index number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

/// Words in lower case.
std::vector<std::string> words_of(std::string_view typed) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : lower_case(typed) + " ")
    if (c != ' ' && c != '\t' && c != ',')
      word += c;
    else if (!word.empty())
      words.push_back(std::exchange(word, {}));
  return words;
}

/// "l3" and "layer 3" alike: the number behind one of these words.
std::optional<Index> numbered(std::vector<std::string>& words, std::size_t& at,
                              std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (!words[at].starts_with(name)) continue;
    const std::string rest = words[at].substr(name.size());
    if (const auto number = whole(rest)) {
      ++at;
      return number;
    }
    if (rest.empty() && at + 1 < words.size())
      if (const auto number = whole(words[at + 1])) {
        at += 2;
        return number;
      }
  }
  return std::nullopt;
}

std::optional<PlaceQuery> place_of(const std::vector<std::string>& words) {
  PlaceQuery query;
  if (words.size() == 1) {
    if (const auto token = whole(words[0])) return PlaceQuery{{}, {}, token};
    const std::size_t dot = words[0].find('.');
    const auto layer = whole(std::string_view(words[0]).substr(0, dot));
    const auto head = dot == std::string::npos ? std::nullopt : whole(words[0].substr(dot + 1));
    if (layer && head) return PlaceQuery{layer, head, {}};
  }
  // "l3h1" is two words.
  std::vector<std::string> split;
  for (const std::string& word : words) {
    const std::size_t h = word.find('h');
    const bool both = word.size() > 3 && word[0] == 'l' && h != std::string::npos && h > 1 &&
                      whole(std::string_view(word).substr(1, h - 1)) &&
                      whole(std::string_view(word).substr(h + 1));
    if (both) split.push_back(word.substr(0, h));
    if (word != "kv") split.push_back(both ? word.substr(h) : word);
  }
  for (std::size_t at = 0; at < split.size();) {
    const auto take = [&](std::optional<Index>& into, std::initializer_list<std::string_view> names) {
      const auto number = into ? std::nullopt : numbered(split, at, names);
      if (number) into = number;
      return number.has_value();
    };
    if (!take(query.layer, {"layer", "l"}) && !take(query.kv_head, {"head", "h"}) &&
        !take(query.token, {"token", "t", "#"}))
      return std::nullopt;
  }
  if (query == PlaceQuery{}) return std::nullopt;
  return query;
}

FindAnswer place(PlaceQuery query, const DumpShape& shape, const LayerNumbers& layers) {
  std::vector<std::string> parts;
  std::string error;
  const auto check = [&](const std::optional<Index>& number, Index count, const char* what) {
    if (!number) return;
    if (*number >= count && error.empty())
      error = fmt::format("{} {}: there are {}", what, *number, counted(count, what));
    parts.push_back(fmt::format("{} {}", what, *number));
  };
  if (query.layer) {
    parts.push_back(fmt::format("layer {}", *query.layer));
    const std::optional<Index> layer = layers.layer({*query.layer});
    if (!layer)
      error = layers.largest() < layers.count()
                  ? fmt::format("layer {}: there are {}", *query.layer, counted(shape.layers, "layer"))
                  : fmt::format("layer {}: there are {}", *query.layer, layers.text());
    query.layer = layer;
  }
  check(query.kv_head, shape.n_kv, "KV head");
  check(query.token, shape.T, "token");
  if (!error.empty()) return {{}, error};
  return {{{fmt::format("Go to {}", fmt::join(parts, ", ")), "selects it in all panels", query, false}}, {}};
}

void add_names(std::string_view typed, const MetricSet& metrics, std::vector<FindEntry>& entries) {
  // Fewer letters are in any name.
  if (typed.size() < 2) return;
  std::vector<Choice> named;
  std::vector<FindEntry> all;
  const auto add = [&](Choice choice, std::string title, auto what) {
    all.push_back({std::move(title), choice.plain, what, false});
    choice.tip.clear();
    named.push_back(std::move(choice));
  };
  for (const TokenMetric metric : kTokenMetrics.all()) {
    if (!metrics.contains(metric)) continue;
    const bool estimate = kTokenMetrics[metric].kind == MetricKind::score;
    add(choice_of(metric), fmt::format("Compare {} {}", estimate ? "by" : "with", name_of(metric)), metric);
  }
  for (const EvictionBase base : kBases.all())
    if (!kBases[base].alone) add(choice_of(base), fmt::format("Setting A: {}", name_of(base)), base);
  // Names that are typed whole, then those that begin so, then those in which it stands somewhere.
  const std::string low = lower_case(typed);
  const auto rank = [&](std::size_t i) {
    const std::string name = lower_case(named[i].name);
    return name == low ? 0 : name.starts_with(low) ? 1 : 2;
  };
  std::vector<std::size_t> found = matching_choices(named, typed);
  std::ranges::stable_sort(found, {}, rank);
  for (const std::size_t i : found) {
    all[i].whole = rank(i) == 0;
    entries.push_back(std::move(all[i]));
  }
}

}  // namespace

std::optional<PlaceQuery> place_query(std::string_view typed) { return place_of(words_of(typed)); }

FindAnswer find_answer(std::string_view typed, const DumpShape& shape, const LayerNumbers& layers,
                       const MetricSet& metrics) {
  FindAnswer answer;
  if (const auto to = place_query(typed)) answer = place(*to, shape, layers);
  add_names(typed, metrics, answer.entries);
  return answer;
}

void follow(const FindEntry& entry, AppState& state) {
  if (const auto* to = std::get_if<PlaceQuery>(&entry.what)) {
    Selection next = state.selection();
    if (to->layer) next.layer = *to->layer;
    if (to->kv_head) next.kv_head = *to->kv_head;
    if (to->token) next.token = to->token;
    state.select(std::move(next));
  } else if (const auto* metric = std::get_if<TokenMetric>(&entry.what)) {
    Comparison& c = state.comparison;
    (kTokenMetrics[*metric].kind == MetricKind::score ? c.score : c.reference) = *metric;
  } else {
    state.setting_a.base = name_of(std::get<EvictionBase>(entry.what));
    state.setting_a.score.clear();
    state.show_b = false;
  }
}

}  // namespace kvreplay::viewer
