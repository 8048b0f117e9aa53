#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace kvreplay {

/// A read-only mapping of a regular file, or of a range of it. Throws InputError naming the path and the
/// reason.
///
/// A page beyond the end of a file that shrinks while it is mapped reads as zeros, and require_whole()
/// throws: it is called after every read, before what was read is used. (The signal that such a page raises
/// is handled for the whole process; for addresses of nobody's mapping the handler that was there before is
/// called.) Callers map anew for every read and pass the size they expect: it is checked on the very file
/// that is mapped.
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
  /// Throws InputError where a page was read that the file no longer had.
  void require_whole() const;

 private:
  struct Range {
    std::uint64_t file_size, begin, end;
  };
  void map(const std::filesystem::path& path, const std::optional<Range>& range);

  std::filesystem::path path_;
  struct Guard;
  Guard* guard_ = nullptr;
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  std::span<const std::byte> bytes_;
};

/// The size of a regular file, and all of one that is small. Throw InputError as above.
std::uint64_t regular_file_size(const std::filesystem::path& path);
std::string file_text(const std::filesystem::path& path);

}  // namespace kvreplay
