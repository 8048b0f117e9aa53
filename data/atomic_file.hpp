#pragma once

#include "data/file_contents.hpp"

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

namespace kvreplay {

/// A file that is written piece by piece and appears under its name with commit(), whole; without it, nothing
/// is left. It has a temporary name in the same folder until then, and takes the place of whatever had its
/// name, a symbolic link too. Missing parent folders are made. Every member throws InputError (path and
/// reason: no space left, no permission, ...) and leaves no temporary file behind.
class AtomicFile {
 public:
  explicit(false) AtomicFile(std::filesystem::path path);  // whoever writes a file takes its path as well
  /// `committed` is told what the file holds once it is there.
  AtomicFile(std::filesystem::path path, std::function<void(const FileContents&)> committed);
  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  const std::filesystem::path& path() const { return path_; }
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

  /// True for names of temporary files, which a process that is killed before commit() leaves behind.
  static bool is_temporary(std::string_view name);

 private:
  [[noreturn]] void fail(int reason) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
  std::function<void(const FileContents&)> committed_;
  std::unique_ptr<ContentsHash> hash_;  ///< where somebody is to be told
};

/// Throws InputError: the path cannot be written, with the text of `reason`, a number of errno.
[[noreturn]] void fail_to_write(const std::filesystem::path& path, int reason);

void write_file(AtomicFile file, std::span<const std::byte> bytes);
void write_file(AtomicFile file, std::string_view text);

/// Writes to what a person named: through symbolic links, into a device or a pipe as it is, else a file that
/// appears whole. Throws InputError as above.
void write_output(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_output(const std::filesystem::path& path, std::string_view text);

}  // namespace kvreplay
