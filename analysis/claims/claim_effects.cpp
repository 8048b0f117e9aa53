#include "analysis/claims/claim.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/paired.hpp"
#include "analysis/results/student.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace kvreplay {
namespace {

/// An interval that holds no effect and ends within this of it says that there is no large one.
constexpr double kAlikeRatio = 0.2, kAlikeDifference = 0.05;

double no_effect(Effect effect) { return effect == Effect::ratio ? 1 : 0; }

/// NaN where a ratio would be 0 or infinite.
double effect_of(const MeasuredClaim& one) {
  switch (one.claim->effect) {
    case Effect::ratio:
      if (one.left == one.right) return 1;
      return one.left > 0 && one.right > 0 ? one.left / one.right : kNan;
    case Effect::difference:
      return one.left - one.right;
    case Effect::correlation:
      return one.left;
  }
  return kNan;
}

void average(ClaimEffect& effect, const std::vector<double>& left, const std::vector<double>& right) {
  const ClaimFacts& claim = *effect.claim;
  if (claim.effect == Effect::correlation) {
    RunningMean mean(FigureScale::correlation);
    for (const double value : left) mean.add(value);
    const OverDumps over = mean.result();
    effect.mean = over.center(), effect.low = over.low, effect.high = over.high;
  } else {
    const Paired over = paired(left, right, claim.better,
                               claim.effect == Effect::ratio ? FigureScale::log : FigureScale::share);
    effect.mean = over.center(), effect.low = over.lower(), effect.high = over.upper();
  }
  if (effect.prompts < static_cast<std::size_t>(kFewestPrompts)) effect.low = effect.high = kNan;
  if (effect.prompts == 1)  // itself, not by way of its logarithm
    effect.mean = *std::find_if_not(effect.dumps.begin(), effect.dumps.end(),
                                    [](double value) { return std::isnan(value); });
}

}  // namespace

std::string claimed_text(const ClaimFacts& claim) {
  constexpr const char* kNames[] = {"ratio", "difference", "correlation"};
  return fmt::format("{} {} {}", kNames[static_cast<std::size_t>(claim.effect)],
                     claim.better == Better::smaller ? "<" : ">", shortest(claim.bound));
}

Verdict ClaimEffect::verdict() const {
  if (std::isnan(low) || std::isnan(high)) return Verdict::none;
  const bool smaller = claim->better == Better::smaller;
  if (smaller ? high < claim->bound : low > claim->bound) return Verdict::holds;
  if (smaller ? low > claim->bound : high < claim->bound) return Verdict::fails;
  if (claim->effect == Effect::correlation || claim->bound != no_effect(claim->effect))
    return Verdict::undecided;
  const double most = std::max(std::abs(low - claim->bound), std::abs(high - claim->bound));
  return most <= (claim->effect == Effect::ratio ? kAlikeRatio : kAlikeDifference) ? Verdict::alike
                                                                                   : Verdict::undecided;
}

std::string ClaimEffect::verdict_text() const {
  switch (verdict()) {
    case Verdict::none:
      return "";
    case Verdict::holds:
      return "holds";
    case Verdict::fails:
      return "does not hold";
    case Verdict::alike: {
      const double most = std::max(std::abs(low - claim->bound), std::abs(high - claim->bound));
      return claim->effect == Effect::ratio
                 ? fmt::format("no difference at this size (up to {:.2g} %)", 100 * most)
                 : fmt::format("no difference at this size (up to {:.2g})", most);
    }
    case Verdict::undecided:
      return fmt::format("undecided: between {} and {}", text_of(low), text_of(high));
  }
  return "";
}

std::string ClaimEffect::text_of(double value) const {
  if (std::isnan(value)) return "-";
  switch (claim->effect) {
    case Effect::ratio:
      return std::abs(value - 1) < 0.01 ? fmt::format("{:.4f}", value) : short_number(value);
    case Effect::difference:
      return fmt::format("{:+.3f}", value);
    case Effect::correlation:
      return fmt::format("{:.3f}", value);
  }
  return "";
}

std::string ClaimEffect::text() const {
  return std::isnan(low) ? text_of(mean)
                         : fmt::format("{} [{}, {}]", text_of(mean), text_of(low), text_of(high));
}

std::vector<ClaimEffect> claim_effects(std::span<const std::vector<MeasuredClaim>> prompts) {
  struct Sides {
    std::vector<double> left, right;
    RunningMean layers;
  };
  std::vector<ClaimEffect> effects;
  std::vector<Sides> sides;
  std::map<std::pair<const ClaimFacts*, std::string>, std::size_t> places;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    for (const MeasuredClaim& one : prompts[i]) {
      const double value = effect_of(one);
      if (std::isnan(value)) continue;
      const auto [at, is_new] = places.emplace(std::pair(one.claim, one.setting), effects.size());
      if (is_new) {
        const std::vector<double> none(prompts.size(), kNan);
        effects.push_back({.claim = one.claim, .setting = one.setting, .dumps = none});
        sides.push_back({none, none, RunningMean()});
      }
      Sides& of = sides[at->second];
      of.left[i] = one.left, of.right[i] = one.right;
      of.layers.add(one.layers);
      effects[at->second].dumps[i] = value;
      ++effects[at->second].prompts;
    }
  for (std::size_t k = 0; k < effects.size(); ++k) {
    average(effects[k], sides[k].left, sides[k].right);
    effects[k].layers = sides[k].layers.result().mean;
  }
  std::stable_sort(effects.begin(), effects.end(),
                   [](const ClaimEffect& a, const ClaimEffect& b) { return a.claim < b.claim; });
  return effects;
}

}  // namespace kvreplay
