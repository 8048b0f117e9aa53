#pragma once

#include "analysis/results/figure_facts.hpp"
#include "sim/head_group.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay {

/// The figures that a stage kept of every head: row s * n_kv + g is KV head g of the s-th layer of `layers`.
struct HeadFigures {
  std::vector<Index> layers;
  Index n_kv = 0;
  Matrix<double> values;
  std::vector<double> of_layers;  ///< figures of whole layers, summed over `layers` in their order
};

/// The figures of one layer: [n_kv, figures_per_head] and [figures_per_layer].
struct LayerFigures {
  Eigen::Ref<Matrix<double>> heads;
  std::span<double> whole;
};

/// The scope of a figure: one KV head, a layer (head empty) or the whole model (both empty). `layer` counts
/// the layers of the run.
struct Scope {
  std::optional<Index> layer, head;
};
constexpr Level level_of(Scope scope) {
  return scope.head ? Level::head : scope.layer ? Level::layer : Level::model;
}

/// change_sq / full_sq: 0 if nothing changes; nan if something does and the outputs are 0, or so small that
/// their squares have no digits left.
double relative_error(double change_sq, double full_sq);

/// "0.0287 / 0.0123": a figure over all heads, and the median head's; "-" for NaN.
std::string with_median_head(double of_all, double of_median_head);
/// The part of a heading that explains such pairs.
inline constexpr const char* kOverHeads = "over all heads / of the median head";

/// The figures of all heads, summed up over a head, a layer or the model. `figures` must outlive this.
class ScopedFigures {
 public:
  explicit ScopedFigures(const HeadFigures& figures) : figures_(figures) {}

  bool empty() const { return figures_.layers.empty(); }  ///< a shard without a layer
  /// Every head, layer by layer with the layer behind its heads, then the model.
  std::vector<Scope> scopes() const;
  /// The rows of the figures.
  RowRange heads_in(Scope scope) const;
  /// The layers of the run, each a scope of its own.
  std::vector<Index> layers_in(Scope scope) const;
  /// Figures of layers as a whole, added up over all of them.
  std::span<const double> of_layers(Index first, Index count) const {
    return std::span(figures_.of_layers).subspan(first, count);
  }
  double sum(Scope scope, Index column) const;
  /// The mean over the heads that have a value; nan if none has.
  double mean(Scope scope, Index column) const;
  /// The median over the heads of the run of the values that `value_of` returns. Missing values and NaN are
  /// left out; NaN if none is left. Shown next to sums, which a few heads may dominate.
  double median_head(const std::function<std::optional<double>(Scope)>& value_of) const;
  /// The value that all heads in scope share; empty if they differ.
  std::optional<double> common(Scope scope, Index column) const;
  /// The dump's number of the layer in scope; empty for the whole model.
  std::optional<Index> layer_of(Scope scope) const;

 private:
  const HeadFigures& figures_;
};

}  // namespace kvreplay
