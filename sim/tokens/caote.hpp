#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/column_totals.hpp"

#include <vector>

namespace kvreplay {

/// The attention that all but the candidate with the most of it get, and that candidate.
struct Others {
  Index top = 0;
  double attn = 0;
};
/// attn: sums or maxima over the rows, [l].
Others others_of(const Vector<double>& attn);

/// CAOTE and FastCAOTE of one query head, [l] each; 0 where its rows attend to nothing.
struct CaoteScores {
  Vector<double> caote, fastcaote;
};
/// Those of each query head, from its totals' attn: [G]. Distances in T, the means in float64; the heads
/// share a reading of the values for each.
template <class T>
std::vector<CaoteScores> caote_scores(const PreparedValues<T>& values, const std::vector<ColumnTotals>& heads,
                                      Workers& workers);

}  // namespace kvreplay
