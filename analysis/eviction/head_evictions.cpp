#include "analysis/eviction/head_evictions.hpp"

#include "sim/channels/channel_basis.hpp"
#include "sim/compression/compressed_outputs.hpp"
#include "sim/eviction/decode/decode.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

namespace kvreplay {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// [steps, d_v] in panels of W rows: [panels][d_v][W].
template <class T>
std::vector<T> to_panels(const Matrix<T>& rows) {
  const Index d_v = rows.cols();
  std::vector<T> out(static_cast<std::size_t>(panels_of<T>(rows.rows()) * d_v * kPanelWidth<T>));
  for (Index r = 0; r < rows.rows(); ++r)
    for (Index c = 0; c < d_v; ++c) out[panel_entry<T>(c, r, d_v)] = rows(r, c);
  return out;
}

template <class T>
class HeadSimulator {
 public:
  HeadSimulator(const HeadGroup<T>& group, const EvictionPlan& plan, const HeadRanking& ranking,
                const Vector<double>& importance, const std::vector<KeptSet>& given_kept, Workers& workers,
                const Backend& backend)
      : group_(group),
        plan_(plan),
        ranking_(ranking),
        importance_(importance),
        given_kept_(given_kept),
        workers_(workers),
        backend_(backend) {}

  HeadEvictions<T> run(bool with_vectors) {
    result_.cases.resize(plan_.cases.size());
    workers_.parallel_for(static_cast<std::ptrdiff_t>(plan_.cases.size()), [&](std::ptrdiff_t c) {
      const EvictionCase& which = plan_.cases[static_cast<std::size_t>(c)];
      CaseFigures& figures = result_.cases[static_cast<std::size_t>(c)];
      figures.kept = prompt_kept_of(which);
      figures.tokens = count(figures.kept);
    });
    replay_decoding(with_vectors);
    if (plan_.compression) {
      measure_compressed(with_vectors);
    } else {
      measure(plan_.window, with_vectors, result_.window_full_sq, &CaseFigures::window_change_sq,
              result_.window);
      measure(plan_.future, with_vectors, result_.future_full_sq, &CaseFigures::future_change_sq,
              result_.future);
      const Index token = plan_.elements.key * group_.d() + plan_.elements.value * group_.d_v();
      for (CaseFigures& figures : result_.cases) figures.bytes = static_cast<double>(figures.tokens * token);
    }
    compare_with_oracle();
    return std::move(result_);
  }

 private:
  KeptSet prompt_kept_of(const EvictionCase& which) const {
    if (which.run) return prompt_kept(group_, plan_, which, ranking_, workers_, backend_);
    return which.budget < given_kept_.size() ? given_kept_[which.budget]
                                             : KeptSet(static_cast<std::size_t>(group_.l), 1);
  }

  void replay_decoding(bool with_vectors) {
    std::vector<std::size_t> decoding;
    for (std::size_t c = 0; c < plan_.cases.size(); ++c)
      if (plan_.cases[c].phase.decodes()) decoding.push_back(c);
    if (decoding.empty()) return;
    const std::vector<Matrix<T>> full = decode_full_outputs(group_, workers_);
    std::map<std::pair<std::size_t, Phase::Kind>, Matrix<double>> start;
    for (const std::size_t c : decoding) {
      const EvictionCase& which = plan_.cases[c];
      Matrix<double>& scores = start[{*which.run, which.phase.kind}];
      if (scores.size() == 0)
        scores = decode_start_scores(group_, plan_.runs[*which.run].rules.front(),
                                     decode_options(plan_, which), workers_, backend_);
    }
    std::vector<DecodeRequest> runs;
    for (const std::size_t c : decoding) {
      const EvictionCase& which = plan_.cases[c];
      runs.push_back({&plan_.runs[*which.run].rules[which.budget], &result_.cases[c].kept, *which.kept,
                      decode_options(plan_, which), &start.at({*which.run, which.phase.kind})});
    }
    std::vector<DecodeReplay<T>> replays = backend_.decode_replays(group_, runs, full, workers_);
    if (with_vectors) result_.future.change.resize(plan_.cases.size());
    result_.step_full_sq = replays.front().full_sq;
    for (std::size_t n = 0; n < decoding.size(); ++n) {
      CaseFigures& figures = result_.cases[decoding[n]];
      DecodeReplay<T>& replay = replays[n];
      figures.kept = std::move(replay.kept);
      figures.tokens = replay.cache_size;
      figures.step_change_sq = std::move(replay.change_sq);
      figures.future_change_sq = 0;
      for (const double step : figures.step_change_sq) figures.future_change_sq += step;
      figures.window_change_sq = kNone;
      if (with_vectors)
        for (const Matrix<T>& change : replay.change)
          result_.future.change[decoding[n]].push_back(to_panels(change));
    }
  }

  /// The kept sets of all phases that do not decode, on one set of rows.
  void measure(Rows rows, bool with_vectors, double& full_sq, double CaseFigures::*change_sq,
               typename HeadEvictions<T>::Vectors& vectors) {
    std::vector<std::size_t> measured;
    std::vector<KeptSet> sets;
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      if (plan_.cases[c].phase.decodes()) continue;
      result_.cases[c].*change_sq = kNone;
      measured.push_back(c);
      sets.push_back(result_.cases[c].kept);
    }
    full_sq = kNone;
    if (rows.count() == 0) return;
    OutputChanges<T> changes = backend_.output_changes(group_, rows, sets, with_vectors, workers_);
    full_sq = changes.full_sq;
    if (with_vectors) {
      vectors.full = std::move(changes.full);
      vectors.change.resize(plan_.cases.size());
    }
    for (std::size_t m = 0; m < measured.size(); ++m) {
      result_.cases[measured[m]].*change_sq = changes.change_sq[m];
      if (with_vectors) vectors.change[measured[m]] = std::move(changes.change[m]);
    }
  }

  /// The channels that the tokens kept by one case lose.
  struct LostChannels {
    ChannelSet pruned;
    KeptSet prunable;
  };
  LostChannels lost_channels(const EvictionCase& which, const KeptSet& kept) const {
    const Compression& compression = *plan_.compression;
    if (!compression.channels) return {};
    const Semantics semantics = semantics_of(plan_, which);
    const ChannelSetting setting{semantics, default_recent(semantics), plan_.channel_window, std::nullopt};
    const ChannelRule& rule = *compression.channels;
    ChannelBasis basis = channel_basis(group_, kept, setting, rule.needs_outputs(), workers_, backend_);
    const Index n = pruned_channels(compression.ratio, group_.d(), semantics);
    return {select_channels(rule, basis.scores, channel_order(rule, basis.scores), n).pruned,
            std::move(basis.keys.prunable)};
  }

  void measure_compressed(bool with_vectors) {
    struct RowsMeasured {
      CompressedOutputs<T> outputs;
      double CaseFigures::*change_sq;
      typename HeadEvictions<T>::Vectors& vectors;
    };
    std::vector<RowsMeasured> measured;
    const auto take = [&](Rows rows, double& full_sq, double CaseFigures::*change_sq, auto& vectors) {
      for (CaseFigures& figures : result_.cases) figures.*change_sq = kNone;
      full_sq = kNone;
      if (rows.count() == 0) return;
      measured.push_back({CompressedOutputs<T>(group_, rows, workers_), change_sq, vectors});
      full_sq = measured.back().outputs.full_sq();
      if (!with_vectors) return;
      vectors.full = measured.back().outputs.full();
      vectors.change.resize(plan_.cases.size());
    };
    take(plan_.window, result_.window_full_sq, &CaseFigures::window_change_sq, result_.window);
    take(plan_.future, result_.future_full_sq, &CaseFigures::future_change_sq, result_.future);
    workers_.parallel_for(static_cast<std::ptrdiff_t>(plan_.cases.size()), [&](std::ptrdiff_t n) {
      const auto c = static_cast<std::size_t>(n);
      CaseFigures& figures = result_.cases[c];
      const auto [pruned, prunable] = lost_channels(plan_.cases[c], figures.kept);
      const std::optional<Quantization>& quantization = plan_.compression->quantization;
      figures.bytes =
          cache_bytes(figures.kept, pruned, prunable, group_.d(), group_.d_v(), quantization, plan_.elements);
      std::optional<CompressedCache<T>> cache;
      if (quantization) cache = compressed_cache(group_, figures.kept, pruned, prunable, quantization);
      for (const RowsMeasured& rows : measured) {
        auto change = cache ? rows.outputs.change(*cache, with_vectors)
                            : rows.outputs.change(figures.kept, pruned, prunable, with_vectors);
        figures.*rows.change_sq = change.change_sq;
        if (with_vectors) rows.vectors.change[c] = std::move(change.vectors);
      }
    });
  }

  void compare_with_oracle() {
    for (CaseFigures& figures : result_.cases)
      figures.eviction_loss = figures.optimality_gap = figures.oracle_recall = kNone;
    if (plan_.future.count() == 0) return;
    std::map<Index, KeptSet> best;
    for (CaseFigures& figures : result_.cases) {
      const Index keep = count(figures.kept);
      if (!best.contains(keep)) best[keep] = largest(importance_, keep);
      const OracleFigures found = oracle_figures(importance_, best[keep], figures.kept);
      figures.eviction_loss = found.eviction_loss;
      figures.optimality_gap = found.optimality_gap;
      figures.oracle_recall = found.oracle_recall;
    }
  }

  const HeadGroup<T>& group_;
  const EvictionPlan& plan_;
  const HeadRanking& ranking_;
  const Vector<double>& importance_;
  const std::vector<KeptSet>& given_kept_;
  Workers& workers_;
  const Backend& backend_;
  HeadEvictions<T> result_;
};

}  // namespace

template <class T>
HeadEvictions<T> head_evictions(const HeadGroup<T>& group, const EvictionPlan& plan,
                                const HeadRanking& ranking, const Vector<double>& importance,
                                const std::vector<KeptSet>& given_kept, bool with_vectors, Workers& workers,
                                const Backend& backend) {
  return HeadSimulator<T>(group, plan, ranking, importance, given_kept, workers, backend).run(with_vectors);
}

template HeadEvictions<float> head_evictions(const HeadGroup<float>&, const EvictionPlan&, const HeadRanking&,
                                             const Vector<double>&, const std::vector<KeptSet>&, bool,
                                             Workers&, const Backend&);
template HeadEvictions<double> head_evictions(const HeadGroup<double>&, const EvictionPlan&,
                                              const HeadRanking&, const Vector<double>&,
                                              const std::vector<KeptSet>&, bool, Workers&, const Backend&);

}  // namespace kvreplay
