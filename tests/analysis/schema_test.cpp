#include "analysis/results/schema.hpp"

#include "analysis/results/figures.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/result_folder.hpp"
#include "data/atomic_file.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"
#include "tests/support/read_file.hpp"
#include "tests/support/temp_dir.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

/// The cells of the Markdown table rows that begin with `first`, each without spaces and quotes of code
/// around it.
std::vector<std::vector<std::string>> rows_from(const std::string& text, const std::string& first) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t at = text.find("\n| " + first); at != std::string::npos;
       at = text.find("\n| " + first, at + 1)) {
    std::vector<std::string>& cells = rows.emplace_back();
    const std::string line = text.substr(at + 3, text.find('\n', at + 1) - at - 3);
    std::string cell;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '\\' && i + 1 < line.size() && line[i + 1] == '|') {
        cell += line[++i];
      } else if (line[i] == '|') {
        while (cell.ends_with(' ') || cell.ends_with('`')) cell.pop_back();
        cell.erase(0, std::min(cell.find_first_not_of(" `"), cell.size()));
        cells.push_back(std::move(cell));
        cell.clear();
      } else {
        cell += line[i];
      }
    }
  }
  return rows;
}

std::string format_text() { return test::read_file(test::source_dir() / "analysis/RESULTS-FORMAT.md"); }

}  // namespace

TEST_CASE("every column of a table is a key, derived, or a figure", "[schema]") {
  CHECK(split_list("").empty());
  CHECK(split_list("a,b") == std::vector<std::string>{"a", "b"});
  CHECK_FALSE(kTables.named("agreement.csv"));
  for (const Table table : kTables.all()) {
    INFO(name_of(table));
    const TableFacts& facts = facts_of(table);
    const std::vector<std::string> keys = key_columns(table), columns = split_list(facts.columns);
    REQUIRE(keys.size() > 1);
    CHECK(keys[0] == "layer");
    CHECK(keys[1] == "kv_head");
    CHECK(figure_keys(table).back() == "metric");
    for (const std::string& column : columns) {
      INFO(column);
      const bool key = std::find(keys.begin(), keys.end(), column) != keys.end();
      const bool figure = column == "value" || (is_wide(table) && figure_named(table, column) != nullptr);
      const std::vector<std::string> derived = split_list(facts.derived);
      CHECK(key + figure + std::count(derived.begin(), derived.end(), column) == 1);
    }
    for (const std::string& item : split_list(facts.items)) {
      const std::vector<std::string> all = figure_keys(table);
      CHECK(std::find(all.begin(), all.end(), item) != all.end());
    }
  }
  CHECK(facts_of(Table::evictions).derived == "kept,kept_share");
}

TEST_CASE("every figure says what it is", "[schema]") {
  for (const Table table : kTables.all()) {
    for (const FigureFacts* const facts : figures_of(table)) {
      INFO(name_of(table) << " " << facts->name);
      CHECK(figure_named(table, facts->name) == facts);
      CHECK_FALSE(facts->title.empty());
      CHECK_FALSE(facts->unit.empty());
      CHECK_FALSE(facts->what.empty());
      CHECK_FALSE(facts->what.ends_with('.'));
      if (has_fixed_range(facts->scale) && table != Table::channels) CHECK(facts->better == Better::larger);
      if (!facts->main.empty()) CHECK(facts->better != Better::neither);
      if (facts_of(table).heads_only) CHECK_FALSE(facts->levels.model);
    }
  }
  CHECK(figure_named(Table::evictions, "loss") == nullptr);
  CHECK(meaning_of({}, ": ", "; ").empty());
  CHECK(meaning_of(facts_of(DecodeFigure::max), ": ", "; ") ==
        ": Largest output error of any decoding step; relative error, exact, smaller is better");
}

TEST_CASE("RESULTS-FORMAT.md has the tables' columns and figures", "[schema]") {
  const std::string text = format_text();
  std::vector<std::vector<std::string>> documented = rows_from(text, "heads |");
  CHECK(documented.empty());
  for (const Table table : kTables.all()) {
    INFO(name_of(table));
    const auto files = rows_from(text, "`" + file_of(table) + "`");
    REQUIRE(files.size() == 1);
    const std::string& columns = files[0][1];
    CHECK(columns.substr(0, columns.find('`')) == facts_of(table).columns);
    if (table == Table::heads) continue;
    const auto rows = rows_from(text, std::string(name_of(table)) + " |");
    const auto figures = figures_of(table);
    REQUIRE(rows.size() == figures.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      INFO(figures[i]->name);
      REQUIRE(rows[i].size() == 5);
      CHECK(rows[i][1] == figures[i]->name);
      CHECK(rows[i][2] == figures[i]->unit);
      const Better better = figures[i]->better;
      CHECK(rows[i][3] == (better == Better::smaller ? "smaller" : better == Better::larger ? "larger" : ""));
      CHECK(rows[i][4] == figures[i]->what);
    }
  }
}

TEST_CASE("what is written by keys and figures is read as such", "[schema]") {
  const test::TempDir dir;
  const ResultFolder folder(dir.path(), Json::object(), {}, Existing::refuse);
  MetricTable evictions(Table::evictions, {1, 3}, 2, 14);
  const auto kept =
      evictions.at_scopes([](Scope scope) { return scope.head ? std::optional(7.0) : std::nullopt; });
  const auto at = [](Scope wanted, double value) {
    return [=](Scope scope) {
      const bool is_it = scope.layer == wanted.layer && scope.head == wanted.head;
      return is_it ? std::optional(value) : std::nullopt;
    };
  };
  const auto of = [&](EvictionFigure metric, std::string policy, std::string rows, Scope scope,
                      double value) {
    MetricEntry& entry = evictions.add(
        {std::move(policy), "paper", "prefill", "0.5", std::move(rows), std::string(name_of(metric))},
        at(scope, value));
    entry.kept = kept;
  };
  of(EvictionFigure::output_error, "a,b", "future", {1, 1}, 0.25);
  of(EvictionFigure::bytes, "a,b", "", {1, 1}, 1e6);
  of(EvictionFigure::oracle_recall, "h2o", "future", {}, 1);
  CHECK(evictions.write(folder) == 3);
  CHECK(test::read_file(dir / "evictions.csv") ==
        "layer,kv_head,policy,semantics,phase,budget,kept,kept_share,rows,metric,value\n"
        "3,1,\"a,b\",paper,prefill,0.5,7,0.5,future,output_error,0.25\n"
        "3,1,\"a,b\",paper,prefill,0.5,7,0.5,,bytes,1e+06\n"
        ",,h2o,paper,prefill,0.5,,,future,oracle_recall,1\n");

  MetricTable heads(Table::heads, {3}, 2);
  heads.add_heads({"attn"}, std::vector<double>{kNan, 1});
  heads.add_heads({"key"}, std::vector<double>{2, 4});
  heads.write(folder, std::vector<std::string>{"attn", "key"});
  CHECK(test::read_file(dir / "heads.csv") == "layer,kv_head,attn,key\n3,0,,2\n3,1,1,4\n");

  MetricTable budgets(Table::budgets, {3}, 1);
  budgets.add_case(kBudgetFigures, {"snapkv", "lu", "0.5"}, "snapkv-lu-0.5", nullptr,
                   [](Scope scope, BudgetFigure metric, RowSet) {
                     return scope.head && metric == BudgetFigure::budget ? std::optional(1e6) : std::nullopt;
                   });
  CHECK(budgets.write(folder) == 1);
  CHECK(test::read_file(dir / "budgets.csv") ==
        "layer,kv_head,order,method,sigma,budget,loss,output_error,layer_output_error\n"
        "3,0,snapkv,lu,0.5,1000000,,,\n");

  write_file(dir / "summary.json", R"({"program": "kvreplay", "schema": 1, "layers": [1, 3],
    "dump": {"layers": 4, "n_q": 4, "n_kv": 2, "d": 8, "d_v": 8, "d_model": 0, "T": 12, "T_q": 12, "l": 9}})");
  const ResultReader results(dir.path());
  const MetricTable read(results, Table::evictions);
  std::vector<std::string> seen;
  read.each_row([&](const MetricEntry& entry, Scope scope, double) {
    seen.push_back(entry.metric() + " " + read.key(entry, "policy"));
    if (level_of(scope) == Level::head) CHECK(read.of_head(*entry.kept, 3, 1) == 7);
  });
  CHECK(seen == std::vector<std::string>{"output_error a,b", "bytes a,b", "oracle_recall h2o"});
  std::vector<double> values;
  MetricTable(results, Table::heads).each_row([&](const MetricEntry&, Scope, double value) {
    values.push_back(value);
  });
  CHECK(values == std::vector<double>{2, 4, 1, 3, 1});  // the medians at the end
}

TEST_CASE("the name of a map says what it is of", "[schema]") {
  const auto of = [](const std::string& text) {
    const auto name = map_named(text);
    REQUIRE(name);
    CHECK(name->text() == text);
    return *name;
  };
  CHECK(of("attn").table == Table::heads);
  CHECK(of("rope_pair_share").table == Table::channels);
  const MapName agreement = of("attn~exact_remove~recall@10%~reserve32");
  CHECK(agreement.table == Table::agreement);
  CHECK(agreement.item == "attn");
  CHECK(agreement.against == "exact_remove");
  CHECK(agreement.figure == "recall@10%");
  CHECK(agreement.reserve == 32);
  CHECK_FALSE(agreement.window);
  CHECK(of("attn~exact_remove~recall@10%~window8").window == 8);
  CHECK(of("attn~exact_remove~recall@10%~window8~reserve32").reserve == 32);
  CHECK(of("snapkv-paper-prefill-448~future~output_error").table == Table::evictions);
  CHECK(of("iap-0.5~window~output_error").table == Table::channels);
  CHECK(of("snapkv-lu-0.5~loss").table == Table::budgets);
  for (const char* bad : {"a~b~c~d", "a~b~c~reserve", "a~b~c~reserve-1", "a~b~c~reserve1~e", "a~b~c~window",
                          "a~b~c~reserve1~window2"}) {
    INFO(bad);
    CHECK_FALSE(map_named(bad));
  }
}

}  // namespace kvreplay
