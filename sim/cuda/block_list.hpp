#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <deque>
#include <map>
#include <vector>

namespace kvreplay::cuda {

/// Free blocks of memory for reuse, by size. For one thread at a time.
class BlockList {
 public:
  /// Size of the block for a request: rounded up in steps of 256 bytes, or of an eighth of the power of two
  /// below it if that is more. Requests of similar size can then share a block.
  static std::size_t rounded(std::size_t bytes) {
    constexpr std::size_t kStep = 256;
    const std::size_t step = std::max(std::bit_floor(bytes) / 8, kStep);
    return (bytes + step - 1) / step * step;
  }

  void give(void* block, std::size_t bytes) {
    blocks_[bytes].push_back({block, ++given_});
    bytes_ += bytes;
  }
  /// The block of exactly that size that was given last; null where there is none.
  void* take(std::size_t bytes) {
    const auto found = blocks_.find(bytes);
    if (found == blocks_.end()) return nullptr;
    void* const block = found->second.back().at;
    found->second.pop_back();
    if (found->second.empty()) blocks_.erase(found);
    bytes_ -= bytes;
    return block;
  }
  /// Removes and returns the blocks that were free longest, until at most `bytes` are left.
  std::vector<void*> take_beyond(std::size_t bytes) {
    std::vector<void*> taken;
    while (bytes_ > bytes) {
      const auto oldest = std::min_element(blocks_.begin(), blocks_.end(), [](const auto& a, const auto& b) {
        return a.second.front().given < b.second.front().given;
      });
      taken.push_back(oldest->second.front().at);
      oldest->second.pop_front();
      bytes_ -= oldest->first;
      if (oldest->second.empty()) blocks_.erase(oldest);
    }
    return taken;
  }
  std::vector<void*> take_all() { return take_beyond(0); }
  /// Total size of the free blocks.
  std::size_t bytes() const { return bytes_; }

 private:
  struct Block {
    void* at;
    std::size_t given;  ///< the how-many-eth
  };
  std::map<std::size_t, std::deque<Block>> blocks_;  // of each size in the order in which they came
  std::size_t bytes_ = 0, given_ = 0;
};

}  // namespace kvreplay::cuda
