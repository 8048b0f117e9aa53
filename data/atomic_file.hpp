#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace kvreplay {

/// Writes a file whole or not at all: to a temporary name in the same folder, then a rename. Missing parent
/// folders are made. Throws InputError (path and reason: no space left, no permission, ...) and leaves no
/// temporary file behind.
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& path, std::string_view text);

/// The same for a file that is written piece by piece. The file appears under its name with commit(); without
/// it, nothing is left. Every member throws InputError as above.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail(int reason) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
};

}  // namespace kvreplay
