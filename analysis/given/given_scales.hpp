#pragma once

#include "data/dump.hpp"

#include <string>
#include <vector>

namespace kvreplay {

/// Scales of a layer's keys and values: a stored number is x / scale, rounded.
struct TensorScales {
  double k = 1, v = 1;
};

/// The scales of all layers as vLLM and SGLang read them from a checkpoint: tensors of one number in a
/// safetensors file, `model.layers.N.self_attn.k_scale` and `v_scale`, in float32, float16 or bfloat16; other
/// tensors are not looked at. Throws InputError that names the file unless there are both for each of
/// `layers` layers, all positive.
std::vector<TensorScales> read_scales(const std::string& file, Index layers);

}  // namespace kvreplay
