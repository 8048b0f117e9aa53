#pragma once

#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/measure/measured_columns.hpp"
#include "sim/kept_set.hpp"

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// The figures of all heads, read as those of evictions.csv.
class EvictionTable : public MeasuredTable<EvictionPlan, EvictionColumns> {
 public:
  using MeasuredTable::MeasuredTable;

  /// Empty where the figure is not there for such a scope, rows and case; nan where it has no value.
  std::optional<double> value(std::size_t which, Scope scope, EvictionFigure figure, RowSet rows) const;
  /// The median over the heads.
  double median_head(std::size_t which, EvictionFigure figure, RowSet rows) const {
    return scoped_.median_head([&](Scope scope) { return value(which, scope, figure, rows); });
  }
  /// The layers of the run, each a scope, by their numbers in the dump.
  std::vector<std::pair<Scope, Index>> layers() const {
    std::vector<std::pair<Scope, Index>> all;
    for (const Index at : scoped_.layers_in({})) all.push_back({{at, {}}, *scoped_.layer_of({at, {}})});
    return all;
  }
  /// Calls `visit(scope, case, figure, rows, value)` for every value that there is, and `begin(scope, case)`
  /// before those of each case, in the order of evictions.csv: every head, layer by layer with the layer
  /// behind its heads, then the model.
  template <class Begin, class Visit>
  void each_value(const Begin& begin, const Visit& visit) const {
    for (const Scope scope : scoped_.scopes())
      for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
        begin(scope, c);
        for (const EvictionFigure figure : kEvictionFigures.all())
          for (const RowSet rows : kRowSets)
            if (const auto found = value(c, scope, figure, rows)) visit(scope, c, figure, rows, *found);
      }
  }
  /// Tokens kept by every head in scope; empty where they differ.
  std::optional<Index> kept(std::size_t which, Scope scope) const;
  /// Tokens that both cases of a pair keep, over all heads in scope.
  double common(std::size_t pair, Scope scope) const;
  /// Tokens that both cases of a pair keep over all heads, as a share of the larger of the two kept sets; nan
  /// where both are empty.
  double shared(std::size_t pair) const;
  /// Bytes of the whole prompt over all heads, as the dump stores it or, with formats, in 16 bits.
  double prompt_bytes() const { return sum({}, columns_.of(EvictionColumns::prompt_bytes)); }
  /// A case's caches as a share of prompt_bytes().
  double share_of_bytes(std::size_t which) const;

  /// evictions.csv, decode.csv, decode/, diff.csv, maps/; the number of rows of evictions.csv.
  std::size_t write(const ResultFolder& folder) const;
  /// output_error of the whole model, by case.
  Json totals() const;
  /// The number of tokens that a threshold keeps, as text: "112 of 900 (mean of 90 heads, 3 of which keep
  /// none)".
  std::string kept_by_threshold(std::size_t which) const;
  /// Tokens that tie at a case's cut, by kTiesIn, the mean over heads; nothing where none are counted.
  std::optional<std::array<double, kTieNumbers>> ties(std::size_t which) const;
  /// Ties of all cases, by case and number format.
  Json ties() const;

 private:
  std::optional<double> residual_error(std::size_t which, Scope scope, RowSet rows) const;
  std::optional<double> excess(std::size_t which, Scope scope, RowSet rows, EvictionBase reference) const;
  std::size_t write_evictions(const ResultFolder& folder) const;
  void write_decoding(const ResultFolder& folder) const;
  void write_differences(const ResultFolder& folder) const;
  void write_maps(const ResultFolder& folder) const;
};

/// layer_XX/diff/<policy>-<first>-<second>-<phase>-<budget>.npy, int32 [n_kv, l]: 1 where only the first
/// semantics keeps a token, -1 where only the second does. kept is [cases][n_kv].
void write_kept_differences(const ResultFolder& folder, Index layer, const EvictionPlan& plan,
                            const std::vector<std::vector<KeptSet>>& kept);

/// A short plain text: the output error and the recall of every policy at every budget over the whole model,
/// and how far semantics differ.
std::string eviction_report(const EvictionPlan& plan, const EvictionTable& table);

}  // namespace kvreplay
