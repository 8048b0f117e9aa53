#pragma once

#include "viewer/panels/panel.hpp"
#include "viewer/work/cell_entries.hpp"
#include "viewer/work/token_statistics.hpp"
#include "viewer/work/what_if.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// What the inspector shows, as far as it is known. Drawing thread only.
class InspectorFacts {
 public:
  /// A cell in one run.
  struct Column {
    std::string run;
    Cell cell;
    std::optional<std::size_t> pin;              ///< number of the pin; empty: the selected cell
    std::shared_ptr<const CellEntries> entries;  ///< null while computed, or where `why` says why not
    std::string why;
  };
  /// What one of the two settings does with the selected token.
  struct Kept {
    char setting = 'A';
    std::string policy;
    bool kept = false;
  };

  /// Asks the desk for everything that the selection and the pins call for.
  void gather(PanelContext& context);

  bool several_runs = false;
  std::string run;
  Selection selection;
  Comparison comparison;
  std::vector<Column> columns;  ///< the selected cell first, then pins; each in all runs
  bool pending = false;
  std::vector<std::string> errors;

  std::shared_ptr<const HeadSummary> summary;  ///< of the selected head; null where nothing asks for it
  std::vector<TokenFigure> token;
  std::vector<SelectionFigure> tokens;
  std::vector<Index> largest;  ///< of the tokens chosen together, by the score
  std::vector<Kept> kept;
  std::optional<double> interaction;  ///< H of the channel pair
  Index recent = 0;                   ///< keys that it leaves out

  /// A metric of a candidate; NaN where it is not known.
  double value(TokenMetric metric, Index position) const;
  /// All that is shown, a number a line.
  std::string csv(const Run& of) const;

 private:
  void add_cells(PanelContext& context, const Cell& cell, std::optional<std::size_t> pin);
  void ask_cell(PanelContext& context, const std::shared_ptr<const Run>& from, Column& column);
  void ask_interaction(PanelContext& context);
  void ask_tokens(PanelContext& context);
  void ask_kept(PanelContext& context);

  std::map<Key, std::shared_ptr<const CellEntries>> cells_;  // answers, by their questions' keys
  Key counted_;                                              // what token, tokens and largest were made of
  std::shared_ptr<const HeadSummary> counted_of_;
  std::vector<Index> counted_tokens_;
};

}  // namespace kvreplay::viewer
