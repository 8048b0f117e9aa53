#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace kvreplay {

/// What a zip archive's central directory says of a member whose bytes stand in the archive as they are.
struct StoredMember {
  std::string_view name;     ///< into the archive's bytes
  std::uint64_t offset = 0;  ///< of the member's first byte in the archive
  std::uint64_t bytes = 0;
};

/// Finds where stored members lie, which libzip does not tell, so that they can be mapped like files. One
/// entry a member, in the directory's order; empty for members that are compressed, encrypted or not plainly
/// where the directory says they are (those are left to libzip), and an empty list where the directory itself
/// is not plain.
std::vector<std::optional<StoredMember>> locate_stored_members(std::span<const std::byte> archive);

}  // namespace kvreplay
