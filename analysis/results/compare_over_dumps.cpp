#include "analysis/results/compare_over_dumps.hpp"

#include "analysis/results/csv.hpp"
#include "analysis/results/over_dumps.hpp"
#include "data/console.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvreplay {
namespace {

constexpr double kNoPrompt = std::numeric_limits<double>::quiet_NaN();

/// What the dump of a prompt holds, where the run noted it, else what its manifest and names say.
std::string fingerprint_of(const ResultReader& results) {
  const auto noted = results.summary().find("layer_fingerprints");
  return noted != results.summary().end() && !noted->empty()
             ? noted->dump()
             : results.summary()["dump"].value("fingerprint", std::string());
}

struct PromptPair {
  std::size_t a, b;
};

std::vector<PromptPair> prompts_in_both(const OverDumpsReader& a, const OverDumpsReader& b) {
  std::vector<std::string> others;
  for (const ResultReader& dump : b.dumps()) others.push_back(fingerprint_of(dump));
  std::vector<PromptPair> pairs;
  for (std::size_t i = 0; i < a.dumps().size(); ++i) {
    const auto found = std::find(others.begin(), others.end(), fingerprint_of(a.dumps()[i]));
    if (found != others.end()) pairs.push_back({i, static_cast<std::size_t>(found - others.begin())});
  }
  return pairs;
}

class Blocks {
 public:
  explicit Blocks(std::size_t prompts) : prompts_(prompts) {}

  void add(std::size_t prompt, const TableComparison& table) {
    for (const ComparedPivot& pivot : table.pivots) {
      if (!paired_by(pivot.better, pivot.scale)) continue;
      BlockOverPrompts& block = block_of(table.table, pivot);
      for (const ComparedFigure& figure : pivot.figures) {
        auto at =
            std::find_if(block.figures.begin(), block.figures.end(), [&](const FigureOverPrompts& known) {
              return known.item == figure.item && known.setting == figure.setting;
            });
        if (at == block.figures.end())
          at = block.figures.insert(at, {figure.item,
                                         figure.setting,
                                         std::vector<double>(prompts_, kNoPrompt),
                                         std::vector<double>(prompts_, kNoPrompt),
                                         {},
                                         kNoPrompt});
        at->a[prompt] = figure.a;
        at->b[prompt] = figure.b;
      }
    }
  }

  std::vector<BlockOverPrompts> take() {
    for (BlockOverPrompts& block : blocks_) {
      std::vector<double> p;
      for (FigureOverPrompts& figure : block.figures) {
        figure.over = paired(figure.a, figure.b, block.better, block.scale);
        // What is equal in every prompt is no question that was open.
        p.push_back(figure.over.mean == 0 && figure.over.sd == 0 ? kNoPrompt : figure.over.p);
      }
      const std::vector<double> adjusted = holm(p);
      for (std::size_t f = 0; f < adjusted.size(); ++f) block.figures[f].p = adjusted[f];
    }
    return std::move(blocks_);
  }

 private:
  BlockOverPrompts& block_of(Table table, const ComparedPivot& pivot) {
    const auto known = std::find_if(blocks_.begin(), blocks_.end(), [&](const BlockOverPrompts& block) {
      return block.table == table && block.title == pivot.title;
    });
    if (known != blocks_.end()) return *known;
    return blocks_.emplace_back(
        BlockOverPrompts{table, pivot.metric, pivot.title, pivot.better, pivot.scale, {}});
  }

  std::size_t prompts_;
  std::vector<BlockOverPrompts> blocks_;
};

double mean_of(const std::vector<double>& values, FigureScale scale) {
  RunningMean over(scale);
  for (const double value : values) over.add(value);
  return over.result().center();
}

std::string digits(double value) { return std::isnan(value) ? "-" : short_number(value); }

}  // namespace

ComparisonOverPrompts compare(const OverDumpsReader& a, const KeyFilter& left, const OverDumpsReader& b,
                              const KeyFilter& right) {
  const std::vector<PromptPair> pairs = prompts_in_both(a, b);
  if (pairs.empty())
    throw InputError(fmt::format("{} and {}", a.folder().string(), b.folder().string()),
                     "a dump that both are over", "none");
  const auto model = [](const OverDumpsReader& side) {
    return side.dumps().front().summary()["dump"].value("model", std::string("a model"));
  };
  ComparisonOverPrompts comparison;
  comparison.a = {a.folder().string(), model(a), left};
  comparison.b = {b.folder().string(), model(b), right};
  Blocks blocks(pairs.size());
  std::vector<std::string> other_names;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const ResultReader &mine = a.dumps()[pairs[i].a], &other = b.dumps()[pairs[i].b];
    comparison.prompts.push_back(a.names()[pairs[i].a]);
    other_names.push_back(b.names()[pairs[i].b]);
    if (i == 0) comparison.run = run_differences(mine, other);
    for (const TableComparison& table : compare(mine, left, other, right)) blocks.add(i, table);
  }
  const auto without = [](const std::vector<std::string>& names, const std::vector<std::string>& these) {
    std::vector<std::string> rest;
    for (const std::string& name : names)
      if (std::find(these.begin(), these.end(), name) == these.end()) rest.push_back(name);
    return rest;
  };
  comparison.only_a = without(a.names(), comparison.prompts);
  comparison.only_b = without(b.names(), other_names);
  comparison.blocks = blocks.take();
  return comparison;
}

void describe(const ComparisonOverPrompts& comparison, std::size_t most, ComparisonPage& page) {
  page.line("A: " + side_text(comparison.a));
  page.line("B: " + side_text(comparison.b));
  page.line(fmt::format("{} in both: {}", counted(std::ssize(comparison.prompts), "prompt"),
                        displayable(fmt::format("{}", fmt::join(comparison.prompts, ", ")))));
  for (const auto& [names, side] : {std::pair(comparison.only_a, "A"), std::pair(comparison.only_b, "B")})
    if (!names.empty())
      page.line(fmt::format("only {} has: {}", side, displayable(fmt::format("{}", fmt::join(names, ", ")))));
  describe_run(comparison.run, page);
  bool any = false;
  for (const BlockOverPrompts& block : comparison.blocks) {
    std::vector<const FigureOverPrompts*> figures;
    for (const FigureOverPrompts& figure : block.figures)
      if (figure.over.prompts > 0 && figure.over.wins + figure.over.losses > 0) figures.push_back(&figure);
    if (figures.empty()) continue;
    any = true;
    std::stable_sort(figures.begin(), figures.end(), [](const auto* x, const auto* y) {
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
           digits(mean_of(figure->a, block.scale)), digits(mean_of(figure->b, block.scale)),
           digits(over.center()), std::isnan(over.low) ? "-" : interval_text(over.lower(), over.upper()),
           fmt::format("{} of {}", over.wins, over.prompts),
           std::isnan(figure->p) ? "-" : fmt::format("{:.2g}", figure->p)});
    }
    page.table(lines);
  }
  if (!any) page.line("no main figure of the model differs");
}

nlohmann::ordered_json json_of(const ComparisonOverPrompts& comparison) {
  const auto finite = [](double value) {
    return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json json;
  for (const auto& [name, side] : {std::pair("a", comparison.a), std::pair("b", comparison.b)})
    json[name] = {{"folder", side.folder}, {"model", side.model}, {"filter", side.filter}};
  json["prompts"] = comparison.prompts;
  json["only_a"] = comparison.only_a;
  json["only_b"] = comparison.only_b;
  json["run_differences"] = json_of(comparison.run);
  json["figures"] = nlohmann::ordered_json::array();
  for (const BlockOverPrompts& block : comparison.blocks)
    for (const FigureOverPrompts& figure : block.figures) {
      const bool ratio = block.by() == PairedBy::ratio;
      json["figures"].push_back({{"table", name_of(block.table)},
                                 {"metric", block.metric},
                                 {"item", figure.item},
                                 {"setting", figure.setting},
                                 {"prompts", figure.over.prompts},
                                 {"a", finite(mean_of(figure.a, block.scale))},
                                 {"b", finite(mean_of(figure.b, block.scale))},
                                 {ratio ? "log_ratio" : "difference", finite(figure.over.mean)},
                                 {"low", finite(figure.over.low)},
                                 {"high", finite(figure.over.high)},
                                 {"wins", figure.over.wins},
                                 {"p", finite(figure.p)}});
    }
  return json;
}

void write_csv(const ComparisonOverPrompts& comparison, const std::filesystem::path& folder) {
  CsvFile csv(folder / "compare_prompts.csv",
              fmt::format("table,metric,item,setting,prompts,a,b,{}", kPairedColumns));
  for (const BlockOverPrompts& block : comparison.blocks)
    for (const FigureOverPrompts& figure : block.figures) {
      csv.add(name_of(block.table)).add(block.metric).add(figure.item).add(figure.setting);
      csv.add(figure.over.prompts).add(mean_of(figure.a, block.scale)).add(mean_of(figure.b, block.scale));
      add_paired(csv, figure.over, figure.p);
      csv.end_row();
    }
  csv.finish();
}

}  // namespace kvreplay
