#include "viewer/model/selection.hpp"

#include "tests/support/catch.hpp"

#include <set>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

DumpShape small_shape() {
  DumpShape shape;
  shape.layers = 3;
  shape.n_q = 4;
  shape.n_kv = 2;
  shape.d = 8;
  shape.d_v = 6;
  shape.T = 20;
  shape.T_q = 15;
  shape.l = 16;
  return shape;
}

}  // namespace

TEST_CASE("chosen tokens are told in the number that they have", "[viewer][selection]") {
  CHECK(chosen_text({892}) == "1 token chosen: 892");
  CHECK(chosen_text({5, 7, 9}) == "3 tokens chosen, from 5 to 9");
  CHECK(chosen_text({}) == "0 tokens chosen");
}

TEST_CASE("a selection that a run has stays as it is", "[viewer][selection]") {
  Selection selection;
  selection.run = 2;
  selection.layer = 2;
  selection.kv_head = 1;
  selection.query_head = 1;
  selection.row = 5;
  selection.token = 15;
  selection.channels = ChannelPair{0, 7};
  selection.tokens = {0, 3, 15};
  CHECK(within(selection, small_shape()) == selection);
  selection.row = 19;
  selection.token = 0;
  CHECK(within(selection, small_shape()) == selection);
}

TEST_CASE("a selection beyond a run comes back into it", "[viewer][selection]") {
  Selection wild;
  wild.layer = 99;
  wild.kv_head = -3;
  wild.query_head = 7;
  wild.row = 4;     // no query: they begin at 5
  wild.token = 16;  // not of the prompt
  wild.channels = ChannelPair{-1, 8};
  wild.tokens = {9, 16, 2, -1, 9};
  const Selection tame = within(wild, small_shape());
  CHECK(tame.layer == 2);
  CHECK(tame.kv_head == 0);
  CHECK(tame.query_head == 1);
  CHECK_FALSE(tame.row.has_value());
  CHECK_FALSE(tame.token.has_value());
  CHECK(tame.channels == ChannelPair{0, 7});
  CHECK(tame.tokens == std::vector<Index>{2, 9});
  CHECK(within(tame, small_shape()) == tame);
  wild.row = 20;
  CHECK_FALSE(within(wild, small_shape()).row.has_value());
  CHECK(within(wild, DumpShape{}).layer == 0);  // no run
}

TEST_CASE("stepping visits every head and comes round", "[viewer][selection]") {
  const DumpShape shape = small_shape();
  Selection at;
  at.token = 3;
  std::set<std::pair<Index, Index>> seen;
  for (int i = 0; i < 6; ++i) {
    seen.insert({at.layer, at.kv_head});
    const Selection next = next_head(at, shape, 1);
    CHECK(next_head(next, shape, -1) == at);
    at = next;
  }
  CHECK(seen.size() == 6);
  CHECK(at.layer == 0);
  CHECK(at.kv_head == 0);
  CHECK(at.token == 3);
  CHECK(next_head(at, shape, -1).layer == 2);
  CHECK(next_head(at, shape, -1).kv_head == 1);
  CHECK(next_head(at, shape, 1 - 6 * 1000) == next_head(at, shape, 1));
  at.kv_head = 1;
  CHECK(next_layer(at, shape, -1).layer == 2);
  CHECK(next_layer(at, shape, -1).kv_head == 1);
  CHECK(next_layer(at, shape, 4).layer == 1);
  CHECK(next_head({}, DumpShape{}, 1) == Selection{});
  CHECK(next_layer({}, DumpShape{}, 1) == Selection{});
}
