#include "sim/tokens/column_totals_cuda.hpp"

#include "sim/cuda/visibility.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/column_kernels.hpp"

#include <algorithm>
#include <string>

namespace kvreplay::cuda {
namespace {

constexpr Index div_up(Index a, Index b) { return (a + b - 1) / b; }

/// The rows that see something of each block of tokens: [blocks][2].
std::vector<int> row_ranges(const Visibility& seen, Index candidates) {
  std::vector<int> ranges;
  for (Index begin = 0; begin < candidates; begin += kScoredTokens) {
    const Index last = std::min<Index>(begin + kScoredTokens, candidates) - 1;
    const auto from = std::upper_bound(seen.end.begin(), seen.end.end(), begin) - seen.end.begin();
    const auto to = std::upper_bound(seen.first.begin(), seen.first.end(), last) - seen.first.begin();
    ranges.push_back(static_cast<int>(from));
    ranges.push_back(static_cast<int>(std::max(from, to)));
  }
  return ranges;
}

/// Parts that work is cut into, so that there are blocks enough for a large device. Depends on the sizes
/// alone: so do the sums then, to the bit.
Index parts(Index blocks, Index most) {
  constexpr Index kEnoughBlocks = 512;
  return std::clamp<Index>(div_up(kEnoughBlocks, blocks), 1, std::max<Index>(most, 1));
}

}  // namespace

DeviceGroup::DeviceGroup(const HeadGroup<float>& group, const PreparedValues<float>& values,
                         const Stream& stream)
    : group_(group),
      stream_(stream),
      q_(static_cast<std::size_t>(group.G() * group.T_q() * group.d())),
      k_(uploaded<float>(group.k, stream)),
      v_centred_(uploaded<float>(values.centred, stream)),
      centre_(uploaded<float>(values.centre, stream)),
      value_sq_(uploaded<float>(values.value_sq, stream)),
      value_centred_sq_(uploaded<float>(values.value_centred_sq, stream)),
      centre_dot_value_(uploaded<float>(values.centre_dot_value, stream)),
      value_sq_host_(values.value_sq.cast<double>()) {
  const auto head = static_cast<std::size_t>(group.T_q() * group.d());
  for (std::size_t g = 0; g < group.q.size(); ++g)
    copy(q_.data() + g * head, group.q[g].data(), head, stream);
  if (!group.rule.sink_logit.empty()) {
    const std::vector<float> sinks(group.rule.sink_logit.begin(), group.rule.sink_logit.end());
    sink_logit_ = uploaded<float>(sinks, stream);
    stream.synchronize();
  }
}

std::vector<ColumnTotals> DeviceGroup::column_totals(Rows rows, ColumnSet columns) const {
  const Index G = group_.G(), n = rows.count(), d_v = group_.d_v();
  const Index end = group_.end_visible(rows.end - 1), begin = group_.first_visible(rows.begin);
  const Index candidates = std::min(group_.l, end);
  const Visibility seen = visibility(group_, rows);
  const std::vector<int> row_ranges_host = row_ranges(seen, candidates);
  const auto first_visible = uploaded<int>(seen.first, stream_),
             end_visible = uploaded<int>(seen.end, stream_), ranges = uploaded<int>(row_ranges_host, stream_);

  ColumnProblem problem{};
  problem.G = narrow(G);
  problem.rows = narrow(n);
  problem.tokens = narrow(group_.T_all());
  problem.d = narrow(group_.d());
  problem.d_v = narrow(d_v);
  problem.candidates = narrow(candidates);
  problem.q = q_.data() + (rows.begin - group_.first_query()) * group_.d();
  problem.head_rows = group_.T_q();
  problem.k = k_.data();
  problem.v_centred = v_centred_.data();
  problem.centre = centre_.data();
  problem.value_sq = value_sq_.data();
  problem.value_centred_sq = value_centred_sq_.data();
  problem.centre_dot_value = centre_dot_value_.data();
  problem.scale = static_cast<float>(group_.rule.scale);
  problem.softcap = static_cast<float>(group_.rule.softcap.value_or(0));
  problem.first_visible = first_visible.data();
  problem.end_visible = end_visible.data();
  problem.sink_logit = sink_logit_.data();

  constexpr Index kRowsABlock = 64, kTokensAStep = 32, kLeastSteps = 8;
  const Index segments = parts(G * div_up(n, kRowsABlock), (end - begin) / (kLeastSteps * kTokensAStep));
  const Index per_segment = div_up(div_up(end - begin, segments), kTokensAStep) * kTokensAStep;
  const auto all_rows = static_cast<std::size_t>(G * n),
             states = static_cast<std::size_t>(segments) * all_rows;
  const Buffer<float> top(states), rest_max(states), rest_sum(states),
      rest_out(states * static_cast<std::size_t>(d_v));
  const Buffer<int> top_at(states);
  const SoftmaxStates state{narrow(segments), narrow(per_segment), narrow(begin),   top.data(),
                            top_at.data(),    rest_max.data(),     rest_sum.data(), rest_out.data()};
  softmax_pass(problem, state, stream_);

  const Buffer<float> numbers(all_rows * kRowNumbers);
  const Buffer<int> row_top(all_rows);
  const Buffer<LargestScores> largest(all_rows);
  const FinishedRows finished{numbers.data(), row_top.data(), largest.data()};
  finish_rows(problem, state, finished, stream_);

  const bool future = columns == ColumnSet::future;
  const std::size_t n_sums = future ? kFutureColumnSums : kWindowColumnSums;
  const Index row_segments = parts(G * div_up(candidates, kScoredTokens), n / (kLeastSteps * kTokensAStep));
  const std::size_t in_head = n_sums * static_cast<std::size_t>(candidates);
  const Buffer<double> sums(static_cast<std::size_t>(row_segments * G) * in_head);
  score_pass(problem, finished, {future, narrow(row_segments), ranges.data(), rest_out.data(), sums.data()},
             stream_);

  const std::vector<LargestScores> scores = downloaded(largest, all_rows, stream_);
  const std::vector<double> added = downloaded(sums, static_cast<std::size_t>(G) * in_head, stream_);
  std::vector<ColumnTotals> totals;
  for (Index g = 0; g < G; ++g) {
    const auto own = scores.begin() + g * n;
    const auto bad = std::find_if(own, own + n, [](const LargestScores& s) { return s.at < 0; });
    if (bad != own + n) report_overflow(group_, g, "position " + std::to_string(rows.begin + (bad - own)));
    totals.push_back(empty_totals(group_.l, columns));
    ColumnTotals& t = totals.back();
    const auto sum_of = [&](int which, Vector<double>& into) {
      const double* from =
          added.data() + static_cast<std::size_t>(g) * in_head + static_cast<std::size_t>(which * candidates);
      std::copy_n(from, candidates, into.data());
    };
    if (future) {
      sum_of(kFutureRemove, t.exact_remove);
      sum_of(kFutureMaxAttn, t.max_attn);
    } else {
      sum_of(kSumAttn, t.attn);
      sum_of(kSumAttnSq, t.attn_sq);
      sum_of(kSumKey, t.key);
      sum_of(kSumExactKey, t.exact_key);
      sum_of(kSumExactJoint, t.exact_joint);
      sum_of(kSumExactRemove, t.exact_remove);
      // ||v + z (v - o)||^2 = ||v||^2 + 2 z v . (v - o) + z^2 ||v - o||^2
      sum_of(kSumJointCross, t.joint);
      t.joint = t.attn_sq.cwiseProduct(value_sq_host_) + 2 * t.joint + t.key;
      // Rounding may leave a sum of squares just below 0.
      for (Vector<double>* sum : {&t.joint, &t.key, &t.exact_key, &t.exact_joint}) *sum = sum->cwiseMax(0.0);
    }
    t.exact_remove = t.exact_remove.cwiseMax(0.0);
    add_largest({own, own + n}, columns, group_.l, t);
  }
  return totals;
}

}  // namespace kvreplay::cuda
