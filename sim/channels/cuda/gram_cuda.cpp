#include "sim/channels/channel_interaction.hpp"
#include "sim/cuda/gram_kernels.hpp"
#include "sim/cuda/transfer.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

Matrix<double> gram_of(const cuda::GramRows& x, cuda::DeviceArrays& arrays, const cuda::Stream& stream) {
  const cuda::GramPlan plan = cuda::gram_plan(x.n, x.d);
  double* const parts = arrays.make<double>(cuda::gram_parts_size(plan));
  Matrix<double> gram(x.d, x.d);
  double* const on_device = arrays.make<double>(gram.size());
  cuda::gram_pass(x, cuda::GramProducts::exact, plan, parts, on_device, stream);
  cuda::copy(gram.data(), on_device, gram.size(), stream);
  stream.synchronize();
  return gram;
}

}  // namespace

Matrix<double> gram_f64_cuda(const HeadMatrix<float>& x, const std::vector<Index>& rows) {
  const Index d = x.cols();
  if (rows.empty() || d == 0) return Matrix<double>::Zero(d, d);
  // Only the rows from the first to the last of them go to the device.
  const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
  const Index first = *least, numbers = (*most - first + 1) * d;
  std::vector<Index> list(rows.size());
  std::transform(rows.begin(), rows.end(), list.begin(), [&](Index row) { return row - first; });

  const cuda::Stream stream;
  cuda::DeviceArrays arrays(stream);
  float* const part = arrays.make<float>(numbers);
  cuda::copy(part, x.data() + first * d, numbers, stream);
  const Index* const listed = arrays.copy_of<Index>(list);
  return gram_of({part, listed, std::ssize(list), static_cast<int>(d)}, arrays, stream);
}

Matrix<double> query_gram_cuda(const HeadGroup<float>& group, RowRange rows) {
  const Index d = group.d(), n = rows.count();
  if (group.q.empty() || n == 0 || d == 0) return Matrix<double>::Zero(d, d);
  const cuda::Stream stream;
  cuda::DeviceArrays arrays(stream);
  const float* const q = cuda::copy_of_queries(group, rows, arrays, stream);
  return gram_of({q, nullptr, group.G() * n, static_cast<int>(d)}, arrays, stream);
}

}  // namespace kvreplay
