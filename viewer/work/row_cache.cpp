#include "viewer/work/row_cache.hpp"

#include <algorithm>
#include <chrono>

namespace kvreplay::viewer {

std::shared_ptr<const EntryRows<float>> RowCache::get(const EntryMap<float>& map, Index g, Index block,
                                                      JobControl& job) {
  using namespace std::chrono_literals;
  const Key key{map.id(), g, block};
  std::unique_lock lock(mutex_);
  while (true) {
    job.check();
    const auto [found, is_new] = blocks_.try_emplace(key);
    if (is_new) break;
    if (found->second.rows != nullptr) {
      found->second.used = ++clock_;
      return found->second.rows;
    }
    // Another job computes it. Should that one be cancelled, its block is gone and this one takes over.
    computed_.wait_for(lock, 2ms);
  }
  lock.unlock();
  std::shared_ptr<const EntryRows<float>> rows;
  try {
    const HeadGroup<float>& group = map.group();
    const Index begin = group.first_query() + block * kBlockRows;
    const Rows positions{begin, std::min(begin + kBlockRows, group.T_all())};
    rows = std::make_shared<const EntryRows<float>>(map.rows(g, positions, job.workers()));
  } catch (...) {
    lock.lock();
    blocks_.erase(key);
    computed_.notify_all();
    throw;
  }
  lock.lock();
  Block& mine = blocks_[key];
  mine = {rows, rows->bytes(), ++clock_};
  bytes_ += mine.bytes;
  make_room();
  computed_.notify_all();
  return rows;
}

void RowCache::make_room() {
  while (bytes_ > limit_) {
    auto oldest = blocks_.end();
    for (auto at = blocks_.begin(); at != blocks_.end(); ++at)
      if (at->second.rows != nullptr && (oldest == blocks_.end() || at->second.used < oldest->second.used))
        oldest = at;
    if (oldest == blocks_.end()) return;
    bytes_ -= oldest->second.bytes;
    blocks_.erase(oldest);
  }
}

void RowCache::set_limit(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  make_room();
}

std::size_t RowCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace kvreplay::viewer
