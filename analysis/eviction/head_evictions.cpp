#include "analysis/eviction/head_evictions.hpp"

#include "sim/backend.hpp"
#include "sim/cache/cache.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/eviction/decode/decode.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

namespace kvreplay {
namespace {

using C = EvictionColumns;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// [steps, d_v] in panels of W rows: [panels][d_v][W].
template <class T>
std::vector<T> to_panels(const Matrix<T>& rows) {
  const Index d_v = rows.cols();
  std::vector<T> out(panels_of<T>(rows.rows()) * d_v * kPanelWidth<T>);
  for (Index r = 0; r < rows.rows(); ++r)
    for (Index c = 0; c < d_v; ++c) out[panel_entry<T>(c, r, d_v)] = rows(r, c);
  return out;
}

/// Whether a step's outputs are so small that float32 has lost digits of theirs.
bool below_float32(const DecodeReplay<float>& replay) {
  return std::any_of(replay.full_sq.begin(), replay.full_sq.end(), [](double sq) { return sq < 1e-60; });
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

template <class T>
class HeadSimulator {
 public:
  HeadSimulator(const HeadGroup<T>& group, const EvictionPlan& plan, const HeadRanking& ranking,
                const Vector<double>& importance, const std::vector<KeptSet>& given_kept,
                const Compute& compute)
      : group_(group),
        plan_(plan),
        ranking_(ranking),
        importance_(importance),
        given_kept_(given_kept),
        compute_(compute) {}

  HeadEvictions<T> run(bool with_vectors) {
    result_.cases.resize(plan_.cases.size());
    each(plan_.cases.size(), [&](std::size_t c) {
      CaseFigures& figures = result_.cases[c];
      figures.kept = prompt_kept_of(plan_.cases[c]);
      figures[C::tokens] = static_cast<double>(count(figures.kept));
    });
    measure(with_vectors);
    replay_decoding(with_vectors);
    compare_with_oracle();
    return std::move(result_);
  }

 private:
  template <class Body>
  void each(std::size_t n, Body body) const {
    compute_.workers.parallel_for(static_cast<std::ptrdiff_t>(n),
                                  [&](std::ptrdiff_t i) { body(static_cast<std::size_t>(i)); });
  }

  KeptSet prompt_kept_of(const EvictionCase& which) const {
    if (which.run) return prompt_kept(group_, plan_, which, ranking_, compute_);
    return which.budget < given_kept_.size() ? given_kept_[which.budget]
                                             : KeptSet(static_cast<std::size_t>(group_.l), 1);
  }

  /// The runs of the cases `decoding`, with the group's numbers in U.
  template <class U>
  std::vector<DecodeReplay<U>> replays_of(const HeadGroup<U>& group,
                                          const std::vector<std::size_t>& decoding) const {
    const std::vector<Matrix<U>> full = decode_full_outputs(group, compute_.workers);
    std::map<std::pair<std::size_t, Phase::Kind>, Matrix<double>> start;
    for (const std::size_t c : decoding) {
      const EvictionCase& which = plan_.cases[c];
      Matrix<double>& scores = start[{*which.run, which.phase.kind}];
      if (scores.size() == 0)
        scores = decode_start_scores(group, plan_.runs[*which.run].rules.front(),
                                     decode_options(plan_, which), compute_);
    }
    std::vector<DecodeRequest> runs;
    for (const std::size_t c : decoding) {
      const EvictionCase& which = plan_.cases[c];
      runs.push_back({&plan_.runs[*which.run].rules[which.budget], &result_.cases[c].kept, *which.kept,
                      decode_options(plan_, which), &start.at({*which.run, which.phase.kind})});
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
      notice_changes(replays[n], count(result_.cases[decoding[n]].kept) == group_.l);
    return replays;
  }

  void replay_decoding(bool with_vectors) {
    std::vector<std::size_t> decoding;
    for (std::size_t c = 0; c < plan_.cases.size(); ++c)
      if (plan_.cases[c].phase.decodes()) decoding.push_back(c);
    if (decoding.empty()) return;
    std::vector<DecodeReplay<T>> replays = replays_of(decoding);
    OutputChanges<T>& future = result_.outputs.future;
    if (with_vectors) future.change.resize(plan_.cases.size());
    result_.step_full_sq = replays.front().full_sq;
    for (std::size_t n = 0; n < decoding.size(); ++n) {
      CaseFigures& figures = result_.cases[decoding[n]];
      DecodeReplay<T>& replay = replays[n];
      figures.last_rows = last_rows(figures.kept, group_.T_all(), replay);
      figures.kept = std::move(replay.kept);
      figures[C::tokens] = static_cast<double>(replay.cache_size);
      const Index token = plan_.elements.key * group_.d() + plan_.elements.value * group_.d_v();
      figures[C::bytes] = static_cast<double>(replay.cache_size * token);
      figures.step_change_sq = std::move(replay.change_sq);
      double& change_sq = future.change_sq[decoding[n]] = 0;
      for (const double step : figures.step_change_sq) change_sq += step;
      if (with_vectors)
        for (const Matrix<T>& change : replay.change) future.change[decoding[n]].push_back(to_panels(change));
    }
  }

  /// What the plan's compression leaves of a kept set.
  CacheCase cache_of(const EvictionCase& which, const KeptSet& kept) const {
    CacheCase cache{kept};
    if (!plan_.compression) return cache;
    cache.quantization = plan_.compression->quantization;
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

  /// All phases that do not decode.
  void measure(bool with_vectors) {
    std::vector<std::size_t> measured;
    for (std::size_t c = 0; c < plan_.cases.size(); ++c)
      if (!plan_.cases[c].phase.decodes()) measured.push_back(c);
    std::vector<CacheCase> caches(measured.size());
    each(measured.size(), [&](std::size_t m) {
      CaseFigures& figures = result_.cases[measured[m]];
      const auto& [kept, pruned, prunable, quantization] = caches[m] =
          cache_of(plan_.cases[measured[m]], figures.kept);
      figures.pruned = pruned;
      figures[C::bytes] =
          cache_bytes(kept, pruned, prunable, group_.d(), group_.d_v(), quantization, plan_.elements);
    });
    CaseOutputs<T> found = case_outputs(group_, plan_.window, plan_.future, caches, with_vectors, compute_);
    const auto take = [&](OutputChanges<T>& from, OutputChanges<T>& to) {
      to.full_sq = from.full_sq;
      to.full = std::move(from.full);
      to.change_sq.assign(plan_.cases.size(), kNone);
      if (!from.change.empty()) to.change.resize(plan_.cases.size());
      for (std::size_t m = 0; m < measured.size(); ++m) {
        to.change_sq[measured[m]] = from.change_sq[m];
        if (!from.change.empty()) to.change[measured[m]] = std::move(from.change[m]);
      }
    };
    take(found.window, result_.outputs.window);
    take(found.future, result_.outputs.future);
  }

  void compare_with_oracle() {
    std::map<Index, KeptSet> best;
    for (CaseFigures& figures : result_.cases) {
      const Index keep = count(figures.kept);
      figures[C::prompt_tokens] = static_cast<double>(keep);
      OracleFigures found{kNone, kNone, kNone};
      if (plan_.future.count() > 0) {
        if (!best.contains(keep)) best[keep] = largest(importance_, keep);
        found = oracle_figures(importance_, best[keep], figures.kept);
      }
      figures[C::eviction_loss] = found.eviction_loss;
      figures[C::optimality_gap] = found.optimality_gap;
      figures[C::oracle_recall] = found.oracle_recall;
    }
  }

  const HeadGroup<T>& group_;
  const EvictionPlan& plan_;
  const HeadRanking& ranking_;
  const Vector<double>& importance_;
  const std::vector<KeptSet>& given_kept_;
  const Compute& compute_;
  HeadEvictions<T> result_;
};

}  // namespace

template <class T>
HeadEvictions<T> head_evictions(const HeadGroup<T>& group, const EvictionPlan& plan,
                                const HeadRanking& ranking, const Vector<double>& importance,
                                const std::vector<KeptSet>& given_kept, bool with_vectors,
                                const Compute& compute) {
  return HeadSimulator<T>(group, plan, ranking, importance, given_kept, compute).run(with_vectors);
}

template HeadEvictions<float> head_evictions(const HeadGroup<float>&, const EvictionPlan&, const HeadRanking&,
                                             const Vector<double>&, const std::vector<KeptSet>&, bool,
                                             const Compute&);
template HeadEvictions<double> head_evictions(const HeadGroup<double>&, const EvictionPlan&,
                                              const HeadRanking&, const Vector<double>&,
                                              const std::vector<KeptSet>&, bool, const Compute&);

}  // namespace kvreplay
