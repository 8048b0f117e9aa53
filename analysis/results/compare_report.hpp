#pragma once

#include "analysis/results/compare.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace kvreplay {

/// Two folders and all that is to be said of them.
struct FolderComparison {
  struct Side {
    std::string folder, model;
    KeyFilter filter;
  } a, b;
  bool same_heads = true;
  std::vector<RunDifference> run;
  std::vector<TableComparison> tables;
  std::vector<std::string> only_a, only_b;  ///< tables of one side
};

FolderComparison comparison_of(const ResultReader& a, const KeyFilter& left, const ResultReader& b,
                               const KeyFilter& right);

/// How far apart two values are, as a share of the larger one.
double relative(const ComparedFigure& figure);
/// What figures are sorted by: those of a fixed range by their difference, all else by its share.
double weight(const ComparedFigure& figure, FigureScale scale);

/// Who is better in more of the main figures, and which of these differs most.
std::string headline_of(const FolderComparison& comparison);
/// The folder, the model and the filter.
std::string side_text(const FolderComparison::Side& side);

/// Who is told what there is to say of a comparison, in order.
class ComparisonPage {
 public:
  using Lines = std::vector<std::vector<std::string>>;

  virtual ~ComparisonPage() = default;
  virtual void heading(const std::string& text) = 0;  ///< of a part: the runs, then every table by its name
  virtual void title(const std::string& text) = 0;    ///< of a table of figures within a part
  virtual void line(const std::string& text) = 0;
  virtual void table(const Lines& lines) = 0;  ///< the first line is the header
};
/// Tells all of it, with the `most` largest differences of every block (of correlations the difference itself
/// counts, of all else its share of the larger value).
void describe(const FolderComparison& comparison, std::size_t most, ComparisonPage& page);

/// The part of it that says what was run differently.
void describe_run(const std::vector<RunDifference>& run, ComparisonPage& page);

/// What is told to a page as it is printed, and in Markdown.
std::string plain_text(const std::function<void(ComparisonPage&)>& describe);
std::string markdown_text(const std::function<void(ComparisonPage&)>& describe);
template <class Comparison>
std::string plain_text(const Comparison& comparison, std::size_t most) {
  return plain_text([&](ComparisonPage& page) { describe(comparison, most, page); });
}
template <class Comparison>
std::string markdown_text(const Comparison& comparison, std::size_t most) {
  return markdown_text([&](ComparisonPage& page) { describe(comparison, most, page); });
}
/// Everything that describe() may say, without a limit; NaN as null.
nlohmann::ordered_json json_of(const FolderComparison& comparison);
nlohmann::ordered_json json_of(const std::vector<RunDifference>& run);

/// compare_<table>.csv: the keys, a, b, difference, ratio.
void write_csv(const TableComparison& table, const std::filesystem::path& folder);

}  // namespace kvreplay
