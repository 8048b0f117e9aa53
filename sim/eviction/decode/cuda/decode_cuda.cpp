#include "sim/cuda/device_gate.hpp"
#include "sim/cuda/transfer.hpp"
#include "sim/eviction/decode/cuda/decode_kernels.hpp"
#include "sim/eviction/decode/decode_run.hpp"
#include "sim/overflow.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace kvreplay {
namespace {

using namespace cuda;

constexpr Index kPositionsALaunch = 64;

constexpr Index in_fours(Index channels) { return (channels + 3) / 4 * 4; }

/// Rows of `width` numbers, with `factor` and 0 behind the last channel.
Matrix<float> in_rows(const HeadMatrix<float>& matrix, Index first, Index rows, Index width, float factor) {
  Matrix<float> padded = Matrix<float>::Zero(rows, width);
  padded.leftCols(matrix.cols()) = factor * matrix.middleRows(first, rows);
  return padded;
}

/// Arrays that a group's runs share, on the device.
DecodeGroup decode_group(const HeadGroup<float>& group, const std::vector<Matrix<float>>& full,
                         DeviceArrays& arrays, const Stream& stream) {
  const RowRange steps = decode_steps(group);
  const Index T = group.T_all();
  DecodeGroup in{};
  in.G = narrow(group.G());
  in.l = narrow(group.l);
  in.first_step = narrow(steps.begin);
  in.steps = narrow(steps.count());
  in.d = narrow(group.d());
  in.d_v = narrow(group.d_v());
  in.key_width = narrow(in_fours(group.d()));
  in.value_width = narrow(in_fours(group.d_v()));
  in.softcap = group.rule.softcap.value_or(0);

  in.k = arrays.copy_of<float>(in_rows(group.k, 0, T, in.key_width, 1));
  in.v = arrays.copy_of<float>(in_rows(group.v, 0, T, in.value_width, 1));
  const Index in_head = steps.count() * in.key_width, out_head = steps.count() * group.d_v();
  float* const q = arrays.make<float>(group.G() * in_head);
  float* const outputs = arrays.make<float>(group.G() * out_head);
  std::vector<double> sinks;
  for (Index g = 0; g < group.G(); ++g) {
    sinks.push_back(group.sink(g));
    if (steps.count() == 0) continue;
    const Matrix<float> rows = in_rows(group.q[g], steps.begin - group.first_query(), steps.count(),
                                       in.key_width, static_cast<float>(group.rule.scale));
    copy(q + g * in_head, rows.data(), in_head, stream);
    copy(outputs + g * out_head, full[g].data(), out_head, stream);
    stream.synchronize();
  }
  in.q = q;
  in.full = outputs;
  in.sink_logit = arrays.copy_of<double>(sinks);
  if (group.rule.sliding_window) {
    std::vector<int> visible, seen_from;
    for (Index i = steps.begin; i < steps.end; ++i) visible.push_back(narrow(group.first_visible(i)));
    for (Index end = group.l; end <= T; ++end) seen_from.push_back(narrow(group.first_seen_from(end)));
    in.first_visible = arrays.copy_of<int>(visible);
    in.first_seen_from = arrays.copy_of<int>(seen_from);
  }
  in.key_norm = arrays.make<double>(T);
  in.value_sq = arrays.make<double>(T);
  decode_norms(in, narrow(T), stream);
  stream.synchronize();
  return in;
}

/// Cuts a buffer into arrays, or counts what they will need where there is no buffer yet.
template <class T>
class Arrays {
 public:
  explicit Arrays(T* begin) : begin_(begin) {}
  T* take(Index n) {
    T* const array = begin_ == nullptr ? nullptr : begin_ + used_;
    used_ += n;
    return array;
  }
  std::size_t used() const { return used_; }

 private:
  T* begin_;
  std::size_t used_ = 0;
};

/// Memory for runs, apart from what the host gives them.
struct RunArrays {
  Arrays<double> doubles{nullptr};
  Arrays<float> floats{nullptr};
  Arrays<int> ints{nullptr};
  Arrays<DecodeLeft> left{nullptr};

  std::size_t bytes() const {
    return doubles.used() * sizeof(double) + floats.used() * sizeof(float) + ints.used() * sizeof(int) +
           left.used() * sizeof(DecodeLeft);
  }
};

/// A run, and where its arrays lie; `start` and `start_sums` are left open.
DecodeTask task_of(const HeadGroup<float>& group, const DecodeRequest& run, RunArrays& arrays) {
  const EvictionRule& rule = *run.rule;
  const RowRange steps = decode_steps(group);
  const std::optional<Index> window = steps_counted(rule, run.options);
  const std::vector<Index> tokens = start_tokens(group, *run.start);
  const Index budget = std::max<Index>(run.budget, 0), n_start = std::ssize(tokens);
  const Index sinks = std::min(rule.sinks, budget),
              capacity = narrow(most_tokens(group, *run.start, budget, run.options));
  DecodeTask task{};
  const Decoding decoding = decoding_of(rule, run.options);
  task.score = decoding.score;
  task.own = decoding.own;
  task.width = narrow(width_of_sums(group, decoding));
  task.window = window && *window < steps.count() ? narrow(*window) : 0;  // none that no run outlives
  task.per_visible_row = rule.per_visible_row ? 1 : 0;
  task.append_only = run.options.append_only ? 1 : 0;
  task.budget = narrow(std::min(budget, group.T_all()));
  task.recent = narrow(std::min(std::min(rule.recent, budget - sinks), group.T_all()));
  task.n_start = narrow(n_start);
  task.sinks_end = narrow(end_of_sinks(group, rule, tokens, budget));
  task.prompt_rows = window ? 0 : narrow(window_rows(group.l, group.first_query(), rule.window).count());

  task.capacity = narrow(capacity);
  task.position = arrays.ints.take(capacity);
  task.rows_before = arrays.ints.take(capacity);
  task.rank_by = arrays.doubles.take(capacity);
  task.row = arrays.doubles.take(capacity);
  task.sums = arrays.doubles.take(task.width * capacity);
  task.newer = arrays.doubles.take(task.window > 0 ? task.width * capacity : 0);
  task.older = arrays.doubles.take(task.window * task.width * capacity);
  task.weights = arrays.doubles.take(kDecodeHeads * capacity);
  task.dots = arrays.floats.take(kDecodeHeads * capacity);
  task.difference = arrays.floats.take(kDecodeHeads * capacity);
  task.product = arrays.floats.take(kDecodeHeads * capacity);
  task.rest = arrays.floats.take(kDecodeHeads * capacity);
  task.change = arrays.floats.take(group.G() * steps.count() * group.d_v());
  task.change_sq = arrays.doubles.take(steps.count());
  task.left = arrays.left.take(n_start + group.T_all() - group.l);
  return task;
}

/// Some runs side by side.
class DecodeBatch {
 public:
  DecodeBatch(const HeadGroup<float>& group, std::span<const DecodeRequest> runs, const Stream& stream)
      : group_(group), runs_(runs), stream_(stream), on_device_(stream) {
    RunArrays sizes;
    for (const DecodeRequest& run : runs) task_of(group, run, sizes);
    std::vector<int> starts;
    std::vector<double> start_sums;
    std::vector<std::size_t> starts_at, sums_at;
    for (const DecodeRequest& run : runs) {
      starts_at.push_back(starts.size());
      sums_at.push_back(start_sums.size());
      const std::vector<Index> kept = start_tokens(group, *run.start);
      for (const Index p : kept) starts.push_back(narrow(p));
      if (!carried(run)) continue;
      const Matrix<double>& scores = *run.start_scores;
      if (scores.rows() != width_of_sums(group, decoding_of(*run.rule, run.options)) ||
          scores.cols() != group.l)
        throw std::invalid_argument("decode_replays_cuda: start scores of another group or rule");
      for (Index w = 0; w < scores.rows(); ++w)
        for (const Index p : kept) start_sums.push_back(scores(w, p));
    }
    const int* const starts_on = on_device_.copy_of<int>(starts);
    const double* const sums_on = on_device_.copy_of<double>(start_sums);
    DecodeState fresh{};
    fresh.bad_position = -1;
    states_ = on_device_.copy_of<DecodeState>(std::vector<DecodeState>(runs.size(), fresh));

    RunArrays arrays{Arrays(on_device_.make<double>(sizes.doubles.used())),
                     Arrays(on_device_.make<float>(sizes.floats.used())),
                     Arrays(on_device_.make<int>(sizes.ints.used())),
                     Arrays(on_device_.make<DecodeLeft>(sizes.left.used()))};
    for (std::size_t r = 0; r < runs.size(); ++r) {
      DecodeTask task = task_of(group, runs[r], arrays);
      task.start = starts_on + starts_at[r];
      task.start_sums = carried(runs[r]) ? sums_on + sums_at[r] : nullptr;
      task.state = states_ + r;
      tasks_host_.push_back(task);
    }
    tasks_ = on_device_.copy_of<DecodeTask>(tasks_host_);
    stream.synchronize();  // what was uploaded lives here
  }

  void replay(const DecodeGroup& on_device, const Workers& workers) const {
    for (Index begin = group_.l; begin < group_.T_all(); begin += kPositionsALaunch) {
      if (workers.stopping()) throw Interrupted{};
      decode_positions(on_device, tasks_, narrow(std::ssize(runs_)), narrow(begin),
                       narrow(std::min(begin + kPositionsALaunch, group_.T_all())), stream_);
      stream_.synchronize();
    }
  }

  void collect(const std::vector<double>& full_sq, std::span<DecodeReplay<float>> replays) const {
    const std::vector<DecodeState> states = downloaded(states_, runs_.size(), stream_);
    for (const DecodeState& state : states)
      if (state.bad_position >= 0)
        report_overflow(group_, state.bad_head,
                        "position " + std::to_string(state.bad_position) + " while decoding");
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      replays[r].full_sq = full_sq;
      take(tasks_host_[r], states[r], *runs_[r].start, replays[r]);
    }
  }

 private:
  const HeadGroup<float>& group_;
  const std::span<const DecodeRequest> runs_;
  const Stream& stream_;
  std::vector<DecodeTask> tasks_host_;
  DeviceArrays on_device_;
  DecodeState* states_;
  DecodeTask* tasks_;

  static bool carried(const DecodeRequest& run) {
    return sums_rows(decoding_of(*run.rule, run.options)) && !steps_counted(*run.rule, run.options);
  }

  void take(const DecodeTask& task, const DecodeState& state, const KeptSet& start,
            DecodeReplay<float>& replay) const {
    const RowRange steps = decode_steps(group_);
    replay.first_step = steps.begin;
    replay.change_sq.resize(steps.count());
    copy(replay.change_sq.data(), task.change_sq, steps.count(), stream_);
    const Index in_head = steps.count() * group_.d_v();
    for (Index g = 0; g < group_.G(); ++g) {
      replay.change.emplace_back(steps.count(), group_.d_v());
      copy(replay.change.back().data(), task.change + g * in_head, in_head, stream_);
    }
    std::vector<DecodeLeft> left(state.moves);
    copy(left.data(), task.left, left.size(), stream_);
    stream_.synchronize();
    std::sort(left.begin(), left.end(), [](const DecodeLeft& a, const DecodeLeft& b) {
      return a.at != b.at ? a.at < b.at : a.position < b.position;
    });
    replay.kept = start;
    std::fill_n(replay.kept.begin(), group_.first_held(), std::uint8_t{0});
    for (const DecodeLeft& token : left) {
      replay.left.push_back({token.at - steps.begin, token.position});
      if (token.position < group_.l) replay.kept[token.position] = 0;
    }
    replay.cache_size =
        std::ssize(start_tokens(group_, start)) + group_.T_all() - group_.l - static_cast<Index>(state.moves);
  }
};

}  // namespace

std::vector<DecodeReplay<float>> decode_replays_cuda(const HeadGroup<float>& group,
                                                     std::span<const DecodeRequest> runs,
                                                     const std::vector<Matrix<float>>& full, Workers& workers,
                                                     std::size_t workspace) {
  std::vector<DecodeReplay<float>> replays(runs.size());
  if (workers.stopping()) throw Interrupted{};
  if (runs.empty()) return replays;
  for (const DecodeRequest& run : runs)
    if (!decodes_on_device(*run.rule, run.options))
      throw std::invalid_argument("decode_replays_cuda: a policy with state of its own");
  const Stream stream;
  DeviceArrays arrays(stream);
  const DecodeGroup on_device = decode_group(group, full, arrays, stream);
  std::vector<double> full_sq(decode_steps(group).count(), 0.0);
  for (const Matrix<float>& head : full)
    for (std::size_t step = 0; step < full_sq.size(); ++step)
      full_sq[step] += head.row(static_cast<Index>(step)).cast<double>().squaredNorm();

  for (std::size_t begin = 0, end = 0; begin < runs.size(); begin = end) {
    const std::size_t room = std::min(workspace, fair_share_of_memory());
    RunArrays sizes;
    for (; end < runs.size(); ++end) {
      task_of(group, runs[end], sizes);
      if (end > begin && sizes.bytes() > room) break;
    }
    DecodeBatch batch(group, runs.subspan(begin, end - begin), stream);
    batch.replay(on_device, workers);
    batch.collect(full_sq, std::span(replays).subspan(begin, end - begin));
  }
  return replays;
}

}  // namespace kvreplay
