#pragma once

#include "sim/cuda/runtime.hpp"
#include "sim/tokens/row_scores.hpp"

#include <cstddef>
#include <cstdint>

// The two passes of tiles.hpp on a device, on half-precision matrix units. A number is taken as one half or
// as the sum of two, times a power of two: 22 bits and more of it, so that three products of halves (one or
// two where an operand needs one half only: any dump in float16 or bfloat16) are as good as float32's own.
//
//   prepare   matrices as they lie in the dump       -> halves (keys in float16 are halves as they lie); of
//                                                      values less a centre, and their norms
//   pass one  a block of rows, a segment of tokens   -> softmax state of every row
//   finish    the segments' states of a row, merged  -> o - centre in halves, row constants, largest column
//   pass two  a block of tokens, a segment of rows   -> column sums, float64; of a head whose rows are one
//                                                      slab each is stored once, in its place
//
// Rows are those of all query heads, packed: a head's n rows, padded to whole slabs, follow those of the head
// before it, so that one block serves the few rows of several heads with one read of its tokens. A sum is
// added up by one thread in order of the rows for a few steps in float32 and beyond in float64, and then over
// threads and segments in a fixed order: two runs give the same bits.

namespace kvreplay::cuda {

/// Rows of one head that a warp takes at once.
inline constexpr int kSlab = 32;
/// Rows of a block of pass one.
inline constexpr int kBlockRows = 64;
/// Tokens of a step of pass one.
inline constexpr int kSoftmaxStep = 64;
/// Slabs of a step of pass two; each leaves sums of its own.
inline constexpr int kScoredSlabs = 2;

/// Channels that a row of halves has: with zeros up to whole steps of the matrix units.
constexpr int half_depth(int channels) { return (channels + 15) / 16 * 16; }

enum class NumberType { f32, f16, bf16 };
constexpr int bytes_of(NumberType type) { return type == NumberType::f32 ? 4 : 2; }

/// A matrix as it lies in device memory, [rows][width].
struct StoredRows {
  const void* data;
  NumberType type;
};

/// A matrix as matrix units take it, [rows][half_depth(channels)].
struct HalfMatrix {
  std::uint16_t* high;
  std::uint16_t* low;  ///< null: each number is one half
  float* unit;         ///< [rows] powers of two that the halves are multiplied by
  int depth;
};

/// Values prepared for the passes, [tokens][d_v] and [tokens].
struct PreparedRows {
  StoredRows values;        ///< as they lie
  const float* centre;      ///< [d_v], near the mean of the values
  float* largest;           ///< the largest |v - centre| of all, 0 at first
  float* value_sq;          ///< ||v||^2
  float* value_centred_sq;  ///< ||v - centre||^2
  float* centre_dot_value;  ///< centre . (v - centre)
  HalfMatrix halves;        ///< of v - centre; one unit serves all
};

/// The rows of several heads, [heads][rows][width], each with zeros up to `padded_rows`.
struct HeadRows {
  int heads, rows, padded_rows, width;
};
/// Makes halves of them, [heads][padded_rows]. Numbers in float16 are one half each.
void prepare_rows(const StoredRows& from, const HeadRows& which, const HalfMatrix& to, const Stream& stream);
/// Makes *needed 1 where some number of theirs takes more than one half.
void check_halves(const StoredRows& from, const HeadRows& which, int* needed, const Stream& stream);

/// centre [d_v] := near the mean of values [tokens][d_v], for PreparedRows; *largest := 0.
void find_centre(const StoredRows& values, int d_v, int tokens, float* centre, float* largest,
                 const Stream& stream);
/// Keys [tokens][d] and values, which v names; either may be nothing, with d or d_v 0. Halves are made of the
/// keys unless k's are the keys themselves. Makes *needed 1 where some number of the keys takes more than one
/// half; null: nobody asks.
void prepare_tokens(const StoredRows& keys, int d, const HalfMatrix& k, const PreparedRows& v, int d_v,
                    int tokens, int* needed, const Stream& stream);

/// Rows of all query heads against all tokens. Pointers are to device memory.
struct ColumnProblem {
  int G, rows, padded_rows, tokens, d;
  int d_v;         ///< 0: for a ColumnSet that needs no outputs; v is then nothing
  int candidates;  ///< tokens that are scored: 0 .. candidates - 1
  bool exact;      ///< weights and outputs in two halves each
  HalfMatrix q;    ///< [G][padded_rows]
  HalfMatrix k;    ///< [tokens]
  PreparedRows v;
  float scale, softcap;      ///< softcap 0: none
  const int* first_visible;  ///< [rows], ascending: the tokens [first, end) that a row sees
  const int* end_visible;    ///< [rows], ascending
  const float* sink_logit;   ///< [G], or null

  /// Each head's rows are one slab: its sums over them are stored at once.
  KVREPLAY_HOST_DEVICE bool one_slab() const { return padded_rows == kSlab; }
  KVREPLAY_HOST_DEVICE int packed_rows() const { return G * padded_rows; }
  /// Where a segment's state of a packed row stands in SoftmaxStates.
  KVREPLAY_HOST_DEVICE std::ptrdiff_t state_at(int segment, int row) const {
    return static_cast<std::ptrdiff_t>(segment) * packed_rows() + row;
  }
};

/// Columns of a row and segment that were the largest for a while: their values join the sums at the end,
/// when their weights are known, and not while a block of rows waits. Rows have some ln(steps) of them; what
/// is beyond these joins at once.
inline constexpr int kLosers = 6;

/// Softmax states, [segments][G][padded_rows]; see SoftmaxPanel.
struct SoftmaxStates {
  int segments;
  int per_segment;  ///< tokens; segment s starts at begin + s per_segment
  int begin;
  float* top;
  int* top_at;
  float* rest_max;
  float* rest_sum;
  float* rest_out;  ///< [segments][G][padded_rows][d_v], without the losers
  int* losers;      ///< how many
  float* loser;     ///< [segments][G][padded_rows][kLosers] logits
  int* loser_at;    ///< [segments][G][padded_rows][kLosers]
};

void softmax_pass(const ColumnProblem& problem, const SoftmaxStates& states, const Stream& stream);

/// Constants of a row for pass two. A row of the padding sees nothing.
struct alignas(16) RowConstants {
  float q_scale;  ///< turns a product of halves into a logit, before the token's unit
  EntryRow<float> entry;
  float o_scale;  ///< turns a product of halves into (v - centre) . (o - centre)
  int first_visible, end_visible;
  int apart;  ///< its largest column
};

/// Results of finish_rows(). Segment 0 of rest_out holds o - centre, too.
struct FinishedRows {
  RowConstants* constants;  ///< [G][padded_rows]
  HalfMatrix out;           ///< [G][padded_rows], o - centre
  LargestScores* largest;   ///< [G][rows]; at = -1 where a number overflows float32
  float* top_diff;          ///< [G][padded_rows][d_v], v - o' of the largest column; null: nobody asks
};

void finish_rows(const ColumnProblem& problem, const SoftmaxStates& states, const FinishedRows& rows,
                 const Stream& stream);

/// Layout of a pass-two block's shared memory.
enum class ScoreBlock {
  wide,     ///< its tokens, and three stages of rows
  narrow,   ///< half as many, and two stages: where a card has less of it, or tokens more channels
  streamed  ///< a chunk of its tokens and one of rows; nothing is on its way beside the arithmetic
};
KVREPLAY_HOST_DEVICE constexpr int scored_tokens(ScoreBlock block) {
  return block == ScoreBlock::narrow ? 64 : 128;
}
KVREPLAY_HOST_DEVICE constexpr int score_stages(ScoreBlock block) {
  return block == ScoreBlock::wide ? 3 : block == ScoreBlock::narrow ? 2 : 1;
}

/// The first of them that the device has shared memory for.
struct ScorePlan {
  ScoreBlock block;
  std::size_t bytes;
};
ScorePlan score_plan(const ColumnProblem& problem);

struct ScorePass {
  ColumnSet columns;  ///< which sums
  int segments;       ///< parts that the slabs of a token block are cut into
  /// [blocks of tokens][2]: the rows that see some token of the block, of score_plan()'s blocks
  const int* ranges;
  const float* out_centred;  ///< [G][padded_rows][d_v]
  /// [segments][kScoredSlabs][G][columns_of()][candidates], 0 at first; where a head has one slab,
  /// [G][columns_of()][candidates], whatever it is at first
  double* sums;
};

/// Ends with the sums of all segments and slabs in the first part of `sums`.
void score_pass(const ColumnProblem& problem, const FinishedRows& rows, const ScorePass& pass,
                const Stream& stream);

// Measures of sim/tokens/loss_totals.hpp, on a device. After pass one, the rows' gradients are multiplied
// with their outputs. Then a block has 64 tokens and some of the rows, 64 at a time: logits, weights, and for
// every sample a product of values and gradients. Sums run in a fixed order.

/// Pointers are to device memory.
struct LossProblem {
  ColumnProblem in;
  FinishedRows rows;         ///< after pass one, with top_diff
  const float* out_centred;  ///< [G][padded_rows][d_v]
  StoredRows queries;        ///< [G][rows][d]
  StoredRows keys;           ///< [tokens][d]
  int samples;               ///< S
  const float* gradients;    ///< [G][S][rows][d_v], whose squares fit float32

  float* of_output;     ///< [G][S][rows], g . (o - centre)
  float* of_output_sq;  ///< [G][rows], the sum over s of its squares
  double* of_top;       ///< [G][rows], sum over s of (g . (v - o'))^2 of the row's largest column

  int segments;   ///< parts that the blocks of rows are cut into
  double* parts;  ///< [segments][2][G][candidates], scratch
  /// [2][G][candidates], of all columns but the rows' largest: the sum over rows and s of (g . (o' - o))^2;
  /// the largest weight.
  double* totals;
};

/// Tokens of a block, and rows that it takes at once: a segment has one such block of rows at least.
inline constexpr int kLossTokens = 64, kLossRows = 64;
/// Leaves of_top and totals.
void loss_pass(const LossProblem& problem, const Stream& stream);

}  // namespace kvreplay::cuda
