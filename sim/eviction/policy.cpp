#include "sim/eviction/policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kvreplay {
namespace {

/// round(x) = floor(x + 1/2)
Index rounded(double x) { return static_cast<Index>(std::floor(x + 0.5)); }

/// Number of pages that n tokens begin.
Index pages_of(Index n, Index page) { return n / page + (n % page > 0 ? 1 : 0); }

/// Keeps the `more` largest scores besides what is kept. In a vector of their own: no score marks what is
/// kept already, infinity may be one.
void keep_largest(KeptSet& kept, const Vector<double>& scores, Index more) {
  std::vector<Index> rest;
  rest.reserve(kept.size());
  for (Index p = 0; p < scores.size(); ++p)
    if (kept[p] == 0) rest.push_back(p);
  Vector<double> rest_scores(std::ssize(rest));
  for (Index r = 0; r < rest_scores.size(); ++r) rest_scores[r] = scores[rest[r]];
  const KeptSet best = largest(rest_scores, more);
  for (std::size_t r = 0; r < rest.size(); ++r)
    if (best[r] != 0) kept[rest[r]] = 1;
}

/// Score of one page or piece of text, from its tokens' scores.
double worth(const Eigen::Ref<const Vector<double>>& tokens, PageScore by) {
  double sum = 0;
  for (const double score : tokens) sum += score;  // always in order: equal pages have to tie
  if (by == PageScore::max) return tokens.maxCoeff();
  return by == PageScore::sum ? sum : sum / static_cast<double>(tokens.size());
}

/// Pinned tokens first (sinks, then the most recent), then pieces of text by worth, as far as they go.
KeptSet keep_chunks(const EvictionRule& rule, const Vector<double>& scores, Index budget) {
  const Index n = scores.size();
  KeptSet kept(static_cast<std::size_t>(n), 0);
  Index left = budget;
  const auto keep = [&](Index p) {
    if (left == 0 || kept[p] != 0) return;
    kept[p] = 1;
    --left;
  };
  for (Index p = 0; p < std::min(rule.sinks, n); ++p) keep(p);
  for (Index p = n - 1; p >= std::max<Index>(n - rule.recent, 0); --p) keep(p);
  std::vector<std::pair<double, Index>> order;  // worth, and the piece's number
  const auto begin_of = [&](Index chunk) { return chunk == 0 ? 0 : rule.chunk_ends[chunk - 1]; };
  for (Index chunk = 0; chunk < std::ssize(rule.chunk_ends); ++chunk)
    order.emplace_back(
        worth(scores.segment(begin_of(chunk), rule.chunk_ends[chunk] - begin_of(chunk)), rule.page_by),
        chunk);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [worth, chunk] : order)
    for (Index p = begin_of(chunk); p < rule.chunk_ends[chunk]; ++p) keep(p);
  return kept;
}

/// The n tokens of pages.
KeptSet tokens_of(const KeptSet& pages, Index page, Index n) {
  KeptSet tokens(n);
  for (Index p = 0; p < n; ++p) tokens[p] = pages[p / page];
  return tokens;
}

}  // namespace

PolicyOverrides PolicyOverrides::before(const PolicyOverrides& others) const {
  return {window ? window : others.window,
          sinks ? sinks : others.sinks,
          recent ? recent : others.recent,
          pool ? pool : others.pool,
          by ? by : others.by,
          n_sink ? n_sink : others.n_sink,
          n_future ? n_future : others.n_future,
          epsilon ? epsilon : others.epsilon,
          page ? page : others.page,
          page_by ? page_by : others.page_by,
          page_heads ? page_heads : others.page_heads,
          chunk ? chunk : others.chunk,
          r ? r : others.r,
          dense ? dense : others.dense,
          threshold ? threshold : others.threshold,
          seed ? seed : others.seed,
          heads ? heads : others.heads};
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
    return base && (is_oracle(kBases[*base].metric) || kBases[*base].reads_all_first);
  };
  policy = policy.substr(0, policy.find('['));
  const std::size_t mark = policy.find_first_of("+:");
  if (mark == std::string_view::npos) return base_is_oracle(policy);
  const std::string_view score = policy.substr(mark + 1);
  return is_oracle(kTokenMetrics.named(score)) || base_is_oracle(score);
}

bool evicts_nothing(std::string_view policy) {
  const std::optional<EvictionBase> base = kBases.named(policy.substr(0, policy.find_first_of("[+:~")));
  return base && kBases[*base].reads;
}

EvictionRule rule_of(const Policy& policy, Semantics semantics, const PolicyOverrides& of_all, Index l,
                     Index budget, bool has_wo, Index hidden) {
  const PolicyOverrides overrides = policy.own.before(of_all);
  const auto chosen = [&](const std::optional<Positions>& asked, Index own) {
    return asked ? asked->of(l) : own;
  };
  const bool kvpress = is_kvpress(semantics), least_1 = semantics == Semantics::kvpress_0_5_5;
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
    case EvictionBase::criticalkv:
      rule.two_stages = true;
      rule.pins_in_first = kvpress;
      rule.least_in_first = least_1 ? 1 : 0;
      [[fallthrough]];
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
    case EvictionBase::rkv:
      rule.window = 8;
      break;
    case EvictionBase::kvzip:
      if (least_1) rule.sinks = 4;
      break;
    case EvictionBase::random:
      rule.seed = overrides.seed.value_or(0);
      rule.one_draw_a_layer = overrides.heads == PageHeads::layer;
      break;
    case EvictionBase::knorm:
    case EvictionBase::triattention:
    case EvictionBase::leverage:
    case EvictionBase::score:
    case EvictionBase::oracle:
    case EvictionBase::oracle_exact:
    case EvictionBase::oracle_loss:
    case EvictionBase::greedy_exact:
    case EvictionBase::greedy_loss:
    case EvictionBase::greedy_leverage:
    case EvictionBase::exchange:
    case EvictionBase::defensive:
    case EvictionBase::top_k:
    case EvictionBase::top_p:
    case EvictionBase::quest:
    case EvictionBase::double_sparsity:
      break;
    case EvictionBase::sparq:
      rule.recent = budget / 4;
      rule.reads_by_logits = semantics == Semantics::official;
      break;
  }
  rule.window = std::min(chosen(overrides.window, rule.window), l);
  rule.pool_window = rule.window;
  if (kBases[base].pins_window) rule.recent = rule.window;
  rule.sinks = std::max<Index>(chosen(overrides.sinks, rule.sinks) - hidden, 0);
  rule.recent = chosen(overrides.recent, rule.recent);
  rule.pool = overrides.pool.value_or(rule.pool);
  rule.expected.n_sink = overrides.n_sink.value_or(rule.expected.n_sink);
  rule.expected.n_future = overrides.n_future.value_or(rule.expected.n_future);
  rule.expected.epsilon = overrides.epsilon.value_or(rule.expected.epsilon);
  rule.threshold = overrides.threshold;
  rule.page = overrides.page.value_or(kBases[policy.base].page);
  rule.page_by = overrides.page_by.value_or(rule.page_by);
  if (overrides.page_heads == PageHeads::layer) rule.shared_by_layer = true;
  const EvictionBaseFacts& facts = kBases[policy.base];
  rule.reads = facts.reads;
  rule.r = overrides.r;
  rule.dense = overrides.dense.value_or(0);
  rule.by = facts.searches && !facts.greedy && overrides.by ? overrides.by : facts.searches;
  if (policy.metric || policy.given) {
    rule.metric = policy.metric;
    rule.given = policy.given;
  }
  return rule;
}

double lot_of(const EvictionRule& rule, Index layer, Index kv_head, Index seen, Index position) {
  // SplitMix64's mixing, a round for each number.
  std::uint64_t bits = 0;
  for (const Index number :
       {rule.seed.value_or(0), layer, rule.one_draw_a_layer ? Index{-1} : kv_head, seen, position}) {
    bits += 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(number);
    bits = (bits ^ (bits >> 30U)) * 0xbf58476d1ce4e5b9U;
    bits = (bits ^ (bits >> 27U)) * 0x94d049bb133111ebU;
    bits ^= bits >> 31U;
  }
  return std::ldexp(static_cast<double>(bits >> 11U), -53);
}

Index pinned_tokens(Index sinks, Index recent, Index page, Index l) {
  if (page == 1) return sinks + recent;
  return std::min(pages_of(sinks, page) * page + recent + std::max<Index>(l - recent, 0) % page, l);
}

Index tokens_within(const Policy& policy, Index budget, Index l) {
  const Index page = policy.own.page.value_or(kBases[policy.base].page);
  if (!kBases[policy.base].reads) return tokens_of_pages(budget, page, l);
  return budget < l ? budget / page * page : l;
}

Index tokens_of_pages(Index budget, Index page, Index l) {
  const Index last = l % page;
  return budget < last ? 0 : last + (budget - last) / page * page;
}

Index kept_tokens(double sigma, Index l, Semantics semantics) {
  const double kept = static_cast<double>(l) * (1 - sigma);
  // 0.9 has no exact binary form: what is a half but for the last bits is one.
  if (!is_kvpress(semantics)) return rounded(kept + 1e-9);
  return std::max<Index>(static_cast<Index>(kept), semantics == Semantics::kvpress_0_5_5 ? 1 : 0);
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

Vector<double> page_scores(const Vector<double>& scores, Index page, PageScore by) {
  Vector<double> pages(pages_of(scores.size(), page));
  for (Index at = 0; at < pages.size(); ++at) {
    pages[at] = worth(scores.segment(at * page, std::min(page, scores.size() - at * page)), by);
  }
  return pages;
}

std::vector<Index> chunk_ends(std::span<const std::string> texts, ChunkBy by) {
  const auto ends = [&](std::size_t p) {
    const std::string& text = texts[p];
    if (p + 1 == texts.size() || text.find('\n') != std::string::npos) return true;
    if (by == ChunkBy::line) return false;
    const std::size_t last = text.find_last_not_of("\"')]} ");
    if (last == std::string::npos || std::string_view(".!?").find(text[last]) == std::string_view::npos)
      return false;
    const std::string& next = texts[p + 1];
    return text.back() == ' ' || (!next.empty() && (next.front() == ' ' || next.front() == '\n'));
  };
  std::vector<Index> found;
  for (std::size_t p = 0; p < texts.size(); ++p)
    if (ends(p)) found.push_back(static_cast<Index>(p) + 1);
  return found;
}

KeptSet keep_by(const EvictionRule& rule, Vector<double> scores, Index budget,
                const Vector<double>& weights) {
  const Index n = scores.size(), page = rule.page;
  budget = std::clamp<Index>(budget, 0, n);
  if (rule.pool.kind != Pooling::Kind::none) scores = pooled(scores, rule.pool, rule.pool_window);
  if (!rule.chunk_ends.empty()) return keep_chunks(rule, scores, budget);
  if (page > 1) scores = page_scores(scores, page, rule.page_by);

  if (rule.threshold) {
    KeptSet kept(n);
    for (Index p = 0; p < n; ++p)
      kept[p] = p < rule.sinks || p >= n - rule.recent || scores[p] >= *rule.threshold ? 1 : 0;
    return kept;
  }

  KeptSet kept(scores.size(), 0);  // by pages
  Index left = budget;             // in tokens
  const auto pin = [&](Index at) {
    const Index tokens = std::min(page, n - at * page);
    if (left < tokens || kept[at] != 0) return;
    kept[at] = 1;
    left -= tokens;
  };
  for (Index at = 0; at < pages_of(std::min(rule.sinks, n), page); ++at) pin(at);
  // A last page that is not full is pinned too: the next tokens go there.
  for (Index at = scores.size() - 1; at >= std::max<Index>(n - rule.recent, 0) / page; --at) pin(at);
  if (rule.two_stages) {
    const Index half = std::max((rule.pins_in_first ? budget : left) / 2, rule.least_in_first),
                pinned = rule.pins_in_first ? budget - left : 0,
                first = std::clamp<Index>(half - pinned, 0, left);
    keep_largest(kept, scores, first);
    left -= first;
    scores = (scores.array() + kCriticalEpsilon) * weights.array();
  }
  if (left == budget)
    kept = largest(scores, left / page);
  else if (left >= page)
    keep_largest(kept, scores, left / page);
  return page > 1 ? tokens_of(kept, page, n) : kept;
}

namespace {

double rounded_to(Dtype numbers, double x) {
  if (numbers == Dtype::f64) return x;
  const auto single = static_cast<float>(x);
  if (numbers == Dtype::f16) return static_cast<float>(Eigen::half(single));
  return numbers == Dtype::bf16 ? static_cast<float>(Eigen::bfloat16(single)) : single;
}

}  // namespace

Index tied_at_cut(const EvictionRule& rule, const Vector<double>& scores, const KeptSet& kept,
                  Dtype numbers) {
  const Vector<double> by_pool = pooled(scores, rule.pool, rule.pool_window);
  const Index first = std::min(rule.sinks, scores.size()),
              end = std::max(first, scores.size() - std::max<Index>(rule.recent, 0));
  double last = std::numeric_limits<double>::infinity();
  for (Index p = first; p < end; ++p)
    if (kept[p] != 0) last = std::min(last, rounded_to(numbers, by_pool[p]));
  Index tied = 0, evicted = 0;
  for (Index p = first; p < end; ++p) {
    if (rounded_to(numbers, by_pool[p]) != last) continue;
    ++tied;
    evicted += kept[p] == 0 ? 1 : 0;
  }
  return evicted > 0 ? tied : 0;
}

}  // namespace kvreplay
