#pragma once

#include "sim/backend.hpp"

namespace kvreplay {

/// How near --precision tensor comes to float32: over the metrics of one head, the largest
/// ||tensor - f32|| / ||f32||, and the least Spearman correlation (1 where a metric is the same for all
/// candidates).
struct TensorAgreement {
  double difference = 0;
  double spearman = 1;
};

/// Of the head's last window rows, 128 at most, and of its oracles; float32 is the CPU's.
TensorAgreement tensor_agreement(const HeadGroup<float>& group, TokenOptions options, const Compute& tensor);

}  // namespace kvreplay
