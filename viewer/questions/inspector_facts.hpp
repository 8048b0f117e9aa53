#pragma once

#include "data/dump.hpp"
#include "sim/head_group.hpp"
#include "sim/tokens/entry_map.hpp"
#include "viewer/model/selection.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/head_figures.hpp"
#include "viewer/questions/job_queue.hpp"
#include "viewer/questions/token_card.hpp"
#include "viewer/questions/what_if.hpp"

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay::viewer {

// Single cells of the token map in float64, by the reference.

/// Reason why a run of this shape has no such cell, as one clause; nothing if it has.
std::optional<std::string> why_no_cell(const DumpShape& shape, const Cell& cell);

struct CellEntries {
  std::array<double, kEntries.size()> values{};  ///< by Entry; NaN where the token is hidden from the row
  bool hidden = false;
  double operator[](EntryTerm entry) const { return values[static_cast<std::size_t>(entry)]; }
};
/// Every entry of a cell that the group has (why_no_cell). O(entries G T (d + d_v)).
CellEntries cell_entries(const HeadGroup<double>& group, const Cell& cell, JobControl& job);

/// H of two channels: (k_c . k_e) over the prompt's keys without the last `recent`, times the sum over query
/// heads of (q_c . q_e) over the window's queries. O((l + G w)).
double channel_interaction(const HeadGroup<double>& group, ChannelPair channels, Index recent, Index window);

// Data of the inspector on single tokens and on tokens chosen together.

/// The place of one of the values among all, from 1 (the largest) on; equal ones rank the lower position
/// first, NaN after all others.
Index rank_of(std::span<const double> values, Index position);
/// The `most` largest of some positions, the largest first, ranked likewise; NaN is left out.
std::vector<Index> largest_of(std::span<const double> values, std::span<const Index> positions,
                              std::size_t most);

/// A metric of one token.
struct TokenFigure {
  TokenMetric metric = TokenMetric::attn;
  double value = 0;
  Index rank = 0;    ///< among the l candidates
  double share = 0;  ///< of the sum over all candidates; NaN where a value is negative or the sum is 0
};
/// Figures by the metrics that the summary has, in their order; empty for a position that is no candidate, or
/// for a summary without tokens.
std::vector<TokenFigure> figures_of_token(const HeadSummary& summary, Index token);

/// A metric's sum over tokens chosen together.
struct SelectionFigure {
  TokenMetric metric = TokenMetric::attn;
  double sum = 0;
  double share = 0;  ///< as TokenFigure::share
};
/// Positions that are no candidates are left out.
std::vector<SelectionFigure> figures_of_tokens(const HeadSummary& summary, std::span<const Index> tokens);

/// Content of the inspector, as far as it is known. Drawing thread only.
class InspectorFacts {
 public:
  /// A cell in one run.
  struct Column {
    std::string run;
    Cell cell;
    ModelLayer layer_number;                     ///< number of the layer in the run's model
    std::optional<std::size_t> pin;              ///< number of the pin; empty: the selected cell
    std::shared_ptr<const CellEntries> entries;  ///< null while computed, or where `why` says why not
    std::string why;
  };
  /// Fate of the selected token under one of the two settings.
  struct Kept {
    char setting = 'A';
    std::string policy;
    std::optional<bool> kept = {};  ///< empty: not known yet
  };

  /// Asks the queue for everything that the selection and the pins call for.
  void gather(PanelContext& context);

  bool several_runs = false;
  std::string run;
  Selection selection;
  Comparison comparison;
  std::vector<Column> columns;  ///< the selected cell first, then pins; each in all runs
  bool pending = false;
  std::vector<std::string> errors;

  TokenCard card;  ///< of the selected token

  std::shared_ptr<const HeadSummary> summary;  ///< of the selected head; null where nothing asks for it
  std::vector<TokenFigure> token;
  std::vector<SelectionFigure> tokens;
  std::vector<Index> largest;  ///< of the tokens chosen together, by the score
  std::vector<Kept> kept;
  std::optional<double> interaction;  ///< H of the channel pair
  Index recent = 0;                   ///< keys that it leaves out

  /// A metric of a candidate; NaN where it is not known.
  double value(TokenMetric metric, Index position) const;
  /// Displayed values, one line for each number.
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
