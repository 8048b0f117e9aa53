#include "sim/channels/cuda/gram_kernels.hpp"
#include "sim/channels/cuda/output_interaction_kernels.hpp"
#include "sim/channels/key_mean.hpp"
#include "sim/channels/output_interaction.hpp"
#include "sim/cuda/transfer.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <string>

namespace kvreplay {
namespace {

using cuda::Buffer;
using cuda::narrow;
using cuda::uploaded;

/// Rows that are worked on together: enough for a large device, as many as 128 MiB an array hold.
Index rows_at_once(Index rows, Index tokens, Index d, Index d_v) {
  constexpr Index kMostRows = 256, kMostNumbers = Index{1} << 25;
  return std::clamp<Index>(kMostNumbers / std::max(tokens, d * d_v), 1, std::min(kMostRows, rows));
}

/// What each row of every query head, one head after the other, sees: [G rows].
struct RowRanges {
  std::vector<int> first_visible, end_visible, first_key, end_key;
  std::vector<float> sink;
};

RowRanges row_ranges(const HeadGroup<float>& group, Rows rows, const std::vector<Index>& keys) {
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

Matrix<double> output_interaction_cuda(const HeadGroup<float>& group, Rows rows, const PrunableKeys& keys,
                                       Workers& workers) {
  const Index d = group.d(), d_v = group.d_v(), tokens = group.T_all(), n = rows.count(), all = group.G() * n;
  const PreparedValues<float> values = prepare_values(group, workers);
  const std::vector<Index> key_list = positions(keys.prunable);
  const Vector<float> mean_key = sampled_key_mean(group, key_list);
  Matrix<float> centred(std::ssize(key_list), d);
  for (Index key = 0; key < centred.rows(); ++key)
    centred.row(key) = group.k.row(key_list[key]) - mean_key.transpose();

  const cuda::Stream stream;
  const auto head = static_cast<std::size_t>(n * d);
  const Buffer<float> q(group.q.size() * head);
  for (std::size_t g = 0; g < group.q.size(); ++g)
    cuda::copy(q.data() + g * head, group.q[g].data() + (rows.begin - group.first_query()) * d, head, stream);
  const RowRanges ranges = row_ranges(group, rows, key_list);
  const auto first_visible = uploaded<int>(ranges.first_visible, stream),
             end_visible = uploaded<int>(ranges.end_visible, stream),
             first_key = uploaded<int>(ranges.first_key, stream),
             end_key = uploaded<int>(ranges.end_key, stream);
  const std::vector<int> narrow_list(key_list.begin(), key_list.end());
  const std::vector<unsigned char> in_cache = marks(keys.cache, tokens, 1),
                                   in_prunable = marks(keys.prunable, tokens, 0);
  const auto positions_on = uploaded<int>(narrow_list, stream);
  const auto cached = uploaded<unsigned char>(in_cache, stream),
             prunable = uploaded<unsigned char>(in_prunable, stream);
  const auto sink = uploaded<float>(ranges.sink, stream), k = uploaded<float>(group.k, stream),
             v_centred = uploaded<float>(values.centred, stream),
             centre = uploaded<float>(values.centre, stream), keys_centred = uploaded<float>(centred, stream),
             key_mean = uploaded<float>(mean_key, stream);

  const Index at_once = rows_at_once(all, tokens, d, d_v);
  const auto block = static_cast<std::size_t>(at_once), depth = static_cast<std::size_t>(d_v);
  const Buffer<float> changed(block * static_cast<std::size_t>(tokens)), rest(changed.size()),
      mean(block * depth), shift(block * depth), D(block * depth * static_cast<std::size_t>(d));
  const Buffer<cuda::RowSoftmax> softmax(block);
  const cuda::GramPlan most = cuda::gram_plan(at_once * d_v, narrow(d));
  const Buffer<double> parts(cuda::gram_parts_size(most)), gram(static_cast<std::size_t>(d * d));

  Matrix<double> sum = Matrix<double>::Zero(d, d), part(d, d);
  for (Index begin = 0; begin < all; begin += at_once) {
    const Index count = std::min(at_once, all - begin);
    const cuda::DerivativeRows in{narrow(count),
                                  narrow(tokens),
                                  narrow(d),
                                  narrow(d_v),
                                  static_cast<float>(group.rule.scale),
                                  static_cast<float>(group.rule.softcap.value_or(0)),
                                  q.data() + begin * d,
                                  sink.data() + begin,
                                  first_visible.data() + begin,
                                  end_visible.data() + begin,
                                  k.data(),
                                  v_centred.data(),
                                  centre.data(),
                                  cached.data(),
                                  prunable.data(),
                                  positions_on.data(),
                                  keys_centred.data(),
                                  key_mean.data(),
                                  first_key.data() + begin,
                                  end_key.data() + begin};
    cuda::derivatives_pass(
        in, {changed.data(), rest.data(), softmax.data(), mean.data(), shift.data(), D.data()}, stream);
    const cuda::GramRows x{D.data(), nullptr, count * d_v, narrow(d)};
    cuda::gram_pass(x, cuda::GramProducts::single, cuda::gram_plan(x.n, x.d), parts.data(), gram.data(),
                    stream);
    const std::vector<cuda::RowSoftmax> of_rows =
        cuda::downloaded(softmax, static_cast<std::size_t>(count), stream);
    const auto bad =
        std::find_if(of_rows.begin(), of_rows.end(), [](const auto& row) { return row.overflow != 0; });
    if (bad != of_rows.end()) {
      const Index at = begin + (bad - of_rows.begin());
      report_overflow(group, at / n, "position " + std::to_string(rows.begin + at % n));
    }
    cuda::copy(part.data(), static_cast<const double*>(gram.data()), gram.size(), stream);
    stream.synchronize();
    if (!part.allFinite())
      report_overflow(group, begin / n, "positions from " + std::to_string(rows.begin + begin % n));
    sum += part;
  }
  return sum;
}

}  // namespace kvreplay
