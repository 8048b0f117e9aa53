#pragma once

#include "data/error.hpp"
#include "sim/cuda/gram_kernels.hpp"
#include "sim/cuda/runtime.hpp"
#include "sim/head_group.hpp"
#include "sim/row_range.hpp"

#include <cstddef>
#include <limits>
#include <vector>

// Transfers between the host and a device.

namespace kvreplay::cuda {

/// Arrays on the calling thread's device, freed with this object. Copies and fills go to the stream.
class DeviceArrays {
 public:
  explicit DeviceArrays(const Stream& stream) : stream_(stream) {}

  /// n numbers that are not initialised; null where n is 0.
  template <class T>
  T* make(std::size_t n) {
    return reinterpret_cast<T*>(buffers_.emplace_back(n * sizeof(T)).data());
  }
  template <class T>
  T* zeros(std::size_t n) {
    T* const array = make<T>(n);
    fill_zero(buffers_.back(), stream_);
    return array;
  }
  /// A copy of anything with data() and size().
  template <class T, class Numbers>
  T* copy_of(const Numbers& numbers) {
    T* const array = make<T>(numbers.size());
    copy(array, numbers.data(), numbers.size(), stream_);
    return array;
  }

 private:
  const Stream& stream_;
  std::vector<Buffer<std::byte>> buffers_;
};

/// n numbers from a device, when all that the stream has to do is done.
template <class T>
std::vector<T> downloaded(const T* from, std::size_t n, const Stream& stream) {
  std::vector<T> numbers(n);
  copy(numbers.data(), from, n, stream);
  stream.synchronize();
  return numbers;
}

/// Kernels count rows and tokens in 32 bits.
inline int narrow(std::ptrdiff_t n) {
  if (n > std::numeric_limits<int>::max()) throw InputError("a head group of more than 2^31 rows or tokens");
  return static_cast<int>(n);
}

/// The queries at the positions `rows` of every query head, one head after the other: [G][rows][d].
inline float* copy_of_queries(const HeadGroup<float>& group, RowRange rows, DeviceArrays& arrays,
                              const Stream& stream) {
  const Index head = rows.count() * group.d(), first = rows.begin - group.first_query();
  float* const queries = arrays.make<float>(group.G() * head);
  for (Index g = 0; g < group.G(); ++g)
    copy(queries + g * head, group.q[g].data() + first * group.d(), head, stream);
  return queries;
}

/// X^T X on the device, [d, d] in `arrays`.
inline const double* gram_of(const GramRows& x, GramProducts products, DeviceArrays& arrays,
                             const Stream& stream) {
  const GramPlan plan = gram_plan(x.n, x.d);
  double* const gram = arrays.make<double>(static_cast<std::size_t>(x.d) * x.d);
  gram_pass(x, products, plan, arrays.make<double>(gram_parts_size(plan)), gram, stream);
  return gram;
}

/// [rows][cols] numbers from a device, as downloaded().
inline Matrix<double> downloaded_matrix(const double* from, Index rows, Index cols, const Stream& stream) {
  Matrix<double> numbers(rows, cols);
  copy(numbers.data(), from, numbers.size(), stream);
  stream.synchronize();
  return numbers;
}

/// The tokens [first, end) that each of some rows sees: [rows], both ascending.
struct Visibility {
  std::vector<int> first, end;

  /// Tokens that the rows [from, to) see among them.
  Index width(Index from, Index to) const { return end[to - 1] - first[from]; }
};

inline Visibility visibility(const HeadGroup<float>& group, RowRange rows) {
  Visibility seen;
  for (Index i = rows.begin; i < rows.end; ++i) {
    seen.first.push_back(narrow(group.first_visible(i)));
    seen.end.push_back(narrow(group.end_visible(i)));
  }
  return seen;
}

}  // namespace kvreplay::cuda
