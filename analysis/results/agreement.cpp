#include "analysis/results/agreement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvreplay {
namespace {

constexpr std::size_t kFirstRecall = static_cast<std::size_t>(AgreementFigure::recall_40);
constexpr std::size_t kFirstMass = static_cast<std::size_t>(AgreementFigure::mass_40);

/// The cuts that hold more than what is reserved.
std::array<std::optional<std::size_t>, kCuts> cuts_above(std::size_t n, std::size_t reserve) {
  auto cuts = agreement_cuts(n);
  for (auto& k : cuts)
    if (k && *k <= reserve) k.reset();
  return cuts;
}

/// Recall and mass of every cut, NaN where there is none. A token is in both top-k sets once k exceeds its
/// place in both orders; one pass down the score's order, the reserved tokens in front, counts that for every
/// cut, and gathers the reference's mass on the way.
void count_tops(const Ranking& score, const Ranking& reference, std::size_t reserve, Agreement& result) {
  const std::size_t n = score.size();
  const auto cuts = cuts_above(n, reserve);
  std::array<std::size_t, kCuts> hits{};
  std::array<double, kCuts> mass{};
  std::size_t deepest = 0, taken = 0;
  for (const auto& k : cuts) deepest = std::max(deepest, k.value_or(0));
  double held = 0;
  const auto take = [&](std::size_t p) {
    held += reference.values()[p];
    const std::size_t enters = std::max(taken, static_cast<std::size_t>(reference.place()[p]));
    ++taken;
    for (std::size_t c = 0; c < kCuts; ++c) {
      if (!cuts[c]) continue;
      if (enters < *cuts[c]) ++hits[c];
      if (taken == *cuts[c]) mass[c] = held;
    }
  };
  const std::size_t others = n - std::min(reserve, n);
  if (deepest > 0)
    for (std::size_t p = others; p < n; ++p) take(p);
  for (std::size_t j = 0; j < n && taken < deepest; ++j)
    if (const auto p = static_cast<std::size_t>(score.order()[j]); p < others) take(p);
  for (std::size_t c = 0; c < kCuts; ++c) {
    const bool there = cuts[c].has_value();
    result.values[kFirstRecall + c] =
        there ? static_cast<double>(hits[c]) / static_cast<double>(*cuts[c]) : kNan;
    result.values[kFirstMass + c] = there && reference.total() > 0 ? mass[c] / reference.total() : kNan;
  }
}

}  // namespace

std::array<std::optional<std::size_t>, kCuts> agreement_cuts(std::size_t n) {
  std::array<std::optional<std::size_t>, kCuts> cuts;
  if (n >= 40) cuts[0] = 40;
  constexpr std::array<std::size_t, kCuts - 1> percents = {1, 5, 10, 20};
  for (std::size_t c = 0; c + 1 < kCuts && n > 0; ++c)
    cuts[c + 1] = std::max<std::size_t>(1, (2 * percents[c] * n + 100) / 200);
  return cuts;
}

bool figure_applies(AgreementFigure figure, std::size_t n, bool same_unit, std::size_t reserve) {
  const auto f = static_cast<std::size_t>(figure);
  if (figure == AgreementFigure::rel_l1) return same_unit;
  if (f < kFirstRecall) return true;
  return cuts_above(n, reserve)[(f - kFirstRecall) % kCuts].has_value();
}

Ranking::Ranking(std::span<const double> values) : values_(values), total_(compensated_sum(values)) {
  // Values go with their positions: looked up by position, each comparison of a sort is a miss or two.
  struct Placed {
    double value;
    std::int32_t at;
  };
  const std::size_t n = values.size();
  std::vector<Placed> sorted(n);
  for (std::size_t p = 0; p < n; ++p)
    // NaN has no place in an order; it is put behind everything so that the sort stays well defined.
    sorted[p] = {std::isnan(values[p]) ? -std::numeric_limits<double>::infinity() : values[p],
                 static_cast<std::int32_t>(p)};
  std::ranges::sort(sorted, [](const Placed& a, const Placed& b) {
    return a.value != b.value ? a.value > b.value : a.at < b.at;
  });

  order_.resize(n);
  place_.resize(n);
  centred_.resize(n);
  for (std::size_t first = 0; first < n;) {
    std::size_t last = first;
    while (last + 1 < n && sorted[last + 1].value == sorted[first].value) ++last;
    // Places first..last share their mean; twice that, less twice the mean of 0..n-1.
    const auto centred = static_cast<std::int64_t>(n - 1) - static_cast<std::int64_t>(first + last);
    for (std::size_t j = first; j <= last; ++j) {
      const std::int32_t p = order_[j] = sorted[j].at;
      place_[p] = static_cast<std::int32_t>(j);
      centred_[p] = static_cast<std::int32_t>(centred);
    }
    variance_ += centred * centred * static_cast<std::int64_t>(last - first + 1);
    first = last + 1;
  }
}

Agreement agreement(const Ranking& score, const Ranking& reference, bool same_unit) {
  const std::size_t n = score.size();
  Agreement result;
  result.values.fill(kNan);
  const std::span<const double> s = score.values(), e = reference.values();

  if (same_unit) {
    double difference = 0;
    for (std::size_t p = 0; p < n; ++p) difference += std::abs(s[p] - e[p]);
    if (reference.total() > 0)
      result.values[static_cast<std::size_t>(AgreementFigure::rel_l1)] = difference / reference.total();
  }

  // Integers throughout, so the covariance is exact: equal orders give exactly 1.
  if (score.rank_variance() > 0 && reference.rank_variance() > 0) {
    std::int64_t covariance = 0;
    const std::int32_t* a = score.centred_ranks().data();
    const std::int32_t* b = reference.centred_ranks().data();
    for (std::size_t p = 0; p < n; ++p) covariance += std::int64_t{a[p]} * b[p];
    const double scale = std::sqrt(static_cast<double>(score.rank_variance())) *
                         std::sqrt(static_cast<double>(reference.rank_variance()));
    const double rho = score.rank_variance() == reference.rank_variance()
                           ? static_cast<double>(covariance) / static_cast<double>(score.rank_variance())
                           : static_cast<double>(covariance) / scale;
    result.values[static_cast<std::size_t>(AgreementFigure::spearman)] = rho;
  }

  count_tops(score, reference, 0, result);
  return result;
}

Agreement with_reserve(Agreement plain, const Ranking& score, const Ranking& reference, std::size_t reserve) {
  count_tops(score, reference, reserve, plain);
  return plain;
}

Agreement agreement(std::span<const double> score, std::span<const double> reference, bool same_unit) {
  return agreement(Ranking(score), Ranking(reference), same_unit);
}

double compensated_sum(std::span<const double> values) {
  double sum = 0, lost = 0;
  for (const double value : values) {
    const double next = sum + value;
    lost += std::abs(sum) >= std::abs(value) ? (sum - next) + value : (value - next) + sum;
    sum = next;
  }
  // With an infinite value the correction is inf - inf.
  return std::isfinite(sum) ? sum + lost : sum;
}

}  // namespace kvreplay
