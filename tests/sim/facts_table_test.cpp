#include "data/facts_table.hpp"

#include "tests/support/catch.hpp"

#include <string>
#include <utility>
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

TEST_CASE("names differ in spelling only, or are two", "[facts]") {
  for (const char* name : {"llama.cpp", "Llama.CPP", "llama-cpp", "llama_cpp", "llamacpp", "LLAMACPP"}) {
    CHECK(same_name(name, "llama.cpp"));
    CHECK(same_name("llama.cpp", name));
  }
  CHECK(same_name("Q4-0", "q4_0"));
  CHECK(same_name("append_only", "append-only"));
  CHECK(same_name("", ""));
  for (const auto& [one, other] : {std::pair{"1.6", "16"},
                                   {"-4", "4"},
                                   {"4.", "4"},
                                   {"q40", "q4_0"},
                                   {"llama", "llama.cpp"},
                                   {"llama.cpp.", "llama.cpp"},
                                   {"a+b", "ab"},
                                   {"k8v4", "k8v"},
                                   {"", "-"}}) {
    CHECK_FALSE(same_name(one, other));
    CHECK_FALSE(same_name(other, one));
  }
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
  constexpr FruitFacts kAlike[] = {{Fruit::apple, "Plum"}, {Fruit::pear, "pear"}, {Fruit::plum, "plum"}};
  STATIC_REQUIRE(fault_of(kAlike) == "two rows have one name");
  STATIC_REQUIRE(fault_of(kNameless) == "a row has no name");
}
