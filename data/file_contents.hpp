#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvreplay {

/// What bytes are, as far as two files or arrays are told apart: how many, and their XXH3 hash.
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
