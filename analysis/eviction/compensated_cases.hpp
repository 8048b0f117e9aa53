#pragma once

#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/measure/measured_columns.hpp"
#include "analysis/results/schema.hpp"
#include "analysis/run/stage.hpp"
#include "sim/compensation/compensate.hpp"
#include "sim/compensation/error_split.hpp"
#include "sim/least_squares/reference_rows.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay {

/// A kept set, and what makes up for what it lacks.
struct CompensationCase {
  std::size_t eviction = 0;  ///< its number in EvictionPlan::cases
  Compensation method = Compensation::none;
};

/// Compensations measured in addition to the evictions of a plan; without cases there are none.
struct CompensationPlan {
  std::vector<CompensationCase> cases;  ///< cases of one eviction are adjacent
  std::vector<std::size_t> first;       ///< the first case of each kept set that has any
  ReferenceOptions reference;
  RowRange window, future;  ///< the rows of the evictions
  LossRows losses;
  std::vector<LeftOut> left_out;
  std::vector<OptionText> notes;
  std::optional<OptionText> price;  ///< the time that fits will take, if it is long

  /// Cases of the nth kept set that has any: from first[n] on.
  std::span<const CompensationCase> cases_of_kept_set(std::size_t n) const {
    const std::size_t end = n + 1 < first.size() ? first[n + 1] : cases.size();
    return std::span(cases).subspan(first[n], end - first[n]);
  }
  bool fits() const;
  bool merges() const;
};

/// Kept sets beyond this many tokens are not fitted: a fit solves for all of them at once.
inline constexpr Index kMostFitted = 4096;

/// Throws OptionError for reference rows that the dump does not have, and together with what has no
/// compensation: phases that decode, caches of query heads, pruned channels, quantization.
CompensationPlan compensation_plan(const Dump& dump, const EvictionOptions& options,
                                   const EvictionPlan& evictions);

/// "snapkv-paper-prefill-410-fit": the name of a case's files.
std::string file_name(const EvictionPlan& evictions, const CompensationCase& which);

/// The figures of a head, and of a case on it.
struct CompensationColumnNames {
  enum Head {
    window_full_sq,
    future_full_sq,
    window_layer_full_sq,
    future_layer_full_sq,
    reference_full_sq,
    kHeadFigures
  };
  enum Case {
    tokens,  ///< of the kept set
    window_change_sq,
    future_change_sq,
    window_layer_change_sq,
    future_layer_change_sq,
    reference_change_sq,
    /// The terms of an error, each on window, future and reference rows; nan where a method has none.
    window_selection,
    window_mass,
    window_values,
    window_bound,
    future_selection,
    future_mass,
    future_values,
    future_bound,
    reference_selection,
    reference_mass,
    reference_values,
    reference_bound,
    kCaseFigures
  };
  /// The first term on these rows.
  static constexpr Case terms_on(RowSet rows) {
    return rows == RowSet::window   ? window_selection
           : rows == RowSet::future ? future_selection
                                    : reference_selection;
  }
};
using CompensationColumns = CaseColumns<CompensationColumnNames, kCompensationFigures>;

/// Result of one method on one kept set of a head.
struct CompensatedHead {
  Compensated held;
  /// Where its error comes from; empty where there are no such rows, or where keys are others than the
  /// tokens'.
  std::optional<ErrorSplit> window, future, reference;
};

/// One head group under a plan: rows and weights that all kept sets and methods look at, computed once.
template <class T>
class HeadCompensation {
 public:
  /// The groups must outlive this object. Fits use all `readers` of the group's cache; null: the group is the
  /// only reader.
  HeadCompensation(const HeadGroup<T>& group, const CompensationPlan& plan, Workers& workers,
                   const HeadGroup<T>* readers = nullptr);

  /// Sum over the reference rows of ||o||^2; nan where nothing is fitted.
  double reference_full_sq() const;
  /// Cases of one kept set, which share its fits. From any thread.
  std::vector<CompensatedHead> of(const KeptSet& kept, std::span<const CompensationCase> cases,
                                  Semantics semantics, Workers& workers) const;
  /// Memory that it takes, without the group.
  std::size_t bytes() const;

 private:
  const HeadGroup<T>& group_;
  const HeadGroup<T>& readers_;
  std::optional<ReferenceRows<T>> reference_;
  std::optional<RowLogits<T>> window_, future_;
  std::optional<HeadGroup<double>> wide_;  // for what merges
  WindowAttention attention_;
};

/// Compensation: kept tokens make up for evicted ones. This part of `evict` works on the kept sets of its
/// evictions. Files:
///   compensation.csv, layer_XX/compensated/, maps/
class CompensatedCases {
 public:
  /// The figures of a head begin at `first_column` of those of the whole stage.
  CompensatedCases(const Dump& dump, const EvictionOptions& options, const EvictionPlan& evictions,
                   Index first_column, const Compute& compute);

  const CompensationPlan& plan() const { return plan_; }
  const CompensationColumns& columns() const { return columns_; }
  bool any() const { return !plan_.cases.empty(); }
  Index figures_per_head() const { return columns_.count(); }
  std::size_t figures_per_layer() const { return any() ? columns_.losses().per_layer() : 0; }

  void begin_layer();
  /// Returns the contents of the caches, by case. `kept` is the kept sets of this head's evictions, by case;
  /// `figures` are those of the whole stage.
  template <class T>
  std::vector<Compensated> head(const HeadGroup<T>& group, std::span<const KeptSet* const> kept,
                                std::span<double> figures);
  void end_layer(Index layer, const LayerFigures& figures);
  void write_layer(const ResultFolder& folder, Index layer) const;

  /// compensation.csv of the whole stage's figures, with maps/.
  MetricTable table(HeadFigures figures) const;
  /// A short plain text: the output error of every policy under every method.
  std::string report(const HeadFigures& figures) const;

 private:
  /// Contents of a compensated cache, as they are written.
  struct Held {
    std::vector<std::int32_t> tokens;
    std::vector<float> bias, values, keys;
  };
  void keep(std::size_t which, Index kv_head, const Compensated& held);
  void put_terms(std::size_t which, RowSet rows, const std::optional<ErrorSplit>& split,
                 std::span<double> figures) const;
  const Dump& dump_;
  const EvictionPlan& evictions_;
  Compute compute_;
  CompensationPlan plan_;
  CompensationColumns columns_;
  MeasuredLayer measured_;
  std::vector<std::vector<Held>> held_;  // [cases][n_kv]
};

}  // namespace kvreplay
