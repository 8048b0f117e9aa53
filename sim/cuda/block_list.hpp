#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <vector>

namespace kvreplay::cuda {

/// Blocks of memory that are free to be used again, by their size. For one thread at a time.
class BlockList {
 public:
  /// What a request is rounded up to, so that others come to the same size: at most an eighth more, in steps
  /// of 256 bytes.
  static std::size_t rounded(std::size_t bytes) {
    constexpr std::size_t kStep = 256;
    const std::size_t step = std::max(std::bit_floor(bytes) / 8, kStep);
    return (bytes + step - 1) / step * step;
  }

  void give(void* block, std::size_t bytes) {
    blocks_[bytes].push_back(block);
    bytes_ += bytes;
  }
  /// The block of exactly that size that was given last; null where there is none.
  void* take(std::size_t bytes) {
    const auto found = blocks_.find(bytes);
    if (found == blocks_.end()) return nullptr;
    void* const block = found->second.back();
    found->second.pop_back();
    if (found->second.empty()) blocks_.erase(found);
    bytes_ -= bytes;
    return block;
  }
  std::vector<void*> take_all() {
    std::vector<void*> all;
    for (const auto& [bytes, blocks] : blocks_) all.insert(all.end(), blocks.begin(), blocks.end());
    blocks_.clear();
    bytes_ = 0;
    return all;
  }
  /// What is on the list.
  std::size_t bytes() const { return bytes_; }

 private:
  std::map<std::size_t, std::vector<void*>> blocks_;
  std::size_t bytes_ = 0;
};

}  // namespace kvreplay::cuda
