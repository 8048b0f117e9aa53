#include "analysis/budgets/allocation.hpp"
#include "sim/channels/arrangement.hpp"
#include "sim/channels/selection.hpp"
#include "sim/compensation/compensation_facts.hpp"
#include "sim/eviction/policy_facts.hpp"
#include "sim/least_squares/reference_rows.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

using namespace kvreplay;

namespace {

using Names = std::vector<std::string>;

std::string text_of(const std::string& file) {
  std::ifstream in(test::source_dir() / file);
  REQUIRE(in.is_open());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// The texts between backquotes, in order.
Names quoted(const std::string& text) {
  Names names;
  for (std::size_t at = text.find('`'); at != std::string::npos; at = text.find('`', at + 1)) {
    const std::size_t end = text.find('`', at + 1);
    if (end == std::string::npos) break;
    names.push_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  return names;
}

/// The text from behind `begin` up to `end`, both of which must be there.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin);
  INFO(begin);
  REQUIRE(from != std::string::npos);
  const std::size_t to = text.find(end, from + begin.size());
  INFO(end);
  REQUIRE(to != std::string::npos);
  return text.substr(from + begin.size(), to - from - begin.size());
}

/// The names in the first column of the table whose heading begins with `heading`.
Names first_column(const std::string& text, const std::string& heading) {
  std::istringstream lines(between(text, "\n| " + heading, "\n\n") + "\n");
  std::string line;
  std::getline(lines, line);  // the rest of the heading
  std::getline(lines, line);  // ---
  Names names;
  while (std::getline(lines, line))
    for (const std::string& name : quoted(line.substr(0, line.find('|', 1)))) names.push_back(name);
  return names;
}

Names metrics_where(bool (*which)(const TokenMetricFacts&)) { return kTokenMetrics.names_where(which); }

}  // namespace

TEST_CASE("METRICS.md lists every token metric under its kind and unit", "[docs]") {
  const std::string text = text_of("sim/tokens/METRICS.md");
  const auto section = [&](const std::string& heading) {
    return between(text, "\n## " + heading + "\n", "\n## ") + "\n";
  };
  CHECK(first_column(section("Scores"), "name |") ==
        metrics_where([](const auto& facts) { return facts.kind == MetricKind::score; }));
  CHECK(first_column(section("Exact errors"), "name |") ==
        metrics_where([](const auto& facts) { return facts.kind == MetricKind::exact; }));
  CHECK(first_column(section("Oracles"), "name |") ==
        metrics_where([](const auto& facts) { return facts.kind == MetricKind::oracle; }));

  const std::string units = section("Units");
  CHECK(quoted(between(units, "same unit:", "are squared outputs")) == metrics_where([](const auto& facts) {
          return facts.unit == MetricUnit::squared_output && facts.kind != MetricKind::exact;
        }));
  for (const TokenMetricFacts& facts : kTokenMetrics)
    if (facts.kind == MetricKind::exact)
      CHECK(facts.unit == (facts.of_gradients ? MetricUnit::nats : MetricUnit::squared_output));
  CHECK(quoted(between(units, "are squared outputs;", "are outputs")) ==
        metrics_where([](const auto& facts) { return facts.unit == MetricUnit::output; }));
  CHECK(quoted(between(units, "are outputs;", "are nats")) ==
        metrics_where([](const auto& facts) { return facts.unit == MetricUnit::nats; }));
}

TEST_CASE("POLICIES.md lists every base, those that take a score, and every semantics", "[docs]") {
  const std::string text = text_of("sim/eviction/POLICIES.md");
  CHECK(first_column(text, "base |") == kBases.names());
  CHECK(quoted(between(text, "\n| base |", "\n")) == kSemantics.names());
  CHECK(quoted(between(text, "attention sum take a score:", ".")) ==
        kBases.names_where(
            [](const EvictionBaseFacts& facts) { return facts.takes_score && !facts.searches; }));
  CHECK(quoted(between(text, "\n## Exact search\n", " from the whole prompt")) ==
        Names{std::string(name_of(EvictionBase::greedy_exact))});
}

TEST_CASE("COMPENSATION.md lists every method and reference rows", "[docs]") {
  const std::string text = text_of("sim/compensation/COMPENSATION.md");
  CHECK(first_column(text, "name | a token has |") == kCompensations.names());
  CHECK(first_column(text, "name | queries |") == kReferences.names());
}

TEST_CASE("CHANNELS.md lists every channel method", "[docs]") {
  const std::string text = text_of("sim/channels/CHANNELS.md");
  CHECK(first_column(text, "method | prunes") == kChannelMethods.names());
  CHECK(first_column(text, "order | channels") == kChannelArrangements.names());
  for (const ChannelMethodFacts& facts : kChannelMethods) {
    const std::string row = between(text, "\n| `" + std::string(facts.name) + "` |", "\n");
    INFO(facts.name);
    CHECK((row.find("Needs the dump's RoPE") != std::string::npos) == facts.needs_rope);
    CHECK((row.find("lower_bound") != std::string::npos) == facts.bounds);
  }
}

TEST_CASE("BUDGETS.md lists every budget method", "[docs]") {
  const std::string text = text_of("analysis/budgets/BUDGETS.md");
  CHECK(first_column(text, "method |") == kBudgetMethods.names());
  for (const BudgetMethodFacts& facts : kBudgetMethods) {
    const std::string row = between(text, "\n| `" + std::string(facts.name) + "` |", "\n");
    INFO(facts.name);
    CHECK(row.starts_with(" oracle:") == facts.is_oracle);
  }
}
