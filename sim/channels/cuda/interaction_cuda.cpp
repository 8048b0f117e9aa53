#include "sim/channels/cuda/output_interaction_kernels.hpp"
#include "sim/channels/output_interaction.hpp"
#include "sim/cuda/gram_kernels.hpp"
#include "sim/cuda/transfer.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <string>

namespace kvreplay {

namespace {

using cuda::narrow;

/// Rows that are worked on together: enough for a large device, as many as 128 MiB an array hold.
Index rows_at_once(Index rows, Index tokens, Index d, Index d_v) {
  constexpr Index kMostRows = 256, kMostNumbers = Index{1} << 25;
  return std::clamp<Index>(kMostNumbers / std::max(tokens, d * d_v), 1, std::min(kMostRows, rows));
}

/// Tokens and keys that each row of every query head sees, one head after the other: [G rows].
struct RowRanges {
  std::vector<int> first_visible, end_visible, first_key, end_key;
  std::vector<float> sink;
};

RowRanges row_ranges(const HeadGroup<float>& group, RowRange rows, const std::vector<Index>& keys) {
  const auto before = [&](Index position) {
    return narrow(std::lower_bound(keys.begin(), keys.end(), position) - keys.begin());
  };
  RowRanges ranges;
  for (Index g = 0; g < group.G(); ++g)
    for (Index i = rows.begin; i < rows.end; ++i) {
      const Index first = group.first_visible(i), end = group.end_visible(i);
      ranges.first_visible.push_back(narrow(first));
      ranges.end_visible.push_back(narrow(end));
      ranges.first_key.push_back(before(first));
      ranges.end_key.push_back(before(end));
      ranges.sink.push_back(sink_logit(group, g));
    }
  return ranges;
}

/// 1 for the prompt's positions of a set, `decoded` for those after the prompt: [T].
std::vector<unsigned char> marks(const KeptSet& set, Index tokens, unsigned char decoded) {
  std::vector<unsigned char> all(set.begin(), set.end());
  all.resize(tokens, decoded);
  return all;
}

}  // namespace

Matrix<double> output_interaction_cuda(const HeadGroup<float>& group, RowRange rows, const PrunableKeys& keys,
                                       Workers& workers) {
  const Index d = group.d(), d_v = group.d_v(), tokens = group.T_all(), n = rows.count(), all = group.G() * n;
  const PreparedValues<float> values = prepare_values(group, workers);
  const std::vector<Index> key_list = positions(keys.prunable);
  const Vector<float> mean_key = sampled_key_mean(group, key_list);
  Matrix<float> centred(std::ssize(key_list), d);
  for (Index key = 0; key < centred.rows(); ++key)
    centred.row(key) = group.k.row(key_list[key]) - mean_key.transpose();

  const cuda::Stream stream;
  cuda::DeviceArrays arrays(stream);
  const RowRanges ranges = row_ranges(group, rows, key_list);
  const std::vector<int> narrow_list(key_list.begin(), key_list.end());
  const cuda::DerivativeRows all_rows{
      .rows = narrow(all),
      .tokens = narrow(tokens),
      .d = narrow(d),
      .d_v = narrow(d_v),
      .scale = static_cast<float>(group.rule.scale),
      .softcap = static_cast<float>(group.rule.softcap.value_or(0)),
      .q = cuda::copy_of_queries(group, rows, arrays, stream),
      .sink_logit = arrays.copy_of<float>(ranges.sink),
      .first_visible = arrays.copy_of<int>(ranges.first_visible),
      .end_visible = arrays.copy_of<int>(ranges.end_visible),
      .k = arrays.copy_of<float>(group.k),
      .v_centred = arrays.copy_of<float>(values.centred),
      .centre = arrays.copy_of<float>(values.centre),
      .cached = arrays.copy_of<unsigned char>(marks(keys.cache, tokens, 1)),
      .prunable = arrays.copy_of<unsigned char>(marks(keys.prunable, tokens, 0)),
      .key_positions = arrays.copy_of<int>(narrow_list),
      .keys_centred = arrays.copy_of<float>(centred),
      .key_mean = arrays.copy_of<float>(mean_key),
      .first_key = arrays.copy_of<int>(ranges.first_key),
      .end_key = arrays.copy_of<int>(ranges.end_key)};

  const Index at_once = rows_at_once(all, tokens, d, d_v);
  const cuda::Derivatives out{.changed = arrays.make<float>(at_once * tokens),
                              .rest = arrays.make<float>(at_once * tokens),
                              .softmax = arrays.make<cuda::RowSoftmax>(at_once),
                              .mean = arrays.make<float>(at_once * d_v),
                              .shift = arrays.make<float>(at_once * d_v),
                              .D = arrays.make<float>(at_once * d_v * d)};
  double* const parts = arrays.make<double>(cuda::gram_parts_size(cuda::gram_plan(at_once * d_v, narrow(d))));
  double* const gram = arrays.make<double>(d * d);

  Matrix<double> sum = Matrix<double>::Zero(d, d), part(d, d);
  for (Index begin = 0; begin < all; begin += at_once) {
    const Index count = std::min(at_once, all - begin);
    cuda::DerivativeRows in = all_rows;
    in.rows = narrow(count);
    in.q += begin * d;
    in.sink_logit += begin;
    for (const int** ranges_of : {&in.first_visible, &in.end_visible, &in.first_key, &in.end_key})
      *ranges_of += begin;
    cuda::derivatives_pass(in, out, stream);
    const cuda::GramRows x{out.D, count * d_v, in.d};
    cuda::gram_pass(x, cuda::GramProducts::single, cuda::gram_plan(x.n, x.d), parts, gram, stream);
    const std::vector<cuda::RowSoftmax> of_rows = cuda::downloaded(out.softmax, count, stream);
    const auto bad =
        std::find_if(of_rows.begin(), of_rows.end(), [](const auto& row) { return row.overflow != 0; });
    if (bad != of_rows.end()) {
      const Index at = begin + (bad - of_rows.begin());
      report_overflow(group, at / n, "position " + std::to_string(rows.begin + at % n));
    }
    cuda::copy(part.data(), gram, part.size(), stream);
    stream.synchronize();
    if (!part.allFinite())
      report_overflow(group, begin / n, "positions from " + std::to_string(rows.begin + begin % n));
    sum += part;
  }
  return sum;
}

}  // namespace kvreplay
