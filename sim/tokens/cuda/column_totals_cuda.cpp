#include "sim/tokens/cuda/column_totals_cuda.hpp"

#include "sim/cuda/transfer.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvreplay::cuda {
namespace {

/// The rows that see something of each block of `tokens`: [blocks][2].
std::vector<int> row_ranges(const Visibility& seen, Index candidates, Index tokens) {
  std::vector<int> ranges;
  for (Index begin = 0; begin < candidates; begin += tokens) {
    const Index last = std::min<Index>(begin + tokens, candidates) - 1;
    const auto from = std::upper_bound(seen.end.begin(), seen.end.end(), begin) - seen.end.begin();
    const auto to = std::upper_bound(seen.first.begin(), seen.first.end(), last) - seen.first.begin();
    ranges.push_back(static_cast<int>(from));
    ranges.push_back(static_cast<int>(std::max(from, to)));
  }
  return ranges;
}

/// Flag in device memory that a kernel sets.
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

Index parts_of_work(Index blocks, Index most) {
  constexpr Index kEnoughBlocks = 512;
  return std::clamp<Index>(div_up(kEnoughBlocks, blocks), 1, std::max<Index>(most, 1));
}

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

DeviceRows::DeviceRows(const void* rows, NumberType type, Index n, Index width, const Stream& stream)
    : type_(type), width_(narrow(width)), data_(static_cast<std::size_t>(n * width * bytes_of(type))) {
  copy(data_.data(), static_cast<const std::uint8_t*>(rows), data_.size(), stream);
}

CentredValues::CentredValues(const DeviceRows& values, Index tokens, Index d_v, const Stream& stream)
    : values_(values), numbers_(d_v + 1) {
  find_centre(stored(), narrow(d_v), narrow(tokens), numbers_.data(), numbers_.data() + d_v, stream);
}

DeviceGroup::DeviceGroup(const HeadGroup<float>& group, const DeviceRows& keys, const CentredValues* values,
                         Products products, const Stream& stream)
    : group_(group), type_(keys.stored().type), products_(products), stream_(stream), arrays_(stream) {
  const int T = narrow(group.T_all()), d = narrow(group.d());
  if (type_ == NumberType::f16 && half_depth(d) == d) {
    k_ = {static_cast<std::uint16_t*>(keys.data()), nullptr, arrays_.make<float>(T), d};
  } else {
    k_halves_ = HalfBuffers(T, d, !known_to_be_one_half(), T);
    k_ = k_halves_.view();
  }
  if (values != nullptr) take(*values);
  const int d_v = values != nullptr ? narrow(group.d_v()) : 0;
  if (!group.rule.sink_logit.empty()) {
    const std::vector<float> sinks(group.rule.sink_logit.begin(), group.rule.sink_logit.end());
    sink_logit_ = arrays_.copy_of<float>(sinks);
  }
  if (known_to_be_one_half()) {
    prepare_tokens(keys.stored(), d, k_, v_, d_v, T, nullptr, stream);
    return;
  }
  const Flag needed(stream);
  prepare_tokens(keys.stored(), d, k_, v_, d_v, T, needed.data(), stream);
  if (needed.is_set()) return;
  k_halves_.drop_low();
  k_ = k_halves_.view();
}

void DeviceGroup::take(const CentredValues& values) {
  const Index T = group_.T_all(), d_v = group_.d_v();
  v_halves_ = HalfBuffers(T, d_v, products_ == Products::f32, 1);
  v_ = {values.stored(),        values.centre(),        values.numbers_.data() + d_v,
        arrays_.make<float>(T), arrays_.make<float>(T), arrays_.make<float>(T),
        v_halves_.view()};
}

void DeviceGroup::bring(const CentredValues& values) {
  take(values);
  prepare_tokens({}, 0, {}, v_, narrow(group_.d_v()), narrow(group_.T_all()), nullptr, stream_);
}

AttendingRows rows_at(const HeadGroup<float>& group, const StoredNumbers& numbers, RowRange rows) {
  if (rows.begin < numbers.first_query) throw std::logic_error("queries before those that were read");
  AttendingRows attending{rows.count(), numbers.type, {}, visibility(group, rows), {}};
  const Index before = (rows.begin - numbers.first_query) * group.d() * bytes_of(numbers.type);
  for (const void* q : numbers.q) attending.q.push_back(static_cast<const std::uint8_t*>(q) + before);
  attending.name = [first = rows.begin](Index row) { return "position " + std::to_string(first + row); };
  return attending;
}

ColumnRun::ColumnRun(const DeviceGroup& on_device, AttendingRows rows, ColumnSet columns)
    : group_(on_device), rows_(std::move(rows)), arrays_(on_device.stream_) {
  const HeadGroup<float>& group = on_device.group_;
  const Stream& stream = on_device.stream_;
  const bool outputs = needs_outputs(columns);
  if (outputs && !on_device.has_values()) throw std::logic_error("outputs of values that were not brought");
  const Index G = group.G(), n = rows_.count, d = group.d(), d_v = outputs ? group.d_v() : 0;
  const Index padded = div_up(n, kSlab) * kSlab, packed = G * padded;
  const Index begin = rows_.seen.first.front(), end = rows_.seen.end.back();
  const Index candidates = std::min(group.l, end);
  problem_.G = narrow(G);
  problem_.rows = narrow(n);
  problem_.padded_rows = narrow(packed) / narrow(G);
  problem_.tokens = narrow(group.T_all());
  problem_.d = narrow(d);
  problem_.d_v = narrow(d_v);
  problem_.candidates = narrow(candidates);
  problem_.exact = outputs && on_device.products_ == Products::f32;
  problem_.k = on_device.k_;
  if (outputs) problem_.v = on_device.v_;
  problem_.scale = static_cast<float>(group.rule.scale);
  problem_.softcap = static_cast<float>(group.rule.softcap.value_or(0));
  problem_.sink_logit = on_device.sink_logit_;

  const Index head_bytes = n * d * bytes_of(rows_.type);
  auto* const queries = arrays_.make<std::uint8_t>(G * head_bytes);
  for (Index g = 0; g < G; ++g)
    copy(queries + g * head_bytes, static_cast<const std::uint8_t*>(rows_.q[g]), head_bytes, stream);
  queries_ = queries;
  bool in_two = false;
  if (on_device.products_ == Products::f32 && rows_.type != NumberType::f16) {
    const Flag needed(stream);
    check_halves({queries, rows_.type}, {problem_.G, problem_.rows, problem_.rows, problem_.d}, needed.data(),
                 stream);
    in_two = needed.is_set();
  }
  q_ = HalfBuffers(packed, d, in_two, packed);
  out_halves_ = HalfBuffers(packed, d_v, problem_.exact, packed);
  problem_.q = q_.view();

  std::vector<int> of_rows = rows_.seen.first;
  of_rows.insert(of_rows.end(), rows_.seen.end.begin(), rows_.seen.end.end());
  const Index scored = scored_tokens(score_plan(problem_).block);
  const std::vector<int> ranges = row_ranges(rows_.seen, candidates, scored);
  of_rows.insert(of_rows.end(), ranges.begin(), ranges.end());
  problem_.first_visible = arrays_.copy_of<int>(of_rows);
  problem_.end_visible = problem_.first_visible + n;
  pass_.ranges = problem_.end_visible + n;

  constexpr Index kLeastTokens = 256, kLeastSteps = 8;
  const Index segments = parts_of_work(div_up(packed, kBlockRows), (end - begin) / kLeastTokens);
  const Index per_segment = div_up(div_up(end - begin, segments), kSoftmaxStep) * kSoftmaxStep;
  const Index states = segments * packed, with_losers = d_v > 0 ? states : 0;
  states_ = {narrow(segments),
             narrow(per_segment),
             narrow(begin),
             arrays_.make<float>(states),
             arrays_.make<int>(states),
             arrays_.make<float>(states),
             arrays_.make<float>(states),
             arrays_.make<float>(states * d_v),
             arrays_.make<int>(with_losers),
             arrays_.make<float>(with_losers * kLosers),
             arrays_.make<int>(with_losers * kLosers)};

  pass_.columns = columns;
  pass_.segments =
      narrow(parts_of_work(div_up(candidates, scored), packed / (kLeastSteps * kScoredSlabs * kSlab)));
  pass_.out_centred = states_.rest_out;
  const Index sum_parts = problem_.one_slab() ? 1 : pass_.segments * kScoredSlabs;
  results_ = Buffer<double>(row_results() + sum_parts * sums_of_pass());
  finished_ = {arrays_.make<RowConstants>(packed), out_halves_.view(),
               reinterpret_cast<LargestScores*>(results_.data()), nullptr};
  pass_.sums = results_.data() + row_results();
}

Index ColumnRun::sums_of_pass() const {
  return Index{problem_.G} * columns_of(pass_.columns) * problem_.candidates;
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
  prepare_rows({queries_, rows_.type}, {problem_.G, problem_.rows, problem_.padded_rows, problem_.d},
               problem_.q, group_.stream_);
  softmax_pass(problem_, states_, group_.stream_);
  finish_rows(problem_, states_, finished_, group_.stream_);
}

void ColumnRun::launch_pass_two() const {
  if (!problem_.one_slab())
    fill_zero(pass_.sums, pass_.segments * kScoredSlabs * sums_of_pass(), group_.stream_);
  score_pass(problem_, finished_, pass_, group_.stream_);
}

void ColumnRun::ask_top_differences() {
  finished_.top_diff = arrays_.make<float>(static_cast<std::size_t>(problem_.packed_rows()) * problem_.d_v);
}

void ColumnRun::require_finite(const std::vector<LargestScores>& rows) const {
  const auto bad = std::find_if(rows.begin(), rows.end(), [](const LargestScores& s) { return s.at < 0; });
  if (bad == rows.end()) return;
  const Index at = bad - rows.begin();
  report_overflow(group_.group_, at / rows_.count, rows_.name(at % rows_.count));
}

std::vector<LargestScores> ColumnRun::largest() const {
  std::vector<LargestScores> rows =
      downloaded(finished_.largest, static_cast<std::size_t>(problem_.G * rows_.count), group_.stream_);
  require_finite(rows);
  return rows;
}

std::vector<ColumnTotals> ColumnRun::totals() const {
  const HeadGroup<float>& group = group_.group_;
  const Index G = group.G(), n = rows_.count, candidates = problem_.candidates;
  const Index in_head = sums_of_pass() / G;
  const ColumnSet columns = pass_.columns;
  const std::vector<double> results =
      downloaded(results_.data(), row_results() + sums_of_pass(), group_.stream_);
  std::vector<LargestScores> scores(G * n);
  std::memcpy(scores.data(), results.data(), scores.size() * sizeof(LargestScores));
  require_finite(scores);
  const double* const added = results.data() + row_results();
  std::vector<ColumnTotals> totals;
  for (Index g = 0; g < G; ++g) {
    const auto own = scores.begin() + g * n;
    totals.push_back(empty_totals(group.l, columns));
    ColumnTotals& t = totals.back();
    const auto sum_of = [&](int which, Vector<double>& into) {
      std::copy_n(added + g * in_head + which * candidates, candidates, into.data());
      into = into.cwiseMax(0.0);  // rounding may leave a sum of squares just below 0
    };
    for (int s = 0; s < kRowSums; ++s) {
      const auto score = static_cast<RowScore>(s);
      if (has_sum(columns, score)) sum_of(sum_at(columns, score), t[score]);
    }
    if (has_max_attn(columns)) sum_of(sums_of(columns), t.max_attn);
    add_largest({own, own + n}, columns, group.l, t);
  }
  return totals;
}

}  // namespace kvreplay::cuda
