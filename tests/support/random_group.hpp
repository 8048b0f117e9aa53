#pragma once

#include "sim/head_group.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <cstdint>
#include <optional>

namespace kvreplay::test {

/// A random head group. Logits are normal with mean `logit_shift` and standard deviation `logit_std`.
struct GroupSpec {
  Index l = 40;
  Index T = 48;
  std::optional<Index> T_q = {};  ///< all T where absent
  Index G = 2;
  Index d = 8;
  Index d_v = 8;
  Index d_model = 0;  ///< 0: no output projection
  bool gate = false;  ///< before that, on the decoding steps: factors from 0 to 2
  double logit_std = 1.0;
  double logit_shift = 0.0;
  double value_offset = 0.0;  ///< added to every value
  /// Position that holds all but about 1e-9 of every later row (needs d >= 3).
  std::optional<Index> attention_sink = {};
  /// The sink leads the others by so many nats instead, and its value is 0: outputs are next to nothing.
  std::optional<double> worthless_by = {};
  std::optional<Index> zero_token = {};  ///< position whose key and value are 0
  bool causal = true;
  std::optional<Index> sliding_window = {};
  bool two_sided = false;
  std::optional<double> softcap = {};
  std::optional<double> sink_logit = {};  ///< head g gets this + g / 4
  std::optional<Rope> rope = {};
  Index samples = 3;           ///< of gradients on the last rows of the prompt and on all decoding steps
  Index window_gradients = 6;  ///< rows of the prompt, as far as they have queries
  double gradient_scale = 1;
  Index repeat = 5;  ///< rows of a second reading
  std::uint64_t seed = 1;
};

/// The same numbers on every machine.
HeadGroup<double> random_group(const GroupSpec& spec);

Rope rope_of(Rope::Style style, Index rotary_dim, double theta = 10000.0, double attention_factor = 1.0);

/// Rounds every tensor to float, and back.
HeadGroup<float> to_float(const HeadGroup<double>& group);
HeadGroup<double> to_double(const HeadGroup<float>& group);

/// True if a metric is computed from all heads of a group together, so that a single head has other values.
bool joins_heads(TokenMetric metric);

/// The metrics that a group has the queries, decoding steps, RoPE, gradients and second reading for.
MetricSet available_metrics(const HeadGroup<double>& group);

}  // namespace kvreplay::test
