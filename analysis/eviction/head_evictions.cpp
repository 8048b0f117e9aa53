#include "analysis/eviction/head_evictions.hpp"

#include "analysis/results/agreement.hpp"
#include "analysis/results/figure_facts.hpp"
#include "sim/backend.hpp"
#include "sim/cache/cache.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/retrieval/retrieval.hpp"
#include "sim/head_group.hpp"
#include "sim/tokens/leverage.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

namespace kvreplay {

namespace {

const RowGradients<double>& gradients_of(const HeadGroup<double>& group, const EvictionPlan& plan) {
  return plan.on_future ? group.g_future : group.g_window;
}

GreedyPath greedy_path(const HeadGroup<double>& group, const EvictionPlan& plan, SearchBy by, Index keep,
                       const Compute& compute) {
  if (by == SearchBy::leverage) return greedy_leverage(group, keep, compute.workers);
  const RowRange rows = plan.search_rows(by);
  if (by == SearchBy::loss) return greedy_loss(group, gradients_of(group, plan), rows, keep, compute.workers);
  return compute.backend.greedy_exact(group, rows, keep, compute.workers);
}

KeptSet exchanged(const HeadGroup<double>& group, const EvictionPlan& plan, SearchBy by, KeptSet start,
                  const Compute& compute) {
  const RowRange rows = plan.search_rows(by);
  if (by == SearchBy::loss)
    return exchange_loss(group, gradients_of(group, plan), rows, std::move(start), compute.workers);
  return compute.backend.exchange(group, rows, std::move(start), compute.workers);
}

double loss(const Vector<double>& importance, const KeptSet& kept) {
  std::vector<double> lost;
  for (Index p = 0; p < importance.size(); ++p)
    if (kept[p] == 0) lost.push_back(importance[p]);
  return compensated_sum(lost);
}

}  // namespace

template <class T>
LayerScores layer_scores(const EvictionPlan& plan, const DumpShape& shape,
                         const std::function<std::shared_ptr<const HeadGroup<T>>(Index)>& head,
                         const std::function<GivenScores(Index)>& given, const Compute& compute) {
  LayerScores layer(plan.runs.size());
  std::vector<std::size_t> shared;
  for (std::size_t r = 0; r < plan.runs.size(); ++r)
    if (plan.runs[r].rules.front().shared_by_layer) shared.push_back(r);
  for (Index g = 0; g < shape.n_kv && !shared.empty(); ++g) {
    const std::shared_ptr<const HeadGroup<T>> group = head(g);
    std::vector<EvictionRule> rules;
    for (const std::size_t r : shared) rules.push_back(plan.of(*group).runs[r].rules.front());
    const std::vector<Vector<double>> scores = rule_scores(*group, rules, given(g), compute);
    for (std::size_t s = 0; s < shared.size(); ++s) {
      Vector<double>& sum = layer[shared[s]];
      if (sum.size() == 0) sum = Vector<double>::Zero(shape.l);
      sum += scores[s] / static_cast<double>(shape.n_q);
    }
  }
  return layer;
}

template <class T>
HeadRanking head_ranking(const HeadGroup<T>& group, const EvictionPlan& all, const LayerScores& layer,
                         const GivenScores& given, std::optional<Index> least, const Compute& compute) {
  const EvictionPlan& plan = all.of(group);
  HeadRanking ranking;
  ranking.scores = layer;
  std::vector<std::size_t> own;
  std::vector<EvictionRule> rules;
  for (std::size_t r = 0; r < plan.runs.size(); ++r) {
    if (layer[r].size() > 0) continue;
    own.push_back(r);
    rules.push_back(plan.runs[r].rules.front());
  }
  std::vector<Vector<double>> scores = rule_scores(group, rules, given, compute);
  for (std::size_t r = 0; r < own.size(); ++r) ranking.scores[own[r]] = std::move(scores[r]);
  ranking.weights.resize(plan.runs.size());
  const Vector<double>* same = nullptr;  // for every rule with two stages
  for (std::size_t r = 0; r < plan.runs.size(); ++r) {
    const EvictionRule& rule = plan.runs[r].rules.front();
    if (!rule.two_stages) continue;
    ranking.weights[r] = same != nullptr ? *same : second_weights(group, rule, compute.workers);
    same = &ranking.weights[r];
  }

  bool exchanges = false;
  std::map<SearchBy, Index> smallest;  // of what a greedy search leaves
  for (const EvictionCase& which : plan.cases) {
    if (!which.run) continue;
    const EvictionRule& rule = plan.runs[*which.run].rules[which.budget];
    exchanges = exchanges || rule.exchanges();
    if (const auto by = rule.greedy_by()) {
      Index& least_kept = smallest.try_emplace(*by, group.held()).first->second;
      least_kept = std::min(least_kept, *which.kept);
    }
  }
  if (smallest.empty() && !exchanges) return ranking;
  auto wide = std::make_shared<const HeadGroup<double>>(converted<double>(group));
  for (const auto& [by, keep] : smallest)
    ranking.paths[by] = greedy_path(*wide, plan, by, least.value_or(keep), compute);
  if (exchanges) ranking.wide = std::move(wide);
  return ranking;
}

template <class T>
KeptSet prompt_kept(const HeadGroup<T>& group, const EvictionPlan& plan, const EvictionCase& which,
                    const HeadRanking& ranking, const Compute& compute) {
  const EvictionRule& rule = plan.runs[*which.run].rules[which.budget];
  const Index begin = group.first_held(), held = group.held();
  if (rule.reads) return all_from(begin, group.l);
  const Index keep = which.kept.value_or(held);
  KeptSet kept;
  const Index block = which.phase.kind == Phase::Kind::blockwise ? which.phase.block : rule.block;
  if (const auto by = rule.greedy_by())
    kept = kept_by(ranking.paths.at(*by), group.l, keep, begin);
  else if (block > 0)
    kept = evict_in_blocks(group, rule, keep, block, compute);
  else
    kept =
        behind(begin, keep_by(rule, ranking.scores[*which.run].tail(held), keep,
                              rule.two_stages ? ranking.weights[*which.run].tail(held) : Vector<double>()));
  if (rule.exchanges()) return exchanged(*ranking.wide, plan, *rule.by, std::move(kept), compute);
  return kept;
}

DecodeOptions decode_options(const EvictionPlan& plan, const EvictionCase& which) {
  const bool append_only = which.phase.kind == Phase::Kind::append_only;
  // A new token has one row: append-only compares it with the cache on that row.
  return {append_only && !plan.decode_window ? 1 : plan.decode_window, append_only, which.phase.block};
}

DecodeBegin decode_begin(const EvictionPlan& plan, const EvictionCase& which, KeptSet kept) {
  DecodeBegin begin{plan.runs[*which.run].rules[which.budget], std::move(kept), *which.kept,
                    decode_options(plan, which)};
  if (plan.prompt != PromptCache::cut)
    begin.kept = all_from(std::ssize(begin.kept) - plan.l, std::ssize(begin.kept));
  if (plan.prompt == PromptCache::pinned) {
    begin.rule.sinks = plan.l;
    begin.budget += plan.l;
  }
  return begin;
}

template <class T>
Vector<double> future_importance(const HeadGroup<T>& group, const Compute& compute, TokenMetric oracle) {
  if (future_rows(group.l, group.T_all(), group.first_query()).count() == 0) return {};
  const TokenMetrics metrics = compute.backend.token_metrics(group, {.metrics = {oracle}}, compute.workers);
  return metrics[oracle].row(0).transpose();
}

OracleFigures oracle_figures(const Vector<double>& importance, const KeptSet& oracle, const KeptSet& kept) {
  Index common = 0;
  for (std::size_t p = 0; p < oracle.size(); ++p) common += oracle[p] & kept[p];
  OracleFigures figures{loss(importance, kept), 0, kNan};
  figures.optimality_gap = figures.eviction_loss - loss(importance, oracle);
  const Index keep = count(kept);
  if (keep > 0) figures.oracle_recall = static_cast<double>(common) / static_cast<double>(keep);
  return figures;
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define KVREPLAY_RANKING(T)                                                                           \
  template LayerScores layer_scores(const EvictionPlan&, const DumpShape&,                            \
                                    const std::function<std::shared_ptr<const HeadGroup<T>>(Index)>&, \
                                    const std::function<GivenScores(Index)>&, const Compute&);        \
  template HeadRanking head_ranking(const HeadGroup<T>&, const EvictionPlan&, const LayerScores&,     \
                                    const GivenScores&, std::optional<Index>, const Compute&);        \
  template KeptSet prompt_kept(const HeadGroup<T>&, const EvictionPlan&, const EvictionCase&,         \
                               const HeadRanking&, const Compute&);                                   \
  template Vector<double> future_importance(const HeadGroup<T>&, const Compute&, TokenMetric);
KVREPLAY_RANKING(float)
KVREPLAY_RANKING(double)
#undef KVREPLAY_RANKING
// NOLINTEND(bugprone-macro-parentheses)

template <class T>
DecodeReplay<T> seen_by(const DecodeReplay<T>& replay, Index first, std::span<const Matrix<T>> full) {
  DecodeReplay<T> mine = replay;
  mine.change.assign(replay.change.begin() + first, replay.change.begin() + first + std::ssize(full));
  for (Index s = 0; s < std::ssize(mine.change_sq); ++s) {
    mine.change_sq[s] = mine.full_sq[s] = 0;
    for (std::size_t g = 0; g < full.size(); ++g) {
      mine.change_sq[s] += mine.change[g].row(s).template cast<double>().squaredNorm();
      mine.full_sq[s] += full[g].row(s).template cast<double>().squaredNorm();
    }
  }
  return mine;
}
template DecodeReplay<float> seen_by(const DecodeReplay<float>&, Index, std::span<const Matrix<float>>);
template DecodeReplay<double> seen_by(const DecodeReplay<double>&, Index, std::span<const Matrix<double>>);

namespace {

using C = EvictionColumns;

/// [steps, d_v] in panels of W rows: [panels][d_v][W].
template <class T>
std::vector<T> to_panels(const Matrix<T>& rows) {
  const Index d_v = rows.cols();
  std::vector<T> out(panels_of<T>(rows.rows()) * d_v * kPanelWidth<T>);
  for (Index r = 0; r < rows.rows(); ++r)
    for (Index c = 0; c < d_v; ++c) out[panel_entry<T>(c, r, d_v)] = rows(r, c);
  return out;
}

/// True if a step's outputs are so small that float32 has lost digits of them.
bool below_float32(const DecodeReplay<float>& replay) {
  return std::ranges::any_of(replay.full_sq, [](double sq) { return sq < 1e-60; });
}

DecodeReplay<float> narrowed(DecodeReplay<double>&& wide) {
  DecodeReplay<float> replay{std::move(wide.change_sq), std::move(wide.full_sq), {},
                             std::move(wide.kept),      wide.cache_size,         wide.first_step,
                             std::move(wide.left)};
  for (const Matrix<double>& change : wide.change) replay.change.push_back(change.cast<float>());
  return replay;
}

/// Where the outputs' squares are below float64's range, a step on a cache that lacks something changes them.
template <class T>
void notice_changes(DecodeReplay<T>& replay, bool begins_whole) {
  const Index steps = std::ssize(replay.change_sq);
  const Index whole = !begins_whole ? 0 : replay.left.empty() ? steps : replay.left.front().step + 1;
  for (Index s = std::max<Index>(whole, 0); s < steps; ++s)
    if (replay.full_sq[s] < std::numeric_limits<double>::min())
      replay.change_sq[s] = at_least_some(replay.change_sq[s]);
}

template <class Body>
void each(const Compute& compute, std::size_t n, Body body) {
  compute.workers.parallel_for(static_cast<std::ptrdiff_t>(n),
                               [&](std::ptrdiff_t i) { body(static_cast<std::size_t>(i)); });
}

/// The numbers of the plan's cases that decode, or of those that do not.
std::vector<std::size_t> numbers_of_cases(const EvictionPlan& plan, bool decode) {
  std::vector<std::size_t> numbers;
  for (std::size_t c = 0; c < plan.cases.size(); ++c)
    if (plan.cases[c].phase.decodes() == decode) numbers.push_back(c);
  return numbers;
}

/// Chooses the cache of every case.
template <class T>
class CacheChooser {
 public:
  CacheChooser(const HeadGroup<T>& group, const EvictionPlan& plan, const HeadRanking& ranking,
               const std::vector<KeptSet>& given_kept, const Compute& compute)
      : group_(group), plan_(plan), ranking_(ranking), given_kept_(given_kept), compute_(compute) {}

  HeadCaches<T> choose() {
    // Cases that differ in the format of their caches alone keep the same tokens; they stand one behind the
    // other. Every recipe has a format of its own.
    const std::size_t formats = plan_.compression && plan_.recipes.empty()
                                    ? std::max<std::size_t>(plan_.compression->formats.size(), 1)
                                    : 1;
    each(compute_, plan_.cases.size() / formats, [&](std::size_t n) {
      const KeptSet kept = prompt_kept_of(plan_.cases[n * formats]);
      for (std::size_t c = n * formats; c < (n + 1) * formats; ++c)
        chosen_.cases[c] = plan_.cases[c].phase.decodes()
                               ? CacheCase{decode_begin(plan_, plan_.cases[c], kept).kept}
                               : cache_of(plan_.cases[c], kept);
    });
    if (const auto decoding = numbers_of_cases(plan_, true); !decoding.empty())
      chosen_.replays = replays_of(decoding);
    return std::move(chosen_);
  }

 private:
  KeptSet prompt_kept_of(const EvictionCase& which) const {
    if (which.run) return prompt_kept(group_, plan_, which, ranking_, compute_);
    if (which.recipe) {
      const PlannedRecipe::Head& head =
          plan_.recipes[*which.recipe]
              .heads[static_cast<std::size_t>(group_.layer)][static_cast<std::size_t>(group_.kv_head)];
      EvictionCase one = which;
      one.run = head.run;
      one.budget = head.budget;
      one.kept = head.kept;
      if (head.run) return prompt_kept(group_, plan_, one, ranking_, compute_);
    }
    KeptSet kept = all_from(group_.first_held(), group_.l);
    if (!which.recipe && which.budget < given_kept_.size())
      for (std::size_t p = 0; p < kept.size(); ++p) kept[p] &= given_kept_[which.budget][p];
    return kept;
  }

  /// The runs of the cases `decoding`, with the group's numbers in U.
  template <class U>
  std::vector<DecodeReplay<U>> replays_of(const HeadGroup<U>& group,
                                          const std::vector<std::size_t>& decoding) const {
    const std::vector<Matrix<U>> full = decode_full_outputs(group, compute_.workers);
    std::map<std::pair<std::size_t, std::string>, Matrix<double>> start;
    std::vector<DecodeBegin> begins;
    for (const std::size_t c : decoding) {
      const EvictionCase& which = plan_.cases[c];
      begins.push_back(decode_begin(plan_, which, chosen_.cases[c].kept));
      Matrix<double>& scores = start[{*which.run, which.phase.name()}];
      if (scores.size() == 0)
        scores =
            decode_start_scores(group, plan_.runs[*which.run].rules.front(), begins.back().options, compute_);
    }
    std::vector<DecodeRequest> runs;
    for (std::size_t n = 0; n < decoding.size(); ++n) {
      const EvictionCase& which = plan_.cases[decoding[n]];
      const DecodeBegin& begin = begins[n];
      runs.push_back({&begin.rule, &begin.kept, begin.budget, begin.options,
                      &start.at({*which.run, which.phase.name()})});
    }
    return compute_.backend.decode_replays(group, runs, full, compute_.workers);
  }

  std::vector<DecodeReplay<T>> replays_of(const std::vector<std::size_t>& decoding) const {
    std::vector<DecodeReplay<T>> replays = replays_of(group_, decoding);
    if constexpr (sizeof(T) == 4)
      if (below_float32(replays.front())) {
        std::vector<DecodeReplay<double>> wide = replays_of(converted<double>(group_), decoding);
        for (std::size_t n = 0; n < wide.size(); ++n) replays[n] = narrowed(std::move(wide[n]));
      }
    for (std::size_t n = 0; n < decoding.size() && !group_.v.isZero(0); ++n)
      notice_changes(replays[n], count(chosen_.cases[decoding[n]].kept) == group_.held());
    return replays;
  }

  /// The cache that the plan's compression makes of a kept set.
  CacheCase cache_of(const EvictionCase& which, const KeptSet& kept) const {
    CacheCase cache{kept};
    if (which.probe) cache.quantization = plan_.probes[*which.probe].of_layers[group_.layer];
    if (!plan_.compression) return cache;
    if (!plan_.compression->formats.empty())
      cache.quantization = plan_.compression->formats[which.format].of_layers[group_.layer];
    if (!plan_.compression->channels) return cache;
    const Semantics semantics = semantics_of(plan_, which);
    const ChannelSetting setting{semantics, plan_.compression->recent_of(semantics), plan_.window_asked,
                                 plan_.compression->protection};
    const ChannelRule& rule = *plan_.compression->channels;
    ChannelBasis basis = rule.alone() ? channel_diagonal(group_, kept, setting, compute_.workers)
                                      : channel_basis(group_, kept, setting, rule.needs_outputs(), compute_);
    const Index n = pruned_channels(plan_.compression->ratio, group_.d(), semantics);
    cache.pruned = select_channels(rule, basis.scores, channel_order(rule, basis.scores), n).pruned;
    cache.prunable = std::move(basis.keys.prunable);
    return cache;
  }

  const HeadGroup<T>& group_;
  const EvictionPlan& plan_;
  const HeadRanking& ranking_;
  const std::vector<KeptSet>& given_kept_;
  const Compute& compute_;
  HeadCaches<T> chosen_{std::vector<CacheCase>(plan_.cases.size()), {}};
};

/// Measures all cases on one group of query heads that reads the cache.
template <class T>
class HeadMeasure {
 public:
  HeadMeasure(const HeadGroup<T>& group, const EvictionPlan& plan, const HeadCaches<T>& caches,
              const Compute& compute)
      : group_(group), plan_(plan), caches_(caches), compute_(compute) {}

  HeadEvictions<T> run(const CacheReaders& readers, bool with_vectors) {
    result_.cases.resize(plan_.cases.size());
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      result_.cases[c].kept = caches_.cases[c].kept;
      const bool reads = plan_.reads(plan_.cases[c]) != nullptr;
      result_.cases[c][C::tokens] =
          static_cast<double>(reads ? *plan_.cases[c].kept : count(result_.cases[c].kept));
    }
    measure(with_vectors);
    replay_decoding(readers, with_vectors);
    compare_with_oracle(readers);
    return std::move(result_);
  }

 private:
  void replay_decoding(const CacheReaders& readers, bool with_vectors) {
    const std::vector<std::size_t> decoding = numbers_of_cases(plan_, true);
    if (decoding.empty()) return;
    std::vector<Matrix<T>> full;
    if (readers.several()) full = decode_full_outputs(group_, compute_.workers);
    OutputChanges<T>& future = result_.outputs.future;
    if (with_vectors) future.change.resize(plan_.cases.size());
    for (std::size_t n = 0; n < decoding.size(); ++n) {
      CaseFigures& figures = result_.cases[decoding[n]];
      DecodeReplay<T> part;
      if (readers.several()) part = seen_by<T>(caches_.replays[n], readers.first, full);
      const DecodeReplay<T>& replay = readers.several() ? part : caches_.replays[n];
      if (n == 0) result_.step_full_sq = replay.full_sq;
      figures.last_rows = last_rows(figures.kept, group_.T_all(), replay);
      figures.step_tokens = step_tokens(figures.kept, replay);
      figures.kept = replay.kept;
      figures[C::tokens] = static_cast<double>(replay.cache_size);
      const Index token = kElementBytes * (group_.d() + group_.d_v());
      figures[C::bytes] = figures.bytes_read = static_cast<double>(replay.cache_size * token);
      figures.step_change_sq = replay.change_sq;
      double& change_sq = future.change_sq[decoding[n]] = 0;
      for (const double step : figures.step_change_sq) change_sq += step;
      if (with_vectors)
        for (const Matrix<T>& change : replay.change) future.change[decoding[n]].push_back(to_panels(change));
    }
  }

  /// All phases that do not decode.
  void measure(bool with_vectors) {
    const std::vector<std::size_t> measured = numbers_of_cases(plan_, false);
    std::vector<CacheCase> caches;
    for (const std::size_t c : measured) {
      caches.push_back(caches_.cases[c]);
      result_.cases[c].pruned = caches.back().pruned;
      CacheCase counted = caches.back();
      if (plan_.reserves) std::fill_n(counted.kept.begin(), group_.first_held(), std::uint8_t{1});
      result_.cases[c][C::bytes] = result_.cases[c].bytes_read =
          cache_bytes(counted, group_.d(), group_.d_v());
    }
    choose_what_is_read(measured, caches);
    CaseOutputs<T> found = case_outputs(group_, plan_.window, plan_.future, caches, with_vectors, compute_);
    const auto take = [&](OutputChanges<T>& from, OutputChanges<T>& to) {
      to.full_sq = from.full_sq;
      to.full = std::move(from.full);
      to.change_sq.assign(plan_.cases.size(), kNan);
      if (!from.change.empty()) to.change.resize(plan_.cases.size());
      for (std::size_t m = 0; m < measured.size(); ++m) {
        to.change_sq[measured[m]] = from.change_sq[m];
        if (!from.change.empty()) to.change[measured[m]] = std::move(from.change[m]);
      }
    };
    take(found.window, result_.outputs.window);
    take(found.future, result_.outputs.future);
  }

  /// Policies that read less choose layer by layer, even if other layers read the same cache.
  void choose_what_is_read(const std::vector<std::size_t>& measured, std::vector<CacheCase>& caches) {
    const RowRange rows{plan_.window.count() > 0 ? plan_.window.begin : plan_.future.begin,
                        plan_.future.count() > 0 ? plan_.future.end : plan_.window.end};
    for (std::size_t run = 0; run < plan_.runs.size(); ++run) {
      std::vector<ReadRequest> asked;
      std::vector<std::size_t> at;
      for (std::size_t m = 0; m < measured.size(); ++m) {
        const EvictionCase& which = plan_.cases[measured[m]];
        if (which.run != run || plan_.reads(which) == nullptr) continue;
        asked.push_back({plan_.reads(which), *which.kept});
        at.push_back(m);
      }
      std::vector<PagesRead> found = rows_read(group_, asked, rows, plan_.rows_judged(), compute_.workers);
      for (std::size_t n = 0; n < at.size(); ++n) {
        CaseFigures& figures = result_.cases[measured[at[n]]];
        note_bytes(*asked[n].rule, found[n], figures);
        figures.read = bits_of(found[n]);
        caches[at[n]].pages = std::move(found[n]);
      }
    }
  }

  void note_bytes(const EvictionRule& rule, const PagesRead& pages, CaseFigures& figures) const {
    const bool chooses = pages.size > 0;
    const ReadIndex index = chooses ? read_index(rule, group_.held(), group_.d()) : ReadIndex{};
    const double whole = figures[C::bytes], element = static_cast<double>(kElementBytes);
    figures[C::bytes] += element * static_cast<double>(index.held);
    figures.bytes_read = whole * mean_tokens_read(group_, pages, plan_.rows_judged()) /
                             static_cast<double>(std::max<Index>(group_.held(), 1)) +
                         element * static_cast<double>(index.read);
  }

  /// The prompt tokens that each decoding step reads, one bit per token: [steps][ceil(l / 8) bytes].
  std::vector<std::byte> bits_of(const PagesRead& pages) const {
    const Index bytes = div_up(group_.l, 8);
    std::vector<std::byte> bits(static_cast<std::size_t>(plan_.future.count() * bytes));
    for (Index s = 0; s < plan_.future.count(); ++s)
      for (Index p = 0; p < group_.l; ++p)
        if (pages.reads(plan_.future.begin + s, p))
          bits[static_cast<std::size_t>(s * bytes + p / 8)] |= std::byte{1} << static_cast<unsigned>(p % 8);
    return bits;
  }

  void compare_with_oracle(const CacheReaders& readers) {
    std::map<Index, KeptSet> best;
    for (std::size_t c = 0; c < result_.cases.size(); ++c) {
      CaseFigures& figures = result_.cases[c];
      const Index keep = count(figures.kept);
      figures[C::prompt_tokens] = static_cast<double>(keep);
      OracleFigures found{kNan, kNan, kNan};
      if (plan_.future.count() > 0 && plan_.reads(plan_.cases[c]) == nullptr) {
        if (!best.contains(keep)) best[keep] = largest(readers.importance, keep, group_.first_held());
        found = oracle_figures(readers.own_importance(), best[keep], figures.kept);
      }
      figures[C::eviction_loss] = found.eviction_loss;
      figures[C::optimality_gap] = found.optimality_gap;
      figures[C::oracle_recall] = found.oracle_recall;
    }
  }

  const HeadGroup<T>& group_;
  const EvictionPlan& plan_;
  const HeadCaches<T>& caches_;
  const Compute& compute_;
  HeadEvictions<T> result_;
};

}  // namespace

template <class T>
HeadCaches<T> head_caches(const HeadGroup<T>& group, const EvictionPlan& plan, const HeadRanking& ranking,
                          const std::vector<KeptSet>& given_kept, const Compute& compute) {
  return CacheChooser<T>(group, plan.of(group), ranking, given_kept, compute).choose();
}

template <class T>
HeadEvictions<T> head_evictions(const HeadGroup<T>& group, const EvictionPlan& plan,
                                const HeadCaches<T>& caches, const CacheReaders& readers, bool with_vectors,
                                const Compute& compute) {
  return HeadMeasure<T>(group, plan.of(group), caches, compute).run(readers, with_vectors);
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define KVREPLAY_EVICTIONS(T)                                                                              \
  template HeadCaches<T> head_caches(const HeadGroup<T>&, const EvictionPlan&, const HeadRanking&,         \
                                     const std::vector<KeptSet>&, const Compute&);                         \
  template HeadEvictions<T> head_evictions(const HeadGroup<T>&, const EvictionPlan&, const HeadCaches<T>&, \
                                           const CacheReaders&, bool, const Compute&);
KVREPLAY_EVICTIONS(float)
KVREPLAY_EVICTIONS(double)
#undef KVREPLAY_EVICTIONS
// NOLINTEND(bugprone-macro-parentheses)

template <class T>
GrowingCache<T>::GrowingCache(HeadGroup<T> group, const EvictionPlan& plan)
    : group_(std::make_shared<HeadGroup<T>>(std::move(group))),
      plan_(plan),
      case_(plan.cases.front()),
      rule_(plan.runs.front().rules.front()) {}

template <class T>
Index GrowingCache<T>::next_rows() const {
  if (case_.phase.decodes()) return next_ == 0 ? group_->l : 1;
  return next_ < group_->l ? std::min(case_.phase.block, group_->l - next_) : 0;
}

template <class T>
std::vector<Index> GrowingCache<T>::add(const std::vector<Matrix<T>>& q, const Matrix<T>& k,
                                        const Matrix<T>& v, const Compute& compute) {
  const Index rows = k.rows(), expected = next_rows();
  if ((expected > 0 && rows != expected) || next_ + rows > group_->T_all())
    throw std::invalid_argument("rows of another chunk");
  for (Index g = 0; g < group_->G(); ++g) group_->q[g].middleRows(next_, rows) = q[g];
  group_->k.middleRows(next_, rows) = k;
  group_->v.middleRows(next_, rows) = v;
  next_ += rows;
  if (expected == 0) return {};
  if (!case_.phase.decodes()) return cut_block(rows, compute);
  return decoding_ ? decoding_->step() : begin_decoding(compute);
}

template <class T>
std::vector<Index> GrowingCache<T>::cut_block(Index rows, const Compute& compute) {
  for (Index p = next_ - rows; p < next_; ++p) cache_.push_back(p);
  std::vector<Index> evicted = cut_after_block(*group_, rule_, cache_, *case_.kept, rows, compute), left;
  std::set_difference(cache_.begin(), cache_.end(), evicted.begin(), evicted.end(), std::back_inserter(left));
  cache_ = std::move(left);
  return evicted;
}

template <class T>
std::vector<Index> GrowingCache<T>::begin_decoding(const Compute& compute) {
  const LayerScores shared(plan_.runs.size());  // no ranking that can decode is a layer's
  const HeadRanking ranking = head_ranking(*group_, plan_, shared, {}, std::nullopt, compute);
  const KeptSet kept = prompt_kept(*group_, plan_, case_, ranking, compute);
  const DecodeBegin begin = decode_begin(plan_, case_, kept);
  decoding_.emplace(group_, begin.rule, begin.kept, begin.budget, begin.options,
                    decode_start_scores(*group_, rule_, begin.options, compute));
  return evicted_positions(begin.kept);
}

template class GrowingCache<float>;
template class GrowingCache<double>;

}  // namespace kvreplay
