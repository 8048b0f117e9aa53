#include "sim/eviction/policy.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvreplay {
namespace {

/// round(x) = floor(x + 1/2)
Index rounded(double x) { return static_cast<Index>(std::floor(x + 0.5)); }

}  // namespace

PolicyOverrides PolicyOverrides::before(const PolicyOverrides& others) const {
  return {window ? window : others.window,
          sinks ? sinks : others.sinks,
          recent ? recent : others.recent,
          pool ? pool : others.pool,
          by ? by : others.by,
          n_sink ? n_sink : others.n_sink,
          n_future ? n_future : others.n_future,
          epsilon ? epsilon : others.epsilon};
}

std::string policy_name(std::string_view base, std::string_view score) {
  std::string name(base);
  if (score.empty()) return name;
  const std::optional<EvictionBase> known = kBases.named(base);
  name += known && kBases[*known].alone ? ':' : '+';
  return name += score;
}

bool only_searches(const Policy& policy) {
  return !policy.metric && !policy.given && kBases[policy.start.value_or(policy.base)].searches;
}

std::optional<SearchBy> EvictionRule::greedy_by() const {
  if (!only_searches(policy)) return std::nullopt;
  const EvictionBaseFacts& start = kBases[policy.start.value_or(policy.base)];
  return start.greedy ? start.searches : by;
}

bool knows_the_future(std::string_view policy) {
  const auto is_oracle = [](std::optional<TokenMetric> metric) {
    return metric && kTokenMetrics[*metric].kind == MetricKind::oracle;
  };
  const auto base_is_oracle = [&](std::string_view name) {
    const std::optional<EvictionBase> base = kBases.named(name);
    return base && is_oracle(kBases[*base].metric);
  };
  policy = policy.substr(0, policy.find('['));
  const std::size_t mark = policy.find_first_of("+:");
  if (mark == std::string_view::npos) return base_is_oracle(policy);
  const std::string_view score = policy.substr(mark + 1);
  return is_oracle(kTokenMetrics.named(score)) || base_is_oracle(score);
}

EvictionRule rule_of(const Policy& policy, Semantics semantics, const PolicyOverrides& of_all, Index l,
                     Index budget, bool has_wo) {
  const PolicyOverrides overrides = policy.own.before(of_all);
  const auto chosen = [&](const std::optional<Positions>& asked, Index own) {
    return asked ? asked->of(l) : own;
  };
  const bool kvpress = semantics == Semantics::kvpress;
  EvictionRule rule;
  rule.policy = policy;
  rule.window = kUsualWindow;
  const EvictionBase base = policy.start.value_or(policy.base);
  rule.metric = kBases[base].metric;
  switch (base) {
    case EvictionBase::streaming:
      rule.sinks = 4;
      rule.recent = std::max<Index>(budget - chosen(overrides.sinks, rule.sinks), 0);
      break;
    case EvictionBase::h2o:
      rule.window = l;
      if (kvpress)
        rule.per_visible_row = true;
      else
        rule.recent = rounded(static_cast<double>(budget) / 2);
      break;
    case EvictionBase::tova:
      rule.window = 1;
      rule.shared_by_layer = semantics != Semantics::paper;
      if (kvpress) rule.recent = 1;
      break;
    case EvictionBase::snapkv:
      rule.window = kvpress ? 64 : kUsualWindow;
      rule.pool =
          semantics == Semantics::paper ? Pooling{Pooling::Kind::max, 7} : Pooling{Pooling::Kind::avg, 5};
      break;
    case EvictionBase::keydiff:
      if (!kvpress) rule.block = 128;
      break;
    case EvictionBase::expected_attention:
      rule.expected.project_values = !kvpress && has_wo;
      if (kvpress) rule.expected.epsilon = 0;
      break;
    case EvictionBase::knorm:
    case EvictionBase::leverage:
    case EvictionBase::kvzip:
    case EvictionBase::score:
    case EvictionBase::oracle:
    case EvictionBase::oracle_exact:
    case EvictionBase::oracle_loss:
    case EvictionBase::greedy_exact:
    case EvictionBase::greedy_loss:
    case EvictionBase::greedy_leverage:
    case EvictionBase::exchange:
      break;
  }
  rule.window = std::min(chosen(overrides.window, rule.window), l);
  rule.pool_window = rule.window;
  if (kBases[base].pins_window) rule.recent = rule.window;
  rule.sinks = chosen(overrides.sinks, rule.sinks);
  rule.recent = chosen(overrides.recent, rule.recent);
  rule.pool = overrides.pool.value_or(rule.pool);
  rule.expected.n_sink = overrides.n_sink.value_or(rule.expected.n_sink);
  rule.expected.n_future = overrides.n_future.value_or(rule.expected.n_future);
  rule.expected.epsilon = overrides.epsilon.value_or(rule.expected.epsilon);
  const EvictionBaseFacts& facts = kBases[policy.base];
  rule.by = facts.searches && !facts.greedy && overrides.by ? overrides.by : facts.searches;
  if (policy.metric || policy.given) {
    rule.metric = policy.metric;
    rule.given = policy.given;
  }
  return rule;
}

Index kept_tokens(double sigma, Index l, Semantics semantics) {
  const double kept = static_cast<double>(l) * (1 - sigma);
  // 0.9 has no exact binary form: what is a half but for the last bits is one.
  return semantics == Semantics::kvpress ? static_cast<Index>(kept) : rounded(kept + 1e-9);
}

Vector<double> pooled(const Vector<double>& scores, const Pooling& pool, Index window) {
  const Index n = std::max<Index>(scores.size() - window, 0), reach = pool.width / 2;
  Vector<double> result = scores;
  if (pool.kind == Pooling::Kind::none) return result;
  for (Index p = 0; p < n; ++p) {
    const Index first = std::max<Index>(p - reach, 0), end = std::min(p + reach + 1, n);
    double largest = scores[first], sum = 0;
    for (Index at = first; at < end; ++at) {
      largest = std::max(largest, scores[at]);
      sum += scores[at];  // always in order: equal neighbourhoods have to tie
    }
    result[p] = pool.kind == Pooling::Kind::max ? largest : sum / static_cast<double>(pool.width);
  }
  return result;
}

KeptSet keep_by(const EvictionRule& rule, Vector<double> scores, Index budget) {
  const Index n = scores.size();
  budget = std::clamp<Index>(budget, 0, n);
  if (rule.pool.kind != Pooling::Kind::none) scores = pooled(scores, rule.pool, rule.pool_window);

  KeptSet kept(n, 0);
  Index left = budget;
  const auto pin = [&](Index p) {
    if (left == 0 || kept[p] != 0) return;
    kept[p] = 1;
    --left;
  };
  for (Index p = 0; p < std::min(rule.sinks, n); ++p) pin(p);
  for (Index p = n - 1; p >= std::max<Index>(n - rule.recent, 0); --p) pin(p);
  if (left == 0) return kept;
  if (left == budget) return largest(scores, left);

  // The rest by score, in a vector of their own: no score marks a pinned token, infinity may be one.
  std::vector<Index> rest;
  rest.reserve(kept.size());
  for (Index p = 0; p < n; ++p)
    if (kept[p] == 0) rest.push_back(p);
  Vector<double> rest_scores(std::ssize(rest));
  for (Index r = 0; r < rest_scores.size(); ++r) rest_scores[r] = scores[rest[r]];
  const KeptSet best = largest(rest_scores, left);
  for (std::size_t r = 0; r < rest.size(); ++r)
    if (best[r] != 0) kept[rest[r]] = 1;
  return kept;
}

}  // namespace kvreplay
