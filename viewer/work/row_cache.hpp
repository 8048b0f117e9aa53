#pragma once

#include "sim/tokens/entry_map.hpp"
#include "viewer/work/desk.hpp"
#include "viewer/work/shared_cache.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

namespace kvreplay::viewer {

/// The softmax of rows in blocks, for all tiles that need it. Serves any number of maps. Thread safe.
class RowCache {
 public:
  /// Rows of a block; block b of a map begins at position first_query() + b * kBlockRows.
  static constexpr Index kBlockRows = 256;

  explicit RowCache(std::size_t limit) : blocks_(limit, Newest::given) {}

  /// A block of query head g: 4 kBlockRows T d flops where it is not there. Throws Interrupted within
  /// milliseconds where the job is cancelled, InputError where a number overflows.
  std::shared_ptr<const EntryRows<float>> get(const EntryMap<float>& map, Index g, Index block,
                                              JobControl& job) {
    const auto make = [&] {
      const HeadGroup<float>& group = map.group();
      const Index begin = group.first_query() + block * kBlockRows;
      const RowRange positions{begin, std::min(begin + kBlockRows, group.T_all())};
      auto rows = std::make_shared<const EntryRows<float>>(map.rows(g, positions, job.workers()));
      const std::size_t bytes = rows->bytes();
      return std::pair(std::move(rows), bytes);
    };
    return blocks_.get({map.id(), g, block}, make, [&] { job.check(); });
  }
  /// All of them, as far as there is room.
  void set_limit(std::size_t bytes) { blocks_.set_limit(bytes); }
  std::size_t bytes() const { return blocks_.bytes(); }

 private:
  SharedCache<std::tuple<std::uint64_t, Index, Index>, EntryRows<float>> blocks_;  // map, query head, block
};

}  // namespace kvreplay::viewer
