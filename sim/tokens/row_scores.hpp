#pragma once

#include "sim/tokens/entry_formulas.hpp"

#include <cmath>
#include <cstddef>
#include <utility>

// Table of all scores that are summed over rows: RowFormula, shared by hosts, devices, decoding and the map
// of single entries. Only the vector code of the tiles has formulas of its own (tiles_cpu.cpp says why).

namespace kvreplay {

/// Score that a row gives a token, to be summed over rows. Each score has a RowFormula.
enum class RowScore : int {
  attention,
  attention_sq,
  key,
  joint,
  exact_key,
  exact_joint,
  exact_remove,
  value,  ///< over a prompt's rows: the sum of attention_sq, times ||v||^2
};
inline constexpr int kRowScores = static_cast<int>(RowScore::value) + 1;
/// Number of sums that tiles and kernels compute: the scores before `value`.
inline constexpr int kRowSums = static_cast<int>(RowScore::value);
KVREPLAY_HOST_DEVICE constexpr int sum_at(RowScore score) { return static_cast<int>(score); }

/// Columns that pass two sums.
enum class ColumnSet {
  window,    ///< every RowScore
  future,    ///< exact_remove and max_attn, the largest weight
  weights,   ///< attention and attention_sq, which need no values: d_v may be 0
  max_attn,  ///< max_attn only, which needs no values either
};
KVREPLAY_HOST_DEVICE constexpr bool has_sum(ColumnSet columns, RowScore score) {
  const bool of_weights = score == RowScore::attention || score == RowScore::attention_sq;
  return columns == ColumnSet::window || (columns == ColumnSet::weights && of_weights) ||
         (columns == ColumnSet::future && score == RowScore::exact_remove);
}
KVREPLAY_HOST_DEVICE constexpr bool has_max_attn(ColumnSet columns) {
  return columns == ColumnSet::future || columns == ColumnSet::max_attn;
}
KVREPLAY_HOST_DEVICE constexpr bool needs_outputs(ColumnSet columns) {
  return columns == ColumnSet::window || columns == ColumnSet::future;
}
/// Index of a score among the sums of a set. sums_of(): their number. columns_of(): their number together
/// with max_attn, which follows them.
KVREPLAY_HOST_DEVICE constexpr int sum_at(ColumnSet columns, RowScore score) {
  int before = 0;
  for (int s = 0; s < sum_at(score); ++s) before += has_sum(columns, static_cast<RowScore>(s)) ? 1 : 0;
  return before;
}
KVREPLAY_HOST_DEVICE constexpr int sums_of(ColumnSet columns) { return sum_at(columns, RowScore::value); }
KVREPLAY_HOST_DEVICE constexpr int columns_of(ColumnSet columns) {
  return sums_of(columns) + (has_max_attn(columns) ? 1 : 0);
}

/// A token that is not its row's largest column.
template <class T>
struct RowEntry {
  T a;          ///< its weight
  T z, taylor;  ///< its EntryLogit
  T value_sq;   ///< ||v||^2
  EntryDistances<T> to;
};

/// Vector of the row's largest column, from its value v and o', the output of all other columns.
enum class TopVector {
  none,
  value,        ///< v
  difference,   ///< v - o'
  joint,        ///< v + z (1 - a) (v - o')
  exact_joint,  ///< a v + delta o'
};
/// The score of a row's largest column: plain + scale ||vector||^2.
struct TopScore {
  double plain, scale;
  TopVector vector;
};

/// Second factor of the dot product with v - o: none, v (with_token) or o (with_base).
enum class DifferenceProduct { none, with_token, with_base };

/// Defaults of a formula: inputs that it needs besides weights. A formula overrides them.
template <RowScore kIs>
struct RowFormulaOf {
  static constexpr RowScore kScore = kIs;
  static constexpr bool kDifference = false;                              ///< needs EntryDistances::u
  static constexpr DifferenceProduct kProduct = DifferenceProduct::none;  ///< and its product with v or o
  static constexpr bool kTaylor = false;                                  ///< needs RowEntry::taylor
  static constexpr bool kOfZeroKey = false;  ///< a token of weight 0 has a score too, unless it is hidden
  /// The term is a square() of a vector() that may cancel, times weight()^2.
  static constexpr bool kCancels = false;
  static constexpr bool kSumApart = false;  ///< over a prompt's rows, part() is summed
};

/// Formula of one score: term(row, entry), and top(column, taylor) for the row's largest column. `taylor` is
/// this column's z as the Taylor scores use it.
template <RowScore kIs>
struct RowFormula;

template <>
struct RowFormula<RowScore::attention> : RowFormulaOf<RowScore::attention> {
  template <Range = Range::any, class T>
  KVREPLAY_HOST_DEVICE static T term(const EntryRow<T>&, const RowEntry<T>& e) {
    return e.a;
  }
  KVREPLAY_HOST_DEVICE static TopScore top(const LargestColumn& c, double) {
    return {c.a, 0, TopVector::none};
  }
};

template <>
struct RowFormula<RowScore::attention_sq> : RowFormulaOf<RowScore::attention_sq> {
  template <Range = Range::any, class T>
  KVREPLAY_HOST_DEVICE static T term(const EntryRow<T>&, const RowEntry<T>& e) {
    return e.a * e.a;
  }
  KVREPLAY_HOST_DEVICE static TopScore top(const LargestColumn& c, double) {
    return {c.a * c.a, 0, TopVector::none};
  }
};

/// a^2 ||v||^2
template <>
struct RowFormula<RowScore::value> : RowFormulaOf<RowScore::value> {
  template <Range kRange = Range::any, class T>
  KVREPLAY_HOST_DEVICE static T term(const EntryRow<T>&, const RowEntry<T>& e) {
    return weighted_square<kRange>(e.a, e.value_sq);
  }
  KVREPLAY_HOST_DEVICE static TopScore top(const LargestColumn& c, double) {
    return {0, c.a * c.a, TopVector::value};
  }
};

/// (a z)^2 u
template <>
struct RowFormula<RowScore::key> : RowFormulaOf<RowScore::key> {
  static constexpr bool kDifference = true, kTaylor = true;
  template <Range kRange = Range::any, class T>
  KVREPLAY_HOST_DEVICE static T term(const EntryRow<T>&, const RowEntry<T>& e) {
    return weighted_square<kRange>(kRange == Range::finite || e.a > 0 ? e.a * e.taylor : T(0), e.to.u);
  }
  KVREPLAY_HOST_DEVICE static TopScore top(const LargestColumn& c, double taylor) {
    const double az = c.a * taylor * c.one_minus_a;
    return {0, az * az, TopVector::difference};
  }
};

/// a^2 ||v + z (v - o)||^2
template <>
struct RowFormula<RowScore::joint> : RowFormulaOf<RowScore::joint> {
  static constexpr bool kDifference = true, kTaylor = true, kCancels = true, kSumApart = true;
  static constexpr DifferenceProduct kProduct = DifferenceProduct::with_token;
  template <class T>
  KVREPLAY_HOST_DEVICE static T weight(const EntryRow<T>&, const RowEntry<T>& e) {
    return e.a;
  }
  template <class T>
  KVREPLAY_HOST_DEVICE static EntrySquare<T> square(const EntryRow<T>&, const RowEntry<T>& e) {
    const T squares = e.value_sq + e.taylor * e.taylor * e.to.u;
    return {squares + 2 * e.taylor * e.to.v_dot_diff, squares};
  }
  template <class T>
  KVREPLAY_HOST_DEVICE static EntryVector<T> vector(const EntryRow<T>&, const RowEntry<T>& e) {
    return {1 + e.taylor, -e.taylor};
  }
  template <Range kRange = Range::any, class T>
  KVREPLAY_HOST_DEVICE static T term(const EntryRow<T>& row, const RowEntry<T>& e) {
    return weighted_square<kRange>(e.a, square(row, e).sum);
  }
  /// a^2 z v . (v - o): the other parts of the square are the sums of attention_sq and key.
  template <class T>
  KVREPLAY_HOST_DEVICE static T part(const RowEntry<T>& e) {
    return e.a * (e.a * e.taylor) * e.to.v_dot_diff;
  }
  /// Sum of the score, from the sums of part(), attention_sq and key.
  template <class T>
  KVREPLAY_HOST_DEVICE static double whole(T parts, T attention_sq, T key, T value_sq) {
    return static_cast<double>(attention_sq) * static_cast<double>(value_sq) +
           2 * static_cast<double>(parts) + static_cast<double>(key);
  }
  KVREPLAY_HOST_DEVICE static TopScore top(const LargestColumn& c, double) {
    return {0, c.a * c.a, TopVector::joint};
  }
};

/// c^2 u, c = t / (1 + t)
template <>
struct RowFormula<RowScore::exact_key> : RowFormulaOf<RowScore::exact_key> {
  static constexpr bool kDifference = true, kOfZeroKey = true;
  template <Range kRange = Range::any, class T>
  KVREPLAY_HOST_DEVICE static T term(const EntryRow<T>& row, const RowEntry<T>& e) {
    return weighted_square<kRange>(scaled_change(row, e.a, e.z) * scaled_norm(row, e.a), e.to.u);
  }
  KVREPLAY_HOST_DEVICE static TopScore top(const LargestColumn& c, double) {
    return {0, c.delta * c.delta, TopVector::difference};
  }
};

/// ||a (1 - c) v + c o||^2 = ||g a (v - o) + e o||^2 / (g (1 + t))^2
template <>
struct RowFormula<RowScore::exact_joint> : RowFormulaOf<RowScore::exact_joint> {
  static constexpr bool kDifference = true, kOfZeroKey = true, kCancels = true;
  static constexpr DifferenceProduct kProduct = DifferenceProduct::with_base;
  template <class T>
  KVREPLAY_HOST_DEVICE static T weight(const EntryRow<T>& row, const RowEntry<T>& e) {
    return scaled_norm(row, e.a);
  }
  template <class T>
  KVREPLAY_HOST_DEVICE static EntrySquare<T> square(const EntryRow<T>& row, const RowEntry<T>& e) {
    const T ga = row.rescale * e.a, cross = 2 * row.zero_logit * e.to.o_dot_diff;
    return {multiply_add(ga, multiply_add(ga, e.to.u, cross), row.zero_logit_out_sq),
            multiply_add(ga * ga, e.to.u, row.zero_logit_out_sq)};
  }
  template <class T>
  KVREPLAY_HOST_DEVICE static EntryVector<T> vector(const EntryRow<T>& row, const RowEntry<T>& e) {
    return {row.rescale * e.a, scaled_change(row, e.a, e.z)};
  }
  template <Range kRange = Range::any, class T>
  KVREPLAY_HOST_DEVICE static T term(const EntryRow<T>& row, const RowEntry<T>& e) {
    const T norm = scaled_norm(row, e.a);
    return square(row, e).sum * (norm * norm);
  }
  KVREPLAY_HOST_DEVICE static TopScore top(const LargestColumn&, double) {
    return {0, 1, TopVector::exact_joint};
  }
};

/// (a / (1 - a))^2 u
template <>
struct RowFormula<RowScore::exact_remove> : RowFormulaOf<RowScore::exact_remove> {
  static constexpr bool kDifference = true;
  template <Range kRange = Range::any, class T>
  KVREPLAY_HOST_DEVICE static T term(const EntryRow<T>&, const RowEntry<T>& e) {
    return weighted_square<kRange>(e.a * reciprocal(1 - e.a), e.to.u);
  }
  KVREPLAY_HOST_DEVICE static TopScore top(const LargestColumn& c, double) {
    return {0, c.a * c.a, TopVector::difference};
  }
};

// Uses of the table.

namespace detail {
template <class Call, int... kAt>
KVREPLAY_HOST_DEVICE inline void each_formula(const Call& call, std::integer_sequence<int, kAt...>) {
  (call(RowFormula<static_cast<RowScore>(kAt)>()), ...);
}
}  // namespace detail
/// call(RowFormula) for every sum over a prompt's rows, in their order.
template <class Call>
KVREPLAY_HOST_DEVICE inline void each_row_sum(const Call& call) {
  detail::each_formula(call, std::make_integer_sequence<int, kRowSums>());
}
/// call(RowFormula) for one score.
template <class Call>
KVREPLAY_HOST_DEVICE inline void with_formula(RowScore score, const Call& call) {
  detail::each_formula(
      [&](auto formula) {
        if (decltype(formula)::kScore == score) call(formula);
      },
      std::make_integer_sequence<int, kRowScores>());
}

/// True if a score needs ||v - o||^2. product_of(): the dot product that it needs as well.
KVREPLAY_HOST_DEVICE inline bool needs_difference(RowScore score) {
  bool needs = false;
  with_formula(score, [&](auto formula) { needs = decltype(formula)::kDifference; });
  return needs;
}
KVREPLAY_HOST_DEVICE inline DifferenceProduct product_of(RowScore score) {
  DifferenceProduct product = DifferenceProduct::none;
  with_formula(score, [&](auto formula) { product = decltype(formula)::kProduct; });
  return product;
}

/// The term of a token that may be hidden: z = -inf and a = 0.
template <class Formula, class T>
KVREPLAY_HOST_DEVICE inline T visible_term(const EntryRow<T>& row, const RowEntry<T>& e) {
  return Formula::kOfZeroKey && !(e.z > -static_cast<T>(INFINITY)) ? T(0) : Formula::term(row, e);
}
KVREPLAY_HOST_DEVICE inline double visible_term(RowScore score, const EntryRow<double>& row,
                                                const RowEntry<double>& e) {
  double term = 0;
  with_formula(score, [&](auto formula) { term = visible_term<decltype(formula)>(row, e); });
  return term;
}

/// Squared norms of the vectors of a row's largest column.
struct TopSquares {
  double value, difference, joint, exact_joint;
};

/// Score of the largest column of one row, formed from what remains of the row without it.
struct LargestScores {
  std::ptrdiff_t at;  ///< its position
  double sums[kRowSums];
  KVREPLAY_HOST_DEVICE double operator[](RowScore score) const { return sums[sum_at(score)]; }
};

KVREPLAY_HOST_DEVICE inline LargestScores largest_scores(std::ptrdiff_t at, const LargestColumn& column,
                                                         double taylor, const TopSquares& squares) {
  LargestScores scores;
  scores.at = at;
  each_row_sum([&](auto formula) {
    const TopScore top = decltype(formula)::top(column, taylor);
    const double square = top.vector == TopVector::value         ? squares.value
                          : top.vector == TopVector::joint       ? squares.joint
                          : top.vector == TopVector::exact_joint ? squares.exact_joint
                                                                 : squares.difference;
    scores.sums[sum_at(decltype(formula)::kScore)] =
        top.vector == TopVector::none ? top.plain : top.scale * square;
  });
  return scores;
}

/// A TopVector as value v + difference (v - o') + rest o' + output o.
struct TopCombination {
  double plain, scale, value, difference, rest, output;

  KVREPLAY_HOST_DEVICE double entry(double v, double others, double o) const {
    return value * v + difference * (v - others) + rest * others + output * o;
  }
};
KVREPLAY_HOST_DEVICE inline TopCombination top_combination(RowScore score, const LargestColumn& column,
                                                           double taylor) {
  TopScore top{};
  with_formula(score, [&](auto formula) { top = decltype(formula)::top(column, taylor); });
  switch (top.vector) {
    case TopVector::none:
      break;
    case TopVector::value:
      return {top.plain, top.scale, 1, 0, 0, 0};
    case TopVector::difference:
      return {top.plain, top.scale, 0, 1, 0, 0};
    case TopVector::joint:
      return {top.plain, top.scale, 1, taylor * column.one_minus_a, 0, 0};
    case TopVector::exact_joint:
      // From o where that is nearer: exactly o where the token takes the whole row, for every token's score
      // is then the same to the last bit.
      if (2 * column.delta > column.one_minus_a)
        return {top.plain, top.scale, 0, 0, column.delta - column.one_minus_a, 1};
      return {top.plain, top.scale, column.a, 0, column.delta, 0};
  }
  return {top.plain, 0, 0, 0, 0, 0};
}

/// Score of a token that does not depend on other cached tokens.
enum class OwnScore : int { position, knorm };

/// Numbers of a token without a row.
struct OwnToken {
  double position, key_norm, value_sq;
};

KVREPLAY_HOST_DEVICE inline double own_score(OwnScore score, const OwnToken& token) {
  switch (score) {
    case OwnScore::position:
      return token.position;
    case OwnScore::knorm:
      return -token.key_norm;
  }
  return 0;
}

}  // namespace kvreplay
