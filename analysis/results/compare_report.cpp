#include "analysis/results/compare.hpp"
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

/// The difference of two values as a share of the larger one. Infinite if exactly one value is NaN or if an
/// infinity differs; 0 if both are NaN.
double relative(const ComparedFigure& figure) {
  const double apart = std::abs(difference(figure.a, figure.b));
  const double size = std::max(std::abs(figure.a), std::abs(figure.b));
  if (std::isnan(apart)) return std::isnan(figure.a) != std::isnan(figure.b) ? HUGE_VAL : 0;
  return apart == 0 ? 0 : std::isinf(size) ? HUGE_VAL : apart / size;
}

/// The sort key of figures: the absolute difference for figures of a fixed range, the relative difference for
/// all others.
double weight(const ComparedFigure& figure, FigureScale scale) {
  const double apart = std::abs(difference(figure.a, figure.b));
  return has_fixed_range(scale) && !std::isnan(apart) ? apart : relative(figure);
}

std::string short_or_none(double value) { return std::isnan(value) ? "-" : short_number(value); }
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
  const std::vector<std::string> values = table.keys_of(row);
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
  std::ranges::stable_sort(order, [&](std::size_t i, std::size_t j) {
    return weight(pivot.figures[i], pivot.scale) > weight(pivot.figures[j], pivot.scale);
  });
  page.title(order.size() > most
                 ? fmt::format("{}: the {} that differ most, of {}", pivot.title, most, order.size())
                 : pivot.title);
  order.resize(std::min(order.size(), most));
  const bool with_heads = std::ranges::any_of(order, [&](std::size_t i) {
    const HeadAgreement& heads = pivot.figures[i].heads;
    return same_heads ? heads.heads > 0 : !std::isnan(heads.a[1]) || !std::isnan(heads.b[1]);
  });
  // A ratio of shares or correlations says little.
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
  const bool oracles =
      std::ranges::any_of(pivot.figures, [](const ComparedFigure& figure) { return figure.is_oracle; });
  page.title(fmt::format("{}: who wins{}", pivot.title, oracles ? ", oracles apart" : ""));
  page.table(lines);
}

void describe_sides(const ComparedFolders& comparison, ComparisonPage& page) {
  page.line("A: " + side_text(comparison.a));
  page.line("B: " + side_text(comparison.b));
}

std::string names_text(const std::vector<std::string>& names) {
  return displayable(fmt::format("{}", fmt::join(names, ", ")));
}

void describe_alone(const ComparedFolders& comparison, ComparisonPage& page) {
  for (const auto& [names, side] : {std::pair(comparison.only_a, "A"), std::pair(comparison.only_b, "B")})
    if (!names.empty()) page.line(fmt::format("only {} has: {}", side, names_text(names)));
}

void describe_run(const std::vector<RunDifference>& run, ComparisonPage& page) {
  if (run.empty()) return page.heading("Run alike: the same dump, precision and options");
  page.heading("Run differently");
  Lines lines{{"", "A", "B"}};
  for (const auto& [key, a, b] : run) lines.push_back({key, shortened(a), shortened(b)});
  page.table(lines);
}

Json json_number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json json_of_sides(const ComparedFolders& comparison) {
  Json json;
  for (const auto& [name, side] : {std::pair("a", comparison.a), std::pair("b", comparison.b)})
    json[name] = {{"folder", side.folder}, {"model", side.model}, {"filter", side.filter}};
  return json;
}

Json json_of(const ComparedFigure& figure, bool same_heads) {
  Json json = {{"item", figure.item},
               {"setting", figure.setting},
               {"a", json_number(figure.a)},
               {"b", json_number(figure.b)},
               {"difference", json_number(difference(figure.a, figure.b))}};
  Json& heads = json["heads"] = {{"a_quartiles", Json::array()}, {"b_quartiles", Json::array()}};
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

Json json_of(const std::vector<RunDifference>& run) {
  auto json = Json::array();
  for (const auto& [key, a, b] : run) json.push_back({{"key", key}, {"a", a}, {"b", b}});
  return json;
}

/// "A and B are of two models, X and Y. "; empty if both are of one dump.
std::string subjects_of(const FolderComparison& comparison) {
  std::string subjects = two_models(comparison.a.model, comparison.b.model);
  for (const auto& [key, format] : {std::pair("dump.l", "prompts of {} and {} tokens"),
                                    {"dump.T", "{} and {} positions"},
                                    {"dump.contents", "two dumps, whose numbers differ"}})
    if (const auto found = std::ranges::find(comparison.run, key, &RunDifference::key);
        subjects.empty() && found != comparison.run.end())
      subjects = fmt::format(fmt::runtime(format), found->a, found->b);
  return subjects.empty() ? "" : fmt::format("A and B are of {}. ", subjects);
}

std::string better_of(const FolderComparison& comparison) {
  std::size_t a_better = 0, b_better = 0, all = 0;
  const ComparedPivot* where = nullptr;
  const ComparedFigure* most = nullptr;
  for (const TableComparison& table : comparison.tables)
    for (const ComparedPivot& pivot : table.pivots) {
      if (pivot.better == Better::neither) continue;
      for (const ComparedFigure& figure : pivot.figures) {
        if (figure.is_oracle || std::isnan(figure.a) || std::isnan(figure.b)) continue;
        ++all;
        if (figure.a == figure.b) continue;
        const bool a_less = figure.a < figure.b;
        ++(a_less == (pivot.better == Better::smaller) ? a_better : b_better);
        if (most == nullptr || weight(figure, pivot.scale) > weight(*most, where->scale))
          most = &figure, where = &pivot;
      }
    }
  if (all == 0) return "No main figure of one is better than the other's";
  if (most == nullptr) return fmt::format("A and B are equal in all {} main figures, oracles apart", all);
  const bool a_wins = a_better > b_better;
  const std::string won =
      a_better == b_better
          ? fmt::format("Neither wins: each is better in {} of {} main figures, oracles apart", a_better, all)
          : fmt::format("{} is better in {} of {} main figures, oracles apart, {} in {}", a_wins ? "A" : "B",
                        std::max(a_better, b_better), all, a_wins ? "B" : "A", std::min(a_better, b_better));
  const double apart = difference(most->a, most->b);
  const std::string size =
      has_fixed_range(where->scale) || most->a == 0
          ? fmt::format("{} {}", fmt::format("{:.3g}", std::abs(apart)), apart > 0 ? "more" : "less")
          : fmt::format("{:.3g} times", most->b / most->a);
  return fmt::format("{}; they differ most in {}, of {}{}: {} in A, {} in B ({})", won, where->title,
                     most->shown, most->setting.empty() ? "" : ", " + most->setting, short_number(most->a),
                     short_number(most->b), size);
}

}  // namespace

std::string headline_of(const FolderComparison& comparison) {
  return subjects_of(comparison) + better_of(comparison);
}

std::string suspicion_of(const FolderComparison& comparison) {
  std::size_t rows = 0;
  for (const TableComparison& table : comparison.tables) {
    if (table.differing > 0) return "";
    rows += table.rows.size();
  }
  std::vector<std::string> differ;
  for (const auto& [key, value] : comparison.a.filter)
    if (const auto other = comparison.b.filter.find(key);
        other != comparison.b.filter.end() && other->second != value)
      differ.push_back(fmt::format("{} ({}, {})", key, value, other->second));
  for (const auto& [key, a, b] : comparison.run)
    if (!a.starts_with('[') && !b.starts_with('['))
      differ.push_back(fmt::format("{} ({}, {})", key, shortened(a), shortened(b)));
  if (rows == 0 || differ.empty()) return "";
  return fmt::format("All {} figures are the same to the last digit, though {} {}: was what differs used?",
                     rows, fmt::join(differ, ", "), differ.size() == 1 ? "differs" : "differ");
}

std::string side_text(const ComparedFolders::Side& side) {
  std::string text = fmt::format("{} ({})", displayable(side.folder), side.model);
  for (const auto& [key, value] : side.filter) text += fmt::format(", {}={}", key, value);
  return text;
}

void describe(const FolderComparison& comparison, std::size_t most, ComparisonPage& page) {
  page.line(headline_of(comparison));
  if (const std::string suspicion = suspicion_of(comparison); !suspicion.empty()) page.line(suspicion);
  describe_sides(comparison, page);
  describe_run(comparison.run, page);
  describe_alone(comparison, page);
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

Json json_of(const FolderComparison& comparison) {
  Json json = json_of_sides(comparison);
  json["headline"] = headline_of(comparison);
  if (const std::string suspicion = suspicion_of(comparison); !suspicion.empty())
    json["suspicion"] = suspicion;
  json["same_heads"] = comparison.same_heads;
  json["run_differences"] = json_of(comparison.run);
  json["only_a"] = comparison.only_a;
  json["only_b"] = comparison.only_b;
  json["tables"] = Json::object();
  for (const TableComparison& table : comparison.tables) {
    Json& mine = json["tables"][std::string(name_of(table.table))];
    mine = {{"figures", table.rows.size()},
            {"only_a", table.only_a},
            {"only_b", table.only_b},
            {"differing", table.differing},
            {"largest", nullptr}};
    if (table.largest) {
      const TableComparison::Row& row = table.rows[*table.largest];
      mine["largest"] = {{"key", joined(table.keys_of(row))},
                         {"a", json_number(row.a)},
                         {"b", json_number(row.b)},
                         {"difference", json_number(difference(row.a, row.b))}};
    }
    mine["main"] = Json::array();
    for (const ComparedPivot& pivot : table.pivots) {
      Json block = {{"title", pivot.title}, {"figures", Json::array()}};
      for (const ComparedFigure& figure : pivot.figures)
        block["figures"].push_back(json_of(figure, comparison.same_heads));
      block["ranks"] = Json::array();
      for (const RankOrder& ranks : pivot.ranks)
        block["ranks"].push_back(
            {{"setting", ranks.setting}, {"a", ranks.a}, {"b", ranks.b}, {"swaps", ranks.swaps}});
      mine["main"].push_back(std::move(block));
    }
  }
  return json;
}

void write_csv(const FolderComparison& comparison, const std::filesystem::path& folder) {
  for (const TableComparison& table : comparison.tables) {
    CsvFile csv(folder / fmt::format("compare_{}", file_of(table.table)),
                fmt::format("{},{}", fmt::join(table.keys, ","), kComparedColumns));
    for (const TableComparison::Row& row : table.rows) {
      for (const std::string& field : table.keys_of(row)) csv.add(field);
      csv.add(row.a).add(row.b).add(difference(row.a, row.b)).add(row.a == row.b ? 1.0 : row.b / row.a);
      csv.end_row();
    }
    csv.finish();
  }
}

void describe(const ComparisonOverPrompts& comparison, std::size_t most, ComparisonPage& page) {
  describe_sides(comparison, page);
  page.line(fmt::format("{} in both: {}", counted(std::ssize(comparison.prompts), "prompt"),
                        names_text(comparison.prompts)));
  describe_alone(comparison, page);
  describe_run(comparison.run, page);
  bool any = false;
  for (const BlockOverPrompts& block : comparison.blocks) {
    std::vector<const FigureOverPrompts*> figures;
    for (const FigureOverPrompts& figure : block.figures)
      if (figure.over.prompts > 0 && figure.over.wins + figure.over.losses > 0) figures.push_back(&figure);
    if (figures.empty()) continue;
    any = true;
    std::ranges::stable_sort(figures, [](const auto* x, const auto* y) {
      return std::isnan(y->p) ? !std::isnan(x->p) : x->p < y->p;
    });
    page.heading(block.title);
    if (figures.size() > most) page.line(fmt::format("the {} clearest of {}", most, figures.size()));
    figures.resize(std::min(figures.size(), most));
    ComparisonPage::Lines lines{
        {"", "A", "B", block.by() == PairedBy::ratio ? "A / B" : "A - B", "95 %", "A better in", "p"}};
    for (const FigureOverPrompts* const figure : figures) {
      const Paired& over = figure->over;
      lines.push_back(
          {figure->setting.empty() ? figure->item : fmt::format("{}, {}", figure->item, figure->setting),
           short_or_none(over_dumps(figure->a, block.scale).center()),
           short_or_none(over_dumps(figure->b, block.scale).center()), short_or_none(over.center()),
           std::isnan(over.low) ? "-" : interval_text(over.lower(), over.upper()),
           fmt::format("{} of {}", over.wins, over.prompts),
           std::isnan(figure->p) ? "-" : fmt::format("{:.2g}", figure->p)});
    }
    page.table(lines);
  }
  if (!any) page.line("no main figure of the model differs");
}

Json json_of(const ComparisonOverPrompts& comparison) {
  Json json = json_of_sides(comparison);
  json["prompts"] = comparison.prompts;
  json["only_a"] = comparison.only_a;
  json["only_b"] = comparison.only_b;
  json["run_differences"] = json_of(comparison.run);
  json["figures"] = Json::array();
  for (const BlockOverPrompts& block : comparison.blocks)
    for (const FigureOverPrompts& figure : block.figures) {
      const bool ratio = block.by() == PairedBy::ratio;
      json["figures"].push_back({{"table", name_of(block.table)},
                                 {"metric", block.metric},
                                 {"item", figure.item},
                                 {"setting", figure.setting},
                                 {"prompts", figure.over.prompts},
                                 {"a", json_number(over_dumps(figure.a, block.scale).center())},
                                 {"b", json_number(over_dumps(figure.b, block.scale).center())},
                                 {ratio ? "log_ratio" : "difference", json_number(figure.over.mean)},
                                 {"low", json_number(figure.over.low)},
                                 {"high", json_number(figure.over.high)},
                                 {"wins", figure.over.wins},
                                 {"p", json_number(figure.p)}});
    }
  return json;
}

void write_csv(const ComparisonOverPrompts& comparison, const std::filesystem::path& folder) {
  CsvFile csv(folder / "compare_prompts.csv",
              fmt::format("table,metric,item,setting,prompts,a,b,{}", kPairedColumns));
  for (const BlockOverPrompts& block : comparison.blocks)
    for (const FigureOverPrompts& figure : block.figures) {
      csv.add(name_of(block.table)).add(block.metric).add(figure.item).add(figure.setting);
      csv.add(figure.over.prompts)
          .add(over_dumps(figure.a, block.scale).center())
          .add(over_dumps(figure.b, block.scale).center());
      add_paired(csv, figure.over, figure.p);
      csv.end_row();
    }
  csv.finish();
}

}  // namespace kvreplay
