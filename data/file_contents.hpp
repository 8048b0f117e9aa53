#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvreplay {

/// Size and XXH3 hash of bytes; two files or arrays with equal ones count as equal.
struct FileContents {
  std::uint64_t bytes = 0;
  std::uint64_t xxh3 = 0;
  bool operator==(const FileContents&) const = default;
};
FileContents contents_of(std::span<const std::byte> bytes);

/// Size and checksum of bytes that come piece by piece.
class ContentsHash {
 public:
  ContentsHash();
  ~ContentsHash();
  void add(std::span<const std::byte> bytes);
  FileContents contents() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvreplay
