#pragma once

#include "data/mapped_file.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <utility>

namespace kvreplay {

/// The bytes of one `.npy`, wherever they are kept: a file, an archive's member, memory. Reading is thread
/// safe.
class ByteSource {
 public:
  using Visit = std::function<void(std::span<const std::byte>)>;

  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  /// Calls `visit` with bytes [begin, end), begin <= end <= size(): in one piece where asked for, else in
  /// order in pieces whose lengths are multiples of 64 (but for the last). Throws InputError where they
  /// cannot be read.
  virtual void read(std::uint64_t begin, std::uint64_t end, bool in_one_piece, const Visit& visit) const = 0;
  /// All bytes, where they are in memory for as long as this is; empty where they are not.
  virtual std::span<const std::byte> in_memory() const { return {}; }
  /// Whether the bytes lie there as they are, so that reading them again costs no more than a copy.
  virtual bool as_it_lies() const { return true; }
  /// Reads all, in order in pieces, and compares it with the checksum that its container has of it, where
  /// there is one. Throws InputError where they differ. (What is decompressed to its end by read() is
  /// compared there too.)
  virtual void read_all(const Visit& visit) const { read(0, size(), false, visit); }
};

/// A file or a range of one: mapped for the duration of a read only, so that neither descriptors nor resident
/// memory add up.
class FileSource : public ByteSource {
 public:
  explicit FileSource(std::filesystem::path path)
      : path_(std::move(path)), opened_(state_of(path_)), size_(opened_.size) {}
  /// `size` bytes from `offset` of a file that must be as it was when `opened`.
  FileSource(std::filesystem::path path, const FileState& opened, std::uint64_t offset, std::uint64_t size)
      : path_(std::move(path)), opened_(opened), offset_(offset), size_(size) {}
  std::uint64_t size() const override { return size_; }
  void read(std::uint64_t begin, std::uint64_t end, bool /*in_one_piece*/,
            const Visit& visit) const override {
    const MappedFile file(path_, opened_, offset_ + begin, offset_ + end);
    visit(file.bytes());
    file.require_unchanged();
  }

 private:
  std::filesystem::path path_;
  FileState opened_;
  std::uint64_t offset_ = 0, size_;
};

/// Bytes that the caller keeps alive.
class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t begin, std::uint64_t end, bool /*in_one_piece*/,
            const Visit& visit) const override {
    visit(bytes_.subspan(begin, end - begin));
  }
  std::span<const std::byte> in_memory() const override { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace kvreplay
