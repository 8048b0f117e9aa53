#include "sim/eviction/exact/cuda/exact_error_cuda.hpp"

#include "sim/eviction/exact/exact_error.hpp"
#include "sim/overflow.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

using namespace cuda;

std::vector<int> in_32_bits(const std::vector<Index>& from) {
  std::vector<int> to;
  for (const Index x : from) to.push_back(narrow(x));
  return to;
}

}  // namespace

DeviceExactError::DeviceExactError(const HeadGroup<double>& group, RowRange rows, const KeptSet& kept,
                                   bool insertions)
    : l_(group.held()), insertions_(insertions), arrays_(stream_), fetched_(kErrorReports) {
  const ErrorProblem problem(group, rows, kept);
  kept_ = problem.kept;
  const Index n = std::ssize(problem.rows), width = problem.width;
  const Index columns = div_up(l_, kErrorTile) * kErrorTile;
  table_.rows = narrow(n);
  table_.l = narrow(l_);
  table_.T = narrow(problem.T);
  table_.width = narrow(width);
  table_.key_width = narrow(problem.key_width);
  table_.scale = problem.scale;
  table_.softcap = problem.softcap;

  std::vector<double> value_sq(l_);
  for (Index c = 0; c < l_; ++c) {
    const double* value = problem.values.data() + c * width;
    row_dots(value, 1, width, value, &value_sq[c]);
  }
  table_.keys = arrays_.copy_of<double>(problem.keys);
  table_.values = arrays_.copy_of<double>(problem.values);
  table_.value_sq = arrays_.copy_of<double>(value_sq);
  table_.queries = arrays_.copy_of<double>(problem.queries);
  table_.centre = arrays_.copy_of<double>(problem.centre);
  table_.zeros = arrays_.zeros<double>(width);
  table_.sink = arrays_.copy_of<double>(problem.sink);
  table_.position = arrays_.copy_of<int>(in_32_bits(problem.position));
  table_.column = arrays_.copy_of<int>(in_32_bits(problem.column));
  for (double** vectors :
       {&table_.out, &table_.rest, &table_.removed, &table_.fixed, &table_.current, &table_.moved})
    *vectors = arrays_.make<double>(n * width);
  table_.entries = arrays_.zeros<double>(columns * n * kErrorEntries);
  table_.change = arrays_.make<double>(columns);
  table_.extent = arrays_.make<double>(columns);
  table_.state = arrays_.copy_of<ErrorRowState>(problem.rows);
  table_.terms = arrays_.make<OutputTerms>(n);
  table_.scan = arrays_.make<ErrorRow>(n);
  table_.top_column = arrays_.make<int>(n);
  table_.swapped = arrays_.zeros<int>(2);
  table_.near_count = arrays_.make<int>(1);
  table_.near_column = arrays_.make<int>(exact_error::kLookedAt);
  table_.near_change = arrays_.make<double>(exact_error::kLookedAt);
  table_.report = arrays_.make<double>(kErrorReports);

  start_rows(table_, stream_);
  sum_again();
  const std::vector<double> change = downloaded(table_.change, insertions_ ? l_ : kept_, stream_);
  if (!std::isfinite(error()) || std::any_of(change.begin(), change.end(), [](double x) { return x != x; }))
    report_not_finite(group, "finite squared outputs");
}

void DeviceExactError::scan(ErrorToken token, Index columns, bool store, double* error) {
  scan_columns(table_, token, narrow(columns), store, error, stream_);
}

void DeviceExactError::sum_again() {
  sum_rows(table_, narrow(kept_), stream_);
  scan({-1, -1}, insertions_ ? l_ : kept_, true, table_.report + kSetError);
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
  move(RowMove::remove, {column, -1}, table_.report + kSetError);
}

void DeviceExactError::insert(Index p) {
  const int column = narrow(kept_++);
  take_position(table_, narrow(p), column, stream_);
  move(RowMove::insert, {column, -1}, table_.report + kSetError);
}

void DeviceExactError::fetch_report() {
  copy(fetched_.data(), table_.report, kErrorReports, stream_);
  stream_.synchronize();
  fetched_is_old_ = false;
}

double DeviceExactError::error() {
  if (fetched_is_old_) fetch_report();
  return fetched_.data()[kSetError];
}

std::vector<Insertion> DeviceExactError::insertions() const {
  const std::vector<double> change = downloaded(table_.change, l_, stream_);
  const std::vector<int> position = downloaded(table_.position, l_, stream_);
  std::vector<Insertion> all;
  for (Index c = kept_; c < l_; ++c) all.push_back({position[c], change[c]});
  return all;
}

BestRemoval DeviceExactError::best_removal_with(Index p) {
  const ErrorToken token{-1, narrow(p)};
  double* const error = table_.report + kTriedError;
  move_rows(table_, RowMove::try_insertion, token, narrow(kept_), stream_);
  scan(token, kept_, false, error);
  choose_removal(table_, narrow(kept_), error, stream_);
  take_removal(table_, error, -1, nullptr, stream_);
  fetch_report();
  return {static_cast<Index>(fetched_.data()[kBestPosition]), fetched_.data()[kBestError]};
}

GreedyPath DeviceExactError::evict(Index keep, const Workers& workers) {
  const Index n = std::max<Index>(kept_ - keep, 0);
  DeviceArrays arrays(stream_);
  double* const errors = arrays.make<double>(n);
  int* const evicted = arrays.make<int>(n);
  double* error = table_.report + kSetError;
  for (Index step = 0; step < n; ++step) {
    check_stop(workers);
    choose_removal(table_, narrow(kept_), error, stream_);
    const int column = narrow(--kept_);
    take_removal(table_, error, column, evicted + step, stream_);
    error = errors + step;
    move(RowMove::remove, {column, -1}, error);
  }
  GreedyPath path;
  path.error = downloaded(errors, n, stream_);
  for (const int p : downloaded(evicted, n, stream_)) path.evicted.push_back(p);
  return path;
}

GreedyPath greedy_exact_cuda(const HeadGroup<double>& group, RowRange rows, Index keep, Workers& workers) {
  if (group.held() == 0) return {};
  check_stop(workers);
  DeviceExactError state(group, rows, all_from(group.first_held(), group.l), false);
  return state.evict(keep, workers);
}

KeptSet exchange_cuda(const HeadGroup<double>& group, RowRange rows, KeptSet start, Workers& workers) {
  const Index keep = count(start);
  if (keep == 0 || keep == group.held()) return start;
  check_stop(workers);
  DeviceExactError state(group, rows, start, true);
  return exchange_from(state, std::move(start), workers);
}

}  // namespace kvreplay
