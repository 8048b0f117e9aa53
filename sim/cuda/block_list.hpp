#pragma once

#include <cstddef>
#include <map>
#include <vector>

namespace kvreplay::cuda {

/// Blocks of memory that are free to be used again, by their size. For one thread at a time.
class BlockList {
 public:
  /// What a request is rounded up to, so that others come to the same size: at most an eighth more, in steps
  /// of 256 bytes.
  static std::size_t rounded(std::size_t bytes);

  void give(void* block, std::size_t bytes);
  /// The block of exactly that size that was given last; null where there is none.
  void* take(std::size_t bytes);
  std::vector<void*> take_all();
  /// What is on the list.
  std::size_t bytes() const { return bytes_; }

 private:
  std::map<std::size_t, std::vector<void*>> blocks_;
  std::size_t bytes_ = 0;
};

}  // namespace kvreplay::cuda
