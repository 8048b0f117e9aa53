// Any bytes as a .npz: refused with an InputError, or its first members read, from the middle and then from
// the start.

#include "data/error.hpp"
#include "data/npy_array.hpp"
#include "data/npz.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
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
    static const int file = ::memfd_create("fuzz.npz", 0);
    if (::ftruncate(file, 0) != 0 || ::pwrite(file, bytes, size, 0) != static_cast<ssize_t>(size)) return 0;
    const NpzArchive npz = NpzArchive::open("/proc/self/fd/" + std::to_string(file));
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
