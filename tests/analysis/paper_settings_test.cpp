#include "analysis/budgets/budget_plan.hpp"
#include "analysis/channels/channel_options.hpp"
#include "analysis/eviction/eviction_options.hpp"
#include "sim/channels/channel_basis.hpp"
#include "tests/analysis/budget_cases.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <functional>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

// PAPERS.md says what every semantics runs beside what the papers do: it says what the code does.

using namespace kvreplay;

namespace {

using Cells = std::vector<std::string>;

constexpr Index kPrompt = 1000, kBudget = 200;

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" `"), last = text.find_last_not_of(" `");
  return first == std::string_view::npos ? "" : std::string(text.substr(first, last - first + 1));
}

/// The rows of the table whose heading begins with these cells, quotes taken off.
std::vector<Cells> table_of(const Cells& heading) {
  std::ifstream page(test::source_dir() / "analysis/PAPERS.md");
  REQUIRE(page.is_open());
  std::vector<Cells> rows;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    Cells cells;
    if (line.starts_with("| ")) {
      std::istringstream in(line.substr(1));
      for (std::string cell; std::getline(in, cell, '|');) cells.push_back(trimmed(cell));
    }
    if (inside && cells.empty() && !line.starts_with("|---")) break;
    if (inside && !cells.empty()) rows.push_back(cells);
    inside = inside ||
             (cells.size() >= heading.size() && std::equal(heading.begin(), heading.end(), cells.begin()));
  }
  INFO(fmt::format("{}", fmt::join(heading, " | ")));
  REQUIRE_FALSE(rows.empty());
  return rows;
}

EvictionRule rule(const std::string& policy, Semantics semantics) {
  return rule_of(parse_policy(policy, {}), semantics, {}, kPrompt, kBudget, /*has_wo=*/true);
}

std::string rows_of(const EvictionRule& rule) {
  return rule.window == kPrompt ? "all" : fmt::format("{}", rule.window);
}
std::string recent_of(const EvictionRule& rule) {
  if (rule.sinks + rule.recent == kBudget) return "all others";
  return 2 * rule.recent == kBudget ? "half of the budget" : fmt::format("{}", rule.recent);
}
std::string pool_of(const EvictionRule& rule) { return OptionValue<Pooling>::text(rule.pool); }

/// The one of `values` with which `with` gives what the budget method gives; "-" where all of them do.
template <class With>
std::string value_of(BudgetMethod method, Semantics semantics, const std::vector<double>& values, With with) {
  test::Draw draw(7);
  std::vector<double> left = values;
  for (const double sigma :
       {0.45, 0.5, 0.7}) {  // shares are cut by the prompt's length at one, not at another
    const BudgetFrame frame = budget_frame(6, 2, 4000, sigma);
    const LossCurves curves = test::random_curves("heavy", frame.all_heads(), frame.l, draw);
    const HullGreedy greedy(curves, frame.lower);
    // 32 pinned tokens lead; then every second head has hardly a score worth a token.
    std::vector<double> scores;
    for (Index head = 0; head < frame.all_heads(); ++head)
      for (Index place = 0; place < frame.l; ++place)
        scores.push_back(place < 32 ? std::numeric_limits<double>::infinity()
                                    : (head % 2 ? 1 : 1000) / static_cast<double>(place));
    const AllocationInput input{.frame = frame,
                                .semantics = semantics,
                                .pinned = 32,
                                .curves = curves,
                                .greedy = greedy,
                                .scores = scores};
    const Budgets found = allocate(method, input).budgets;
    std::erase_if(left, [&](double value) { return with(frame, scores, semantics, value) != found; });
  }
  return left.size() == values.size() ? "-" : fmt::format("{}", fmt::join(left, " or "));
}

using Setting = std::function<std::string(Semantics)>;

/// One hyperparameter of a method, and the value that each semantics uses.
struct Row {
  std::string method, setting;
  Setting runs;
};

std::vector<Row> settings() {
  const auto of = [](const char* policy, auto what) -> Setting {
    return [=](Semantics semantics) { return what(rule(policy, semantics)); };
  };
  const auto sinks_of = [](const EvictionRule& rule) { return fmt::format("{}", rule.sinks); };
  const Setting recent_keys = [](Semantics semantics) {
    return fmt::format("{}", default_recent(semantics));
  };
  const Setting query_rows = [](Semantics) { return fmt::format("{}", ChannelOptions{}.window); };
  return {
      {"streaming", "first tokens kept", of("streaming", sinks_of)},
      {"streaming", "recent tokens kept", of("streaming", recent_of)},
      {"h2o", "rows that score", of("h2o", rows_of)},
      {"h2o", "recent tokens kept", of("h2o", recent_of)},
      {"h2o", "a sum is divided by its rows",
       of("h2o", [](const EvictionRule& rule) { return std::string(rule.per_visible_row ? "yes" : "no"); })},
      {"tova", "rows that score", of("tova", rows_of)},
      {"tova", "a ranking for every",
       of("tova",
          [](const EvictionRule& rule) { return std::string(rule.shared_by_layer ? "layer" : "KV head"); })},
      {"tova", "recent tokens kept", of("tova", recent_of)},
      {"snapkv", "rows that score", of("snapkv", rows_of)},
      {"snapkv", "pooling", of("snapkv", pool_of)},
      {"snapkv", "recent tokens kept", of("snapkv", recent_of)},
      {"keydiff", "tokens of a block",
       of("keydiff",
          [](const EvictionRule& rule) { return rule.block ? fmt::format("{}", rule.block) : "all"; })},
      {"expected_attention", "epsilon",
       of("expected_attention",
          [](const EvictionRule& rule) { return fmt::format("{}", rule.expected.epsilon); })},
      {"expected_attention", "weighed by the norm of",
       of("expected_attention",
          [](const EvictionRule& rule) {
            return std::string(rule.expected.project_values ? "v W_O" : "v");
          })},
      {"expected_attention", "first tokens kept",
       of("expected_attention",
          [](const EvictionRule& rule) { return fmt::format("{}", rule.expected.n_sink); })},
      {"expected_attention", "positions ahead",
       of("expected_attention",
          [](const EvictionRule& rule) { return fmt::format("{}", rule.expected.n_future); })},
      {"pyramid", "beta",
       [](Semantics semantics) {
         return value_of(BudgetMethod::pyramid, semantics, {5, 10, 20, 40},
                         [](const BudgetFrame& frame, auto&, Semantics whose, double beta) {
                           return pyramid(frame, {whose, beta, whose == Semantics::kvpress ? 64 : 8});
                         });
       }},
      {"pyramid", "window",
       [](Semantics semantics) {
         return value_of(BudgetMethod::pyramid, semantics, {8, 16, 32, 64},
                         [](const BudgetFrame& frame, auto&, Semantics whose, double window) {
                           return pyramid(frame, {whose, 20, static_cast<Index>(window)});
                         });
       }},
      {"ada", "a head's own share",
       [](Semantics semantics) {
         return value_of(BudgetMethod::ada, semantics, {0.1, 0.2, 0.5, 0.8},
                         [](const BudgetFrame& frame, const auto& scores, Semantics whose, double alpha) {
                           return ada(frame, scores, {whose, alpha, 32});
                         });
       }},
      {"think", "query rows that score", query_rows},
      {"think", "recent keys left whole", recent_keys},
      {"iap", "query rows that score", query_rows},
      {"iap", "recent keys left whole", recent_keys},
      {"iap", "ratios",
       [](Semantics) { return fmt::format("{}", fmt::join(ChannelOptions{}.ratios, ", ")); }},
  };
}

}  // namespace

TEST_CASE("PAPERS.md says of every hyperparameter what each semantics runs", "[docs]") {
  const std::vector<Row> known = settings();
  const std::vector<Cells> table =
      table_of({"method", "hyperparameter", "the paper", "paper", "official", "kvpress"});
  CHECK(table.size() == known.size());
  for (const Cells& cells : table) {
    REQUIRE(cells.size() >= 6);
    INFO(cells[0] << ", " << cells[1]);
    const auto row = std::find_if(known.begin(), known.end(), [&](const Row& each) {
      return each.method == cells[0] && each.setting == cells[1];
    });
    REQUIRE(row != known.end());
    CHECK(Cells(cells.begin() + 3, cells.begin() + 6) ==
          Cells{row->runs(Semantics::paper), row->runs(Semantics::official), row->runs(Semantics::kvpress)});
  }
}

TEST_CASE("PAPERS.md names policies that run what other papers make of a method", "[docs]") {
  for (const Cells& cells :
       table_of({"setting", "policy", "rows that score", "pooling", "first", "recent"})) {
    REQUIRE(cells.size() >= 6);
    INFO(cells[1]);
    const EvictionRule runs = rule(cells[1], Semantics::paper);
    CHECK(Cells(cells.begin() + 2, cells.begin() + 6) ==
          Cells{rows_of(runs), pool_of(runs), fmt::format("{}", runs.sinks), recent_of(runs)});
  }
}

TEST_CASE("PAPERS.md says in what setting budgets are divided", "[docs]") {
  const Dump dump = Dump::open(test::sample_dump());
  const auto least = [](const BudgetPlan& plan) { return plan.orders[0].lower - plan.orders[0].pinned(); };
  const std::vector<Cells> table = table_of({"order", "hyperparameter", "the paper", "paper", "raw"});
  CHECK(table.size() == 13);
  for (const Cells& cells : table) {
    REQUIRE(cells.size() >= 5);
    INFO(cells[0] << ", " << cells[1]);
    Cells runs;
    for (const BudgetSemantics semantics : {BudgetSemantics::paper, BudgetSemantics::raw}) {
      BudgetOptions options;
      options.orders = {parse_order(cells[0], {})};
      options.methods = {BudgetMethod::uniform};
      options.semantics = semantics;
      const BudgetPlan plan = budget_plan(dump, options, {0});
      const EvictionRule& rule = plan.orders[0].rule;
      if (cells[1] == "importance")
        runs.emplace_back(plan.normalise_by_layer ? "over its layer's sum" : "as it is");
      if (cells[1] == "first tokens kept") runs.push_back(fmt::format("{}", rule.sinks));
      if (cells[1] == "recent tokens kept") runs.push_back(fmt::format("{}", rule.recent));
      if (cells[1] == "rows that score") runs.push_back(rows_of(rule));
      if (cells[1] == "pooling") runs.push_back(pool_of(rule));
      if (cells[1] == "least of every head") {
        options.sinks = options.recent = 0;
        runs.push_back(fmt::format(
            "{} %", (100 * least(budget_plan(dump, options, {0})) + dump.shape().l / 2) / dump.shape().l));
      }
    }
    CHECK(Cells(cells.begin() + 3, cells.begin() + 5) == runs);
  }
}
