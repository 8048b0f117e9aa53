#pragma once

#include "analysis/capture/architectures.hpp"
#include "analysis/capture/dump_writer.hpp"
#include "sim/schedule.hpp"

#include <exception>
#include <ggml.h>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// The rotation of one layer, as the manifest has it; or a note why there is none.
struct LayerRotation {
  bool interleaved = false;
  double theta = 0;  ///< 0: the frequencies follow from no theta
  double attention_factor = 1;
  std::vector<double> inv_freq = {};
  std::string note = {};
};

/// Facts of one layer's attention, read from the graph.
struct LayerFacts {
  double scale = 0;
  double softcap = 0;  ///< 0: none
  LayerRotation rotation;
  std::vector<float> sinks;  ///< a logit per query head; none: empty
  bool windowed = false;
};

/// Sees every tensor of the graph when it is computed: reads facts, rounds q, k and v, hands rows on.
class GraphReader {
 public:
  explicit GraphReader(Index layers) : facts_(layers) {}

  /// Where rows go, and which layer of the dump one of the model is; none: nothing is written.
  DumpWriter* writer = nullptr;
  std::vector<Index> place;  ///< [layers], -1: not in the dump
  Dtype dtype = Dtype::f16;
  Workers* workers = nullptr;
  bool probes_windows = false;  ///< reads the mask's last row: a layer that sees fewer cells has a window

  const std::vector<LayerFacts>& facts() const { return facts_; }

  /// A ggml_backend_sched_eval_callback; `self` is a GraphReader.
  static bool callback(ggml_tensor* tensor, bool ask, void* self);
  /// Throws what stopped the graph, if anything did: Interrupted, or the reader's own failure.
  void rethrow() const;

 private:
  struct Named {
    std::string_view name;
    Index layer = -1;
  };
  static Named named(const ggml_tensor& tensor);
  bool is(const GraphTensor& which, const ggml_tensor& tensor, const Named& as) const;
  std::optional<Tensor> captured(const ggml_tensor& tensor, const Named& as) const;
  bool wants(const ggml_tensor& tensor);
  void read_softmax(const ggml_tensor& softmax, Index layer);
  void take(ggml_tensor& tensor);
  void count_seen(const ggml_tensor& mask, Index layer);

  std::vector<LayerFacts> facts_;
  std::vector<float> rows_;
  std::exception_ptr failure_;
};

}  // namespace kvreplay
