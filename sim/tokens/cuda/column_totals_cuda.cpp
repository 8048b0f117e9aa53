#include "sim/tokens/cuda/column_totals_cuda.hpp"

#include "sim/cuda/transfer.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
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

Index bytes_of(NumberType type) { return type == NumberType::f32 ? 4 : 2; }

/// What a kernel says of what it has seen.
class Flag {
 public:
  explicit Flag(const Stream& stream) : stream_(stream) { fill_zero(flag_, stream); }
  int* data() const { return flag_.data(); }
  bool is_set() const { return downloaded(flag_.data(), 1, stream_)[0] != 0; }

 private:
  const Stream& stream_;
  Buffer<int> flag_{1};
};

}  // namespace

HalfBuffers::HalfBuffers(Index rows, Index channels, bool with_low, Index units)
    : depth_(half_depth(narrow(channels))),
      high_(rows * depth_),
      low_(with_low ? rows * depth_ : 0),
      unit_(units) {}

HalfMatrix HalfBuffers::view() const { return {high_.data(), low_.data(), unit_.data(), depth_}; }

StoredNumbers stored_numbers(const HeadGroup<float>& group) {
  StoredNumbers numbers{NumberType::f32, group.first_query(), {}, group.k.data(), group.v.data()};
  for (const HeadMatrix<float>& q : group.q) numbers.q.push_back(q.data());
  return numbers;
}

StoredNumbers stored_numbers(const StoredGroup& group) {
  const NumberType type = group.dtype == Dtype::f16 ? NumberType::f16 : NumberType::bf16;
  StoredNumbers numbers{type, group.first_query, {}, group.k.get(), group.v.get()};
  for (const auto& q : group.q) numbers.q.push_back(q.get());
  return numbers;
}

DeviceGroup::DeviceGroup(const HeadGroup<float>& group, StoredNumbers numbers, Products products,
                         const Stream& stream)
    : group_(group),
      numbers_(std::move(numbers)),
      products_(products),
      stream_(stream),
      arrays_(stream),
      v_halves_(group.T_all(), group.d_v(), products == Products::f32, 1) {
  const int T = narrow(group.T_all()), d = narrow(group.d()), d_v = narrow(group.d_v());
  const Index element = bytes_of(numbers_.type);
  const auto upload = [&](std::uint8_t* to, const void* from, std::size_t bytes) {
    copy(to, static_cast<const std::uint8_t*>(from), bytes, stream);
    return to;
  };
  const bool as_they_lie = numbers_.type == NumberType::f16 && half_depth(d) == d;
  const std::size_t key_bytes = group.T_all() * d * element, value_bytes = group.T_all() * d_v * element;
  const Buffer<std::uint8_t> passing_keys(as_they_lie ? 0 : key_bytes);
  std::uint8_t* const keys = upload(as_they_lie ? arrays_.make<std::uint8_t>(key_bytes) : passing_keys.data(),
                                    numbers_.k, key_bytes);
  if (as_they_lie) {
    k_ = {reinterpret_cast<std::uint16_t*>(keys), nullptr, arrays_.make<float>(T), d};
  } else {
    k_halves_ = HalfBuffers(T, d, !known_to_be_one_half(), T);
    k_ = k_halves_.view();
  }
  v_ = {{upload(arrays_.make<std::uint8_t>(value_bytes), numbers_.v, value_bytes), numbers_.type},
        arrays_.make<float>(d_v),
        arrays_.make<float>(1),
        arrays_.make<float>(T),
        arrays_.make<float>(T),
        arrays_.make<float>(T),
        v_halves_.view()};
  if (!group.rule.sink_logit.empty()) {
    const std::vector<float> sinks(group.rule.sink_logit.begin(), group.rule.sink_logit.end());
    sink_logit_ = arrays_.copy_of<float>(sinks);
  }
  const StoredRows stored_keys{keys, numbers_.type};
  if (known_to_be_one_half()) {
    prepare_tokens(stored_keys, d, k_, v_, d_v, T, nullptr, stream);
    return;
  }
  const Flag needed(stream);
  prepare_tokens(stored_keys, d, k_, v_, d_v, T, needed.data(), stream);
  if (needed.is_set()) return;
  k_halves_.drop_low();
  k_ = k_halves_.view();
}

ColumnRun::ColumnRun(const DeviceGroup& on_device, RowRange rows, ColumnSet columns)
    : group_(on_device),
      rows_(rows),
      columns_(columns == ColumnSet::weights ? ColumnSet::window : columns),
      arrays_(on_device.stream_) {
  const HeadGroup<float>& group = on_device.group_;
  const Stream& stream = on_device.stream_;
  const Index G = group.G(), n = rows.count(), d = group.d(), d_v = group.d_v();
  const Index padded = div_up(n, kSlab) * kSlab, packed = G * padded;
  const Index end = group.end_visible(rows.end - 1), begin = group.first_visible(rows.begin);
  const Index candidates = std::min(group.l, end);
  problem_.G = narrow(G);
  problem_.rows = narrow(n);
  problem_.padded_rows = narrow(packed) / narrow(G);
  problem_.tokens = narrow(group.T_all());
  problem_.d = narrow(d);
  problem_.d_v = narrow(d_v);
  problem_.candidates = narrow(candidates);
  problem_.exact = on_device.products_ == Products::f32;
  problem_.k = on_device.k_;
  problem_.v = on_device.v_;
  problem_.scale = static_cast<float>(group.rule.scale);
  problem_.softcap = static_cast<float>(group.rule.softcap.value_or(0));
  problem_.sink_logit = on_device.sink_logit_;

  const Index row_bytes = d * bytes_of(on_device.numbers_.type), head_bytes = n * row_bytes;
  auto* const queries = arrays_.make<std::uint8_t>(G * head_bytes);
  for (Index g = 0; g < G; ++g)
    copy(queries + g * head_bytes,
         static_cast<const std::uint8_t*>(on_device.numbers_.q[g]) +
             (rows.begin - on_device.numbers_.first_query) * row_bytes,
         head_bytes, stream);
  queries_ = queries;
  bool in_two = false;
  if (!on_device.known_to_be_one_half()) {
    const Flag needed(stream);
    check_halves({queries, on_device.numbers_.type}, {problem_.G, problem_.rows, problem_.rows, problem_.d},
                 needed.data(), stream);
    in_two = needed.is_set();
  }
  q_ = HalfBuffers(packed, d, in_two, packed);
  out_halves_ = HalfBuffers(packed, d_v, problem_.exact, packed);
  problem_.q = q_.view();

  const Visibility seen = visibility(group, rows);
  std::vector<int> of_rows = seen.first;
  of_rows.insert(of_rows.end(), seen.end.begin(), seen.end.end());
  const std::vector<int> ranges = row_ranges(seen, candidates);
  of_rows.insert(of_rows.end(), ranges.begin(), ranges.end());
  problem_.first_visible = arrays_.copy_of<int>(of_rows);
  problem_.end_visible = problem_.first_visible + n;
  pass_.ranges = problem_.end_visible + n;

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

  pass_.future = columns == ColumnSet::future;
  pass_.segments =
      narrow(parts(div_up(candidates, kScoredTokens), packed / (kLeastSteps * kScoredSlabs * kSlab)));
  pass_.out_centred = states_.rest_out;
  const Index sum_parts = problem_.one_slab() ? 1 : pass_.segments * kScoredSlabs;
  results_ = Buffer<double>(row_results() + sum_parts * sums_of_pass());
  finished_ = {arrays_.make<RowConstants>(packed), out_halves_.view(),
               reinterpret_cast<LargestScores*>(results_.data())};
  pass_.sums = results_.data() + row_results();
}

Index ColumnRun::sums_of_pass() const {
  return Index{problem_.G} * (pass_.future ? int{kFutureColumnSums} : int{kWindowColumnSums}) *
         problem_.candidates;
}

Index ColumnRun::row_results() const {
  static_assert(sizeof(LargestScores) % sizeof(double) == 0, "sums follow where a double may stand");
  return Index{problem_.G} * problem_.rows * Index{sizeof(LargestScores) / sizeof(double)};
}

void ColumnRun::launch() const {
  launch_pass_one();
  launch_pass_two();
}

void ColumnRun::launch_pass_one() const {
  prepare_rows({queries_, group_.numbers_.type},
               {problem_.G, problem_.rows, problem_.padded_rows, problem_.d}, problem_.q, group_.stream_);
  softmax_pass(problem_, states_, group_.stream_);
  finish_rows(problem_, states_, finished_, group_.stream_);
}

void ColumnRun::launch_pass_two() const {
  if (!problem_.one_slab())
    fill_zero(pass_.sums, pass_.segments * kScoredSlabs * sums_of_pass(), group_.stream_);
  score_pass(problem_, finished_, pass_, group_.stream_);
}

std::vector<ColumnTotals> ColumnRun::totals() const {
  const HeadGroup<float>& group = group_.group_;
  const Index G = group.G(), n = rows_.count(), candidates = problem_.candidates;
  const Index in_head = sums_of_pass() / G;
  const std::vector<double> results =
      downloaded(results_.data(), row_results() + sums_of_pass(), group_.stream_);
  std::vector<LargestScores> scores(G * n);
  std::memcpy(scores.data(), results.data(), scores.size() * sizeof(LargestScores));
  const double* const added = results.data() + row_results();
  std::vector<ColumnTotals> totals;
  for (Index g = 0; g < G; ++g) {
    const auto own = scores.begin() + g * n;
    const auto bad = std::find_if(own, own + n, [](const LargestScores& s) { return s.at < 0; });
    if (bad != own + n) report_overflow(group, g, "position " + std::to_string(rows_.begin + (bad - own)));
    totals.push_back(empty_totals(group.l, columns_));
    ColumnTotals& t = totals.back();
    const auto sum_of = [&](int which, Vector<double>& into) {
      std::copy_n(added + g * in_head + which * candidates, candidates, into.data());
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
      sum_of(kSumJoint, t.joint);
      // Rounding may leave a sum of squares just below 0.
      for (Vector<double>* sum : {&t.joint, &t.key, &t.exact_key, &t.exact_joint}) *sum = sum->cwiseMax(0.0);
    }
    t.exact_remove = t.exact_remove.cwiseMax(0.0);
    add_largest({own, own + n}, columns_, group.l, t);
  }
  return totals;
}

std::vector<std::vector<ColumnTotals>> column_totals_of(const HeadGroup<float>& group,
                                                        const StoredNumbers& numbers, Products products,
                                                        std::span<const ColumnRequest> requests) {
  const Stream stream;
  const DeviceGroup on_device(group, numbers, products, stream);
  std::deque<ColumnRun> runs;
  for (const auto& [rows, columns] : requests) runs.emplace_back(on_device, rows, columns).launch();
  std::vector<std::vector<ColumnTotals>> totals;
  for (const ColumnRun& run : runs) totals.push_back(run.totals());
  return totals;
}

TokenMetrics token_metrics_of(const HeadGroup<float>& group, const StoredNumbers& numbers,
                              const TokenOptions& options, Products products, Workers& workers) {
  const ColumnPasses<float> passes = [&](const PreparedValues<float>&,
                                         std::span<const ColumnRequest> requests) {
    return column_totals_of(group, numbers, products, requests);
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
