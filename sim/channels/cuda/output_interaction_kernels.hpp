#pragma once

#include "sim/cuda/runtime.hpp"

// The derivatives D of output_interaction.hpp on a device, for a block of rows:
//
//   logits    rows x tokens: scale q . k
//   weights   a row's softmax with its largest column t set apart; every weight in two, as in PanelWeights
//   means     o - v_t, and the sum over the prunable keys of a' (v_p - o)
//   products  D, from the prunable keys less what they have in common
//
// Sums run in a fixed order.

namespace kvreplay::cuda {

/// A row's softmax; see PanelWeights.
struct RowSoftmax {
  int top_at;    ///< -1: the sink, or none
  int overflow;  ///< 1 where a logit is beyond float32; then the rest is of no meaning
  float top_changed, top_rest, sink;
  float changed_sum, rest_sum;  ///< of all columns but the largest, the sink with the rest
};

/// Pointers are to device memory.
struct DerivativeRows {
  int rows, tokens, d, d_v;
  float scale, softcap;           ///< softcap 0: none
  const float* q;                 ///< [rows][d]
  const float* sink_logit;        ///< [rows], -inf: none
  const int* first_visible;       ///< [rows]
  const int* end_visible;         ///< [rows]
  const float* k;                 ///< [tokens][d]
  const float* v_centred;         ///< [tokens][d_v]
  const float* centre;            ///< [d_v]
  const unsigned char* cached;    ///< [tokens]
  const unsigned char* prunable;  ///< [tokens]
  const int* key_positions;       ///< [keys], ascending: the prunable
  const float* keys_centred;      ///< [keys][d]
  const float* key_mean;          ///< [d]
  const int* first_key;           ///< [rows]: the keys [first, end) that a row sees
  const int* end_key;             ///< [rows]
};

struct Derivatives {
  float* changed;       ///< [rows][tokens], scratch
  float* rest;          ///< [rows][tokens], scratch
  RowSoftmax* softmax;  ///< [rows]
  float* mean;          ///< [rows][d_v], scratch
  float* shift;         ///< [rows][d_v], scratch
  float* D;             ///< [rows][d_v][d]
};

void derivatives_pass(const DerivativeRows& in, const Derivatives& out, const Stream& stream);

}  // namespace kvreplay::cuda
