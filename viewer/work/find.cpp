#include "viewer/work/find.hpp"

#include "analysis/options/option.hpp"
#include "analysis/options/option_text.hpp"
#include "viewer/work/named_choices.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

namespace kvreplay::viewer {
namespace {

constexpr TokenMetric kReference = TokenMetric::exact_remove;

std::string or_nearest(const std::string& typed, const std::vector<std::string>& names) {
  const std::vector<std::string> near = nearest_names(typed, names);
  return near.empty() ? fmt::format("one of {}", fmt::join(names, ", "))
                      : fmt::format("{}", fmt::join(near, " or "));
}

/// A metric that the run has, or why there is none.
struct Named {
  std::optional<TokenMetric> metric;
  std::string error;
};
Named metric_named(const std::string& typed, const MetricSet& metrics) {
  const auto known = kTokenMetrics.named(typed);
  if (known && metrics.contains(*known)) return {known, {}};
  std::vector<std::string> names;
  for (const TokenMetric metric : kTokenMetrics.all())
    if (metrics.contains(metric)) names.emplace_back(name_of(metric));
  if (known) return {{}, fmt::format("{}: this run does not have it", typed)};
  return {{}, fmt::format("expected a metric, found \"{}\": {}", typed, or_nearest(typed, names))};
}

std::optional<AgreementFigure> agreement_named(const std::string& typed) {
  return typed == "rho" ? AgreementFigure::spearman : kAgreementFigures.named(typed);
}

FindAnswer head_condition(const WhereQuery& query, Index l, const MetricSet& metrics) {
  const auto refused = [](std::string why) { return FindAnswer{{}, std::move(why)}; };
  const auto agreement = agreement_named(query.figure);
  HeadFigure figure;
  if (agreement && (query.of.empty() || query.of.size() > 2))
    return refused(fmt::format("expected {0}(SCORE) or {0}(SCORE, REFERENCE)", query.figure));
  if (!agreement && query.figure != "sum" && !query.of.empty()) {
    std::vector<std::string> names = kAgreementFigures.names();
    names.insert(names.end(), {"rho", "sum"});
    return refused(
        fmt::format("expected a figure, found \"{}\": {}", query.figure, or_nearest(query.figure, names)));
  }
  if (query.figure == "sum" && query.of.size() != 1) return refused("expected sum(METRIC)");
  const Named metric = metric_named(query.of.empty() ? query.figure : query.of.front(), metrics);
  if (!metric.metric) return refused(metric.error);
  figure.metric = *metric.metric;
  if (agreement) {
    const Named reference = query.of.size() > 1 ? metric_named(query.of[1], metrics) : Named{kReference, {}};
    if (!reference.metric) return refused(reference.error);
    figure.reference = reference.metric;
    figure.figure = *agreement;
    const std::vector<HeadFigure> there = head_figures(metrics, l);
    if (std::find(there.begin(), there.end(), figure) == there.end())
      return refused(fmt::format("{} of {} against {} is no figure here", query.figure, query.of.front(),
                                 name_of(*figure.reference)));
  }
  const std::string hint =
      agreement ? fmt::format("{} against {}", facts_of(*agreement).title, name_of(*figure.reference))
                : std::string("sum over all tokens");
  return {{{query.text(), hint, HeadCondition{figure, query}}}, {}};
}

FindAnswer condition(const WhereQuery& query, Index l, const MetricSet& metrics) {
  if (query.heads) return head_condition(query, l, metrics);
  if (!query.of.empty()) return {{}, "expected a metric without brackets: tokens where exact_remove > 0.1"};
  const Named metric = metric_named(query.figure, metrics);
  if (!metric.metric) return {{}, metric.error};
  return {{{query.text(), "of the selected head", TokenCondition{*metric.metric, query}}}, {}};
}

FindAnswer place(const PlaceQuery& query, const DumpShape& shape) {
  std::vector<std::string> parts;
  std::string error;
  const auto check = [&](const std::optional<Index>& number, Index count, const char* what) {
    if (!number) return;
    if (*number >= count && error.empty())
      error = fmt::format("{} {}: there are {}", what, *number, counted(count, what));
    parts.push_back(fmt::format("{} {}", what, *number));
  };
  check(query.layer, shape.layers, "layer");
  check(query.kv_head, shape.n_kv, "KV head");
  check(query.token, shape.T, "token");
  if (!error.empty()) return {{}, error};
  return {{{fmt::format("Go to {}", fmt::join(parts, ", ")), "selects it in all panels", query}}, {}};
}

void add_names(std::string_view typed, const MetricSet& metrics, std::vector<FindEntry>& entries) {
  // Fewer letters are in any name.
  if (typed.size() < 2) return;
  std::vector<Choice> named;
  std::vector<FindEntry> all;
  const auto add = [&](Choice choice, std::string title, auto what) {
    all.push_back({std::move(title), choice.plain, what});
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
  for (const std::size_t i : matching_choices(named, typed)) entries.push_back(std::move(all[i]));
}

}  // namespace

FindAnswer find_answer(std::string_view typed, const DumpShape& shape, const MetricSet& metrics) {
  const FindQuery query = find_query(typed);
  if (!query.error.empty()) return {{}, query.error};
  if (const auto* where = std::get_if<WhereQuery>(&query.is)) return condition(*where, shape.l, metrics);
  FindAnswer answer;
  if (const auto* to = std::get_if<PlaceQuery>(&query.is)) answer = place(*to, shape);
  add_names(typed, metrics, answer.entries);
  return answer;
}

bool follow(const FindEntry& entry, AppState& state) {
  if (const auto* to = std::get_if<PlaceQuery>(&entry.what)) {
    Selection next = state.selection();
    if (to->layer) next.layer = *to->layer;
    if (to->kv_head) next.kv_head = *to->kv_head;
    if (to->token) next.token = to->token;
    state.select(std::move(next));
    return true;
  }
  if (const auto* metric = std::get_if<TokenMetric>(&entry.what)) {
    Comparison& c = state.comparison;
    (kTokenMetrics[*metric].kind == MetricKind::score ? c.score : c.reference) = *metric;
    return true;
  }
  if (const auto* base = std::get_if<EvictionBase>(&entry.what)) {
    state.setting_a.base = name_of(*base);
    state.setting_a.score.clear();
    state.show_b = false;
    return true;
  }
  return false;
}

std::vector<std::pair<Index, Index>> heads_where(
    const HeadCondition& condition, const std::vector<std::shared_ptr<const HeadSummary>>& heads) {
  struct Head {
    double value;
    std::pair<Index, Index> at;
  };
  std::vector<Head> found;
  for (const auto& head : heads) {
    const double value = head->value(condition.figure);
    if (holds(condition.query.compare, value, condition.query.bound))
      found.push_back({value, {head->layer, head->kv_head}});
  }
  const bool low = condition.query.compare == Compare::less || condition.query.compare == Compare::at_most;
  std::sort(found.begin(), found.end(), [&](const Head& a, const Head& b) {
    if (a.value != b.value) return low ? a.value < b.value : a.value > b.value;
    return a.at < b.at;
  });
  std::vector<std::pair<Index, Index>> places;
  for (const Head& head : found) places.push_back(head.at);
  return places;
}

std::vector<Index> tokens_where(const TokenCondition& condition, const TokenMetrics& tokens) {
  const Matrix<double>& values = tokens[condition.metric];
  std::vector<Index> found;
  for (Index token = 0; token < values.size(); ++token)
    if (holds(condition.query.compare, values.data()[token], condition.query.bound)) found.push_back(token);
  return found;
}

}  // namespace kvreplay::viewer
