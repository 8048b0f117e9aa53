#include "viewer/model/choice.hpp"

#include "sim/tokens/entry_map.hpp"
#include "tests/support/catch.hpp"
#include "viewer/questions/named_choices.hpp"

#include <set>
#include <string>

namespace kvreplay::viewer {
namespace {

using Numbers = std::vector<std::size_t>;

TEST_CASE("a menu's field leaves the entries in which every word typed occurs", "[choice]") {
  const std::vector<Choice> choices = {{.name = "attn", .plain = "attention paid to it"},
                                       {.name = "knorm", .plain = "small Norm", .tip = "Keys draw attention"},
                                       {.name = "a b", .enabled = false},
                                       {.name = "\xC3\xA9"}};
  CHECK(matching_choices(choices, "") == Numbers{0, 1, 2, 3});
  CHECK(matching_choices(choices, "   ") == Numbers{0, 1, 2, 3});
  CHECK(matching_choices(choices, "ATTN") == Numbers{0});
  CHECK(matching_choices(choices, "attention") == Numbers{0, 1});  // by name, plain words or tip
  CHECK(matching_choices(choices, "norm att") == Numbers{1});
  CHECK(matching_choices(choices, "att paid") == Numbers{0});
  CHECK(matching_choices(choices, "b a") == Numbers{2});
  CHECK(matching_choices(choices, "\xC3\xA9") == Numbers{3});
  CHECK(matching_choices(choices, "nothing of it").empty());
  CHECK(matching_choices({}, "a").empty());
  CHECK(matching_choices(choices, "attention paid\nsmall").empty());  // of one entry at a time
}

/// Short enough for a line of a menu, no formula, and no other's.
void check_plain(const std::vector<Choice>& choices) {
  std::set<std::string> seen;
  for (const Choice& one : choices) {
    INFO(one.name);
    CHECK(one.plain.size() > one.name.size() / 2);
    CHECK(one.plain.size() <= 48);
    CHECK(one.plain != one.name);
    CHECK(one.plain.find('_') == std::string::npos);
    CHECK(seen.insert(one.plain).second);
    CHECK_FALSE(one.tip.empty());
    CHECK_FALSE(one.group.empty());
  }
}

TEST_CASE("every metric and policy has a plain name and a group", "[choice]") {
  std::vector<Choice> metrics;
  for (const TokenMetric metric : kTokenMetrics.all()) metrics.push_back(choice_of(metric));
  check_plain(metrics);
  check_plain(base_choices());
  for (const EntryFacts& entry : kEntries) CHECK_FALSE(entry.plain.empty());
}

TEST_CASE("groups of metrics and policies follow each other, each once", "[choice]") {
  std::vector<Choice> metrics;
  for (const TokenMetric metric : kTokenMetrics.all()) metrics.push_back(choice_of(metric));
  const std::vector<std::vector<Choice>> all = {metrics, base_choices()};
  for (const std::vector<Choice>& choices : all) {
    std::vector<std::string> groups;
    for (const Choice& one : choices)
      if (groups.empty() || groups.back() != one.group) groups.emplace_back(one.group);
    CHECK(groups.size() == (&choices == &all.front() ? 3 : 4));
    CHECK(std::set<std::string>(groups.begin(), groups.end()).size() == groups.size());
    CHECK(groups.back().starts_with("Oracles"));
  }
  const auto group = [](EvictionBase base) { return choice_of(base).group; };
  CHECK(base_choices().size() == kBases.size());
  CHECK(group(EvictionBase::oracle_loss) == group(EvictionBase::oracle));
  CHECK(group(EvictionBase::streaming) == group(EvictionBase::score));
  CHECK(group(EvictionBase::exchange) == group(EvictionBase::greedy_exact));
}

}  // namespace
}  // namespace kvreplay::viewer
