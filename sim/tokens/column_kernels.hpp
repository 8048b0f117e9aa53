#pragma once

#include "sim/cuda/runtime.hpp"
#include "sim/tokens/entry_formulas.hpp"

// The two passes of tiles.hpp on a device. Numbers are float32; matrices lie row by row, without padding.
//
//   pass one   a block of rows against one segment of the tokens -> softmax state of every row
//   finish     the segments' states of a row, merged             -> o - centre, row constants, largest column
//   pass two   a block of tokens against one segment of the rows -> column sums, float64
//
// A sum is always added up by one thread in order of position, and then over threads and segments in a fixed
// order: two runs give the same bits.

namespace kvreplay::cuda {

/// What a row needs in pass two; one array of `count` numbers each, in this order.
enum RowNumber {
  kRowLse,
  kRowRescale,
  kRowZeroLogit,
  kRowZeroWeightSum,
  kRowZeroLogitOutSq,
  kRowOutCentredSq,
  kRowCentreDotOut,
  kRowNumbers
};

/// Column sums of pass two; the future's are the last two.
enum ColumnSum {
  kSumAttn,
  kSumAttnSq,
  kSumKey,
  kSumJointCross,  ///< sum of a^2 z v . (v - o)
  kSumExactKey,
  kSumExactJoint,
  kSumExactRemove,
  kWindowColumnSums,
  kFutureRemove = 0,
  kFutureMaxAttn = 1,
  kFutureColumnSums = 2
};

/// Rows of all query heads against all tokens. Pointers are to device memory.
struct ColumnProblem {
  int G, rows, tokens, d, d_v;
  int candidates;                 ///< tokens that are scored: 0 .. candidates - 1
  const float* q;                 ///< [rows][d] of the first query head
  std::ptrdiff_t head_rows;       ///< rows from one query head of q to the next
  const float* k;                 ///< [tokens][d]
  const float* v_centred;         ///< [tokens][d_v]
  const float* centre;            ///< [d_v]
  const float* value_sq;          ///< [candidates]
  const float* value_centred_sq;  ///< [candidates]
  const float* centre_dot_value;  ///< [candidates]
  float scale, softcap;           ///< softcap 0: none
  const int* first_visible;       ///< [rows], ascending: the tokens [first, end) that a row sees
  const int* end_visible;         ///< [rows], ascending
  const float* sink_logit;        ///< [G], or null
};

/// Softmax states, [segments][G][rows]; see SoftmaxPanel.
struct SoftmaxStates {
  int segments;
  int per_segment;  ///< tokens; segment s starts at begin + s per_segment
  int begin;
  float* top;
  int* top_at;
  float* rest_max;
  float* rest_sum;
  float* rest_out;  ///< [segments][G][rows][d_v]
};

void softmax_pass(const ColumnProblem& problem, const SoftmaxStates& states, const Stream& stream);

/// What finish_rows() leaves. o - centre stands in segment 0 of rest_out.
struct FinishedRows {
  float* numbers;          ///< [kRowNumbers][G][rows]
  int* top_at;             ///< [G][rows]
  LargestScores* largest;  ///< [G][rows]; at = -1 where a number overflows float32
};

void finish_rows(const ColumnProblem& problem, const SoftmaxStates& states, const FinishedRows& rows,
                 const Stream& stream);

struct ScorePass {
  bool future;               ///< which sums
  int segments;              ///< parts that the rows of a token block are cut into
  const int* ranges;         ///< [blocks of tokens][2]: the rows that see some token of the block
  const float* out_centred;  ///< [G][rows][d_v]
  double* sums;              ///< [segments][G][sums][candidates]
};
/// Tokens of a block of pass two.
inline constexpr int kScoredTokens = 64;

/// Ends with the sums of all segments in segment 0.
void score_pass(const ColumnProblem& problem, const FinishedRows& rows, const ScorePass& pass,
                const Stream& stream);

}  // namespace kvreplay::cuda
