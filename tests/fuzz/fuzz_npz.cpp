// Any bytes as a .npz: refused with an InputError, or its first members read, from the middle and then from
// the start.

#include "data/error.hpp"
#include "data/npy_array.hpp"
#include "data/npz.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

using namespace kvreplay;

namespace {

void read_member(const NpzArchive& npz, std::size_t member) {
  const NpyArray array = open_npy("fuzz.npz", npz.source(member));
  const Dtype dtype = array.header.dtype.value_or(Dtype::bf16);
  const std::ptrdiff_t count = array.header.count, half = count / 2;
  std::vector<float> out(count);
  read_matrix(array, dtype, {half, 1, count - half, count - half, 1}, out.data());
  read_matrix(array, dtype, {0, 1, count, count, 1}, out.data());
  read_matrix(array, dtype, {0, count, 1, 1, count}, out.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  try {
    const NpzArchive npz = NpzArchive::from_memory(std::as_bytes(std::span(bytes, size)), "fuzz.npz");
    for (std::size_t i = 0; i < std::min<std::size_t>(npz.members().size(), 4); ++i) {
      try {
        read_member(npz, i);
      } catch (const InputError&) {  // the next member may be sound
      }
    }
  } catch (const InputError&) {
  }
  return 0;
}
