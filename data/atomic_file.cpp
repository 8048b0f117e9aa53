#include "data/atomic_file.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace kvreplay {
namespace {

/// A name that no other thread, process or host that shares the folder uses at the same time.
std::string temporary_name() {
  static std::atomic<std::uint32_t> counter{0};
  static const std::uint32_t process = std::random_device{}();
  return fmt::format(".kvreplay-{:08x}-{:x}.tmp", process, counter.fetch_add(1));
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  const std::filesystem::path folder = path_.parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) fail(error.value());
  do {
    temporary_ = folder / temporary_name();
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) fail(errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // Linux writes at most 2 GiB at once; a signal may cut it shorter.
    const ssize_t written =
        ::write(fd_, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    bytes = bytes.subspan(written);
  }
}

void AtomicFile::commit() {
  // Network file systems report a full disk or quota only when the file is closed.
  const int closed = ::close(std::exchange(fd_, -1));
  const int reason = closed != 0 ? errno : (::rename(temporary_.c_str(), path_.c_str()) != 0 ? errno : 0);
  if (reason != 0) {
    ::unlink(temporary_.c_str());
    fail(reason);
  }
}

void AtomicFile::fail(int reason) const {
  throw InputError(fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(reason)));
}

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  write_file(path, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace kvreplay
