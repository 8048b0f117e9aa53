#pragma once

#include "data/atomic_file.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// One array of a `.npz`; its numbers must outlive it.
struct NpzMember {
  std::string name;    ///< without ".npy"
  std::string header;  ///< of the `.npy`
  std::span<const std::byte> numbers;
};
/// C-ordered; the product of `shape` is the number of values.
NpzMember npz_member(std::string_view name, const std::vector<std::size_t>& shape,
                     std::span<const float> values);
NpzMember npz_member(std::string_view name, const std::vector<std::size_t>& shape,
                     std::span<const std::int32_t> values);

/// Writes a `.npz` of stored members: the same bytes for the same arrays, without times. Throws InputError
/// beyond 4 GiB, which takes another format.
void write_npz(AtomicFile file, std::span<const NpzMember> members);

}  // namespace kvreplay
