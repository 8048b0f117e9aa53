#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

namespace kvreplay {

/// A read-only mapping of a regular file, or of a range of it. Throws InputError naming the path and the
/// reason.
///
/// A page beyond the end of a file that shrinks while it is mapped raises SIGBUS. Callers therefore map anew
/// for every read and pass the size they expect: the size is checked on the very file that is mapped, and
/// what is left is a file cut short during the milliseconds of one read.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  /// Bytes [begin, end) of a file that must have `file_size` bytes.
  MappedFile(const std::filesystem::path& path, std::uint64_t file_size, std::uint64_t begin,
             std::uint64_t end);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  struct Range {
    std::uint64_t file_size, begin, end;
  };
  void map(const std::filesystem::path& path, const std::optional<Range>& range);

  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  std::span<const std::byte> bytes_;
};

/// The size of a regular file. Throws InputError as above.
std::uint64_t regular_file_size(const std::filesystem::path& path);

}  // namespace kvreplay
