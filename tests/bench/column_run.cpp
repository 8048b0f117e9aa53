#include "tests/bench/column_run.hpp"

#include "data/error.hpp"
#include "sim/cuda/visibility.hpp"
#include "sim/tokens/column_kernels.hpp"

#include <algorithm>

// The kernels as they are: float32 and no matrix units for half precision.

namespace kvreplay::bench {
namespace {

using namespace cuda;

constexpr Index div_up(Index a, Index b) { return (a + b - 1) / b; }
Index parts(Index blocks, Index most) {
  return std::clamp<Index>(div_up(512, blocks), 1, std::max<Index>(most, 1));
}

}  // namespace

std::optional<std::string> why_not(Input input, Products products) {
  if (input == Input::f16) return "this build's kernels take float32 inputs only";
  if (products == Products::tensor) return "this build's kernels form float32 products only";
  return std::nullopt;
}

DeviceGroup::DeviceGroup(const HeadGroup<float>& group, Products, const Stream& stream)
    : group_(group),
      stream_(stream),
      q_(static_cast<std::size_t>(group.G() * group.T_q() * group.d())),
      k_(uploaded<float>(group.k, stream)) {
  Workers alone(1);
  const PreparedValues<float> values = prepare_values(group, alone);
  v_centred_ = uploaded<float>(values.centred, stream);
  centre_ = uploaded<float>(values.centre, stream);
  value_sq_ = uploaded<float>(values.value_sq, stream);
  value_centred_sq_ = uploaded<float>(values.value_centred_sq, stream);
  centre_dot_value_ = uploaded<float>(values.centre_dot_value, stream);
  value_sq_host_ = values.value_sq.cast<double>();
  const auto head = static_cast<std::size_t>(group.T_q() * group.d());
  for (std::size_t g = 0; g < group.q.size(); ++g)
    copy(q_.data() + g * head, group.q[g].data(), head, stream);
  stream.synchronize();
}

DeviceGroup device_group(const HeadGroup<float>& group, Input input, Products products,
                         const Stream& stream) {
  if (const auto why = why_not(input, products)) throw InputError(*why);
  return DeviceGroup(group, products, stream);
}

struct ColumnRun::State {
  const HeadGroup<float>& group;
  const Stream& stream;
  const Vector<double>& value_sq;
  ColumnSet columns;
  Buffer<int> first_visible, end_visible, ranges;
  Buffer<float> top, rest_max, rest_sum, rest_out, numbers;
  Buffer<int> top_at, row_top;
  Buffer<LargestScores> largest;
  Buffer<double> sums;
  ColumnProblem problem{};
  SoftmaxStates softmax{};
  FinishedRows finished{};
  ScorePass score{};
};

ColumnRun::~ColumnRun() = default;

ColumnRun::ColumnRun(const DeviceGroup& on, Rows rows, ColumnSet columns)
    : state_(new State{on.group_,
                       on.stream_,
                       on.value_sq_host_,
                       columns,
                       {},
                       {},
                       {},
                       {},
                       {},
                       {},
                       {},
                       {},
                       {},
                       {},
                       {},
                       {}}) {
  State& s = *state_;
  const HeadGroup<float>& group = on.group_;
  const Index G = group.G(), n = rows.count(), d_v = group.d_v(), end = group.end_visible(rows.end - 1);
  const Index candidates = std::min(group.l, end);
  const Visibility seen = visibility(group, rows);
  std::vector<int> ranges;
  for (Index begin = 0; begin < candidates; begin += kScoredTokens) {
    const auto from = std::upper_bound(seen.end.begin(), seen.end.end(), begin) - seen.end.begin();
    ranges.push_back(static_cast<int>(from));
    ranges.push_back(static_cast<int>(n));
  }
  s.first_visible = uploaded<int>(seen.first, s.stream);
  s.end_visible = uploaded<int>(seen.end, s.stream);
  s.ranges = uploaded<int>(ranges, s.stream);
  s.stream.synchronize();

  ColumnProblem& p = s.problem;
  p.G = narrow(G);
  p.rows = narrow(n);
  p.tokens = narrow(group.T_all());
  p.d = narrow(group.d());
  p.d_v = narrow(d_v);
  p.candidates = narrow(candidates);
  p.q = on.q_.data() + (rows.begin - group.first_query()) * group.d();
  p.head_rows = group.T_q();
  p.k = on.k_.data();
  p.v_centred = on.v_centred_.data();
  p.centre = on.centre_.data();
  p.value_sq = on.value_sq_.data();
  p.value_centred_sq = on.value_centred_sq_.data();
  p.centre_dot_value = on.centre_dot_value_.data();
  p.scale = static_cast<float>(group.rule.scale);
  p.first_visible = s.first_visible.data();
  p.end_visible = s.end_visible.data();

  const Index segments = parts(G * div_up(n, 64), end / 256),
              per_segment = div_up(div_up(end, segments), 32) * 32;
  const auto all_rows = static_cast<std::size_t>(G * n),
             states = static_cast<std::size_t>(segments) * all_rows;
  s.top = Buffer<float>(states);
  s.top_at = Buffer<int>(states);
  s.rest_max = Buffer<float>(states);
  s.rest_sum = Buffer<float>(states);
  s.rest_out = Buffer<float>(states * static_cast<std::size_t>(d_v));
  s.softmax = {narrow(segments),  narrow(per_segment), 0, s.top.data(), s.top_at.data(), s.rest_max.data(),
               s.rest_sum.data(), s.rest_out.data()};
  s.numbers = Buffer<float>(all_rows * kRowNumbers);
  s.row_top = Buffer<int>(all_rows);
  s.largest = Buffer<LargestScores>(all_rows);
  s.finished = {s.numbers.data(), s.row_top.data(), s.largest.data()};
  const bool future = columns == ColumnSet::future;
  const Index row_segments = parts(G * div_up(candidates, kScoredTokens), n / 256);
  s.sums = Buffer<double>(static_cast<std::size_t>(row_segments * G * candidates) *
                          (future ? kFutureColumnSums : kWindowColumnSums));
  s.score = {future, narrow(row_segments), s.ranges.data(), s.rest_out.data(), s.sums.data()};
}

void ColumnRun::launch_pass_one() const {
  softmax_pass(state_->problem, state_->softmax, state_->stream);
  finish_rows(state_->problem, state_->softmax, state_->finished, state_->stream);
}
void ColumnRun::launch_pass_two() const {
  score_pass(state_->problem, state_->finished, state_->score, state_->stream);
}
void ColumnRun::launch() const {
  launch_pass_one();
  launch_pass_two();
}

std::vector<ColumnTotals> ColumnRun::totals() const {
  const State& s = *state_;
  const Index G = s.problem.G, n = s.problem.rows, candidates = s.problem.candidates;
  const int n_sums = s.score.future ? kFutureColumnSums : kWindowColumnSums;
  const auto largest = downloaded(s.largest, static_cast<std::size_t>(G * n), s.stream);
  const auto added = downloaded(s.sums, static_cast<std::size_t>(G * n_sums * candidates), s.stream);
  std::vector<ColumnTotals> totals;
  for (Index g = 0; g < G; ++g) {
    ColumnTotals& t = totals.emplace_back(empty_totals(s.group.l, s.columns));
    const auto take = [&](int which, Vector<double>& into) {
      std::copy_n(added.data() + (g * n_sums + which) * candidates, candidates, into.data());
    };
    if (s.score.future) {
      take(kFutureRemove, t.exact_remove);
      take(kFutureMaxAttn, t.max_attn);
    } else {
      take(kSumAttn, t.attn);
      take(kSumAttnSq, t.attn_sq);
      take(kSumKey, t.key);
      take(kSumExactKey, t.exact_key);
      take(kSumExactJoint, t.exact_joint);
      take(kSumExactRemove, t.exact_remove);
      take(kSumJointCross, t.joint);
      t.joint = t.attn_sq.cwiseProduct(s.value_sq) + 2 * t.joint + t.key;
    }
    add_largest({largest.data() + g * n, static_cast<std::size_t>(n)}, s.columns, s.group.l, t);
  }
  return totals;
}

}  // namespace kvreplay::bench
