#pragma once

#include "analysis/results/over_dumps.hpp"
#include "analysis/results/result_reader.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// A finished folder over several dumps. Throws InputError, one line with the path, where a file is missing
/// or is not what it should be.
class OverDumpsReader {
 public:
  /// Whether a folder's summary.json says that it is over dumps.
  static bool is_over_dumps(const std::filesystem::path& folder);

  /// Reads summary.json and those of the dumps' folders; throws where one is unfinished, is missing, or is of
  /// another dump than the summary names.
  explicit OverDumpsReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const nlohmann::ordered_json& summary() const { return summary_; }
  /// The names of the dumps' folders, in the order the dumps were given.
  const std::vector<std::string>& names() const { return names_; }
  /// The results of each, in that order; never empty.
  const std::vector<ResultReader>& dumps() const { return dumps_; }
  /// Those that took the profile of the other dumps, in that order too; nothing of a dump without.
  const std::vector<std::optional<ResultReader>>& left_one_out() const { return left_one_out_; }

  /// A figure of the whole model.
  struct Figure {
    std::vector<std::string> keys;  ///< of figure_keys(), without layer and kv_head
    OverDumps over;
    std::vector<double> dumps;  ///< one each; NaN where a dump has no value
  };
  /// The figures of the model in `<table>_over_dumps.csv`, with what they are the means of from the dumps'
  /// own tables, and behind them the median heads of errors and what was measured with the model in the loop
  /// in two dumps and more; none where the folder has no such file. Throws where the two do not go together.
  std::vector<Figure> model_figures(Table table) const;

 private:
  /// The results of a dump in a subfolder; throws where they are of another than the summary names.
  ResultReader results_in(const std::filesystem::path& below, const std::string& fingerprint) const;
  std::vector<Figure> means(Table table, const std::filesystem::path& path) const;
  /// Of figures that the dumps' tables do not have as such.
  using EachFigure = void (*)(const ResultReader&, Table, const VisitFigure&);
  std::vector<Figure> derived(Table table, EachFigure each) const;

  std::filesystem::path folder_;
  nlohmann::ordered_json summary_;
  std::vector<std::string> names_;
  std::vector<ResultReader> dumps_;
  std::vector<std::optional<ResultReader>> left_one_out_;
};

}  // namespace kvreplay
