#pragma once

#include "viewer/work/run.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace kvreplay::viewer {

/// Looks at the files of the open runs once a second, from a thread of its own that otherwise sleeps, and
/// tells once they have changed and then stayed as they are for a second.
class Watcher {
 public:
  explicit Watcher(std::function<void()> wake);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  void watch(std::vector<std::shared_ptr<const Run>> runs);
  bool something_changed() const { return changed_; }
  /// True once after a change.
  bool take_change() { return changed_.exchange(false); }

 private:
  void look();

  std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable ending_;
  std::vector<std::shared_ptr<const Run>> runs_;
  std::atomic<bool> changed_ = false;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace kvreplay::viewer
