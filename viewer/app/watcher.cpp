#include "viewer/app/watcher.hpp"

#include <chrono>
#include <utility>

namespace kvreplay::viewer {

Watcher::Watcher(std::function<void()> wake) : wake_(std::move(wake)), thread_([this] { look(); }) {}

Watcher::~Watcher() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ending_.notify_all();
  thread_.join();
}

void Watcher::watch(std::vector<std::shared_ptr<const Run>> runs) {
  const std::lock_guard lock(mutex_);
  runs_ = std::move(runs);
}

void Watcher::look() {
  // What the files of each run looked like a second ago, where that is not as the run was opened; a run is
  // told of once for every state of its files.
  std::vector<std::uint64_t> before, told;
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, std::chrono::seconds(1), [this] { return end_; })) {
    const auto runs = runs_;
    lock.unlock();
    before.resize(runs.size());
    told.resize(runs.size());
    bool settled = false;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::uint64_t now = runs[i]->changed() ? runs[i]->files_now() : 0;
      if (now != 0 && now == before[i] && now != told[i]) {
        told[i] = now;
        settled = true;
      }
      before[i] = now;
    }
    lock.lock();
    if (settled && !end_) {
      changed_ = true;
      if (wake_) wake_();
    }
  }
}

}  // namespace kvreplay::viewer
