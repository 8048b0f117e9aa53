#include "data/facts_table.hpp"

#include "tests/support/catch.hpp"

#include <string>
#include <vector>

using namespace kvreplay;

namespace {

enum class Fruit { apple, pear, plum };

struct FruitFacts {
  Fruit id;
  std::string_view name;
  bool has_stone = false;
};

constexpr auto kFruits = facts_table<FruitFacts>({
    {Fruit::apple, "apple"},
    {Fruit::pear, "pear"},
    {Fruit::plum, "plum", true},
});

}  // namespace

TEST_CASE("a table of facts is read by value and by name", "[facts]") {
  STATIC_REQUIRE(kFruits[Fruit::plum].has_stone);
  STATIC_REQUIRE(kFruits.named("pear") == Fruit::pear);
  CHECK_FALSE(kFruits.named("Pear"));
  CHECK_FALSE(kFruits.named(""));
  CHECK(kFruits.size() == 3);
  CHECK(kFruits.all() == std::array{Fruit::apple, Fruit::pear, Fruit::plum});
  CHECK(kFruits.names() == std::vector<std::string>{"apple", "pear", "plum"});
  CHECK(kFruits.names_where([](const FruitFacts& facts) { return !facts.has_stone; }) ==
        std::vector<std::string>{"apple", "pear"});
}

TEST_CASE("what is wrong with a table of facts is found", "[facts]") {
  constexpr FruitFacts kGood[] = {{Fruit::apple, "apple"}, {Fruit::pear, "pear"}, {Fruit::plum, "plum"}};
  constexpr FruitFacts kShort[] = {{Fruit::apple, "apple"}, {Fruit::pear, "pear"}};
  constexpr FruitFacts kSwapped[] = {{Fruit::pear, "pear"}, {Fruit::apple, "apple"}, {Fruit::plum, "plum"}};
  constexpr FruitFacts kTwice[] = {{Fruit::apple, "pear"}, {Fruit::pear, "pear"}, {Fruit::plum, "plum"}};
  constexpr FruitFacts kNameless[] = {{Fruit::apple, "apple"}, {Fruit::pear, ""}, {Fruit::plum, "plum"}};
  STATIC_REQUIRE(fault_of(kGood).empty());
  STATIC_REQUIRE(fault_of(kShort) == "a value of the enumeration has no row");
  STATIC_REQUIRE(fault_of(kSwapped) == "a row is out of the enumeration's order");
  STATIC_REQUIRE(fault_of(kTwice) == "two rows have one name");
  STATIC_REQUIRE(fault_of(kNameless) == "a row has no name");
}
