#include "analysis/budgets/allocation.hpp"

#include "analysis/budgets/loss_curve.hpp"
#include "data/error.hpp"
#include "data/npy_array.hpp"
#include "data/npy_write.hpp"
#include "sim/eviction/policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <queue>
#include <stdexcept>
#include <utility>

namespace kvreplay {

namespace {

Budgets shared_out(const BudgetDivision& division, const AllocationInput& input) {
  const BudgetMethod method = division.method;
  const auto& [frame, semantics, pinned, curves, usual, scores, profile] = input;
  std::optional<HullGreedy> lowered;  // of a total that cannot give every head its lower bound
  if (kBudgetMethods[method].is_oracle && frame.lower < usual.lower()) lowered.emplace(curves, frame.lower);
  const HullGreedy& greedy = lowered ? *lowered : usual;
  switch (method) {
    case BudgetMethod::uniform:
    case BudgetMethod::pyramid:
    case BudgetMethod::ada:
      return divided_by_rank(division,
                             {.frame = frame, .semantics = semantics, .pinned = pinned, .scores = scores});
    case BudgetMethod::duo:
      return duo(frame, curves);
    case BudgetMethod::lu:
      return greedy.budgets(frame.total);
    case BudgetMethod::lu_without_gap:
      return HullGreedy(by_importance(curves), greedy.lower()).budgets(frame.total);
    case BudgetMethod::optimal:
      return optimal(frame, curves, greedy);
    case BudgetMethod::profile:
      return is_kvpress(semantics) ? kvpress_profile_budgets(*profile, frame.sigma, frame.l)
                                   : profile_budgets(*profile, frame);
  }
  return {};
}

}  // namespace

BudgetDivision::BudgetDivision(BudgetMethod of) : method(of), name(name_of(of)) {}

Budgets divided_by_rank(const BudgetDivision& division, const RankDivision& input) {
  const auto& [frame, semantics, pinned, window, scores] = input;
  if (division.method == BudgetMethod::pyramid)
    return pyramid(frame, {.semantics = semantics,
                           .beta = division.beta.value_or(PyramidOptions{}.beta),
                           .window = is_kvpress(semantics) ? window : PyramidOptions{}.window});
  if (division.method != BudgetMethod::ada) return uniform(frame);
  // The authors' README has alpha 0.5; what leads every order stands for their pinned window.
  return ada(frame, scores,
             {.semantics = semantics,
              .alpha = division.alpha.value_or(semantics == Semantics::official ? 0.5 : AdaOptions{}.alpha),
              .window = semantics == Semantics::official ? pinned : AdaOptions{}.window});
}

Allocation allocate(const BudgetDivision& division, const AllocationInput& input) {
  const BudgetMethodFacts& facts = kBudgetMethods[division.method];
  const auto scores = static_cast<std::size_t>(input.frame.all_heads() * input.frame.l);
  if ((facts.needs_scores && input.scores.size() != scores) ||
      (facts.needs_profile && input.profile == nullptr))
    throw std::invalid_argument("allocate: " + std::string(facts.name) + " lacks what it needs");
  Allocation result{shared_out(division, input), {}};
  for (Index head = 0; head < input.curves.all_heads(); ++head)
    result.loss.push_back(input.curves.loss(head)[result.budgets[head]]);
  return result;
}

namespace {

/// One layer's scores: [heads, l], every row falling.
struct OrderedScores {
  const double* first;
  Index heads, l;
  double at(Index head, Index place) const { return first[head * l + place]; }
};

/// Adds `tokens` to the budgets of a layer: the best scores at and behind every head's present budget.
void merge_best(const OrderedScores& scores, Index tokens, Index* budgets) {
  using Next = std::pair<double, Index>;  // score, head
  const auto worse = [](const Next& a, const Next& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  std::priority_queue<Next, std::vector<Next>, decltype(worse)> heap(worse);
  for (Index h = 0; h < scores.heads; ++h)
    if (budgets[h] < scores.l) heap.push({scores.at(h, budgets[h]), h});
  for (; tokens > 0 && !heap.empty(); --tokens) {
    const Index h = heap.top().second;
    heap.pop();
    if (++budgets[h] < scores.l) heap.push({scores.at(h, budgets[h]), h});
  }
}

/// floor(alpha u), where 0.1 of 30 is 3 whatever a double makes of 0.1.
Index own_share(double alpha, Index u) {
  return static_cast<Index>(std::floor(alpha * static_cast<double>(u) + 1e-9));
}

}  // namespace

Budgets ada(const BudgetFrame& frame, std::span<const double> scores, const AdaOptions& options) {
  assert(std::ssize(scores) == frame.all_heads() * frame.l);
  assert(options.alpha >= 0 && options.alpha <= 1);
  Budgets budgets(static_cast<std::size_t>(frame.all_heads()), 0);
  const Budgets even = options.semantics == Semantics::paper ? uniform(frame) : Budgets{};
  for (Index layer = 0; layer < frame.layers; ++layer) {
    const OrderedScores of_layer{scores.data() + layer * frame.heads * frame.l, frame.heads, frame.l};
    Index* budget = budgets.data() + layer * frame.heads;
    switch (options.semantics) {
      case Semantics::paper: {
        const Index* u = even.data() + layer * frame.heads;
        Index rest = 0;
        for (Index h = 0; h < frame.heads; ++h) {
          budget[h] = std::max(frame.lower, own_share(options.alpha, u[h]));
          rest += u[h] - budget[h];
        }
        merge_best(of_layer, rest, budget);
        break;
      }
      case Semantics::official: {
        const Index capacity = total_budget(frame.sigma, frame.l, 1);
        const Index window = std::min(options.window, capacity), mean = capacity - window;
        std::fill_n(budget, frame.heads, window);
        merge_best(of_layer, mean * frame.heads, budget);
        const auto floor_capacity = std::trunc(static_cast<double>(mean) * options.alpha);
        for (Index h = 0; h < frame.heads; ++h) {
          const double mixed = static_cast<double>(budget[h] - window) * (1 - options.alpha) + floor_capacity;
          budget[h] = std::min(static_cast<Index>(std::nearbyint(mixed)) + window, frame.l);
        }
        break;
      }
      case Semantics::kvpress:
      case Semantics::kvpress_0_5_5: {
        const Index n = kept_tokens(frame.sigma, frame.l, options.semantics);
        auto safe = static_cast<Index>(static_cast<double>(n) * options.alpha);
        if (options.semantics == Semantics::kvpress_0_5_5 && options.alpha > 0)
          safe = std::max(safe, std::min<Index>(n, 1));
        std::fill_n(budget, frame.heads, safe);
        merge_best(of_layer, (n - safe) * frame.heads, budget);
        break;
      }
    }
  }
  return budgets;
}

namespace {

/// Rounds half to even, as Python does.
Index round_even(double x) { return static_cast<Index>(std::nearbyint(x)); }

Budgets alike_in_layers(const BudgetFrame& frame, const std::vector<Index>& of_layer) {
  Budgets budgets;
  for (const Index budget : of_layer)
    budgets.insert(budgets.end(), static_cast<std::size_t>(frame.heads),
                   std::clamp<Index>(budget, 0, frame.l));
  return budgets;
}

Budgets official(const BudgetFrame& frame, const PyramidOptions& options) {
  const Index capacity = total_budget(frame.sigma, frame.l, 1);
  const Index window = std::min(options.window, capacity), mean = capacity - window;
  std::vector<Index> of_layer(frame.layers, capacity);
  if (frame.l < capacity || frame.l < 2 * mean || frame.layers == 1) return alike_in_layers(frame, of_layer);
  auto min = static_cast<Index>(std::floor(static_cast<double>(mean) / options.beta));
  Index max = 2 * mean - min;
  if (max >= frame.l - window) {
    max = frame.l - window;
    min = 2 * mean - max;
  }
  const auto step =
      static_cast<Index>(std::floor(static_cast<double>(max - min) / static_cast<double>(frame.layers - 1)));
  for (Index i = 0; i < frame.layers; ++i) of_layer[i] = max - i * step + window;
  return alike_in_layers(frame, of_layer);
}

Budgets kvpress(const BudgetFrame& frame, const PyramidOptions& options) {
  if (frame.sigma == 0) return Budgets(static_cast<std::size_t>(frame.all_heads()), frame.l);
  const double l = static_cast<double>(frame.l), window = static_cast<double>(options.window);
  // With that code's detour over l: it decides which way a half goes.
  const double capacity = window + l * (1 - frame.sigma), mean = capacity - window;
  double min = mean / options.beta, max = mean * 2 - min;
  if (max >= l - window) {
    max = l - window;
    min = mean * 2 - max;
  }
  const bool later = options.semantics == Semantics::kvpress_0_5_5;
  const Index even = std::max<Index>(round_even(l * (1 - frame.sigma)), later ? 1 : 0);
  std::vector<Index> of_layer(frame.layers, even);
  if (l >= max && max >= min && min >= window && (frame.layers > 1 || later)) {
    const double step = frame.layers > 1 ? (max - min) / static_cast<double>(frame.layers - 1) : 0;
    for (Index i = 0; i < frame.layers; ++i) of_layer[i] = round_even(max - static_cast<double>(i) * step);
  }
  return alike_in_layers(frame, of_layer);
}

}  // namespace

Budgets uniform(const BudgetFrame& frame) {
  const std::vector<double> shares(frame.all_heads(), frame.mean());
  return round_shares(shares, frame.total, frame.lower, frame.l);
}

Budgets duo(const BudgetFrame& frame, const LossCurves& curves) {
  std::vector<Index> heads(frame.all_heads());
  std::iota(heads.begin(), heads.end(), Index{0});
  std::ranges::stable_sort(heads, std::greater<>(), [&](Index h) { return curves.loss(h)[frame.lower]; });
  Budgets budgets(heads.size(), frame.lower);
  Index left = frame.total - frame.lower * frame.all_heads();
  for (const Index h : heads) {
    const Index taken = std::min(left, frame.l - frame.lower);
    budgets[h] += taken;
    left -= taken;
  }
  return budgets;
}

Budgets pyramid(const BudgetFrame& frame, const PyramidOptions& options) {
  assert(options.beta >= 1);
  if (options.semantics == Semantics::official) return official(frame, options);
  if (is_kvpress(options.semantics)) return kvpress(frame, options);
  if (frame.layers == 1) return uniform(frame);

  const double mean = frame.mean();
  double min = mean / options.beta, max = 2 * mean - min;
  if (max > static_cast<double>(frame.l)) {
    max = static_cast<double>(frame.l);
    min = 2 * mean - max;
  }
  if (min < static_cast<double>(frame.lower)) {
    min = static_cast<double>(frame.lower);
    max = 2 * mean - min;
  }
  std::vector<double> shares;
  for (Index i = 0; i < frame.layers; ++i) {
    const double share = max - static_cast<double>(i) * (max - min) / static_cast<double>(frame.layers - 1);
    shares.insert(shares.end(), static_cast<std::size_t>(frame.heads), share);
  }
  return round_shares(shares, frame.total, frame.lower, frame.l);
}

namespace {

constexpr Index kRatios = BudgetProfile::kRatios;

}  // namespace

BudgetProfile make_profile(const BudgetFrame& frame,
                           const std::function<Budgets(const BudgetFrame&)>& allocate) {
  BudgetProfile profile{frame.layers, frame.heads, {}};
  profile.pruned.reserve(kRatios * frame.all_heads());
  for (Index row = 0; row < kRatios; ++row) {
    const double sigma = BudgetProfile::sigma(row);
    const Budgets budgets = allocate(budget_frame(frame.layers, frame.heads, frame.l, sigma, frame.lower));
    assert(std::ssize(budgets) == frame.all_heads());
    for (const Index b : budgets)
      profile.pruned.push_back(frame.l > 0 ? static_cast<double>(frame.l - b) / static_cast<double>(frame.l)
                                           : 0);
  }
  return profile;
}

BudgetProfile lu_profile(const BudgetFrame& frame, const LossCurves& curves, const HullGreedy& greedy) {
  assert(curves.all_heads() == frame.all_heads() && curves.l() == frame.l && greedy.lower() == frame.lower);
  return make_profile(frame, [&](const BudgetFrame& at) {
    // A total that cannot hold the lower bound gives all heads what it can: their curves begin lower there.
    if (at.lower < greedy.lower()) return HullGreedy(curves, at.lower).budgets(at.total);
    return greedy.budgets(at.total);
  });
}

BudgetProfile mean_profile(std::span<const BudgetProfile> profiles) {
  assert(!profiles.empty());
  BudgetProfile mean = profiles.front();
  for (const BudgetProfile& profile : profiles.subspan(1)) {
    assert(profile.layers == mean.layers && profile.heads == mean.heads);
    for (std::size_t i = 0; i < mean.pruned.size(); ++i) mean.pruned[i] += profile.pruned[i];
  }
  for (double& ratio : mean.pruned) ratio /= static_cast<double>(profiles.size());
  return mean;
}

Budgets profile_budgets(const BudgetProfile& profile, const BudgetFrame& frame) {
  assert(profile.layers == frame.layers && profile.heads == frame.heads);
  const double at = frame.sigma * 100 - 1;
  // The two rows to interpolate between: row -1 prunes nothing, row 99 everything. Rounding is removed first:
  // 0.29 * 100 is not 29 in a double.
  const double nearest = std::round(at), place = std::abs(at - nearest) < 1e-9 ? nearest : at;
  const auto below = static_cast<Index>(std::floor(place));
  const double weight = place - static_cast<double>(below);
  const auto ratio = [&](Index row, Index head) {
    if (row < 0) return 0.0;
    return row >= kRatios ? 1.0 : profile.pruned[row * frame.all_heads() + head];
  };
  std::vector<double> shares;
  for (Index head = 0; head < frame.all_heads(); ++head) {
    const double low = ratio(below, head);
    const double pruned = weight > 0 ? low + weight * (ratio(below + 1, head) - low) : low;
    shares.push_back(std::max(0.0, 1 - pruned) * static_cast<double>(frame.l));
  }
  return round_shares(shares, frame.total, frame.lower, frame.l);
}

Budgets kvpress_profile_budgets(const BudgetProfile& profile, double sigma, Index l) {
  const Index all_heads = profile.layers * profile.heads;
  if (sigma <= 0) return Budgets(static_cast<std::size_t>(all_heads), l);
  const auto row = std::clamp<Index>(static_cast<Index>(std::nearbyint(sigma * 100)) - 1, 0, kRatios - 1);
  Budgets budgets;
  for (Index layer = 0; layer < profile.layers; ++layer) {
    const double* pruned = profile.pruned.data() + row * all_heads + layer * profile.heads;
    std::vector<float> ideal;
    for (Index h = 0; h < profile.heads; ++h)
      ideal.push_back(std::clamp(1.0f - static_cast<float>(pruned[h]), 0.0f, 1.0f) * static_cast<float>(l));
    const float sum = std::accumulate(ideal.begin(), ideal.end(), 0.0f);
    const Index target = std::clamp(static_cast<Index>(std::nearbyint(sum)), profile.heads,
                                    profile.heads * std::max<Index>(l, 1));

    Budgets base;
    for (const float x : ideal) base.push_back(static_cast<Index>(std::floor(x)));
    const Index rest = target - std::accumulate(base.begin(), base.end(), Index{0});
    std::vector<std::size_t> by_fraction(ideal.size());
    std::iota(by_fraction.begin(), by_fraction.end(), std::size_t{0});
    std::ranges::stable_sort(by_fraction, [&](std::size_t a, std::size_t b) {
      return ideal[a] - std::floor(ideal[a]) > ideal[b] - std::floor(ideal[b]);
    });
    for (std::size_t k = 0; k < by_fraction.size() && static_cast<Index>(k) < rest; ++k)
      ++base[by_fraction[k]];
    for (const Index b : base) budgets.push_back(std::min(std::max<Index>(b, 1), l));
  }
  return budgets;
}

BudgetProfile load_profile(const std::filesystem::path& path, Index layers, Index heads) {
  const NpyArray array = open_npy(path.string(), std::make_shared<FileSource>(path));
  const std::vector<std::ptrdiff_t> shape = {kRatios, layers, heads};
  const auto& dtype = array.header.dtype;
  if (!dtype || (*dtype != Dtype::f32 && *dtype != Dtype::f64))
    throw InputError(array.where, "prune ratios in float32 or float64",
                     dtype ? std::string(name_of(*dtype)) : array.header.descr);
  if (array.header.shape != shape)
    throw InputError(
        array.where,
        fmt::format("prune ratios of shape {} (sigma 0.01 .. 0.99, layers, KV heads)", shape_text(shape)),
        shape_text(array.header.shape));

  BudgetProfile profile{layers, heads, std::vector<double>(static_cast<std::size_t>(array.header.count))};
  // Rows are sigmas; in Fortran order the first index runs fastest, and the last two swap theirs.
  const Index all_heads = layers * heads;
  for (Index row = 0; row < kRatios; ++row) {
    const MatrixView view = array.header.fortran_order
                                ? MatrixView{row, layers, heads, kRatios, kRatios * layers}
                                : MatrixView{row * all_heads, layers, heads, heads, 1};
    read_matrix(array, *dtype, view, profile.pruned.data() + row * all_heads);
  }
  for (std::size_t i = 0; i < profile.pruned.size(); ++i) {
    const double ratio = profile.pruned[i];
    if (ratio >= 0 && ratio <= 1) continue;
    const auto at = static_cast<Index>(i);
    throw InputError(
        array.where, "finite prune ratios between 0 and 1",
        fmt::format("{} at [{}, {}, {}]", ratio, at / all_heads, at / heads % layers, at % heads));
  }
  return profile;
}

void save_profile(AtomicFile file, const BudgetProfile& profile) {
  const std::vector<float> ratios(profile.pruned.begin(), profile.pruned.end());
  const std::vector<std::size_t> shape = {static_cast<std::size_t>(kRatios),
                                          static_cast<std::size_t>(profile.layers),
                                          static_cast<std::size_t>(profile.heads)};
  write_npy(std::move(file), shape, std::span<const float>(ratios));
}

}  // namespace kvreplay
