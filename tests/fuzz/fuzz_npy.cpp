// Any bytes as a .npy: refused with an InputError, or every element read, in C order and gathered.

#include "data/error.hpp"
#include "data/npy_array.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

using namespace kvreplay;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  try {
    const NpyArray array =
        open_npy("fuzz.npy", std::make_shared<MemorySource>(std::as_bytes(std::span(bytes, size))));
    const Dtype dtype = array.header.dtype.value_or(Dtype::bf16);
    const std::ptrdiff_t count = array.header.count;
    std::vector<float> floats(count);
    std::vector<double> doubles(floats.size());
    const auto in_order = read_matrix(array, dtype, {0, 1, count, count, 1}, floats.data());
    const auto gathered = read_matrix(array, dtype, {0, count, 1, 1, count}, doubles.data());
    // Float64 beyond float32's range apart, both readings find the same first fault.
    if (dtype != Dtype::f64 && in_order != gathered) std::abort();
  } catch (const InputError&) {
  }
  return 0;
}
