#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace kvreplay {

/// State of a file at one time; two states differ if the file was changed or replaced between them.
struct FileState {
  std::uint64_t size = 0;
  std::int64_t seconds = 0, nanoseconds = 0;  ///< of its last change
  std::uint64_t device = 0, inode = 0;
  friend bool operator==(const FileState&, const FileState&) = default;
};

/// The state of a regular file. Throws InputError as MappedFile does.
FileState state_of(const std::filesystem::path& path);

/// A read-only mapping of a regular file, or of a range of it. Throws InputError naming the path and the
/// reason.
///
/// A page beyond the end of a file that shrinks while it is mapped reads as zeros, and require_unchanged()
/// throws: it is called after every read, before what was read is used. (The signal that such a page raises
/// is handled for the whole process; for addresses of nobody's mapping the handler that was there before is
/// called.) Callers map anew for every read and pass the state they expect: it is checked on the very file
/// that is mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  /// Bytes [begin, end) of a file that must be as it was when `opened`.
  MappedFile(const std::filesystem::path& path, const FileState& opened, std::uint64_t begin,
             std::uint64_t end);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  /// Throws InputError where the file was cut short under the mapping, or is no longer as when it was
  /// `opened`.
  void require_unchanged() const;

 private:
  void map(std::uint64_t begin, std::optional<std::uint64_t> end_of_range);

  std::filesystem::path path_;
  std::optional<FileState> opened_;
  struct Guard;
  Guard* guard_ = nullptr;
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  std::span<const std::byte> bytes_;
};

/// All of a regular file. Throws InputError where it cannot be read or has more than `most` bytes.
std::string file_text(const std::filesystem::path& path, std::uintmax_t most);

}  // namespace kvreplay
