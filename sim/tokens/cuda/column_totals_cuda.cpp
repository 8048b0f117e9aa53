#include "sim/tokens/cuda/column_totals_cuda.hpp"

#include "sim/cuda/transfer.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <memory>
#include <string>

namespace kvreplay::cuda {
namespace {

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

HalfBuffers::HalfBuffers(Index rows, Index channels, bool with_low, Index units)
    : depth_(half_depth(narrow(channels))),
      high_(rows * depth_),
      low_(with_low ? rows * depth_ : 0),
      unit_(units) {}

HalfMatrix HalfBuffers::view() const { return {high_.data(), low_.data(), unit_.data(), depth_}; }

StoredNumbers stored_numbers(const HeadGroup<float>& group) {
  StoredNumbers numbers{NumberType::f32, {}, group.k.data(), group.v.data()};
  for (const HeadMatrix<float>& q : group.q) numbers.q.push_back(q.data());
  return numbers;
}

StoredNumbers stored_numbers(const StoredGroup& group) {
  const NumberType type = group.dtype == Dtype::f16 ? NumberType::f16 : NumberType::bf16;
  StoredNumbers numbers{type, {}, group.k.get(), group.v.get()};
  for (const auto& q : group.q) numbers.q.push_back(q.get());
  return numbers;
}

DeviceGroup::DeviceGroup(const HeadGroup<float>& group, const StoredNumbers& numbers, Products products,
                         const Stream& stream)
    : group_(group),
      products_(products),
      stream_(stream),
      type_(numbers.type),
      arrays_(stream),
      k_(group.T_all(), group.d(), products == Products::f32, group.T_all()),
      v_halves_(group.T_all(), group.d_v(), products == Products::f32, 1) {
  const int T = narrow(group.T_all()), T_q = narrow(group.T_q()), G = narrow(group.G());
  const int d = narrow(group.d()), d_v = narrow(group.d_v());
  v_ = {arrays_.make<float>(d_v), arrays_.make<float>(group.T_all() * d_v),
        arrays_.make<float>(T),   arrays_.make<float>(T),
        arrays_.make<float>(T),   v_halves_.view()};
  const Index element = type_ == NumberType::f32 ? 4 : 2, head = group.T_q() * d * element;
  q_ = arrays_.make<std::uint8_t>(G * head);
  const Buffer<std::uint8_t> k(group.T_all() * d * element), v(group.T_all() * d_v * element);
  const auto upload = [&](std::uint8_t* to, const void* from, std::size_t bytes) {
    copy(to, static_cast<const std::uint8_t*>(from), bytes, stream);
  };
  for (std::size_t g = 0; g < numbers.q.size(); ++g) upload(q_ + g * head, numbers.q[g], head);
  upload(k.data(), numbers.k, k.size());
  upload(v.data(), numbers.v, v.size());

  const HeadRows keys{1, T, T, d, T, 0};
  prepare_rows({k.data(), type_}, keys, k_.view(), stream);
  prepare_tokens({v.data(), type_}, T, d_v, v_, stream);
  const Buffer<int> needed(2);
  fill_zero(needed, stream);
  if (products == Products::f32) {
    check_halves({k.data(), type_}, keys, needed.data(), stream);
    check_halves({q_, type_}, {G, T_q, T_q, d, T_q, 0}, needed.data() + 1, stream);
  }
  const std::vector<float> sinks(group.rule.sink_logit.begin(), group.rule.sink_logit.end());
  sink_logit_ = arrays_.copy_of<float>(sinks);
  const std::vector<float> squares = downloaded(v_.value_sq, group.l, stream);
  value_sq_host_ = Eigen::Map<const Vector<float>>(squares.data(), group.l).cast<double>();
  const std::vector<int> in_two = downloaded(needed.data(), 2, stream);
  if (in_two[0] == 0) k_.drop_low();
  queries_in_two_ = in_two[1] != 0;
}

std::vector<ColumnTotals> DeviceGroup::column_totals(RowRange rows, ColumnSet columns) const {
  const ColumnRun run(*this, rows, columns);
  run.launch();
  return run.totals();
}

ColumnRun::ColumnRun(const DeviceGroup& on_device, RowRange rows, ColumnSet columns)
    : group_(on_device),
      rows_(rows),
      columns_(columns == ColumnSet::weights ? ColumnSet::window : columns),
      arrays_(on_device.stream_) {
  const HeadGroup<float>& group = on_device.group_;
  const Stream& stream = on_device.stream_;
  const Index G = group.G(), n = rows.count(), d_v = group.d_v();
  const Index padded = div_up(n, kSlab) * kSlab, packed = G * padded;
  const Index end = group.end_visible(rows.end - 1), begin = group.first_visible(rows.begin);
  const Index candidates = std::min(group.l, end);
  const Visibility seen = visibility(group, rows);
  const bool exact = on_device.products_ == Products::f32;
  q_ = HalfBuffers(packed, group.d(), on_device.queries_in_two_, packed);
  out_halves_ = HalfBuffers(packed, d_v, exact, packed);
  problem_.G = narrow(G);
  problem_.rows = narrow(n);
  problem_.padded_rows = narrow(packed) / narrow(G);
  problem_.tokens = narrow(group.T_all());
  problem_.d = narrow(group.d());
  problem_.d_v = narrow(d_v);
  problem_.candidates = narrow(candidates);
  problem_.exact = exact;
  problem_.q = q_.view();
  problem_.k = on_device.k_.view();
  problem_.v = on_device.v_;
  problem_.scale = static_cast<float>(group.rule.scale);
  problem_.softcap = static_cast<float>(group.rule.softcap.value_or(0));
  problem_.first_visible = arrays_.copy_of<int>(seen.first);
  problem_.end_visible = arrays_.copy_of<int>(seen.end);
  problem_.sink_logit = on_device.sink_logit_;

  constexpr Index kLeastSteps = 8;
  const Index segments = parts(div_up(packed, kBlockRows), (end - begin) / (kLeastSteps * kSoftmaxStep));
  const Index per_segment = div_up(div_up(end - begin, segments), kSoftmaxStep) * kSoftmaxStep;
  const Index states = segments * packed;
  states_ = {narrow(segments),
             narrow(per_segment),
             narrow(begin),
             arrays_.make<float>(states),
             arrays_.make<int>(states),
             arrays_.make<float>(states),
             arrays_.make<float>(states),
             arrays_.make<float>(states * d_v)};
  finished_ = {arrays_.make<RowConstants>(packed), out_halves_.view(), arrays_.make<LargestScores>(G * n)};

  const bool future = columns == ColumnSet::future;
  const Index n_sums = future ? Index{kFutureColumnSums} : Index{kWindowColumnSums};
  const Index row_segments =
      parts(div_up(candidates, kScoredTokens), packed / (kLeastSteps * kScoredSlabs * kSlab));
  sums_ = Buffer<double>(row_segments * kScoredSlabs * G * n_sums * candidates);
  pass_ = {future, narrow(row_segments), arrays_.copy_of<int>(row_ranges(seen, candidates)), states_.rest_out,
           sums_.data()};
  stream.synchronize();  // what was uploaded lives here
}

void ColumnRun::launch() const {
  launch_pass_one();
  launch_pass_two();
}

void ColumnRun::launch_pass_one() const {
  const HeadGroup<float>& group = group_.group_;
  const HeadRows rows{problem_.G, problem_.rows, problem_.padded_rows,
                      problem_.d, group.T_q(),   rows_.begin - group.first_query()};
  prepare_rows({group_.q_, group_.type_}, rows, problem_.q, group_.stream_);
  softmax_pass(problem_, states_, group_.stream_);
  finish_rows(problem_, states_, finished_, group_.stream_);
}

void ColumnRun::launch_pass_two() const {
  fill_zero(sums_, group_.stream_);
  score_pass(problem_, finished_, pass_, group_.stream_);
}

std::vector<ColumnTotals> ColumnRun::totals() const {
  const HeadGroup<float>& group = group_.group_;
  const Index G = group.G(), n = rows_.count(), candidates = problem_.candidates;
  const Index n_sums = pass_.future ? kFutureColumnSums : kWindowColumnSums;
  const Index in_head = n_sums * candidates;
  const std::vector<LargestScores> scores = downloaded(finished_.largest, G * n, group_.stream_);
  const std::vector<double> added = downloaded(sums_.data(), G * in_head, group_.stream_);
  std::vector<ColumnTotals> totals;
  for (Index g = 0; g < G; ++g) {
    const auto own = scores.begin() + g * n;
    const auto bad = std::find_if(own, own + n, [](const LargestScores& s) { return s.at < 0; });
    if (bad != own + n) report_overflow(group, g, "position " + std::to_string(rows_.begin + (bad - own)));
    totals.push_back(empty_totals(group.l, columns_));
    ColumnTotals& t = totals.back();
    const auto sum_of = [&](int which, Vector<double>& into) {
      std::copy_n(added.data() + g * in_head + which * candidates, candidates, into.data());
    };
    if (pass_.future) {
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
      t.joint = t.attn_sq.cwiseProduct(group_.value_sq_host_) + 2 * t.joint + t.key;
      // Rounding may leave a sum of squares just below 0.
      for (Vector<double>* sum : {&t.joint, &t.key, &t.exact_key, &t.exact_joint}) *sum = sum->cwiseMax(0.0);
    }
    t.exact_remove = t.exact_remove.cwiseMax(0.0);
    add_largest({own, own + n}, columns_, group.l, t);
  }
  return totals;
}

TokenMetrics token_metrics_of(const HeadGroup<float>& group, const StoredNumbers& numbers,
                              const TokenOptions& options, Products products, Workers& workers) {
  const Stream stream;
  const PassesOf<float> passes = [&](const PreparedValues<float>&) {
    const auto on_device = std::make_shared<const DeviceGroup>(group, numbers, products, stream);
    return [on_device](RowRange rows, ColumnSet columns) { return on_device->column_totals(rows, columns); };
  };
  return token_metrics_by(passes, group, options, workers);
}

}  // namespace kvreplay::cuda

namespace kvreplay {

TokenMetrics token_metrics_cuda(const HeadGroup<float>& group, const TokenOptions& options, Workers& workers,
                                Products products) {
  return cuda::token_metrics_of(group, cuda::stored_numbers(group), options, products, workers);
}

}  // namespace kvreplay
