#pragma once

#include "analysis/results/figure_facts.hpp"
#include "analysis/run/stage.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <optional>
#include <span>
#include <vector>

namespace kvreplay {

/// What a figure is of: one KV head, a layer (head empty) or the whole model (both empty). `layer` counts the
/// layers of the run.
struct Scope {
  std::optional<Index> layer, head;
};
constexpr Level level_of(Scope scope) {
  return scope.head ? Level::head : scope.layer ? Level::layer : Level::model;
}

/// change_sq / full_sq: 0 where nothing changes, nan where something does and the outputs are 0, or so small
/// that their squares have no digits left.
double relative_error(double change_sq, double full_sq);

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
  /// Over the heads that have a value; nan where none has.
  double mean(Scope scope, Index column) const;
  /// The value that all heads in scope share; empty where they differ.
  std::optional<double> common(Scope scope, Index column) const;
  /// The dump's number of the layer in scope; empty for the whole model.
  std::optional<Index> layer_of(Scope scope) const;

 private:
  const HeadFigures& figures_;
};

}  // namespace kvreplay
