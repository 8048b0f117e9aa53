#include "analysis/results/compare_report.hpp"

#include "analysis/results/csv.hpp"
#include "data/console.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvreplay {
namespace {

using Lines = ComparisonPage::Lines;

class TextPage : public ComparisonPage {
 public:
  explicit TextPage(bool as_markdown) : markdown_(as_markdown) {}

  void heading(const std::string& text) override { add("## ", "", text); }
  void title(const std::string& text) override { add("### ", "  ", text); }
  void line(const std::string& text) override {
    text_ += fmt::format("{}{}\n", markdown_ ? "- " : "  ", text);
  }
  void table(const Lines& lines) override {
    text_ += markdown_ ? fmt::format("\n{}\n", markdown(lines)) : aligned(lines, "    ");
  }
  std::string take() { return std::move(text_); }

 private:
  void add(std::string_view hashes, std::string_view indent, const std::string& text) {
    text_ += fmt::format("\n{}{}\n{}", markdown_ ? hashes : indent, text, markdown_ ? "\n" : "");
  }

  bool markdown_;
  std::string text_;
};

std::string number(double value) { return std::isnan(value) ? "-" : fmt::format("{:.4g}", value); }

/// nothing where a is 0 or a value is missing
std::string ratio_text(double a, double b) {
  return a == 0 || std::isnan(b / a) ? "-" : fmt::format("{:.3f}", b / a);
}

/// A value that fits a column: lists of options may be long, and are whole in the JSON.
std::string shortened(const std::string& value) {
  constexpr std::size_t kLongest = 48;
  return value.size() <= kLongest ? value : fmt::format("{}...", value.substr(0, kLongest));
}

/// "layer 4, score joint, metric rel_l1": what a row is of, its empty keys left out.
std::string labelled(const TableComparison& table, const TableComparison::Row& row) {
  const std::vector<std::string> values = split_fields(row.key);
  std::string text;
  for (std::size_t k = 0; k < table.keys.size(); ++k)
    if (!values[k].empty())
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", table.keys[k], values[k]);
  return text;
}

std::string counts_text(const TableComparison& table) {
  if (table.rows.empty())
    return fmt::format("no figure in both; {} only in A, {} only in B", table.only_a, table.only_b);
  std::string text = fmt::format("{} figures in both", table.rows.size());
  if (table.only_a > 0) text += fmt::format(", {} only in A", table.only_a);
  if (table.only_b > 0) text += fmt::format(", {} only in B", table.only_b);
  if (table.differing == 0) return text + "; no difference";
  text += fmt::format("; {} differ", table.differing);
  if (table.largest) {
    const TableComparison::Row& row = table.rows[*table.largest];
    text += fmt::format(", most of all {}: {} and {}", labelled(table, row), number(row.a), number(row.b));
  }
  return text;
}

void add_figures(ComparisonPage& page, const ComparedPivot& pivot, bool same_heads, std::size_t most) {
  std::vector<std::size_t> order(pivot.figures.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t i) {
    const ComparedFigure& figure = pivot.figures[i];
    return relative(figure) == 0 && !(figure.heads.largest_difference > 0);
  });
  if (order.empty()) return;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
    return weight(pivot.figures[i], pivot.scale) > weight(pivot.figures[j], pivot.scale);
  });
  page.title(order.size() > most
                 ? fmt::format("{}: the {} that differ most, of {}", pivot.title, most, order.size())
                 : pivot.title);
  order.resize(std::min(order.size(), most));
  const bool with_heads = std::any_of(order.begin(), order.end(), [&](std::size_t i) {
    const HeadAgreement& heads = pivot.figures[i].heads;
    return same_heads ? heads.heads > 0 : !std::isnan(heads.a[1]) || !std::isnan(heads.b[1]);
  });
  // Of shares and correlations a ratio says little.
  const bool with_ratio = !has_fixed_range(pivot.scale);
  Lines lines{{"of", "A", "B", "B - A"}};
  if (with_ratio) lines[0].emplace_back("B / A");
  if (with_heads && same_heads)
    lines[0].insert(lines[0].end(),
                    {"heads: median |B - A|", "largest |B - A|", "at layer.head", "rank correlation"});
  if (with_heads && !same_heads) lines[0].insert(lines[0].end(), {"heads of A: quartiles", "heads of B"});
  for (const std::size_t i : order) {
    const ComparedFigure& figure = pivot.figures[i];
    const HeadAgreement& heads = figure.heads;
    std::vector<std::string> line{
        figure.setting.empty() ? figure.shown : fmt::format("{}, {}", figure.shown, figure.setting),
        number(figure.a), number(figure.b), number(difference(figure.a, figure.b))};
    if (with_ratio) line.push_back(ratio_text(figure.a, figure.b));
    if (with_heads && same_heads)
      line.insert(line.end(), {number(heads.median_difference), number(heads.largest_difference),
                               heads.largest_at, number(heads.spearman)});
    if (with_heads && !same_heads)
      for (const auto& q : {heads.a, heads.b})
        line.push_back(fmt::format("{} {} {}", number(q[0]), number(q[1]), number(q[2])));
    lines.push_back(std::move(line));
  }
  page.table(lines);
}

void add_ranks(ComparisonPage& page, const ComparedPivot& pivot) {
  constexpr std::size_t kNamed = 3;
  Lines lines{{"under", "best in A", "best in B", "pairs that swap", "the widest (better in A first)"}};
  for (const RankOrder& ranks : pivot.ranks) {
    if (ranks.a.size() < 2) continue;
    const std::size_t pairs = ranks.a.size() * (ranks.a.size() - 1) / 2;
    std::string named;
    for (std::size_t i = 0; i < std::min(kNamed, ranks.swaps.size()); ++i)
      named += fmt::format("{}{} / {}", i == 0 ? "" : ", ", ranks.swaps[i].first, ranks.swaps[i].second);
    lines.push_back({ranks.setting, ranks.a.front(), ranks.b.front(),
                     fmt::format("{} of {}", ranks.swaps.size(), pairs), named});
  }
  if (lines.size() == 1) return;
  const bool oracles = std::any_of(pivot.figures.begin(), pivot.figures.end(),
                                   [](const ComparedFigure& figure) { return figure.is_oracle; });
  page.title(fmt::format("{}: who wins{}", pivot.title, oracles ? ", oracles apart" : ""));
  page.table(lines);
}

nlohmann::ordered_json json_number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

nlohmann::ordered_json json_of(const ComparedFigure& figure, bool same_heads) {
  nlohmann::ordered_json json = {{"item", figure.item},
                                 {"setting", figure.setting},
                                 {"a", json_number(figure.a)},
                                 {"b", json_number(figure.b)},
                                 {"difference", json_number(difference(figure.a, figure.b))}};
  nlohmann::ordered_json& heads = json["heads"] = {{"a_quartiles", nlohmann::ordered_json::array()},
                                                   {"b_quartiles", nlohmann::ordered_json::array()}};
  for (std::size_t q = 0; q < 3; ++q) {
    heads["a_quartiles"].push_back(json_number(figure.heads.a[q]));
    heads["b_quartiles"].push_back(json_number(figure.heads.b[q]));
  }
  if (!same_heads) return json;
  heads["count"] = figure.heads.heads;
  heads["median_difference"] = json_number(figure.heads.median_difference);
  heads["largest_difference"] = json_number(figure.heads.largest_difference);
  heads["largest_at"] = figure.heads.largest_at;
  heads["spearman"] = json_number(figure.heads.spearman);
  return json;
}

}  // namespace

FolderComparison comparison_of(const ResultReader& a, const KeyFilter& left, const ResultReader& b,
                               const KeyFilter& right) {
  const auto model = [](const ResultReader& results) {
    return results.summary()["dump"].value("model", std::string("a model"));
  };
  FolderComparison comparison;
  comparison.a = {a.folder().string(), model(a), left};
  comparison.b = {b.folder().string(), model(b), right};
  comparison.same_heads = same_heads(a, b);
  comparison.run = run_differences(a, b);
  comparison.tables = compare(a, left, b, right);
  const std::vector<Table> in_a = a.tables(), in_b = b.tables();
  const auto without = [](const std::vector<Table>& these, const std::vector<Table>& those) {
    std::vector<std::string> rest;
    for (const Table table : these)
      if (std::find(those.begin(), those.end(), table) == those.end()) rest.emplace_back(name_of(table));
    return rest;
  };
  comparison.only_a = without(in_a, in_b);
  comparison.only_b = without(in_b, in_a);
  return comparison;
}

std::string side_text(const FolderComparison::Side& side) {
  std::string text = fmt::format("{} ({})", displayable(side.folder), side.model);
  for (const auto& [key, value] : side.filter) text += fmt::format(", {}={}", key, value);
  return text;
}

void describe_run(const std::vector<RunDifference>& run, ComparisonPage& page) {
  if (run.empty()) return page.heading("Run alike: the same dump, precision and options");
  page.heading("Run differently");
  Lines lines{{"", "A", "B"}};
  for (const auto& [key, a, b] : run) lines.push_back({key, shortened(a), shortened(b)});
  page.table(lines);
}

void describe(const FolderComparison& comparison, std::size_t most, ComparisonPage& page) {
  page.line(headline_of(comparison));
  page.line("A: " + side_text(comparison.a));
  page.line("B: " + side_text(comparison.b));
  describe_run(comparison.run, page);
  const auto alone = [&](const std::vector<std::string>& tables, const char* side) {
    if (!tables.empty()) page.line(fmt::format("only {} has: {}", side, fmt::join(tables, ", ")));
  };
  alone(comparison.only_a, "A");
  alone(comparison.only_b, "B");
  if (!comparison.same_heads)
    page.line("other layers or KV heads: of heads, only how their figures are distributed");
  for (const TableComparison& table : comparison.tables) {
    page.heading(std::string(name_of(table.table)));
    page.line(counts_text(table));
    if (table.differing == 0) continue;
    for (const ComparedPivot& pivot : table.pivots) {
      add_figures(page, pivot, comparison.same_heads, most);
      add_ranks(page, pivot);
    }
  }
}

std::string plain_text(const std::function<void(ComparisonPage&)>& describe) {
  TextPage page(false);
  describe(page);
  return page.take();
}

std::string markdown_text(const std::function<void(ComparisonPage&)>& describe) {
  TextPage page(true);
  describe(page);
  return fmt::format("# Two result folders side by side\n\n{}", page.take());
}

nlohmann::ordered_json json_of(const std::vector<RunDifference>& run) {
  auto json = nlohmann::ordered_json::array();
  for (const auto& [key, a, b] : run) json.push_back({{"key", key}, {"a", a}, {"b", b}});
  return json;
}

nlohmann::ordered_json json_of(const FolderComparison& comparison) {
  nlohmann::ordered_json json;
  for (const auto& [name, side] : {std::pair("a", comparison.a), std::pair("b", comparison.b)})
    json[name] = {{"folder", side.folder}, {"model", side.model}, {"filter", side.filter}};
  json["headline"] = headline_of(comparison);
  json["same_heads"] = comparison.same_heads;
  json["run_differences"] = json_of(comparison.run);
  json["only_a"] = comparison.only_a;
  json["only_b"] = comparison.only_b;
  json["tables"] = nlohmann::ordered_json::object();
  for (const TableComparison& table : comparison.tables) {
    nlohmann::ordered_json& mine = json["tables"][std::string(name_of(table.table))];
    mine = {{"figures", table.rows.size()},
            {"only_a", table.only_a},
            {"only_b", table.only_b},
            {"differing", table.differing},
            {"largest", nullptr}};
    if (table.largest) {
      const TableComparison::Row& row = table.rows[*table.largest];
      mine["largest"] = {{"key", row.key},
                         {"a", json_number(row.a)},
                         {"b", json_number(row.b)},
                         {"difference", json_number(difference(row.a, row.b))}};
    }
    mine["main"] = nlohmann::ordered_json::array();
    for (const ComparedPivot& pivot : table.pivots) {
      nlohmann::ordered_json block = {{"title", pivot.title}, {"figures", nlohmann::ordered_json::array()}};
      for (const ComparedFigure& figure : pivot.figures)
        block["figures"].push_back(json_of(figure, comparison.same_heads));
      block["ranks"] = nlohmann::ordered_json::array();
      for (const RankOrder& ranks : pivot.ranks)
        block["ranks"].push_back(
            {{"setting", ranks.setting}, {"a", ranks.a}, {"b", ranks.b}, {"swaps", ranks.swaps}});
      mine["main"].push_back(std::move(block));
    }
  }
  return json;
}

void write_csv(const TableComparison& table, const std::filesystem::path& folder) {
  CsvFile csv(folder / fmt::format("compare_{}", file_of(table.table)),
              fmt::format("{},{}", fmt::join(table.keys, ","), kComparedColumns));
  for (const TableComparison::Row& row : table.rows) {
    for (const std::string& key : split_fields(row.key)) csv.add(key);
    csv.add(row.a)
        .add(row.b)
        .add(difference(row.a, row.b))
        .add(row.a == row.b ? 1.0 : row.b / row.a)
        .end_row();
  }
  csv.finish();
}

}  // namespace kvreplay
