#pragma once

#include "sim/head_group.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace kvreplay::viewer {

/// Head groups of one dump in float32, read once for all who ask and dropped, longest unused first, beyond a
/// number of bytes. Thread safe.
class HeadCache {
 public:
  /// Blocks while the head is read. Throws InputError where the dump is bad there; the next call tries again.
  std::shared_ptr<const HeadGroup<float>> get(const Dump& dump, Index layer, Index kv_head);
  void set_limit(std::size_t bytes);

 private:
  struct Head {
    std::shared_ptr<const HeadGroup<float>> group;  // null while it is read
    std::size_t bytes = 0;
    std::uint64_t used = 0;
  };
  void make_room();

  std::mutex mutex_;
  std::condition_variable read_;
  std::map<std::pair<Index, Index>, Head> heads_;
  std::size_t bytes_ = 0, limit_ = std::size_t{512} << 20;
  std::uint64_t clock_ = 0;
};

}  // namespace kvreplay::viewer
