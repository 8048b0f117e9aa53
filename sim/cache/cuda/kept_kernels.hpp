#pragma once

#include "sim/cuda/runtime.hpp"

#include <cstddef>

// Attention over kept sets on a device. Numbers are float32; matrices lie row by row, without padding.
//
//   logits    a block of rows against its tokens, once               -> z, -inf where hidden
//   attend    64 of the rows, a segment of one kept set's columns    -> softmax sums over the segment
//   finish    the segments of a row and the sink, merged             -> its output
//   compare   a kept set's outputs with those of the set of all      -> change, and its squares in float64
//
// The set of all columns is processed as any other set, and its outputs go through memory: a kept set that
// has every column gets the same bits. A row's result depends neither on its block nor on the other sets.

namespace kvreplay::cuda {

/// Rows that attend() takes at once. Blocks of rows start at multiples of it.
inline constexpr int kAttendRows = 64;
/// Columns that attend() takes at once: segments are multiples of it.
inline constexpr int kAttendColumns = 32;
/// Rows that compare() adds up, and that a panel of vectors holds.
inline constexpr int kCompareRows = 32;

/// A block of rows of every query head. Pointers are to device memory.
struct KeptRows {
  int G, rows, d, d_v;
  int begin, width;          ///< the tokens [begin, begin + width) hold all that some row sees
  const float* q;            ///< [G][rows][d], a head's `head_rows` rows after the one before it
  std::ptrdiff_t head_rows;  ///< also of `bad`
  const float* k;            ///< [begin + width][d]
  const float* v_centred;    ///< [begin + width][d_v]
  const float* centre;       ///< [d_v]
  const float* sink_logit;   ///< [G], -inf: none
  float scale, softcap;      ///< softcap 0: none
  const int* first_visible;  ///< [rows], ascending: the tokens [first, end) that a row sees
  const int* end_visible;    ///< [rows], ascending
  float* z;                  ///< [G][rows][width] logits
  int* bad;                  ///< [G][rows], made 1 where a row sees a logit beyond float32
};

/// Forms z, in the tiles that some row of theirs sees something of.
void kept_logits(const KeptRows& in, const Stream& stream);

/// Columns of several sets.
struct KeptColumns {
  int sets;
  const std::ptrdiff_t* starts;  ///< [sets + 1] into columns
  const int* columns;            ///< positions, ascending for each set
};

/// Softmax sums of segments: of the columns of a set that lie between the first and the last token which one
/// of kAttendRows rows sees, segment s has those from s per_segment on.
struct KeptStates {
  int segments, per_segment;
  float* max;  ///< [sets][segments][G][rows] largest logit
  float* sum;  ///< as max: sum of exp(z - max)
  float* out;  ///< [sets][segments][G][rows][d_v]: sum of exp(z - max) (v - centre)
};

/// A set's output is out + share centre; apart, neither drowns the other however much the sink takes.
struct KeptOutputs {
  float* out;     ///< [sets][G][rows][d_v]: the weighted sum of v - centre
  double* share;  ///< [sets][G][rows]: the weight of all columns, 1 without a sink, 0 where there are none
};

/// Every set's outputs from z.
void kept_outputs(const KeptRows& in, const KeptColumns& sets, const KeptStates& states,
                  const KeptOutputs& outputs, const Stream& stream);

struct KeptChanges {
  int sets;
  KeptOutputs kept;
  KeptOutputs full;       ///< of one set; out null: `kept` itself is wanted, not the change from it
  double* sums;           ///< [sets][G][panels]: sum of squares over a panel's rows
  std::ptrdiff_t stride;  ///< panels from one head's sums to the next's
  float* vectors;         ///< [sets][G][panels][d_v][kCompareRows], 0 in the padding; null: not wanted
};

void kept_changes(const KeptRows& in, const KeptChanges& changes, const Stream& stream);

}  // namespace kvreplay::cuda
