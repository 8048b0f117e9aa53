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
constexpr std::size_t sized(Index n) { return static_cast<std::size_t>(n); }

/// Rows of `width` numbers, with `factor` and 0 behind the last channel.
Matrix<float> in_rows(const Matrix<float>& matrix, Index first, Index rows, Index width, float factor) {
  Matrix<float> padded = Matrix<float>::Zero(rows, width);
  padded.leftCols(matrix.cols()) = factor * matrix.middleRows(first, rows);
  return padded;
}

/// What a group's runs share, on the device.
class DecodeGroupBuffers {
 public:
  DecodeGroupBuffers(const HeadGroup<float>& group, const std::vector<Matrix<float>>& full,
                     const Stream& stream) {
    const Rows steps = decode_steps(group);
    const Index T = group.T_all();
    in_.G = narrow(group.G());
    in_.l = narrow(group.l);
    in_.first_step = narrow(steps.begin);
    in_.steps = narrow(steps.count());
    in_.d = narrow(group.d());
    in_.d_v = narrow(group.d_v());
    in_.key_width = narrow(in_fours(group.d()));
    in_.value_width = narrow(in_fours(group.d_v()));
    in_.softcap = group.rule.softcap.value_or(0);

    k_ = uploaded<float>(in_rows(group.k, 0, T, in_.key_width, 1), stream);
    v_ = uploaded<float>(in_rows(group.v, 0, T, in_.value_width, 1), stream);
    const Index in_head = steps.count() * in_.key_width, out_head = steps.count() * group.d_v();
    q_ = Buffer<float>(sized(group.G() * in_head));
    full_ = Buffer<float>(sized(group.G() * out_head));
    std::vector<double> sinks(sized(group.G()), -std::numeric_limits<double>::infinity());
    for (Index g = 0; g < group.G() && steps.count() > 0; ++g) {
      const Matrix<float> q = in_rows(group.q[sized(g)], steps.begin - group.first_query(), steps.count(),
                                      in_.key_width, static_cast<float>(group.rule.scale));
      copy(q_.data() + g * in_head, q.data(), sized(in_head), stream);
      copy(full_.data() + g * out_head, full[sized(g)].data(), sized(out_head), stream);
      if (!group.rule.sink_logit.empty()) sinks[sized(g)] = group.rule.sink_logit[sized(g)];
      stream.synchronize();
    }
    sinks_ = uploaded<double>(sinks, stream);
    if (group.rule.sliding_window) {
      std::vector<int> first;
      for (Index i = steps.begin; i < steps.end; ++i) first.push_back(narrow(group.first_visible(i)));
      first_visible_ = uploaded<int>(first, stream);
      stream.synchronize();
    }
    key_norm_ = Buffer<double>(sized(T));
    value_sq_ = Buffer<double>(sized(T));
    in_.q = q_.data();
    in_.k = k_.data();
    in_.v = v_.data();
    in_.full = full_.data();
    in_.sink_logit = sinks_.data();
    in_.first_visible = first_visible_.data();
    in_.key_norm = key_norm_.data();
    in_.value_sq = value_sq_.data();
    decode_norms(in_, narrow(T), stream);
    stream.synchronize();
  }
  const DecodeGroup& view() const { return in_; }

 private:
  DecodeGroup in_{};
  Buffer<float> q_, k_, v_, full_;
  Buffer<double> sinks_, key_norm_, value_sq_;
  Buffer<int> first_visible_;
};

/// Cuts a buffer into arrays, or counts what they will need where there is no buffer yet.
template <class T>
class Arrays {
 public:
  explicit Arrays(T* begin) : begin_(begin) {}
  T* take(Index n) {
    T* const array = begin_ == nullptr ? nullptr : begin_ + used_;
    used_ += sized(n);
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
  const Rows steps = decode_steps(group);
  const std::optional<Index> window = steps_counted(rule, run.options);
  const Index budget = std::max<Index>(run.budget, 0), n_start = count(*run.start);
  const Index sinks = std::min(rule.sinks, budget),
              capacity = narrow(most_tokens(group, *run.start, budget, run.options.append_only));
  DecodeTask task{};
  const Decoding decoding = decoding_of(rule);
  task.rank = decoding.rank;
  task.score = decoding.score;
  task.own = decoding.own;
  task.width = narrow(width_of_sums(group, decoding));
  task.window = window && *window < steps.count() ? narrow(*window) : 0;  // none that no run outlives
  task.per_visible_row = rule.per_visible_row ? 1 : 0;
  task.append_only = run.options.append_only ? 1 : 0;
  task.budget = narrow(std::min(budget, group.T_all()));
  task.recent = narrow(std::min(std::min(rule.recent, budget - sinks), group.T_all()));
  task.n_start = narrow(n_start);
  task.sinks_end = narrow(std::min(group.l + std::max<Index>(sinks - n_start, 0), group.T_all()));
  if (sinks < n_start) task.sinks_end = narrow(positions(*run.start)[sized(sinks)]);
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
  task.key_sum = arrays.doubles.take(in_fours(group.d()));
  task.value_sum = arrays.doubles.take(in_fours(group.d_v()));
  task.change = arrays.floats.take(group.G() * steps.count() * group.d_v());
  task.change_sq = arrays.doubles.take(steps.count());
  task.left = arrays.left.take(n_start + group.T_all() - group.l);
  return task;
}

/// Some runs side by side.
class DecodeBatch {
 public:
  DecodeBatch(const HeadGroup<float>& group, std::span<const DecodeRequest> runs, const Stream& stream)
      : group_(group), runs_(runs), stream_(stream) {
    RunArrays sizes;
    for (const DecodeRequest& run : runs) task_of(group, run, sizes);
    doubles_ = Buffer<double>(sizes.doubles.used());
    floats_ = Buffer<float>(sizes.floats.used());
    ints_ = Buffer<int>(sizes.ints.used());
    left_ = Buffer<DecodeLeft>(sizes.left.used());

    std::vector<int> starts;
    std::vector<double> start_sums;
    std::vector<std::size_t> starts_at, sums_at;
    for (const DecodeRequest& run : runs) {
      starts_at.push_back(starts.size());
      sums_at.push_back(start_sums.size());
      const std::vector<Index> kept = positions(*run.start);
      for (const Index p : kept) starts.push_back(narrow(p));
      if (!carried(run)) continue;
      const Matrix<double>& scores = *run.start_scores;
      if (scores.rows() != width_of_sums(group, decoding_of(*run.rule)) || scores.cols() != group.l)
        throw std::invalid_argument("decode_replays_cuda: start scores of another group or rule");
      for (Index w = 0; w < scores.rows(); ++w)
        for (const Index p : kept) start_sums.push_back(scores(w, p));
    }
    starts_ = uploaded<int>(starts, stream);
    start_sums_ = uploaded<double>(start_sums, stream);
    DecodeState fresh{};
    fresh.bad_position = -1;
    states_ = uploaded<DecodeState>(std::vector<DecodeState>(runs.size(), fresh), stream);

    RunArrays arrays{Arrays(doubles_.data()), Arrays(floats_.data()), Arrays(ints_.data()),
                     Arrays(left_.data())};
    for (std::size_t r = 0; r < runs.size(); ++r) {
      DecodeTask task = task_of(group, runs[r], arrays);
      task.start = starts_.data() + starts_at[r];
      task.start_sums = carried(runs[r]) ? start_sums_.data() + sums_at[r] : nullptr;
      task.state = states_.data() + r;
      tasks_host_.push_back(task);
    }
    tasks_ = uploaded<DecodeTask>(tasks_host_, stream);
    stream.synchronize();  // what was uploaded lives here
  }

  void replay(const DecodeGroup& on_device, const Workers& workers) const {
    for (Index begin = group_.l; begin < group_.T_all(); begin += kPositionsALaunch) {
      if (workers.stopping()) throw Interrupted{};
      decode_positions(on_device, tasks_.data(), narrow(std::ssize(runs_)), narrow(begin),
                       narrow(std::min(begin + kPositionsALaunch, group_.T_all())), stream_);
      stream_.synchronize();
    }
  }

  void collect(const std::vector<double>& full_sq, std::span<DecodeReplay<float>> replays) const {
    const std::vector<DecodeState> states = downloaded(states_, states_.size(), stream_);
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
  Buffer<double> doubles_, start_sums_;
  Buffer<float> floats_;
  Buffer<int> ints_, starts_;
  Buffer<DecodeLeft> left_;
  Buffer<DecodeState> states_;
  Buffer<DecodeTask> tasks_;

  static bool carried(const DecodeRequest& run) {
    return sums_rows(decoding_of(*run.rule)) && !steps_counted(*run.rule, run.options);
  }

  void take(const DecodeTask& task, const DecodeState& state, const KeptSet& start,
            DecodeReplay<float>& replay) const {
    const Rows steps = decode_steps(group_);
    replay.first_step = steps.begin;
    replay.change_sq.resize(sized(steps.count()));
    copy(replay.change_sq.data(), static_cast<const double*>(task.change_sq), sized(steps.count()), stream_);
    const Index in_head = steps.count() * group_.d_v();
    for (Index g = 0; g < group_.G(); ++g) {
      replay.change.emplace_back(steps.count(), group_.d_v());
      copy(replay.change.back().data(), static_cast<const float*>(task.change) + g * in_head, sized(in_head),
           stream_);
    }
    std::vector<DecodeLeft> left(sized(state.moves));
    copy(left.data(), static_cast<const DecodeLeft*>(task.left), left.size(), stream_);
    stream_.synchronize();
    std::sort(left.begin(), left.end(), [](const DecodeLeft& a, const DecodeLeft& b) {
      return a.at != b.at ? a.at < b.at : a.position < b.position;
    });
    replay.kept = start;
    for (const DecodeLeft& token : left) {
      replay.left.push_back({token.at - steps.begin, token.position});
      if (token.position < group_.l) replay.kept[sized(token.position)] = 0;
    }
    replay.cache_size = count(start) + group_.T_all() - group_.l - static_cast<Index>(state.moves);
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
  const Stream stream;
  const DecodeGroupBuffers on_device(group, full, stream);
  std::vector<double> full_sq(sized(decode_steps(group).count()), 0.0);
  for (const Matrix<float>& head : full)
    for (std::size_t step = 0; step < full_sq.size(); ++step)
      full_sq[step] += head.row(static_cast<Index>(step)).cast<double>().squaredNorm();

  for (std::size_t begin = 0, end = 0; begin < runs.size(); begin = end) {
    const std::size_t room = std::min(workspace, free_memory() / 2);
    RunArrays sizes;
    for (; end < runs.size(); ++end) {
      task_of(group, runs[end], sizes);
      if (end > begin && sizes.bytes() > room) break;
    }
    DecodeBatch batch(group, runs.subspan(begin, end - begin), stream);
    batch.replay(on_device.view(), workers);
    batch.collect(full_sq, std::span(replays).subspan(begin, end - begin));
  }
  return replays;
}

}  // namespace kvreplay
