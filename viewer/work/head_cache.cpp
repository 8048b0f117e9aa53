#include "viewer/work/head_cache.hpp"

#include <algorithm>

namespace kvreplay::viewer {

std::shared_ptr<const HeadGroup<float>> HeadCache::get(const Dump& dump, Index layer, Index kv_head) {
  const std::pair which(layer, kv_head);
  std::unique_lock lock(mutex_);
  read_.wait(lock, [&] {
    const auto found = heads_.find(which);
    return found == heads_.end() || found->second.group != nullptr;
  });
  Head& head = heads_[which];
  head.used = ++clock_;
  if (head.group) return head.group;

  lock.unlock();
  std::shared_ptr<const HeadGroup<float>> group;
  try {
    group = std::make_shared<const HeadGroup<float>>(load_head_group<float>(dump, layer, kv_head));
  } catch (...) {
    lock.lock();
    heads_.erase(which);
    read_.notify_all();
    throw;
  }
  const std::size_t bytes = head_group_bytes(dump.shape(), dump.has(Tensor::wo), sizeof(float));
  lock.lock();
  heads_[which] = {group, bytes, ++clock_};
  bytes_ += bytes;
  make_room();
  read_.notify_all();
  return group;
}

void HeadCache::set_limit(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  make_room();
}

/// Keeps the one used last, whatever its size.
void HeadCache::make_room() {
  while (bytes_ > limit_) {
    auto oldest = heads_.end();
    for (auto it = heads_.begin(); it != heads_.end(); ++it)
      if (it->second.group && it->second.used != clock_ &&
          (oldest == heads_.end() || it->second.used < oldest->second.used))
        oldest = it;
    if (oldest == heads_.end()) return;
    bytes_ -= oldest->second.bytes;
    heads_.erase(oldest);
  }
}

}  // namespace kvreplay::viewer
