#include "analysis/recommend/knapsack.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvreplay::recommend {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double priced(const Choice& choice, double price) {
  // Not 0 x infinity: at an infinite price bytes alone count.
  return price == kInfinite ? choice.bytes : choice.nats + price * choice.bytes;
}

/// The number of the head's choice that costs least at a price of bytes; of equal ones that with fewer bytes,
/// or nats.
std::size_t best_of(const std::vector<Choice>& head, double price) {
  const auto rank = [&](const Choice& choice) {
    return std::pair(priced(choice, price), price == kInfinite ? choice.nats : choice.bytes);
  };
  const auto best = std::ranges::min_element(head, {}, rank);
  return static_cast<std::size_t>(best - head.begin());
}

double least_of(const Setting& setting, double price) {
  double sum = 0;
  for (const std::vector<Choice>& head : setting) sum += priced(head[best_of(head, price)], price);
  return sum;
}

void count_up(const Layers& layers, Solution& solution) {
  solution.bytes = solution.nats = 0;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const auto& [setting, choices] = solution.layers[l];
    for (std::size_t h = 0; h < choices.size(); ++h) {
      const Choice& choice = layers[l][setting][h][choices[h]];
      solution.bytes += choice.bytes;
      solution.nats += choice.nats;
    }
  }
}

/// Where bytes have a price, every layer chooses for itself.
Solution at_price(const Layers& layers, double price) {
  Solution solution;
  for (const std::vector<Setting>& settings : layers) {
    Solution::Layer& layer = solution.layers.emplace_back();
    double least = kInfinite;
    for (std::size_t s = 0; s < settings.size(); ++s)
      if (const double cost = least_of(settings[s], price); cost < least) {
        least = cost;
        layer.setting = s;
      }
    for (const std::vector<Choice>& head : settings[layer.setting])
      layer.choices.push_back(best_of(head, price));
  }
  count_up(layers, solution);
  return solution;
}

/// The price at which the choices come to `bytes`, by the hull of all (bytes, nats): the solution at its end
/// within them, and the bound.
struct Hull {
  double price = 0;
  Solution within;
};
std::optional<Hull> hull_at(const Layers& layers, double bytes) {
  Hull hull{kInfinite, at_price(layers, kInfinite)};
  if (hull.within.bytes > bytes) return std::nullopt;
  Solution beyond = at_price(layers, 0);
  if (beyond.bytes <= bytes) {
    hull = {0, std::move(beyond)};
    hull.within.bound = hull.within.nats;
    return hull;
  }
  while (true) {
    // Both lie on the hull: its edge between them, or a corner below it.
    const double price = (hull.within.nats - beyond.nats) / (beyond.bytes - hull.within.bytes);
    Solution at = at_price(layers, price);
    const double least = at.nats + price * at.bytes, edge = beyond.nats + price * beyond.bytes;
    const bool corner =
        least < edge - 1e-12 * std::abs(edge) && at.bytes != hull.within.bytes && at.bytes != beyond.bytes;
    hull.price = price;
    if (!corner) {
      hull.within.bound = std::min(least, edge) - price * bytes;
      return hull;
    }
    (at.bytes <= bytes ? hull.within : beyond) = std::move(at);
  }
}

/// Spends what is left of the bytes on what saves most, head by head.
void spend_rest(const Layers& layers, double bytes, Solution& solution) {
  while (true) {
    double most = 0;
    std::size_t* where = nullptr;
    std::size_t what = 0;
    for (std::size_t l = 0; l < layers.size(); ++l)
      for (std::size_t h = 0; h < solution.layers[l].choices.size(); ++h) {
        const std::vector<Choice>& head = layers[l][solution.layers[l].setting][h];
        const Choice& now = head[solution.layers[l].choices[h]];
        for (std::size_t c = 0; c < head.size(); ++c)
          if (solution.bytes - now.bytes + head[c].bytes <= bytes && now.nats - head[c].nats > most) {
            most = now.nats - head[c].nats;
            where = &solution.layers[l].choices[h];
            what = c;
          }
      }
    if (where == nullptr) return;
    *where = what;
    count_up(layers, solution);
  }
}

/// A sum of choices.
struct Sum {
  double bytes = 0, nats = 0;
  double beyond = 0;      ///< its cost beyond the least, including bytes at their price
  std::size_t from = 0;   ///< the sum that the last choice was added to
  std::size_t added = 0;  ///< the choice that was added
};

/// Sums over classes, one after the other, that may be part of a solution better than one that is known.
class Sums {
 public:
  /// `gap` is how far beyond the least a solution may cost.
  Sums(double gap, std::size_t most, double beyond = 0)
      : gap_(gap), most_(most), steps_{{{0, 0, beyond, 0, 0}}} {}

  /// Adds one of a class's choices to every sum.
  void add(std::vector<Sum> choices) {
    const std::vector<Sum>& before = steps_.back();
    std::ranges::sort(choices, {}, &Sum::beyond);
    std::vector<Sum> all;
    for (std::size_t from = 0; from < before.size(); ++from)
      for (const Sum& choice : choices) {
        if (before[from].beyond + choice.beyond > gap_) break;
        all.push_back({before[from].bytes + choice.bytes, before[from].nats + choice.nats,
                       before[from].beyond + choice.beyond, from, choice.added});
      }
    leave_best(all);
    steps_.push_back(std::move(all));
  }
  const std::vector<Sum>& all() const { return steps_.back(); }
  bool thinned() const { return thinned_; }
  /// The choices that make up the nth sum, class by class.
  std::vector<std::size_t> choices(std::size_t nth) const {
    std::vector<std::size_t> found(steps_.size() - 1);
    for (std::size_t step = found.size(); step-- > 0; nth = steps_[step + 1][nth].from)
      found[step] = steps_[step + 1][nth].added;
    return found;
  }

 private:
  /// Keeps the sums that no other sum beats in both bytes and nats, by bytes ascending; if they are too many,
  /// the best of neighbours.
  void leave_best(std::vector<Sum>& sums) {
    std::ranges::sort(sums, [](const Sum& a, const Sum& b) {
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.nats < b.nats;
    });
    std::size_t left = 0;
    for (const Sum& sum : sums)
      if (left == 0 || sum.nats < sums[left - 1].nats) sums[left++] = sum;
    sums.resize(left);
    if (left <= most_) return;
    thinned_ = true;
    for (std::size_t n = 0; n < most_; ++n) {
      const auto at = [&](std::size_t part) {
        return sums.begin() + static_cast<std::ptrdiff_t>(part * left / most_);
      };
      sums[n] = *std::ranges::min_element(at(n), at(n + 1), {}, &Sum::beyond);
    }
    sums.resize(most_);
  }

  double gap_;
  std::size_t most_;
  bool thinned_ = false;
  std::vector<std::vector<Sum>> steps_;
};

/// The sums of one layer's heads: `added` is the number in `picks`.
struct LayerSums {
  std::vector<Sum> sums;
  std::vector<Solution::Layer> picks;
  bool thinned = false;
};
LayerSums sums_of_layer(const std::vector<Setting>& settings, double price, double gap, std::size_t most) {
  double least = kInfinite;
  for (const Setting& setting : settings) least = std::min(least, least_of(setting, price));
  LayerSums layer;
  for (std::size_t s = 0; s < settings.size(); ++s) {
    Sums sums(gap, most, least_of(settings[s], price) - least);
    for (const std::vector<Choice>& head : settings[s]) {
      const double least_of_head = priced(head[best_of(head, price)], price);
      std::vector<Sum> choices;
      for (std::size_t c = 0; c < head.size(); ++c)
        choices.push_back({head[c].bytes, head[c].nats, priced(head[c], price) - least_of_head, 0, c});
      sums.add(std::move(choices));
    }
    layer.thinned = layer.thinned || sums.thinned();
    for (std::size_t n = 0; n < sums.all().size(); ++n) {
      layer.sums.push_back(sums.all()[n]);
      layer.sums.back().added = layer.picks.size();
      layer.picks.push_back({s, sums.choices(n)});
    }
  }
  return layer;
}

}  // namespace

std::optional<Solution> cheapest(const Layers& layers, double bytes, std::size_t most_sums) {
  std::optional<Hull> hull = hull_at(layers, bytes);
  if (!hull) return std::nullopt;
  Solution best = std::move(hull->within);
  if (hull->price == 0) return best;
  const double bound = best.bound;
  spend_rest(layers, bytes, best);
  // Rounding must not leave out what is as good.
  const double gap = best.nats - bound + 1e-12 * (std::abs(best.nats) + hull->price * bytes);
  Sums sums(gap, most_sums);
  std::vector<std::vector<Solution::Layer>> picks;
  bool thinned = false;
  for (const std::vector<Setting>& settings : layers) {
    LayerSums layer = sums_of_layer(settings, hull->price, gap, most_sums);
    thinned = thinned || layer.thinned;
    sums.add(std::move(layer.sums));
    picks.push_back(std::move(layer.picks));
  }
  const std::vector<Sum>& all = sums.all();
  const auto beyond = std::ranges::upper_bound(all, bytes, {}, &Sum::bytes);
  if (beyond != all.begin() && (beyond - 1)->nats < best.nats) {
    const std::vector<std::size_t> found = sums.choices(static_cast<std::size_t>(beyond - 1 - all.begin()));
    for (std::size_t l = 0; l < found.size(); ++l) best.layers[l] = picks[l][found[l]];
    count_up(layers, best);
  }
  best.bound = thinned || sums.thinned() ? bound : best.nats;
  return best;
}

}  // namespace kvreplay::recommend
