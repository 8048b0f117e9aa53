#pragma once

#include "data/npy_array.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// A `.npz`: a zip archive whose members are `.npy` files, stored or deflated.
class NpzArchive {
 public:
  struct Member {
    std::string name;                     ///< as in the archive: "q.npy", "layer_00/q.npy"
    std::uint64_t bytes = 0;              ///< when decompressed
    std::optional<std::uint64_t> offset;  ///< where a stored member begins in the archive
  };

  /// Throws InputError naming the path unless it is a zip archive with members of possible sizes, none
  /// encrypted.
  static NpzArchive open(const std::filesystem::path& path);

  const std::vector<Member>& members() const { return members_; }
  /// A member's bytes. A stored member is mapped like a file of its own. A deflated one is decompressed as
  /// far as asked, from where the last read of it ended if that is not behind the request: heads read in
  /// order cost one decompression in all, and never more memory than a window (or, in Fortran order, the
  /// array).
  std::shared_ptr<const ByteSource> source(std::size_t member) const;

  struct Backing;

 private:
  explicit NpzArchive(std::shared_ptr<const Backing> backing);
  std::shared_ptr<const Backing> backing_;
  std::vector<Member> members_;
};

/// Entry of a zip archive's central directory for a member that is stored without compression.
struct StoredMember {
  std::string_view name;     ///< into the archive's bytes
  std::uint64_t offset = 0;  ///< of the member's first byte in the archive
  std::uint64_t bytes = 0;
};

/// Finds the offsets of stored members, which libzip does not report, so that they can be mapped like files.
/// Returns one entry a member, in the directory's order. An entry is empty if the member is compressed,
/// encrypted, or not verifiably at the stated offset: libzip reads it then. The whole list is empty if the
/// directory itself cannot be verified.
std::vector<std::optional<StoredMember>> locate_stored_members(std::span<const std::byte> archive);

}  // namespace kvreplay
