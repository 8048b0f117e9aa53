#include "data/mapped_file.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvreplay {
namespace {

FileState state_in(const struct stat& status) {
  return {static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
          static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino)};
}

[[noreturn]] void refuse_change(const std::filesystem::path& path, const std::string& found) {
  throw InputError(path.string(), "a file that stays as it was opened", found);
}

class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path)
      // Not blocking: a named pipe must be refused, not waited for.
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) throw InputError(path.string(), "a readable file", std::strerror(errno));
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd_); }

  FileState state(const std::filesystem::path& path) const {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) throw InputError(path.string(), "a readable file", std::strerror(errno));
    if (S_ISDIR(status.st_mode)) throw InputError(path.string(), "a regular file", "a folder");
    if (!S_ISREG(status.st_mode))
      throw InputError(path.string(), "a regular file", "a device, pipe or socket");
    return state_in(status);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

/// A mapping that the signal handler knows: it may touch nothing but atomics.
struct MappedFile::Guard {
  std::atomic<std::uintptr_t> begin{0};  ///< 0: free; 1: being taken
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> torn{false};

  static Guard* take(const void* mapping, std::size_t bytes);
  static void on_bus_error(int signal, siginfo_t* info, void* context);

 private:
  // More than anything maps at once; a mapping beyond is not guarded.
  static std::array<Guard, 4096> all;
  static inline std::atomic<std::size_t> used{0};  // the first so many have been taken at some time
  static inline struct sigaction before {};
};

std::array<MappedFile::Guard, 4096> MappedFile::Guard::all;

MappedFile::Guard* MappedFile::Guard::take(const void* mapping, std::size_t bytes) {
  static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);
  static std::once_flag installed;
  std::call_once(installed, [] {
    struct sigaction action {};
    action.sa_sigaction = &on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &before);
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::uintptr_t free = 0;
    if (!all[i].begin.compare_exchange_strong(free, 1)) continue;
    for (std::size_t known = used; known <= i && !used.compare_exchange_weak(known, i + 1);) {
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(mapping);
    all[i].torn = false;
    all[i].end = begin + bytes;
    all[i].begin = begin;
    return &all[i];
  }
  return nullptr;
}

void MappedFile::Guard::on_bus_error(int signal, siginfo_t* info, void* context) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const int error = errno;
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (std::size_t i = 0, n = used; i < n; ++i) {
    const std::uintptr_t begin = all[i].begin, end = all[i].end;
    if (begin <= 1 || at < begin || at >= end) continue;
    // The rest of the mapping lies beyond the file's end as well.
    void* const first = static_cast<std::byte*>(info->si_addr) - at % page;
    all[i].torn = true;
    if (::mmap(first, end - at + at % page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
      break;
    errno = error;
    return;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(signal);
  // As it was: the same instruction raises it again, and ends the process.
  ::signal(SIGBUS, SIG_DFL);
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) { map(0, std::nullopt); }

MappedFile::MappedFile(const std::filesystem::path& path, const FileState& opened, std::uint64_t begin,
                       std::uint64_t end)
    : path_(path), opened_(opened) {
  map(begin, end);
}

MappedFile::~MappedFile() {
  if (guard_ != nullptr) guard_->begin = 0;
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_);
}

void MappedFile::require_unchanged() const {
  if (guard_ != nullptr && guard_->torn) refuse_change(path_, "one cut short while it was read");
  if (!opened_) return;
  struct stat now {};
  if (::stat(path_.c_str(), &now) != 0) refuse_change(path_, std::strerror(errno));
  if (state_in(now) != *opened_) refuse_change(path_, "one changed while it was read");
}

void MappedFile::map(std::uint64_t begin, std::optional<std::uint64_t> end_of_range) {
  const Descriptor file(path_);
  const FileState found = file.state(path_);
  if (opened_ && found.size != opened_->size) {
    throw InputError(path_.string(), fmt::format("{} bytes, as when it was opened", opened_->size),
                     fmt::format("{} bytes", found.size));
  }
  if (opened_ && found != *opened_) refuse_change(path_, "one changed since");
  const std::uint64_t end = end_of_range.value_or(found.size);
  if (begin >= end) return;
  const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t start = begin / page * page;
  mapped_ = end - start;
  mapping_ = ::mmap(nullptr, mapped_, PROT_READ, MAP_PRIVATE, file.get(), static_cast<off_t>(start));
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw InputError(path_.string(), "a file that can be mapped", std::strerror(errno));
  }
  guard_ = Guard::take(mapping_, mapped_);
  // Only advice: reading ahead of the conversion; a file system that ignores it costs time, not results.
  if (end_of_range) ::madvise(mapping_, mapped_, MADV_WILLNEED);
  bytes_ = {static_cast<const std::byte*>(mapping_) + (begin - start), static_cast<std::size_t>(end - begin)};
}

FileState state_of(const std::filesystem::path& path) { return Descriptor(path).state(path); }

std::string file_text(const std::filesystem::path& path, std::uintmax_t most) {
  const Descriptor file(path);
  const std::uint64_t size = file.state(path).size;
  if (size > most)
    throw InputError(path.string(), fmt::format("at most {} bytes", most), fmt::format("{}", size));
  std::string text;
  try {
    text.resize(static_cast<std::size_t>(size));
  } catch (const std::exception&) {
    throw InputError(path.string(), "a file that fits into memory", fmt::format("{} bytes", size));
  }
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t got = ::read(file.get(), text.data() + at, text.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw InputError(path.string(), "a readable file", std::strerror(errno));
    if (got == 0) refuse_change(path, "one cut short while it was read");
    at += static_cast<std::size_t>(got);
  }
  return text;
}

}  // namespace kvreplay
