#pragma once

#include "sim/cuda/runtime.hpp"
#include "sim/tokens/row_scores.hpp"

#include <cstddef>

// The decoding replay on a device: each run is one block, which goes from step to step on its own. Between
// launches a run's state lies in device memory, so that the host can look up from time to time.
//
// A cache is a list of slots that name positions; keys and values stay where the group has them. A token that
// leaves gives its slot to the last one.

namespace kvreplay::cuda {

/// Query heads that a block takes at once: they share the reading of keys and values.
inline constexpr int kDecodeHeads = 4;

/// A causal head group. Rows of keys, values and queries are `key_width` and `value_width` numbers apart,
/// multiples of 4, with 0 behind the last channel. Pointers are to device memory.
struct DecodeGroup {
  int G, l, first_step, steps, d, d_v, key_width, value_width;
  const float* q;              ///< [G][steps][key_width], times the scale
  const float* k;              ///< [T][key_width]
  const float* v;              ///< [T][value_width]
  const float* full;           ///< [G][steps][d_v], the outputs over all positions
  const double* sink_logit;    ///< [G], -inf: none
  const int* first_visible;    ///< [steps], null: rows see everything before them
  const int* first_seen_from;  ///< [T - l + 1], of rows at l + i and later; null as above
  double softcap;              ///< 0: none
  double* key_norm;            ///< [T]
  double* value_sq;            ///< [T]
};

/// Takes key_norm and value_sq of T tokens.
void decode_norms(const DecodeGroup& group, int T, const Stream& stream);

struct DecodeState {
  int started, tokens, rows, window_step, moves;
  int bad_position, bad_head;  ///< where a number left float32, -1: nowhere; the run ends there
};

/// A token that left at some position.
struct DecodeLeft {
  int at, position;
};

struct DecodeTask {
  // The request.
  RowScore score;  ///< summed over rows
  OwnScore own;    ///< ranks where nothing is summed
  int width;       ///< rows of sums: 1, or 0 where nothing is summed
  int window;      ///< steps that count, 0: all, and the prompt's
  int per_visible_row, append_only;
  int budget, recent;
  int sinks_end;  ///< positions from here on are no sinks
  int n_start, prompt_rows;
  const int* start;          ///< [n_start] positions, ascending
  const double* start_sums;  ///< [width][n_start], null: 0
  // The cache, by slot.
  int capacity;
  int* position;                       ///< [capacity]
  int* rows_before;                    ///< rows in a token's sum when it joined, less those there were
  double *rank_by, *row;               ///< [capacity]
  double* sums;                        ///< [width][capacity]
  double *newer, *older;               ///< [width][capacity], [window][width][capacity], as ScoreSums
  double* weights;                     ///< [kDecodeHeads][capacity]
  float *dots, *difference, *product;  ///< [kDecodeHeads][capacity]
  float* rest;                         ///< [capacity][kDecodeHeads] weights of all but the largest
  // Results.
  float* change;      ///< [G][steps][d_v]
  double* change_sq;  ///< [steps]
  DecodeLeft* left;   ///< [n_start + T - l], those of one position in no order
  DecodeState* state;
};

/// Takes each run over the positions [begin, end), of which l is the first.
void decode_positions(const DecodeGroup& group, const DecodeTask* tasks, int runs, int begin, int end,
                      const Stream& stream);

}  // namespace kvreplay::cuda
