#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <string_view>

// Properties of a figure (one kind of number in a result folder) that are known before any value is computed.
// The figures themselves are listed in analysis/results/schema.hpp.

namespace kvreplay {

/// In the place of a value that is not there.
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The direction in which values of a figure are better.
enum class Better { neither, smaller, larger };

/// The axis and the colours that suit a figure.
enum class FigureScale {
  linear,
  log,          ///< never negative, over decades
  signed_log,   ///< over decades to both sides of 0
  share,        ///< in [0, 1]
  correlation,  ///< in [-1, 1]
  gain          ///< a share of what is to be saved: at most 1, below 0 where it costs more
};

/// True if values are compared by their difference, because a ratio means little within a fixed range.
constexpr bool has_fixed_range(FigureScale scale) {
  return scale == FigureScale::share || scale == FigureScale::correlation || scale == FigureScale::gain;
}

/// The least and the largest value that a figure can have; infinite where nothing bounds it.
struct FigureRange {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
};
constexpr FigureRange range_of(FigureScale scale) {
  constexpr FigureRange kUnbounded;
  switch (scale) {
    case FigureScale::log:
      return {0, kUnbounded.high};
    case FigureScale::share:
      return {0, 1};
    case FigureScale::correlation:
      return {-1, 1};
    case FigureScale::gain:
      return {kUnbounded.low, 1};
    case FigureScale::linear:
    case FigureScale::signed_log:
      break;
  }
  return kUnbounded;
}

/// The scopes of a number, and the set of scopes at which a figure exists.
enum class Level { head, layer, model };
struct Levels {
  bool head = true, layer = true, model = true;
  constexpr bool has(Level level) const {
    return level == Level::head ? head : level == Level::layer ? layer : model;
  }
};
inline constexpr Levels kHeadsOnly{true, false, false}, kLayersOnly{false, true, false},
    kLayersAndModel{false, true, true}, kModelOnly{false, false, true};

/// The queries that a figure is taken on, and on which of them it exists.
enum class RowSet { window, future, none, reference };
struct RowSets {
  bool window = false, future = false, none = false, reference = false;
  constexpr bool has(RowSet rows) const {
    switch (rows) {
      case RowSet::window:
        return window;
      case RowSet::future:
        return future;
      case RowSet::none:
        return none;
      case RowSet::reference:
        return reference;
    }
    return false;
  }
};
inline constexpr RowSets kEitherRows{true, true, false}, kWindowRows{true, false, false},
    kFutureRows{false, true, false}, kNoRows{false, false, true}, kAllRows{true, true, false, true};
/// As tables have it: "window", "future", "", "reference".
constexpr std::string_view name_of(RowSet rows) {
  constexpr std::array<std::string_view, 4> kNames{"window", "future", "", "reference"};
  return kNames[static_cast<std::size_t>(rows)];
}

inline constexpr std::array kRowSets{RowSet::window, RowSet::future, RowSet::none, RowSet::reference};

/// The way in which the heads' values of a figure make a layer's and the model's: `formed` from sums of other
/// numbers. A stage keeps one number a head of those that are a sum or a mean.
enum class HeadTotal { formed, sum, mean };

/// Properties that figures of one kind share.
struct FigureKind {
  std::string_view unit = {};  ///< empty for plain numbers
  Better better = Better::neither;
  FigureScale scale = FigureScale::linear;
  bool exact = true;  ///< true effect on cache and outputs; false: a formula approximates it
  RowSets rows = kEitherRows;
  Levels levels = {};
  HeadTotal over_heads = HeadTotal::formed;

  constexpr FigureKind on(RowSets its_rows) const {
    FigureKind kind = *this;
    kind.rows = its_rows;
    return kind;
  }
  constexpr FigureKind of(Levels its_levels) const {
    FigureKind kind = *this;
    kind.levels = its_levels;
    return kind;
  }
  constexpr FigureKind drawn(FigureScale its_scale) const {
    FigureKind kind = *this;
    kind.scale = its_scale;
    return kind;
  }
  constexpr FigureKind approximate() const {
    FigureKind kind = *this;
    kind.exact = false;
    return kind;
  }
  constexpr FigureKind summed() const {
    FigureKind kind = *this;
    kind.over_heads = HeadTotal::sum;
    return kind;
  }
};
inline constexpr FigureKind kErrorKind{
    .unit = "relative error", .better = Better::smaller, .scale = FigureScale::log},
    kGainKind{.unit = "share of think's error", .better = Better::larger, .scale = FigureScale::gain},
    kImportanceKind{.unit = "importance",
                    .better = Better::smaller,
                    .scale = FigureScale::log,
                    .exact = false,
                    .rows = kFutureRows},
    kLossKind{.unit = "nats a step", .better = Better::smaller, .scale = FigureScale::log, .exact = false},
    kTokensKind{.unit = "tokens"},
    kBytesKind{.unit = "bytes", .better = Better::smaller, .rows = kNoRows, .over_heads = HeadTotal::sum};

inline constexpr bool kOffered = true;
struct FigureFacts : FigureKind {
  std::string_view name = {};   ///< as tables have it
  std::string_view title = {};  ///< for a heading or a list
  std::string_view what = {};   ///< one sentence in plain words, without a full stop
  bool offered = false;         ///< in the lists that pages choose a figure from
  std::string_view main = {};   ///< its name among the main figures of the model; empty: not a main figure
};

/// The numbers that a head keeps for a figure: one on each of its rows, of a figure that is a sum or a mean.
constexpr std::ptrdiff_t kept_numbers(const FigureFacts& facts) {
  const RowSets rows = facts.rows;
  return facts.over_heads == HeadTotal::formed ? 0 : rows.window + rows.future + rows.none + rows.reference;
}

/// The facts of a figure among those of its table, for FactsTable.
template <class Id>
struct FigureOf : FigureFacts {
  Id id;
};

}  // namespace kvreplay
