#include "sim/channels/channel_interaction.hpp"
#include "sim/channels/cuda/gram_kernels.hpp"
#include "sim/gram_sums.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

Matrix<double> gram_of(const cuda::GramRows& x, cuda::GramProducts products, const cuda::Stream& stream) {
  const cuda::GramPlan plan = cuda::gram_plan(x.n, x.d);
  const cuda::Buffer<double> parts(cuda::gram_parts_size(plan));
  Matrix<double> gram(x.d, x.d);
  const cuda::Buffer<double> on_device(static_cast<std::size_t>(gram.size()));
  cuda::gram_pass(x, products, plan, parts.data(), on_device.data(), stream);
  cuda::copy(gram.data(), static_cast<const double*>(on_device.data()), on_device.size(), stream);
  stream.synchronize();
  return gram;
}

Matrix<double> gram_of_listed(const Matrix<float>& x, const std::vector<Index>& rows,
                              cuda::GramProducts products) {
  const Index d = x.cols();
  if (rows.empty() || d == 0) return Matrix<double>::Zero(d, d);
  // Only the rows from the first to the last of them go to the device.
  const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
  const Index first = *least;
  std::vector<Index> list(rows.size());
  std::transform(rows.begin(), rows.end(), list.begin(), [&](Index row) { return row - first; });

  const cuda::Stream stream;
  const cuda::Buffer<float> numbers(static_cast<std::size_t>((*most - first + 1) * d));
  const cuda::Buffer<Index> listed(list.size());
  cuda::copy(numbers.data(), x.data() + first * d, numbers.size(), stream);
  cuda::copy(listed.data(), static_cast<const Index*>(list.data()), list.size(), stream);
  return gram_of({numbers.data(), listed.data(), std::ssize(list), static_cast<int>(d)}, products, stream);
}

}  // namespace

Matrix<double> gram_cuda(const Matrix<float>& x, const std::vector<Index>& rows) {
  Matrix<double> gram = gram_of_listed(x, rows, cuda::GramProducts::single);
  require_finite<float>(gram);
  return gram;
}

Matrix<double> gram_f64_cuda(const Matrix<float>& x, const std::vector<Index>& rows) {
  return gram_of_listed(x, rows, cuda::GramProducts::exact);
}

Matrix<double> query_gram_cuda(const HeadGroup<float>& group, Rows rows) {
  const Index d = group.d(), n = rows.count();
  if (group.q.empty() || n == 0 || d == 0) return Matrix<double>::Zero(d, d);
  const cuda::Stream stream;
  // The rows of all heads, one after the other.
  const auto head = static_cast<std::size_t>(n * d);
  const cuda::Buffer<float> q(group.q.size() * head);
  for (std::size_t g = 0; g < group.q.size(); ++g)
    cuda::copy(q.data() + g * head, group.q[g].data() + (rows.begin - group.first_query()) * d, head, stream);
  return gram_of({q.data(), nullptr, group.G() * n, static_cast<int>(d)}, cuda::GramProducts::exact, stream);
}

}  // namespace kvreplay
