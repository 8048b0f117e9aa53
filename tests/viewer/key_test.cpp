#include "viewer/model/key.hpp"

#include "tests/support/catch.hpp"

#include <set>
#include <vector>

using kvreplay::viewer::Key;

TEST_CASE("a key is its values, their kinds and their order", "[viewer][key]") {
  enum class Kind { one, two };
  const std::vector<Key> apart = {
      {},
      "a",
      Key("a", "b"),
      Key("b", "a"),
      "ab",
      "a/b",
      Key("a", 1),
      Key("a", 1.0),
      Key("a", "1"),
      Key("a", 11),
      Key("a", 1, 1),
      Key("a", Kind::two, 1, 2),
      Key("a", std::optional<int>()),
      Key("a", std::optional<int>(1)),
      Key("a", std::vector{1}),
      Key("a", std::vector{1, 1}),
      Key("a", std::vector{1}, 1),
      Key("a", std::string("\0", 1)),
      Key("a", ""),
  };
  CHECK(std::set<Key>(apart.begin(), apart.end()).size() == apart.size());
  CHECK(Key("a", Kind::one) == Key(std::string("a"), 0));
  CHECK(Key(Key("a", 1), "b") == Key("a", 1, "b"));
  CHECK(Key().empty());
}

TEST_CASE("a key begins with whole values only", "[viewer][key]") {
  const Key run("run", 1);
  CHECK(Key(run, "tokens", 3).begins_with(run));
  CHECK(run.begins_with(run));
  CHECK(run.begins_with({}));
  CHECK_FALSE(Key("run", 11).begins_with(run));
  CHECK_FALSE(Key("run", 10, "x").begins_with(run));
  CHECK_FALSE(Key("runs", 1).begins_with("run"));
  CHECK_FALSE(Key("run").begins_with(run));
}
