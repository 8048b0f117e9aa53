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
#include <sys/stat.h>
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

/// The number of errno, or 0.
int write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // Linux writes at most 2 GiB at once; a signal may cut it shorter.
    const ssize_t written =
        ::write(fd, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(written);
  }
  return 0;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// The path behind all symbolic links; the file it names need not exist.
std::filesystem::path behind_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  std::error_code error;
  for (int links = 0; links < kMostLinks && std::filesystem::is_symlink(path, error); ++links)
    path = path.parent_path() / std::filesystem::read_symlink(path, error);
  return path;
}

}  // namespace

void fail_to_write(const std::filesystem::path& path, int reason) {
  throw InputError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(reason)));
}

AtomicFile::AtomicFile(std::filesystem::path path) : AtomicFile(std::move(path), nullptr) {}

AtomicFile::AtomicFile(std::filesystem::path path, std::function<void(const FileContents&)> committed)
    : path_(std::move(path)),
      committed_(std::move(committed)),
      hash_(committed_ ? std::make_unique<ContentsHash>() : nullptr) {
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

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      committed_(std::move(other.committed_)),
      hash_(std::move(other.hash_)) {}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (const int reason = write_all(fd_, bytes); reason != 0) fail(reason);
  if (hash_) hash_->add(bytes);
}

void AtomicFile::write(std::string_view text) { write(bytes_of(text)); }

void AtomicFile::commit() {
  // Network file systems report a full disk or quota only when the file is closed.
  const int closed = ::close(std::exchange(fd_, -1));
  const int reason = closed != 0 ? errno : (::rename(temporary_.c_str(), path_.c_str()) != 0 ? errno : 0);
  if (reason != 0) {
    ::unlink(temporary_.c_str());
    fail(reason);
  }
  if (committed_) committed_(hash_->contents());
}

bool AtomicFile::is_temporary(std::string_view name) {
  return name.starts_with(".kvreplay-") && name.ends_with(".tmp");
}

void AtomicFile::fail(int reason) const { fail_to_write(path_, reason); }

void write_file(AtomicFile file, std::span<const std::byte> bytes) {
  file.write(bytes);
  file.commit();
}

void write_file(AtomicFile file, std::string_view text) { write_file(std::move(file), bytes_of(text)); }

void write_output(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  struct stat there = {};
  if (::stat(path.c_str(), &there) != 0 || S_ISREG(there.st_mode))
    return write_file(behind_links(path), bytes);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) fail_to_write(path, errno);
  int reason = write_all(fd, bytes);
  if (::close(fd) != 0 && reason == 0) reason = errno;
  if (reason != 0) fail_to_write(path, reason);
}

void write_output(const std::filesystem::path& path, std::string_view text) {
  write_output(path, bytes_of(text));
}

}  // namespace kvreplay
