#include "sim/cuda/block_list.hpp"

#include "tests/support/catch.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

using kvreplay::cuda::BlockList;

TEST_CASE("sizes are rounded up by an eighth at most", "[cuda][blocks]") {
  CHECK(BlockList::rounded(1) == 256);
  CHECK(BlockList::rounded(256) == 256);
  CHECK(BlockList::rounded(257) == 512);
  CHECK(BlockList::rounded(4096) == 4096);
  CHECK(BlockList::rounded(4097) == 4096 + 512);
  CHECK(BlockList::rounded((std::size_t{15} << 20) + 1) == std::size_t{16} << 20);
  for (std::size_t bytes = 1; bytes < 5'000'000; bytes += 1 + bytes / 7) {
    const std::size_t rounded = BlockList::rounded(bytes);
    CHECK(rounded >= bytes);
    CHECK(rounded <= std::max(bytes + bytes / 8, bytes + 255));
    CHECK(BlockList::rounded(rounded) == rounded);
  }
}

TEST_CASE("a block is used again for a request of its size only", "[cuda][blocks]") {
  BlockList list;
  std::byte a, b, c;
  CHECK(list.take(512) == nullptr);
  list.give(&a, 512);
  list.give(&b, 512);
  list.give(&c, 1024);
  CHECK(list.bytes() == 2048);
  CHECK(list.take(768) == nullptr);
  CHECK(list.take(512) == &b);
  CHECK(list.take(512) == &a);
  CHECK(list.take(512) == nullptr);
  CHECK(list.bytes() == 1024);
  list.give(&b, 256);
  CHECK(list.take_all() == std::vector<void*>{&c, &b});
  CHECK(list.bytes() == 0);
  CHECK(list.take(1024) == nullptr);
}

TEST_CASE("beyond a bound the blocks that lay there longest go", "[cuda][blocks]") {
  BlockList list;
  std::byte a, b, c, d;
  list.give(&a, 512);
  list.give(&b, 1024);
  list.give(&c, 512);
  list.give(&d, 2048);
  CHECK(list.take_beyond(4096).empty());
  CHECK(list.take_beyond(3500) == std::vector<void*>{&a, &b});
  CHECK(list.bytes() == 2560);
  list.give(list.take(512), 512);  // used since: c is the newest
  CHECK(list.take_beyond(2048) == std::vector<void*>{&d});
  CHECK(list.take(512) == &c);
  CHECK(list.take_beyond(0).empty());
}
