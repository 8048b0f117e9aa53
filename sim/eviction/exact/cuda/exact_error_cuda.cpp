#include "sim/eviction/exact/cuda/exact_error_cuda.hpp"

#include "sim/eviction/exact/exchange_search.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

using namespace cuda;

std::size_t numbers(Index n) { return static_cast<std::size_t>(n); }

std::vector<int> in_32_bits(const std::vector<Index>& from) {
  std::vector<int> to;
  for (const Index x : from) to.push_back(narrow(x));
  return to;
}

}  // namespace

DeviceExactError::DeviceExactError(const HeadGroup<double>& group, Rows rows, const KeptSet& kept,
                                   bool insertions)
    : l_(group.l), insertions_(insertions), report_(kErrorReports), fetched_(kErrorReports) {
  const ErrorProblem problem(group, rows, kept);
  kept_ = problem.kept;
  const Index n = std::ssize(problem.rows), width = problem.width;
  const Index columns = (l_ + kErrorTile - 1) / kErrorTile * kErrorTile;
  table_.rows = narrow(n);
  table_.l = narrow(l_);
  table_.T = narrow(problem.T);
  table_.width = narrow(width);
  table_.key_width = narrow(problem.key_width);
  table_.scale = problem.scale;
  table_.softcap = problem.softcap;

  std::vector<double> value_sq(numbers(l_));
  for (Index c = 0; c < l_; ++c) {
    const double* value = problem.values.data() + c * width;
    row_dots(value, 1, width, value, &value_sq[numbers(c)]);
  }
  keys_ = uploaded<double>(problem.keys, stream_);
  values_ = uploaded<double>(problem.values, stream_);
  value_sq_ = uploaded<double>(value_sq, stream_);
  queries_ = uploaded<double>(problem.queries, stream_);
  centre_ = uploaded<double>(problem.centre, stream_);
  zeros_ = Buffer<double>(numbers(width));
  sink_ = uploaded<double>(problem.sink, stream_);
  const std::vector<int> position = in_32_bits(problem.position), column = in_32_bits(problem.column);
  position_ = uploaded<int>(position, stream_);
  column_ = uploaded<int>(column, stream_);
  state_ = uploaded<ErrorRowState>(problem.rows, stream_);
  terms_ = Buffer<OutputTerms>(numbers(n));
  scan_ = Buffer<ErrorRow>(numbers(n));
  top_column_ = Buffer<int>(numbers(n));
  swapped_ = Buffer<int>(2);
  near_ = Buffer<int>(numbers(1 + exact_error::kLookedAt));
  near_change_ = Buffer<double>(numbers(exact_error::kLookedAt));
  change_ = Buffer<double>(numbers(2 * columns));
  vectors_ = Buffer<double>(numbers(6 * n * width));
  entries_ = Buffer<double>(numbers(columns * n * kErrorEntries));
  fill_zero(zeros_, stream_);
  fill_zero(swapped_, stream_);
  fill_zero(entries_, stream_);

  table_.keys = keys_.data();
  table_.values = values_.data();
  table_.value_sq = value_sq_.data();
  table_.queries = queries_.data();
  table_.centre = centre_.data();
  table_.zeros = zeros_.data();
  table_.sink = sink_.data();
  table_.position = position_.data();
  table_.column = column_.data();
  double* vectors = vectors_.data();
  for (double** matrix :
       {&table_.out, &table_.rest, &table_.removed, &table_.fixed, &table_.current, &table_.moved}) {
    *matrix = vectors;
    vectors += n * width;
  }
  table_.entries = entries_.data();
  table_.change = change_.data();
  table_.extent = change_.data() + columns;
  table_.state = state_.data();
  table_.terms = terms_.data();
  table_.scan = scan_.data();
  table_.top_column = top_column_.data();
  table_.swapped = swapped_.data();
  table_.near_count = near_.data();
  table_.near_column = near_.data() + 1;
  table_.near_change = near_change_.data();
  table_.report = report_.data();

  start_rows(table_, stream_);
  sum_again();
  const std::vector<double> change = downloaded(change_, numbers(insertions_ ? l_ : kept_), stream_);
  if (!std::isfinite(error()) || std::any_of(change.begin(), change.end(), [](double x) { return x != x; }))
    problem.report_overflow();
}

void DeviceExactError::scan(ErrorToken token, Index columns, bool store, double* error) {
  scan_columns(table_, token, narrow(columns), store, error, stream_);
}

void DeviceExactError::sum_again() {
  sum_rows(table_, narrow(kept_), stream_);
  scan({-1, -1}, insertions_ ? l_ : kept_, true, report_.data() + kSetError);
  fetched_is_old_ = true;
}

void DeviceExactError::move(RowMove what, ErrorToken token, double* error) {
  move_rows(table_, what, token, narrow(kept_), stream_);
  scan(token, insertions_ ? l_ : kept_, true, error);
  fetched_is_old_ = true;
}

void DeviceExactError::remove(Index p) {
  const int column = narrow(--kept_);
  take_position(table_, narrow(p), column, stream_);
  move(RowMove::remove, {column, -1}, report_.data() + kSetError);
}

void DeviceExactError::insert(Index p) {
  const int column = narrow(kept_++);
  take_position(table_, narrow(p), column, stream_);
  move(RowMove::insert, {column, -1}, report_.data() + kSetError);
}

void DeviceExactError::fetch_report() {
  copy(fetched_.data(), static_cast<const double*>(report_.data()), kErrorReports, stream_);
  stream_.synchronize();
  fetched_is_old_ = false;
}

double DeviceExactError::error() {
  if (fetched_is_old_) fetch_report();
  return fetched_.data()[kSetError];
}

std::vector<Insertion> DeviceExactError::insertions() const {
  const std::vector<double> change = downloaded(change_, numbers(l_), stream_);
  const std::vector<int> position = downloaded(position_, numbers(l_), stream_);
  std::vector<Insertion> all;
  for (Index c = kept_; c < l_; ++c) all.push_back({position[numbers(c)], change[numbers(c)]});
  return all;
}

BestRemoval DeviceExactError::best_removal_with(Index p) {
  const ErrorToken token{-1, narrow(p)};
  double* const error = report_.data() + kTriedError;
  move_rows(table_, RowMove::try_insertion, token, narrow(kept_), stream_);
  scan(token, kept_, false, error);
  choose_removal(table_, narrow(kept_), error, stream_);
  take_removal(table_, error, -1, nullptr, stream_);
  fetch_report();
  return {static_cast<Index>(fetched_.data()[kBestPosition]), fetched_.data()[kBestError]};
}

GreedyPath DeviceExactError::evict(Index keep, const Workers& workers) {
  const std::size_t n = numbers(std::max<Index>(kept_ - keep, 0));
  const Buffer<double> errors(n);
  const Buffer<int> evicted(n);
  double* error = report_.data() + kSetError;
  for (std::size_t step = 0; step < n; ++step) {
    check_stop(workers);
    choose_removal(table_, narrow(kept_), error, stream_);
    const int column = narrow(--kept_);
    take_removal(table_, error, column, evicted.data() + step, stream_);
    error = errors.data() + step;
    move(RowMove::remove, {column, -1}, error);
  }
  GreedyPath path;
  path.error = downloaded(errors, n, stream_);
  for (const int p : downloaded(evicted, n, stream_)) path.evicted.push_back(p);
  return path;
}

GreedyPath greedy_exact_cuda(const HeadGroup<double>& group, Rows rows, Index keep, Workers& workers) {
  if (group.l == 0) return {};
  check_stop(workers);
  DeviceExactError state(group, rows, KeptSet(static_cast<std::size_t>(group.l), 1), false);
  return state.evict(keep, workers);
}

KeptSet exchange_cuda(const HeadGroup<double>& group, Rows rows, KeptSet start, Workers& workers) {
  const Index keep = count(start);
  if (keep == 0 || keep == group.l) return start;
  check_stop(workers);
  DeviceExactError state(group, rows, start, true);
  return exchange_from(state, std::move(start), workers);
}

}  // namespace kvreplay
