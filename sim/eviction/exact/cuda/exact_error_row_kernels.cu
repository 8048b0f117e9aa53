#include "sim/eviction/exact/cuda/exact_error_block.hpp"

#include <algorithm>

// Grid of every kernel: rows. A block's threads, as many as have something to do, all know the row's scalars
// and decide alike; they share its channels and its columns.

namespace kvreplay::cuda {

inline constexpr int kMostRowWarps = 4;
inline constexpr int kDecodedAtOnce = 128;

/// The four sums that an output is judged by.
struct OutputSums {
  double current_sq, change_current, change_sq, top_error;

  KVREPLAY_DEVICE OutputSums operator+(const OutputSums& other) const {
    return {current_sq + other.current_sq, change_current + other.change_current, change_sq + other.change_sq,
            top_error + other.top_error};
  }
};
KVREPLAY_DEVICE OutputSums shuffle_xor(const OutputSums& sums, int mask) {
  return {cuda::shuffle_xor(sums.current_sq, mask), cuda::shuffle_xor(sums.change_current, mask),
          cuda::shuffle_xor(sums.change_sq, mask), cuda::shuffle_xor(sums.top_error, mask)};
}
/// The larger weight; of equals the lower column.
struct LargerColumn {
  KVREPLAY_DEVICE ErrorColumn operator()(const ErrorColumn& a, const ErrorColumn& b) const {
    return b.weight > a.weight || (b.weight == a.weight && b.column < a.column) ? b : a;
  }
};

struct RowShared {
  double sums[kMostRowWarps];
  OutputSums output[kMostRowWarps];
  ErrorColumn column[kMostRowWarps];
  double weights[kDecodedAtOnce];
};
KVREPLAY_DEVICE RowShared& row_shared() { return *reinterpret_cast<RowShared*>(shared_memory()); }

/// Where a row's numbers lie, for exact_error_row.hpp; a block has the row. Channels and entries that a
/// thread writes are its own until the next barrier.
struct ErrorPlace {
  const ErrorTable& t;
  int row, kept, warps;

  KVREPLAY_DEVICE Index column_of(Index p) const { return t.column[p]; }
  KVREPLAY_DEVICE Index position_of(Index column) const { return t.position[column]; }
  KVREPLAY_DEVICE const double* value(Index column) const {
    return row_of(t.values, static_cast<int>(column), t.width);
  }
  KVREPLAY_DEVICE const double* key(int column) const { return row_of(t.keys, column, t.key_width); }
  KVREPLAY_DEVICE double* vector(double* matrix) const { return row_of(matrix, row, t.width); }
  KVREPLAY_DEVICE double& at(int column, ErrorEntry which) const { return entry(t, row, column, which); }
  KVREPLAY_DEVICE const double* top_value(const ErrorRowState& state) const {
    return state.top < 0 ? t.zeros : value(t.column[state.top]);
  }

  KVREPLAY_DEVICE int threads() const { return 32 * warps; }
  template <class Join>
  KVREPLAY_DEVICE double over_threads(double value, Join join) const {
    return over_block(value, warps, row_shared().sums, join);
  }

  /// A warp calls.
  KVREPLAY_DEVICE double logit_of(Index column) const {
    const double* query = row_of(t.queries, row, t.key_width);
    return exact_error::logit(warp_dot(query, key(static_cast<int>(column)), t.key_width), t.scale,
                              t.softcap);
  }
  KVREPLAY_DEVICE void set_weight(Index column, double w) const {
    if (thread_id() == 0) at(static_cast<int>(column), kWeight) = w;
  }
  KVREPLAY_DEVICE void add_to_rest(double w, Index column) const {
    for (int k = thread_id(); k < t.width; k += threads()) vector(t.rest)[k] += w * value(column)[k];
  }
  KVREPLAY_DEVICE ErrorColumn largest_kept() const {
    sync_block();
    ErrorColumn largest{0, 0};
    for (int c = thread_id(); c < kept; c += threads()) {
      const double weight = at(c, kWeight);
      if (weight > largest.weight) largest = {weight, c};
    }
    return over_block(largest, warps, row_shared().column, LargerColumn{});
  }

  /// The candidates' logits to kWeight, to be read after a barrier.
  KVREPLAY_DEVICE void write_logits(const ErrorRowState& state) const {
    for (int c = warp_id(); c < t.l; c += warps) {
      const double z = exact_error::sees(state, t.position[c]) ? logit_of(c) : exact_error::kUnseen;
      if (lane_id() == 0) at(c, kWeight) = z;
    }
  }
  /// sum += kSum v over the columns [begin, end).
  KVREPLAY_DEVICE void add_columns(int begin, int end, double* sum) const {
    for (int k = thread_id(); k < t.width; k += threads()) {
      double channel = sum[k];
      for (int c = begin; c < end; ++c) channel += at(c, kSum) * value(c)[k];
      sum[k] = channel;
    }
  }
  /// Each candidate's entry becomes x . v. After a barrier.
  KVREPLAY_DEVICE void write_dots(const double* x, ErrorEntry which) const {
    for (int c = warp_id(); c < t.l; c += warps) {
      const double dot = warp_dot(value(c), x, t.width);
      if (lane_id() == 0) at(c, which) = dot;
    }
  }
};
namespace {

using Place = ErrorPlace;

/// Adds x to the row's sums as `terms` says and finds what follows, as output_terms() does on the CPU.
KVREPLAY_DEVICE void output_terms_of(const Place& place, const double* x, bool store, OutputTerms& terms) {
  const ErrorTable& t = place.t;
  double *rest_sum = place.vector(t.rest), *removed_sum = place.vector(t.removed);
  OutputSums sums{};
  for (int k = thread_id(); k < t.width; k += place.threads()) {
    const double rest = rest_sum[k] + terms.rest_add * x[k];
    const double removed = removed_sum[k] + terms.removed_add * x[k];
    if (store) {
      rest_sum[k] = rest;
      removed_sum[k] = removed;
    }
    const double others = rest * terms.inv_rest - terms.alone * t.centre[k];
    const double to_top = terms.top_weight * (terms.top_value[k] - others);
    const double current = others + to_top;
    const double change =
        terms.by_out * place.vector(t.out)[k] + terms.by_removed * removed + terms.by_current * current;
    place.vector(t.current)[k] = current;
    place.vector(t.moved)[k] = change;
    // ||D - t||^2 - ||D||^2 = t . (t - 2 D)
    sums = sums + OutputSums{current * current, change * current, change * change,
                             to_top * (to_top - (change + change))};
  }
  const int warps = smaller(place.warps, (t.width + 31) / 32);
  sums = over_block(sums, warps, row_shared().output, Plus{});
  terms.current_sq = sums.current_sq;
  terms.change_current = sums.change_current;
  terms.change_sq = sums.change_sq;
  terms.top_error = sums.top_error;
}

/// Computes everything of the row that depends on M, from M alone, as ExactError::sum_row() does. A row's
/// entries hold its logits and weights meanwhile.
KVREPLAY_DEVICE void sum_row(const Place& place, ErrorRowState& row, OutputTerms& terms, ErrorRow& scan) {
  using namespace exact_error;
  const ErrorTable& t = place.t;
  const int kept = place.kept;
  sync_block();
  place.write_logits(row);
  sync_block();

  ErrorColumn top{kUnseen, 0};
  for (int c = thread_id(); c < kept; c += place.threads()) {
    const double z = place.at(c, kWeight);
    if (z > top.weight) top = {z, c};
  }
  top = over_block(top, place.warps, row_shared().column, LargerColumn{});
  const bool has_top = top.weight > kUnseen;
  row.top = has_top ? place.position_of(top.column) : -1;
  row.z_top = top.weight;
  double rest_max = kUnseen;
  for (int c = thread_id(); c < kept; c += place.threads())
    if (!has_top || c != top.column) rest_max = cuda::larger(rest_max, place.at(c, kWeight));
  row.rest_max = cuda::larger(row.fixed_lse, place.over_threads(rest_max, Larger{}));
  const bool has_rest = row.rest_max > kUnseen;
  const double fixed_weight = row.fixed_lse > kUnseen ? std::exp(row.fixed_lse - row.rest_max) : 0;

  double kept_sum = 0, removed = 0;
  for (int c = thread_id(); c < t.l; c += place.threads()) {
    const double z = place.at(c, kWeight);
    double weight = 0;
    if (c >= kept)
      removed += weight = std::exp(z - row.all_max) * row.all_by;
    else if (has_rest && !(has_top && c == top.column))
      kept_sum += weight = std::exp(z - row.rest_max);
    place.at(c, kSum) = weight;
  }
  row.removed_most = row.removed = place.over_threads(removed, Plus{});
  row.rest_most = row.rest_sum = fixed_weight + place.over_threads(kept_sum, Plus{});
  double *rest_sum = place.vector(t.rest), *removed_sum = place.vector(t.removed);
  for (int k = thread_id(); k < t.width; k += place.threads()) {
    removed_sum[k] = 0;
    rest_sum[k] = fixed_weight * place.vector(t.fixed)[k];
  }
  place.add_columns(kept, t.l, removed_sum);
  place.add_columns(0, kept, rest_sum);

  const bool empty = choose_unit(row);
  terms.rest_add = terms.removed_add = scan.add = 0;
  set_terms(row, place.top_value(row), 0, 0, terms, scan);
  double* sum = place.vector(t.current);  // until output_terms_of() writes it
  for (int k = thread_id(); k < t.width; k += place.threads()) {
    const double others = rest_sum[k] * terms.inv_rest - terms.alone * t.centre[k];
    sum[k] = row.by_removed ? removed_sum[k] : -(others + terms.top_weight * (terms.top_value[k] - others));
  }
  sync_block();
  place.write_dots(sum, kSum);
  for (int c = thread_id(); c < t.l; c += place.threads()) {
    double& weight = place.at(c, kWeight);
    weight = entry_weight(row, weight, has_top && c == top.column, c < kept, empty);
  }
  sync_block();
}

KVREPLAY_DEVICE void write_row(const ErrorTable& t, int r, const ErrorRowState& row, const OutputTerms& terms,
                               ErrorRow& scan) {
  if (thread_id() != 0) return;
  scan.d_out = 2 * terms.change_current;
  scan.out_sq = terms.current_sq;
  t.state[r] = row;
  t.terms[r] = terms;
  t.scan[r] = scan;
  t.top_column[r] = row.top < 0 ? -1 : t.column[row.top];
}

/// o, the columns that are always there, o . v_p: ExactError::start_row().
KVREPLAY_KERNEL void start_kernel(ErrorTable t, int warps) {
  using exact_error::kUnseen;
  const Place place{t, static_cast<int>(block_id().x), 0, warps};
  ErrorRowState row = t.state[place.row];
  const double sink = t.sink[place.row];
  const auto fixed_logit = [&](int c) {
    return exact_error::sees(row, t.position[c]) ? place.logit_of(c) : kUnseen;
  };
  double fixed_max = sink, candidates_max = kUnseen;
  for (int c = t.l + warp_id(); c < t.T; c += place.warps)
    fixed_max = cuda::larger(fixed_max, fixed_logit(c));
  fixed_max = place.over_threads(fixed_max, Larger{});

  double* fixed = place.vector(t.fixed);
  for (int k = thread_id(); k < t.width; k += place.threads()) fixed[k] = 0;
  row.fixed_lse = kUnseen;
  if (fixed_max > kUnseen) {
    double sum = std::exp(sink - fixed_max);
    for (int k = thread_id(); k < t.width; k += place.threads()) fixed[k] = -sum * t.centre[k];
    double* weights = row_shared().weights;
    for (int first = t.l; first < t.T; first += kDecodedAtOnce) {
      const int n = smaller(kDecodedAtOnce, t.T - first);
      for (int c = warp_id(); c < n; c += place.warps) {
        const double weight = std::exp(fixed_logit(first + c) - fixed_max);
        if (lane_id() == 0) weights[c] = weight;
      }
      sync_block();
      for (int c = 0; c < n; ++c) sum += weights[c];
      for (int k = thread_id(); k < t.width; k += place.threads())
        for (int c = 0; c < n; ++c) fixed[k] += weights[c] * place.value(first + c)[k];
      sync_block();
    }
    for (int k = thread_id(); k < t.width; k += place.threads()) fixed[k] /= sum;
    row.fixed_lse = fixed_max + std::log(sum);
  }

  place.write_logits(row);
  sync_block();
  for (int c = thread_id(); c < t.l; c += place.threads())
    candidates_max = cuda::larger(candidates_max, place.at(c, kWeight));
  row.all_max = cuda::larger(place.over_threads(candidates_max, Larger{}), row.fixed_lse);
  const double fixed_weight = std::exp(row.fixed_lse - row.all_max);
  double sum = 0;
  for (int c = thread_id(); c < t.l; c += place.threads()) {
    const double weight = std::exp(place.at(c, kWeight) - row.all_max);
    place.at(c, kSum) = weight;
    sum += weight;
  }
  row.all_by = 1 / (fixed_weight + place.over_threads(sum, Plus{}));
  double* out = place.vector(t.out);
  for (int k = thread_id(); k < t.width; k += place.threads()) out[k] = fixed_weight * fixed[k];
  place.add_columns(0, t.l, out);
  for (int k = thread_id(); k < t.width; k += place.threads()) out[k] *= row.all_by;
  sync_block();
  place.write_dots(out, kOut);
  if (thread_id() == 0) t.state[place.row] = row;
}

KVREPLAY_KERNEL void sum_kernel(ErrorTable t, int warps, int kept) {
  const Place place{t, static_cast<int>(block_id().x), kept, warps};
  ErrorRowState row = t.state[place.row];
  OutputTerms terms{};
  ErrorRow scan{};
  sum_row(place, row, terms, scan);
  output_terms_of(place, t.zeros, false, terms);
  write_row(t, place.row, row, terms, scan);
}

KVREPLAY_KERNEL void move_kernel(ErrorTable t, int warps, RowMove what, ErrorToken token, int kept) {
  using namespace exact_error;
  Place place{t, static_cast<int>(block_id().x), kept, warps};
  const int column = cuda::column_of(t, token);
  const bool tried = what == RowMove::try_insertion;
  ErrorRowState row = t.state[place.row];
  const bool seen = sees(row, t.position[column]);
  const double* x = place.value(column);
  OutputTerms terms{};
  ErrorRow scan{};
  if (!tried) {
    const int a = t.swapped[0], b = t.swapped[1];
    if (thread_id() < kErrorEntries && a != b) {
      const auto which = static_cast<ErrorEntry>(thread_id());
      const double other = place.at(a, which);
      place.at(a, which) = place.at(b, which);
      place.at(b, which) = other;
    }
  }
  sync_block();

  const double z = seen ? place.logit_of(column) : kUnseen;
  bool lost = false;
  if (tried) {
    const double weight = try_insertion(row, terms, scan, seen, place.at(column, kWeight), z);
    set_terms(row, place.top_value(row), weight, terms.rest_add, terms, scan);
  } else {
    if (seen)
      lost = what == RowMove::remove ? !remove_from(row, terms, scan, place, column, z)
                                     : !insert_into(row, terms, scan, place, column, z);
    if (lost)
      sum_row(place, row, terms, scan);
    else
      set_terms(row, place.top_value(row), 0, 0, terms, scan);
  }
  output_terms_of(place, x, !tried && !lost, terms);
  write_row(t, place.row, row, terms, scan);
}

template <class... Parameters, class... Arguments>
void launch_for_rows(void (*kernel)(ErrorTable, int, Parameters...), const ErrorTable& table,
                     const Stream& stream, const Arguments&... arguments) {
  if (table.rows == 0) return;
  const int warps = std::min(kMostRowWarps, (std::max(table.width, table.l) + 31) / 32);
  launch(kernel, {static_cast<unsigned>(table.rows)}, 32 * warps, sizeof(RowShared), stream, table, warps,
         arguments...);
}

}  // namespace

void start_rows(const ErrorTable& table, const Stream& stream) {
  launch_for_rows(start_kernel, table, stream);
}

void sum_rows(const ErrorTable& table, int kept, const Stream& stream) {
  launch_for_rows(sum_kernel, table, stream, kept);
}

void move_rows(const ErrorTable& table, RowMove what, ErrorToken token, int kept, const Stream& stream) {
  launch_for_rows(move_kernel, table, stream, what, token, kept);
}

}  // namespace kvreplay::cuda
