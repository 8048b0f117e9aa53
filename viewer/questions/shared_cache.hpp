#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace kvreplay::viewer {

/// Treatment of a value that is larger than the cache's limit.
enum class Newest {
  kept,   ///< the most recently requested value stays, whatever its size
  given,  ///< the value is returned to its caller and not cached
};

/// Values that are made once for all who ask at the same time, and dropped, longest unused first, beyond a
/// number of bytes. Thread safe.
template <class Key, class Value>
class SharedCache {
 public:
  SharedCache(std::size_t limit, Newest newest) : limit_(limit), newest_(newest) {}

  /// `make()` gives a value and its bytes where it is not there; what it throws goes to its caller, and
  /// another one who waits makes the value. `check()` is called while waiting and may throw.
  template <class Make, class Check>
  std::shared_ptr<const Value> get(const Key& key, const Make& make, const Check& check) {
    std::unique_lock lock(mutex_);
    while (true) {
      check();
      const auto [found, is_new] = held_.try_emplace(key);
      if (is_new) break;
      found->second.used = ++clock_;
      if (found->second.value != nullptr) return found->second.value;
      made_.wait_for(lock, std::chrono::milliseconds(2));
    }
    lock.unlock();
    std::pair<std::shared_ptr<const Value>, std::size_t> made;
    try {
      made = make();
    } catch (...) {
      lock.lock();
      held_.erase(key);
      made_.notify_all();
      throw;
    }
    lock.lock();
    held_[key] = {made.first, made.second, ++clock_};
    bytes_ += made.second;
    make_room();
    made_.notify_all();
    return made.first;
  }
  /// Keeps what is there as far as there is room.
  void set_limit(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
    make_room();
  }
  std::size_t bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  struct Held {
    std::shared_ptr<const Value> value;  // null while it is made
    std::size_t bytes = 0;
    std::uint64_t used = 0;
  };
  void make_room() {
    while (bytes_ > limit_) {
      auto oldest = held_.end();
      for (auto at = held_.begin(); at != held_.end(); ++at)
        if (at->second.value != nullptr && (newest_ == Newest::given || at->second.used != clock_) &&
            (oldest == held_.end() || at->second.used < oldest->second.used))
          oldest = at;
      if (oldest == held_.end()) return;
      bytes_ -= oldest->second.bytes;
      held_.erase(oldest);
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable made_;
  std::map<Key, Held> held_;
  std::size_t bytes_ = 0, limit_;
  Newest newest_;
  std::uint64_t clock_ = 0;
};

}  // namespace kvreplay::viewer
