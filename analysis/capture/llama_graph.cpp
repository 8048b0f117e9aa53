#include "analysis/capture/llama_graph.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ggml-backend.h>

namespace kvreplay {
namespace {

constexpr std::string_view kSoftmax = "kq_soft_max";  // of all architectures, without flash attention

float float_param(const ggml_tensor& tensor, int at) {
  float value = 0;
  std::memcpy(&value, &tensor.op_params[at], sizeof value);
  return value;
}

/// YaRN's share of the unscaled frequency, by pair: 1 for fast ones, 0 for slow ones.
double yarn_share(const ggml_tensor& rope, int pair) {
  float ends[2];
  ggml_rope_yarn_corr_dims(rope.op_params[1], rope.op_params[4], float_param(rope, 5), float_param(rope, 9),
                           float_param(rope, 10), ends);
  const double along = (pair - ends[0]) / std::max(0.001, static_cast<double>(ends[1]) - ends[0]);
  return (1 - std::clamp(along, 0.0, 1.0)) * float_param(rope, 7);
}

LayerRotation rotation_of(const ggml_tensor& rope) {
  const int dims = rope.op_params[1], mode = rope.op_params[2];
  if ((mode != 0 && mode != GGML_ROPE_TYPE_NEOX) || rope.op_params[15] != 0)
    return {.note =
                fmt::format("no rope: llama.cpp's rotation of mode {} is none that the format has", mode)};
  std::vector<float> factors;
  if (rope.src[2] != nullptr) {
    factors.resize(dims / 2);
    ggml_backend_tensor_get(rope.src[2], factors.data(), 0, factors.size() * sizeof(float));
  }
  const double base = float_param(rope, 5), scale = float_param(rope, 6);
  const bool yarn = float_param(rope, 7) != 0;
  LayerRotation turn{mode == 0, scale == 1 && factors.empty() ? base : 0, float_param(rope, 8), {}};
  if (yarn) turn.attention_factor *= 1 + 0.1 * std::log(1 / scale);
  for (int i = 0; i < dims / 2; ++i) {
    const double share = yarn ? yarn_share(rope, i) : 0;
    turn.inv_freq.push_back(std::pow(base, -2.0 * i / dims) * (scale * (1 - share) + share) /
                            (factors.empty() ? 1 : factors[i]));
  }
  return turn;
}

bool is_view(ggml_op op) {
  return op == GGML_OP_VIEW || op == GGML_OP_PERMUTE || op == GGML_OP_RESHAPE || op == GGML_OP_CONT;
}

}  // namespace

bool GraphReader::callback(ggml_tensor* tensor, bool ask, void* self) {
  auto& reader = *static_cast<GraphReader*>(self);
  try {
    if (reader.workers->stopping() || reader.failure_) return false;
    return ask ? reader.wants(*tensor) : (reader.take(*tensor), true);
  } catch (...) {
    reader.failure_ = std::current_exception();
    return false;
  }
}

void GraphReader::rethrow() const {
  if (workers->stopping()) throw Interrupted();
  if (failure_) std::rethrow_exception(failure_);
}

GraphReader::Named GraphReader::named(const ggml_tensor& tensor) {
  const std::string_view whole = ggml_get_name(&tensor);
  const std::size_t dash = whole.rfind('-');
  Named found{whole.substr(0, dash)};
  if (dash != std::string_view::npos) {
    const auto [end, error] =
        std::from_chars(whole.data() + dash + 1, whole.data() + whole.size(), found.layer);
    if (error != std::errc() || end != whole.data() + whole.size()) found.layer = -1;
  }
  return found;
}

bool GraphReader::is(const GraphTensor& which, const ggml_tensor& tensor, const Named& as) const {
  const std::string_view operation = ggml_op_name(tensor.op);
  return as.name == which.name && (operation == which.operation || operation == which.otherwise) &&
         as.layer >= 0 && as.layer < std::ssize(facts_);
}

std::optional<Tensor> GraphReader::captured(const ggml_tensor& tensor, const Named& as) const {
  if (is(kQ, tensor, as)) return Tensor::q;
  if (is(kK, tensor, as)) return Tensor::k;
  if (is(kV, tensor, as)) return Tensor::v;
  if (is(kO, tensor, as)) return Tensor::o;
  return std::nullopt;
}

bool GraphReader::wants(const ggml_tensor& tensor) {
  const Named as = named(tensor);
  if (as.layer < 0 || as.layer >= std::ssize(facts_)) return false;
  if (as.name == kSoftmax && tensor.op == GGML_OP_SOFT_MAX) {
    read_softmax(tensor, as.layer);
    return probes_windows;
  }
  return captured(tensor, as).has_value();
}

/// Scale and soft cap, back from the softmax to the captured q, which thereby is what attention reads.
void GraphReader::read_softmax(const ggml_tensor& softmax, Index layer) {
  const auto refuse = [&](const std::string& found) {
    throw InputError(fmt::format("layer {}", layer),
                     fmt::format("softmax of scale * q.k with the q of {} ({})", kQ.name, kQ.operation),
                     found);
  };
  LayerFacts& facts = facts_[layer];
  facts.scale = float_param(softmax, 0);
  if (float_param(softmax, 1) != 0) refuse("a bias by distance (ALiBi)");
  if (softmax.src[2] != nullptr && facts.sinks.empty()) {
    facts.sinks.resize(ggml_nelements(softmax.src[2]));
    ggml_backend_tensor_get(softmax.src[2], facts.sinks.data(), 0, ggml_nbytes(softmax.src[2]));
  }
  const ggml_tensor* at = softmax.src[0];
  if (at->op == GGML_OP_SCALE && at->src[0]->op == GGML_OP_UNARY &&
      ggml_get_unary_op(at->src[0]) == GGML_UNARY_OP_TANH && at->src[0]->src[0]->op == GGML_OP_SCALE) {
    facts.softcap = float_param(*at, 0);
    if (facts.scale != 1) refuse("a scale behind a soft cap");
    facts.scale = float_param(*at->src[0]->src[0], 0) * facts.softcap;
    at = at->src[0]->src[0]->src[0];
  }
  if (at->op != GGML_OP_MUL_MAT) refuse(ggml_op_name(at->op));
  for (at = at->src[1]; !is(kQ, *at, named(*at)); at = at->src[0]) {
    if (at->op == GGML_OP_SCALE && float_param(*at, 1) == 0)
      facts.scale *= float_param(*at, 0);
    else if (!is_view(at->op) || at->src[0] == nullptr)
      refuse(fmt::format("{} of {}", ggml_op_name(at->op), ggml_get_name(at)));
  }
}

void GraphReader::take(ggml_tensor& tensor) {
  const Named as = named(tensor);
  if (as.name == kSoftmax) return count_seen(*tensor.src[1], as.layer);
  const std::optional<Tensor> which = captured(tensor, as);
  if (!which) return;
  // Rows without gaps, but perhaps between those of others: a product may make q, k and v at once.
  const std::size_t row = tensor.ne[0] * (which == Tensor::o ? 1 : tensor.ne[1]) * sizeof(float);
  const std::size_t apart = which == Tensor::o ? tensor.nb[1] : tensor.nb[2];
  if (tensor.type != GGML_TYPE_F32 || tensor.nb[0] != sizeof(float) ||
      (which != Tensor::o && tensor.nb[1] != tensor.ne[0] * sizeof(float)))
    throw InputError(ggml_get_name(&tensor), "float32 without gaps", ggml_type_name(tensor.type));
  if (which == Tensor::k) facts_[as.layer].rotation = rotation_of(tensor);
  rows_.resize(ggml_nelements(&tensor));
  auto* const bytes = reinterpret_cast<std::byte*>(rows_.data());
  const std::size_t size = rows_.size() * sizeof(float), at_once = row == apart ? size : row;
  for (std::size_t at = 0; at < size; at += at_once)
    ggml_backend_tensor_get(&tensor, bytes + at, at / row * apart, at_once);
  round_to(dtype, rows_, fmt::format("layer {}, {}", as.layer, name_of(*which)));
  if (which != Tensor::o && dtype == Dtype::f16)
    for (std::size_t at = 0; at < size; at += at_once)
      ggml_backend_tensor_set(&tensor, bytes + at, at / row * apart, at_once);
  if (writer == nullptr || place[as.layer] < 0) return;
  Index heads = tensor.ne[1], width = tensor.ne[0];
  if (which == Tensor::o) {  // [heads * d_v, n]
    heads = writer->size_of_rows(Tensor::q).first;
    width /= heads;
  }
  writer->append(*which, place[as.layer], heads, width, rows_);
}

void GraphReader::count_seen(const ggml_tensor& mask, Index layer) {
  std::vector<std::byte> row(ggml_row_size(mask.type, mask.ne[0]));
  ggml_backend_tensor_get(&mask, row.data(), 0, row.size());  // of one row
  Index seen = 0;
  for (Index cell = 0; cell < mask.ne[0]; ++cell) {
    float value = 0;
    if (mask.type == GGML_TYPE_F16) {
      std::uint16_t half = 0;
      std::memcpy(&half, row.data() + 2 * cell, 2);
      value = half_to_float(half);
    } else {
      std::memcpy(&value, row.data() + 4 * cell, 4);
    }
    seen += value == 0 ? 1 : 0;
  }
  facts_[layer].windowed = seen < 3;
}

}  // namespace kvreplay
