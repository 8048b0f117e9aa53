#pragma once

#include <cstddef>
#include <optional>
#include <vector>

// The cheapest choice for every head within so many bytes: a multiple-choice knapsack whose classes are
// grouped by layers.

namespace kvreplay::recommend {

/// One way to hold a head's cache.
struct Choice {
  double bytes = 0, nats = 0;
};

/// The choices of each head of a layer while all heads share a setting, such as a format: [heads][choices].
using Setting = std::vector<std::vector<Choice>>;

/// Layers with the settings of each.
using Layers = std::vector<std::vector<Setting>>;

struct Solution {
  struct Layer {
    std::size_t setting = 0;
    std::vector<std::size_t> choices;  ///< of every head
  };
  std::vector<Layer> layers;
  double bytes = 0, nats = 0;
  double bound = 0;  ///< nothing within the bytes costs less; `nats` where that is proven
};

/// The choice of least nats within `bytes`; nothing where the smallest one is larger. Costs may have any
/// finite value, bytes none below 0.
///
/// Lagrange's multiplier gives a bound and a first solution. What cannot be part of a better one, by what it
/// costs beyond that bound, is left out, and of the rest all sums are formed that no other one beats in both
/// bytes and nats. That is exact while there are no more than `most_sums` of these; else they are thinned
/// out, and the bound says how far from the best the solution may be.
std::optional<Solution> cheapest(const Layers& layers, double bytes, std::size_t most_sums = 20000);

}  // namespace kvreplay::recommend
