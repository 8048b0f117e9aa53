#include "data/npy/byte_source.hpp"

#include "data/npy/mapped_file.hpp"

#include <utility>

namespace kvreplay {

FileSource::FileSource(std::filesystem::path path)
    : path_(std::move(path)), file_size_(regular_file_size(path_)), size_(file_size_) {}

FileSource::FileSource(std::filesystem::path path, std::uint64_t file_size, std::uint64_t offset,
                       std::uint64_t size)
    : path_(std::move(path)), file_size_(file_size), offset_(offset), size_(size) {}

void FileSource::read(std::uint64_t begin, std::uint64_t end, bool /*in_one_piece*/,
                      const Visit& visit) const {
  const MappedFile file(path_, file_size_, offset_ + begin, offset_ + end);
  visit(file.bytes());
  file.require_whole();
}

void MemorySource::read(std::uint64_t begin, std::uint64_t end, bool /*in_one_piece*/,
                        const Visit& visit) const {
  visit(bytes_.subspan(begin, end - begin));
}

}  // namespace kvreplay
