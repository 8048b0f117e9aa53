#include "sim/cuda/runtime.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

// Copies between a device and ordinary host memory, which its copy engines cannot reach: piece by piece
// through pinned memory, one piece on its way while the next one is moved in or the last one out. The driver
// would do likewise, but with other streams waiting.

namespace kvreplay::cuda {
namespace {

constexpr std::size_t kPiece = std::size_t{4} << 20;
/// Copies to the host of fewer bytes are left to the driver, which waits for them. Copies from the host are
/// not: the driver may read their source after it is gone.
constexpr std::size_t kLeastToHost = std::size_t{256} << 10;
/// The most pairs of a device; a copy takes one.
constexpr int kMostPairs = 8;

struct Slot {
  PinnedBuffer<std::byte> memory{kPiece};
  Event done;  ///< the last copy from or to it
};
struct Pair {
  Slot slots[2];
  bool at_rest() const { return slots[0].done.reached() && slots[1].done.reached(); }
};

/// The pairs of one device that no copy has now, the longest unused first. Their last pieces may still be on
/// their way.
class Pairs {
 public:
  /// Null where there is no pinned memory for another.
  std::unique_ptr<Pair> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty() && (made_ == kMostPairs || idle_.front()->at_rest())) return first();
      if (made_ == kMostPairs) return nullptr;
      ++made_;
    }
    try {
      return std::make_unique<Pair>();
    } catch (const OutOfDeviceMemory&) {
      const std::lock_guard lock(mutex_);
      --made_;
      return idle_.empty() ? nullptr : first();
    }
  }
  void give(std::unique_ptr<Pair> pair) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(pair));
  }
  /// Keeps one for ever: a piece may be on its way, and no event tells.
  void lose(std::unique_ptr<Pair> pair) {
    const std::lock_guard lock(mutex_);
    --made_;
    lost_.push_back(std::move(pair));
  }

 private:
  std::unique_ptr<Pair> first() {
    std::unique_ptr<Pair> pair = std::move(idle_.front());
    idle_.pop_front();
    return pair;
  }

  std::mutex mutex_;
  std::deque<std::unique_ptr<Pair>> idle_, lost_;
  int made_ = 0;
};

Pairs& pairs_of(int device) {
  static std::mutex mutex;
  static auto& all = *new std::map<int, Pairs>;  // there to the end: the driver may be gone before
  const std::lock_guard lock(mutex);
  return all[device];
}

void upload(std::byte* to, const std::byte* from, std::size_t bytes, Pair& pair, const Stream& stream) {
  for (std::size_t at = 0, piece = 0; at < bytes; at += kPiece, ++piece) {
    Slot& slot = pair.slots[piece % 2];
    const std::size_t n = std::min(kPiece, bytes - at);
    slot.done.wait();
    std::memcpy(slot.memory.data(), from + at, n);
    detail::copy(to + at, slot.memory.data(), n, stream);
    slot.done.record(stream);
  }
}

void download(std::byte* to, const std::byte* from, std::size_t bytes, Pair& pair, const Stream& stream) {
  const std::size_t pieces = (bytes + kPiece - 1) / kPiece;
  const auto length = [&](std::size_t piece) { return std::min(kPiece, bytes - piece * kPiece); };
  for (std::size_t piece = 0; piece <= pieces; ++piece) {
    if (piece < pieces) {
      Slot& slot = pair.slots[piece % 2];
      slot.done.wait();  // an earlier copy's
      detail::copy(slot.memory.data(), from + piece * kPiece, length(piece), stream);
      slot.done.record(stream);
    }
    if (piece > 0) {
      const std::size_t last = piece - 1;
      const Slot& slot = pair.slots[last % 2];
      slot.done.wait();
      std::memcpy(to + last * kPiece, slot.memory.data(), length(last));
    }
  }
}

}  // namespace

void detail::staged_copy(void* to, const void* from, std::size_t bytes, const Stream& stream) {
  const bool from_host = is_pageable(from), to_host = bytes >= kLeastToHost && is_pageable(to);
  if (to_host == from_host) return copy(to, from, bytes, stream);
  Pairs& pairs = pairs_of(current_device());
  std::unique_ptr<Pair> pair = pairs.take();
  if (!pair) return copy_now(to, from, bytes, stream);
  try {
    if (from_host)
      upload(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, *pair, stream);
    else
      download(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, *pair, stream);
  } catch (...) {
    pairs.lose(std::move(pair));
    throw;
  }
  pairs.give(std::move(pair));
}

}  // namespace kvreplay::cuda
