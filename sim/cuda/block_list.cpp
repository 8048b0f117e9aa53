#include "sim/cuda/block_list.hpp"

#include <algorithm>
#include <bit>

namespace kvreplay::cuda {

std::size_t BlockList::rounded(std::size_t bytes) {
  constexpr std::size_t kStep = 256;
  const std::size_t step = std::max(std::bit_floor(bytes) / 8, kStep);
  return (bytes + step - 1) / step * step;
}

void BlockList::give(void* block, std::size_t bytes) {
  blocks_[bytes].push_back(block);
  bytes_ += bytes;
}

void* BlockList::take(std::size_t bytes) {
  const auto found = blocks_.find(bytes);
  if (found == blocks_.end()) return nullptr;
  void* const block = found->second.back();
  found->second.pop_back();
  if (found->second.empty()) blocks_.erase(found);
  bytes_ -= bytes;
  return block;
}

std::vector<void*> BlockList::take_all() {
  std::vector<void*> all;
  for (const auto& [bytes, blocks] : blocks_) all.insert(all.end(), blocks.begin(), blocks.end());
  blocks_.clear();
  bytes_ = 0;
  return all;
}

}  // namespace kvreplay::cuda
