#include "sim/compensation/mergers.hpp"

#include "sim/tokens/token_metrics.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
/// kvpress' epsilon of norms.
constexpr double kPressEpsilon = 1e-6;
/// Weighted log scores below this have no sign worth dividing by.
constexpr double kLeastLogScore = 1e-6;

/// log sum_n exp(x_n); -inf where there is nothing, or nothing else.
double log_sum_exp(const std::vector<double>& x) {
  const double largest = x.empty() ? kNever : *std::max_element(x.begin(), x.end());
  if (largest == kNever) return kNever;
  double sum = 0;
  for (const double one : x) sum += std::exp(one - largest);
  return largest + std::log(sum);
}

/// The rows at `tokens` divided by their norms, which count as at least `least`; a zero row stays 0.
Matrix<double> unit_rows(const HeadMatrix<double>& k, const std::vector<Index>& tokens, double least) {
  Matrix<double> unit(std::ssize(tokens), k.cols());
  for (Index n = 0; n < unit.rows(); ++n) {
    const double norm = std::max(k.row(tokens[n]).stableNorm(), least);
    unit.row(n) = k.row(tokens[n]) / (norm > 0 ? norm : 1);
  }
  return unit;
}

/// Kept and evicted positions of a prompt, ascending.
struct Parting {
  std::vector<Index> kept, evicted;
};

/// A kept token and the evicted ones that are merged into it, ascending.
struct MergingSet {
  Index into = 0;
  std::vector<Index> evicted;
  std::vector<double> cosine;  ///< of their keys with the kept one's; empty where it was not asked for
};
using MergingSets = std::vector<MergingSet>;

Index size_of(const MergingSets& sets) {
  Index n = 0;
  for (const MergingSet& set : sets) n += std::ssize(set.evicted);
  return n;
}

/// For every evicted token the kept one (its place in parting.kept) whose key has the largest cosine.
struct Nearest {
  std::vector<Index> place;
  std::vector<double> cosine;
};

Nearest nearest_kept(const HeadGroup<double>& group, const Parting& parting, double least_norm) {
  const Matrix<double> evicted = unit_rows(group.k, parting.evicted, least_norm);
  const Matrix<double> kept = unit_rows(group.k, parting.kept, least_norm).transpose();  // [d, n]
  Nearest nearest;
  std::vector<double> cosine(parting.kept.size());
  for (Index e = 0; e < evicted.rows(); ++e) {
    // Channel by channel, for every kept key in the same order: equal keys have equal cosines to the bit.
    std::fill(cosine.begin(), cosine.end(), 0.0);
    for (Index c = 0; c < kept.rows(); ++c) {
      const double x = evicted(e, c);
      const double* row = kept.row(c).data();
      for (std::size_t n = 0; n < cosine.size(); ++n) cosine[n] += x * row[n];
    }
    const auto best = std::max_element(cosine.begin(), cosine.end());
    nearest.place.push_back(best - cosine.begin());
    nearest.cosine.push_back(*best);
  }
  return nearest;
}

/// Tokens for which `merges(cosine)` holds, by the kept token that they go into.
template <class Merges>
MergingSets sets_where(const Parting& parting, const Nearest& nearest, const Merges& merges) {
  std::vector<Index> set_of(parting.kept.size(), -1);
  MergingSets sets;
  for (std::size_t e = 0; e < parting.evicted.size(); ++e) {
    if (!merges(nearest.cosine[e])) continue;
    Index& set = set_of[nearest.place[e]];
    if (set < 0) {
      set = std::ssize(sets);
      sets.push_back({parting.kept[nearest.place[e]], {}, {}});
    }
    sets[set].evicted.push_back(parting.evicted[e]);
    sets[set].cosine.push_back(nearest.cosine[e]);
  }
  return sets;
}

/// `own` and `others` weigh the kept token's row of x and the evicted ones'.
Eigen::RowVectorXd weighted_sum(const HeadMatrix<double>& x, const MergingSet& set, double own,
                                const std::vector<double>& others) {
  Eigen::RowVectorXd sum = own * x.row(set.into);
  for (std::size_t e = 0; e < others.size(); ++e) sum += others[e] * x.row(set.evicted[e]);
  return sum;
}

/// The paper's merge mask is drawn from Bernoulli(p_e). A value is linear in its mask, so the mask's mean
/// gives the mean of the merged values; no drawing is needed.
void merge_cam(const HeadGroup<double>& group, const Parting& parting, Semantics semantics,
               const Vector<double>& a, Index budget, MergedCache& cache) {
  const std::vector<Index>& kept = parting.kept;
  for (const Index e : parting.evicted) {
    const Index first = std::upper_bound(kept.begin(), kept.end(), e) - kept.begin();
    const Index behind = std::ssize(kept) - first, m = std::min(budget, behind);
    if (m <= 0) continue;
    const Index looked_at = semantics == Semantics::official ? behind : m;
    double mean = 0;
    for (Index n = first; n < first + looked_at; ++n) mean += a[kept[n]];
    mean /= static_cast<double>(looked_at);
    // 0 / 0: an evicted token that nobody looks at is worth nothing.
    const double p = a[e] < mean ? a[e] / mean : a[e] > 0 ? 1.0 : 0.0;
    if (p == 0) continue;
    const double share = p / static_cast<double>(semantics == Semantics::official ? budget : m);
    for (Index n = first; n < first + m; ++n) cache.v.row(kept[n]) += share * group.v.row(e);
    ++cache.merged;
  }
}

void merge_d2o(const HeadGroup<double>& group, const Parting& parting, Semantics semantics,
               const std::optional<double>& threshold, MergedCache& cache) {
  const Nearest nearest = nearest_kept(group, parting, 0);
  double tau = threshold.value_or(0);
  if (!threshold) {
    double largest = kNever;
    for (const double u : nearest.cosine) {
      tau += u / static_cast<double>(nearest.cosine.size());
      largest = std::max(largest, u);
    }
    tau = std::min(tau, largest);  // a mean of equal numbers may round above them
  }
  const MergingSets sets = sets_where(parting, nearest, [&](double u) { return u >= tau; });
  for (const MergingSet& set : sets) {
    double own = 1, total = 1;
    std::vector<double> weights = set.cosine;
    if (semantics == Semantics::paper) {
      total = own = std::exp(1.0);
      for (double& w : weights) total += w = std::exp(w);
    } else {
      total += static_cast<double>(weights.size());
    }
    cache.k.row(set.into) = weighted_sum(group.k, set, own, weights) / total;
    cache.v.row(set.into) = weighted_sum(group.v, set, own, weights) / total;
  }
  cache.merged = size_of(sets);
}

/// The paper's sets are runs of keys of which each is similar to the next. A run with several kept tokens is
/// cut between two of them at the least similar pair: agglomerative clustering of neighbours that never joins
/// two kept tokens. A run without one is dropped.
MergingSets runs_around_kept(const HeadGroup<double>& group, const Parting& parting, double threshold) {
  std::vector<Index> all(group.l);
  for (Index p = 0; p < group.l; ++p) all[p] = p;
  const Matrix<double> unit = unit_rows(group.k, all, 0);
  std::vector<double> link(std::max<Index>(group.l - 1, 0));  // p with p + 1
  for (std::size_t p = 0; p < link.size(); ++p) {
    const Index at = static_cast<Index>(p);
    link[p] = unit.row(at).dot(unit.row(at + 1));
    if (!(link[p] > threshold)) link[p] = kNever;
  }

  MergingSets sets;
  const Index n = std::ssize(parting.kept);
  for (Index i = 0; i < n; ++i) {
    MergingSet set{parting.kept[i], {}, {}};
    // The weakest link behind each neighbour; of equal ones the last, so that a tie goes to the lower token.
    const auto cut_behind = [&](Index place) {
      Index cut = parting.kept[place];
      for (Index p = cut + 1; p < parting.kept[place + 1]; ++p)
        if (link[p] <= link[cut]) cut = p;
      return cut;
    };
    const Index begin = i > 0 ? cut_behind(i - 1) + 1 : 0;
    const Index end = i + 1 < n ? cut_behind(i) + 1 : group.l;
    Index first = set.into, last = set.into;
    while (first > begin && link[first - 1] != kNever) --first;
    while (last + 1 < end && link[last] != kNever) ++last;
    for (Index p = first; p <= last; ++p)
      if (p != set.into) set.evicted.push_back(p);
    if (!set.evicted.empty()) sets.push_back(std::move(set));
  }
  return sets;
}

void merge_kvmerger(const HeadGroup<double>& group, const Parting& parting, double threshold, double sigma,
                    MergedCache& cache) {
  const MergingSets sets = runs_around_kept(group, parting, threshold);
  for (const MergingSet& set : sets) {
    std::vector<double> g;
    double total = 1;  // the pivot's own
    for (const Index e : set.evicted) {
      g.push_back(std::exp(-(group.k.row(set.into) - group.k.row(e)).squaredNorm() / (2 * sigma * sigma)));
      total += g.back();
    }
    cache.k.row(set.into) = weighted_sum(group.k, set, 1, g) / total;
    cache.v.row(set.into) = weighted_sum(group.v, set, 1, g) / total;
  }
  cache.merged = size_of(sets);
}

/// Several tokens for one kept one are all merged at once, as the official code does, where the paper's
/// algorithm 1 says nothing: in turn, the key would depend on the order.
void merge_keepkv(const HeadGroup<double>& group, const Parting& parting, Semantics semantics,
                  const Vector<double>& log_s, double threshold, MergedCache& cache) {
  const bool paper = semantics == Semantics::paper;
  const MergingSets sets = sets_where(parting, nearest_kept(group, parting, 0),
                                      [&](double u) { return paper ? u > threshold : u >= threshold; });
  for (const MergingSet& set : sets) {
    std::vector<double> scores = {log_s[set.into]};
    for (const Index e : set.evicted) scores.push_back(log_s[e]);
    const double log_w = log_sum_exp(scores), log_p = std::log(static_cast<double>(scores.size()));
    double mean_log = 0;
    std::vector<double> share;
    for (const double x : scores) {
      // Tokens that no row sees are all alike.
      share.push_back(log_w == kNever ? 1 / static_cast<double>(scores.size()) : std::exp(x - log_w));
      if (share.back() > 0 && x != kNever) mean_log += share.back() * x;
    }
    const double own = share.front();
    share.erase(share.begin());
    const bool scaled = paper && log_w != kNever && std::abs(mean_log) >= kLeastLogScore;
    const double lambda = scaled ? (log_w - log_p) / mean_log : 1.0;
    cache.k.row(set.into) = lambda * weighted_sum(group.k, set, own, share);
    cache.v.row(set.into) = weighted_sum(group.v, set, own, share);
    cache.bias[set.into] = log_p;
  }
  cache.merged = size_of(sets);
}

void merge_press(const HeadGroup<double>& group, const Parting& parting, double threshold,
                 MergedCache& cache) {
  const MergingSets sets = sets_where(parting, nearest_kept(group, parting, kPressEpsilon),
                                      [&](double u) { return u >= threshold && u > 0; });
  for (const MergingSet& set : sets) {
    const double norm = group.v.row(set.into).norm();
    std::vector<double> weights = set.cosine;
    double total = 1;
    for (std::size_t e = 0; e < weights.size(); ++e) {
      const double other = group.v.row(set.evicted[e]).norm();
      weights[e] *= other / (other + norm + kPressEpsilon);
      total += weights[e];
    }
    if (total > 1) cache.v.row(set.into) = weighted_sum(group.v, set, 1, weights) / total;
  }
  cache.merged = size_of(sets);
}

}  // namespace

WindowAttention window_attention(const HeadGroup<double>& group, Index window) {
  const RowRange rows = window_rows(group.l, group.first_query(), window);
  WindowAttention result{Vector<double>::Zero(group.l), Vector<double>::Constant(group.l, kNever)};
  Vector<double> seen = Vector<double>::Zero(group.l);
  // A running log-sum-exp of every column: log_s is the largest logit so far, `sum` what is above it.
  Vector<double> sum = Vector<double>::Zero(group.l);
  for (Index i = rows.begin; i < rows.end; ++i) {
    const Index first = group.first_visible(i), n = group.end_visible(i) - first;
    for (Index g = 0; g < group.G(); ++g) {
      Vector<double> z = group.k.middleRows(first, n) * group.q[g].row(i - group.first_query()).transpose();
      z *= group.rule.scale;
      if (group.rule.softcap) z = *group.rule.softcap * (z.array() / *group.rule.softcap).tanh();
      if (n == 0) continue;
      const double shift = std::max(z.maxCoeff(), group.sink(g));
      const Vector<double> e = (z.array() - shift).exp();
      const double total = e.sum() + std::exp(group.sink(g) - shift);
      for (Index m = 0; m < std::min(n, group.l - first); ++m) {
        const Index p = first + m;
        result.a[p] += e[m] / total;
        seen[p] += 1;
        const double largest = std::max(result.log_s[p], z[m]);
        sum[p] = sum[p] * std::exp(result.log_s[p] - largest) + std::exp(z[m] - largest);
        result.log_s[p] = largest;
      }
    }
  }
  if (rows.count() > 0 && group.G() > 0) result.a /= static_cast<double>(rows.count() * group.G());
  for (Index p = 0; p < group.l; ++p)
    if (seen[p] > 0) result.log_s[p] += std::log(sum[p] / seen[p]);
  return result;
}

MergedCache merged_cache(const HeadGroup<double>& group, const KeptSet& kept, Merging method,
                         Semantics semantics, const WindowAttention& attention,
                         const MergingOptions& options) {
  assert(std::ssize(kept) == group.l && has_semantics(method, semantics));
  assert(!kMergings[method].needs_attention ||
         (attention.a.size() == group.l && attention.log_s.size() == group.l));
  MergedCache cache{group.k.topRows(group.l), group.v.topRows(group.l), Vector<double>::Zero(group.l)};
  const Parting parting{positions(kept), evicted_positions(kept, group.first_held())};
  if (parting.kept.empty() || parting.evicted.empty()) return cache;

  const std::optional<double> threshold = options.threshold ? options.threshold : kMergings[method].threshold;
  switch (method) {
    case Merging::cam:
      merge_cam(group, parting, semantics, attention.a, options.budget, cache);
      break;
    case Merging::d2o:
      merge_d2o(group, parting, semantics, threshold, cache);
      break;
    case Merging::kvmerger:
      merge_kvmerger(group, parting, *threshold, options.sigma, cache);
      break;
    case Merging::keepkv:
      merge_keepkv(group, parting, semantics, attention.log_s, *threshold, cache);
      break;
    case Merging::merging_press:
      merge_press(group, parting, *threshold, cache);
      break;
  }
  return cache;
}

}  // namespace kvreplay
