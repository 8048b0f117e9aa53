#include "analysis/budgets/budget_stage.hpp"

#include "analysis/budgets/budget_measure_stage.hpp"
#include "analysis/eviction/head_ranking.hpp"
#include "analysis/given/given_arrays.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace kvreplay {
namespace {

BudgetFrame frame_of(const CandidateOrder& order, const HeadFigures& figures, Index l, double sigma) {
  return budget_frame(std::ssize(figures.layers), figures.n_kv, l, sigma, order.lower);
}

}  // namespace

BudgetStage::BudgetStage(const Dump& dump, const BudgetOptions& options, const std::vector<Index>& layers,
                         const Compute& compute)
    : Stage(dump, compute), options_(options), plan_(budget_plan(dump, options, layers)) {}

Json BudgetStage::options() const {
  BudgetOptions settled = options_;
  const BudgetSemanticsFacts& setting = kBudgetSemantics[options_.semantics];
  settled.normalise = plan_.normalise_by_layer ? Normalise::layer : Normalise::none;
  settled.floor = options_.floor.value_or(setting.floor);
  settled.sinks = options_.sinks.value_or(setting.sinks);
  settled.orders.clear();  // those that the dump can give, each once
  for (const CandidateOrder& order : plan_.orders) settled.orders.push_back({order.name, order.rule.policy});
  Json json = to_json(bound(settled));
  for (const GivenArray<double>& score : plan_.scores)
    json["scores"][score.name] = contents_fingerprint(score);
  const auto of_profile = [&](std::size_t order) {
    return contents_fingerprint(GivenArray<double>{"", plan_.profiles[order].pruned});
  };
  if (!plan_.profiles.empty() && !plan_.profiles_by_order) json["profile"] = of_profile(0);
  for (std::size_t o = 0; plan_.profiles_by_order && o < plan_.orders.size(); ++o)
    json["profile"][plan_.orders[o].name] = of_profile(o);
  return json;
}

std::vector<OptionText> BudgetStage::notes() const {
  std::vector<OptionText> notes = plan_.notes;
  notes.emplace_back("a head's loss is a sum over its evicted tokens; output_error is measured");
  return notes;
}

// Figures of a head, for every order: what the tokens are worth, [l], and the scores that rank them, [l],
// both in the order's order.
std::size_t BudgetStage::figures_per_head() const {
  return plan_.orders.size() * 2 * static_cast<std::size_t>(dump_.shape().l);
}

template <class T>
void BudgetStage::compute(const HeadGroup<T>& group, std::span<double> figures) {
  const auto l = static_cast<std::size_t>(group.l);
  const Vector<double> importance = future_importance(group, compute_, plan_.curve);
  const std::vector<RankedTokens> orders = head_orders(group, plan_, dump_.shape().n_kv, compute_);
  for (std::size_t o = 0; o < orders.size(); ++o) {
    std::span<double> worth = figures.subspan(2 * o * l, l), scores = figures.subspan((2 * o + 1) * l, l);
    for (std::size_t j = 0; j < l; ++j) {
      worth[j] = importance[orders[o].order[j]];
      scores[j] = orders[o].scores[j];
    }
  }
}

void BudgetStage::head(const HeadGroup<float>& group, std::span<double> figures) { compute(group, figures); }
void BudgetStage::head(const HeadGroup<double>& group, std::span<double> figures) { compute(group, figures); }

LossCurves BudgetStage::curves(std::size_t order, const HeadFigures& figures) const {
  const Index l = dump_.shape().l;
  return loss_curves(figures.values, static_cast<Index>(order) * 2 * l, l, figures.n_kv,
                     plan_.normalise_by_layer);
}

Json BudgetStage::write_tables(const ResultFolder& folder, const HeadFigures& figures) {
  const Index l = dump_.shape().l;
  for (std::size_t o = 0; o < plan_.profiles.size(); ++o)
    if (plan_.profiles_by_order)
      save_profile(folder.file(fmt::format("curves/{}~profile.npy", plan_.orders[o].file_name())),
                   plan_.profiles[o]);
    else if (o == 0)
      save_profile(folder.file("curves/profile.npy"), plan_.profiles[o]);
  const bool only_profiles = std::all_of(plan_.cases.begin(), plan_.cases.end(), [](const BudgetCase& which) {
    return kBudgetMethods[which.division.method].needs_profile;
  });
  if (only_profiles) return Json::object();  // which nothing of these curves went into
  for (std::size_t o = 0; o < plan_.orders.size(); ++o) {
    const LossCurves all = curves(o, figures);
    const std::size_t shape[] = {figures.layers.size(), static_cast<std::size_t>(figures.n_kv),
                                 static_cast<std::size_t>(l + 1)};
    write_npy(folder.file(fmt::format("curves/{}.npy", plan_.orders[o].file_name())), shape,
              std::span<const double>(all.losses()));
    BudgetFrame every_sigma = frame_of(plan_.orders[o], figures, l, 0.5);
    every_sigma.lower = plan_.orders[o].lower;  // each sigma cuts it to what its total allows
    const BudgetProfile profile = lu_profile(every_sigma, all);
    if (o == 0) save_profile(folder.file("budget_curves.npy"), profile);
    save_profile(folder.file(fmt::format("curves/{}~lu.npy", plan_.orders[o].file_name())), profile);
  }
  return Json::object();
}

std::unique_ptr<Stage> BudgetStage::follow_up(const HeadFigures& figures) const {
  const Index l = dump_.shape().l;
  std::vector<Allocation> allocations(plan_.cases.size());
  for (std::size_t o = 0; o < plan_.orders.size(); ++o) {
    const LossCurves all = curves(o, figures);
    const Matrix<double> scores = figures.values.middleCols((2 * static_cast<Index>(o) + 1) * l, l);
    const HullGreedy greedy(all, plan_.orders[o].lower);
    for (std::size_t c = 0; c < plan_.cases.size(); ++c)
      if (plan_.cases[c].order == o)
        allocations[c] =
            allocate(plan_.cases[c].division,
                     allocation_input(plan_, o, frame_of(plan_.orders[o], figures, l, plan_.cases[c].sigma),
                                      all, greedy, {scores.data(), static_cast<std::size_t>(scores.size())}));
  }
  return std::make_unique<BudgetMeasureStage>(dump_, plan_, figures.layers, std::move(allocations), compute_);
}

}  // namespace kvreplay
