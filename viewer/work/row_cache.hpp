#pragma once

#include "sim/tokens/entry_map.hpp"
#include "viewer/work/desk.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

namespace kvreplay::viewer {

/// The softmax of rows in blocks, for all tiles that need it: computed once for all who ask at the same time,
/// and dropped, longest unused first, beyond a number of bytes. Serves any number of maps. Thread safe.
class RowCache {
 public:
  /// Rows of a block; block b of a map begins at position first_query() + b * kBlockRows.
  static constexpr Index kBlockRows = 256;

  explicit RowCache(std::size_t limit) : limit_(limit) {}

  /// A block of query head g: 4 kBlockRows T d flops where it is not there. Throws Interrupted within
  /// milliseconds where the job is cancelled, InputError where a number overflows.
  std::shared_ptr<const EntryRows<float>> get(const EntryMap<float>& map, Index g, Index block,
                                              JobControl& job);
  /// All of them, as far as there is room.
  void set_limit(std::size_t bytes);
  std::size_t bytes() const;

 private:
  using Key = std::tuple<std::uint64_t, Index, Index>;  // map, query head, block
  struct Block {
    std::shared_ptr<const EntryRows<float>> rows;  // null while they are computed
    std::size_t bytes = 0;
    std::uint64_t used = 0;
  };
  void make_room();

  mutable std::mutex mutex_;
  std::condition_variable computed_;
  std::map<Key, Block> blocks_;
  std::size_t bytes_ = 0, limit_;
  std::uint64_t clock_ = 0;
};

}  // namespace kvreplay::viewer
