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

/// The choice of least nats within `bytes`; nothing if the smallest choice is larger. Costs may have any
/// finite value; bytes must not be negative.
///
/// A Lagrange multiplier gives a bound and a first solution. Choices whose cost beyond that bound excludes
/// them from any better solution are left out. From the rest, all sums are formed that no other sum beats in
/// both bytes and nats. The result is exact while there are at most `most_sums` of these sums. Beyond that
/// they are thinned out, and the bound states how far from the best the solution may be.
std::optional<Solution> cheapest(const Layers& layers, double bytes, std::size_t most_sums = 20000);

}  // namespace kvreplay::recommend
