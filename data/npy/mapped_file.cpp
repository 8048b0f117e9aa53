#include "data/npy/mapped_file.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvreplay {
namespace {

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

  std::uint64_t size(const std::filesystem::path& path) const {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) throw InputError(path.string(), "a readable file", std::strerror(errno));
    if (S_ISDIR(status.st_mode)) throw InputError(path.string(), "a regular file", "a folder");
    if (!S_ISREG(status.st_mode))
      throw InputError(path.string(), "a regular file", "a device, pipe or socket");
    return static_cast<std::uint64_t>(status.st_size);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) { map(path, std::nullopt); }

MappedFile::MappedFile(const std::filesystem::path& path, std::uint64_t file_size, std::uint64_t begin,
                       std::uint64_t end) {
  map(path, Range{file_size, begin, end});
}

MappedFile::~MappedFile() {
  if (mapping_) ::munmap(mapping_, mapped_);
}

void MappedFile::map(const std::filesystem::path& path, const std::optional<Range>& range) {
  const Descriptor file(path);
  const std::uint64_t size = file.size(path);
  if (range && size != range->file_size) {
    throw InputError(path.string(), fmt::format("{} bytes, as when it was opened", range->file_size),
                     fmt::format("{} bytes", size));
  }
  const std::uint64_t begin = range ? range->begin : 0;
  const std::uint64_t end = range ? range->end : size;
  if (begin >= end) return;
  const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t start = begin / page * page;
  mapped_ = static_cast<std::size_t>(end - start);
  mapping_ = ::mmap(nullptr, mapped_, PROT_READ, MAP_PRIVATE, file.get(), static_cast<off_t>(start));
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw InputError(path.string(), "a file that can be mapped", std::strerror(errno));
  }
  // Only advice: reading ahead of the conversion; a file system that ignores it costs time, not results.
  if (range) ::madvise(mapping_, mapped_, MADV_WILLNEED);
  bytes_ = {static_cast<const std::byte*>(mapping_) + (begin - start), static_cast<std::size_t>(end - begin)};
}

std::uint64_t regular_file_size(const std::filesystem::path& path) { return Descriptor(path).size(path); }

}  // namespace kvreplay
