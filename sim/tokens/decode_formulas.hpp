#pragma once

#include "sim/tokens/largest_column.hpp"

#include <cmath>

// What one row of a decoding step gives one cached token: scalar formulas, for every backend. Definitions:
// sim/tokens/METRICS.md. They are not those of sim/tokens/entry_formulas.hpp: there a weight may be float, so
// every term is scaled by the row; here all is float64, and a tie between two tokens has to be one to the
// last bit.

namespace kvreplay {

/// What ranks the tokens of a cache.
enum class CacheRank : int {
  none,  ///< nothing can
  own,   ///< an OwnScore
  keydiff,
  row_sums,  ///< the sums of a RowScore over steps
  caote,     ///< formed from the sums of each query head's `attention`; so is:
  fastcaote,
};
KVREPLAY_HOST_DEVICE constexpr bool by_query_head(CacheRank rank) {
  return rank == CacheRank::caote || rank == CacheRank::fastcaote;
}

/// What a token scores by itself, whatever else is cached.
enum class OwnScore : int { position, knorm };

/// What there is of a token without a row.
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

/// What a row gives a token, to be summed over rows.
enum class RowScore : int {
  attention,
  attention_sq,
  value,
  key,
  joint,
  exact_key,
  exact_joint,
  exact_remove,
};
inline constexpr int kRowScores = static_cast<int>(RowScore::exact_remove) + 1;

/// Whether a score asks for ||v - o||^2.
KVREPLAY_HOST_DEVICE constexpr bool needs_difference(RowScore score) {
  return score == RowScore::key || score == RowScore::joint || score == RowScore::exact_key ||
         score == RowScore::exact_joint || score == RowScore::exact_remove;
}

/// What else the differences v - o are multiplied with: v for joint, o for exact_joint.
enum class DifferenceProduct { none, with_token, with_base };

/// A token that does not have its row's largest logit.
struct RowToken {
  double a;           ///< its weight
  double z, taylor;   ///< its logit, -inf where hidden; z_raw dz/dz_raw, 0 there
  double value_sq;    ///< ||v||^2
  double difference;  ///< ||v - o||^2
  double product;     ///< v . (v - o) for joint, o . (v - o) for exact_joint
};

/// zero_key: exp(-lse), the weight of a zero key before renormalisation; output_sq: ||o||^2.
KVREPLAY_HOST_DEVICE inline double row_score(RowScore score, const RowToken& token, double zero_key,
                                             double output_sq) {
  const double a = token.a, z = token.z;
  switch (score) {
    case RowScore::attention:
      return a;
    case RowScore::attention_sq:
      return a * a;
    case RowScore::value:
      return a * a * token.value_sq;
    case RowScore::key:
      return a * token.taylor * (a * token.taylor) * token.difference;
    case RowScore::joint: {
      const double square = token.taylor * token.difference + 2 * token.product;
      return a * a * (token.value_sq + token.taylor * square);
    }
    case RowScore::exact_remove: {
      const double odds = a / (1 - a);
      return odds * odds * token.difference;
    }
    case RowScore::exact_key:
    case RowScore::exact_joint: {
      if (!(z > -static_cast<double>(INFINITY))) return 0;  // hidden
      const double t = std::abs(z) < 0.5 ? a * std::expm1(-z) : zero_key - a;
      // 1 itself where the token takes the whole row: its score is then the others', to the last bit
      const double rest = 1 / (1 + t), c = t < 1 ? t * rest : 1 - rest, left = a * rest;
      if (score == RowScore::exact_key) return c * c * token.difference;
      const double both = left + c;  // left v + c o = left (v - o) + (left + c) o
      return left * left * token.difference + 2 * left * both * token.product + both * both * output_sq;
    }
  }
  return 0;
}

/// The score of the token with the largest logit, with o' the output of all others:
/// plain + scale ||value v + difference (v - o') + rest o' + output o||^2.
struct TopScore {
  double plain, scale, value, difference, rest, output;
};

/// taylor: its z_raw dz/dz_raw.
KVREPLAY_HOST_DEVICE inline TopScore top_score(RowScore score, const LargestColumn& column, double taylor) {
  const double a = column.a, rest_z = taylor * column.one_minus_a;
  switch (score) {
    case RowScore::attention:
      return {a, 0, 0, 0, 0, 0};
    case RowScore::attention_sq:
      return {a * a, 0, 0, 0, 0, 0};
    case RowScore::value:
      return {0, a * a, 1, 0, 0, 0};
    case RowScore::key:
      return {0, a * rest_z * (a * rest_z), 0, 1, 0, 0};
    case RowScore::joint:
      return {0, a * a, 1, rest_z, 0, 0};
    case RowScore::exact_remove:
      return {0, a * a, 0, 1, 0, 0};
    case RowScore::exact_key:
      return {0, column.delta * column.delta, 0, 1, 0, 0};
    case RowScore::exact_joint:
      // a v + delta o', or the same from o where that is nearer: exactly o where the token takes the whole
      // row
      if (2 * column.delta > column.one_minus_a) return {0, 1, 0, 0, column.delta - column.one_minus_a, 1};
      return {0, 1, a, 0, column.delta, 0};
  }
  return {};
}

/// One entry of the vector in TopScore.
KVREPLAY_HOST_DEVICE inline double top_entry(const TopScore& top, double v, double rest, double output) {
  return top.value * v + top.difference * (v - rest) + top.rest * rest + top.output * output;
}

}  // namespace kvreplay
