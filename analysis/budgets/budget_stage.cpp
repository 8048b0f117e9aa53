#include "analysis/budgets/budget_stage.hpp"

#include "analysis/budgets/budget_plan.hpp"
#include "analysis/given/given_arrays.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/measure/measured_columns.hpp"
#include "analysis/measure/once_per_cache.hpp"
#include "analysis/results/agreement.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/schema.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "analysis/run/stage.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {

namespace {

std::vector<std::string> labels_of(const BudgetPlan& plan) {
  std::vector<std::string> labels;
  for (const BudgetCase& which : plan.cases)
    labels.push_back(
        fmt::format("{}-{}-{}", plan.orders[which.order].file_name(), which.division.name, which.label));
  return labels;
}

class BudgetFigures : public MeasuredFigures {
 public:
  BudgetFigures(const BudgetPlan& plan, const std::vector<Allocation>& allocations,
                const HeadFigures& figures, bool with_layer_output)
      : MeasuredFigures(MeasureColumns::alone(plan.cases.size(), RowSet::future, plan.losses), figures,
                        with_layer_output),
        plan_(plan),
        allocations_(allocations) {}

  MetricTable table(const std::vector<std::string>& labels) const {
    MetricTable table = table_of(Table::budgets);
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      const BudgetCase& which = plan_.cases[c];
      table.add_case(kBudgetFigures, {plan_.orders[which.order].name, which.division.name, which.label},
                     labels[c], nullptr,
                     [&](Scope scope, BudgetFigure metric, RowSet) { return value(c, scope, metric); });
    }
    return table;
  }

 private:
  /// Empty where the metric is not there for such a scope.
  std::optional<double> value(std::size_t which, Scope scope, BudgetFigure metric) const {
    if (!facts_of(metric).levels.has(level_of(scope))) return std::nullopt;
    const RowRange heads = scoped_.heads_in(scope);
    const auto& [budgets, losses] = allocations_[which];
    if (metric == BudgetFigure::budget)
      return static_cast<double>(
          std::accumulate(budgets.begin() + heads.begin, budgets.begin() + heads.end, Index{0}));
    if (metric == BudgetFigure::loss)
      return compensated_sum(std::span(losses).subspan(heads.begin, heads.count()));
    if (metric == BudgetFigure::output_error) return output_error(which, scope, RowSet::future);
    if (metric == BudgetFigure::layer_output_error) return layer_output_error(which, scope, RowSet::future);
    return this->loss(which, scope, name_of(metric), RowSet::future);
  }

  const BudgetPlan& plan_;
  const std::vector<Allocation>& allocations_;
};

/// The metrics of a case that a report shows.
struct Reported {
  double loss, error, error_of_median_head;
};

/// LU-KV's claim that its greedy is optimal, where both were computed.
std::string lu_against_optimal(const BudgetPlan& plan, const std::vector<Allocation>& allocations,
                               const std::vector<Reported>& cases) {
  std::string text;
  for (std::size_t lu = 0; lu < plan.cases.size(); ++lu)
    for (std::size_t best = 0; best < plan.cases.size(); ++best) {
      const BudgetCase &a = plan.cases[lu], &b = plan.cases[best];
      if (a.division.method != BudgetMethod::lu || b.division.method != BudgetMethod::optimal ||
          a.order != b.order || a.sigma != b.sigma)
        continue;
      Index moved = 0;
      for (std::size_t row = 0; row < allocations[lu].budgets.size(); ++row)
        moved += std::abs(allocations[lu].budgets[row] - allocations[best].budgets[row]);
      const double excess = cases[lu].loss - cases[best].loss;
      text +=
          fmt::format("lu against optimal, {}, {}: {}\n", plan.orders[a.order].name, kept_text(a.label),
                      moved == 0 || excess == 0 ? std::string("equal")
                                                : fmt::format("{:.3g} % more loss, {} tokens elsewhere",
                                                              100 * excess / cases[best].loss, moved / 2));
    }
  return text;
}

std::string budget_report(const BudgetPlan& plan, const std::vector<Allocation>& allocations,
                          const MetricTable& table, const std::vector<std::string>& labels) {
  std::string text =
      fmt::format("loss of all heads, and in brackets the output error {} on the future rows\n", kOverHeads);
  std::size_t width = 10;
  bool oracles = false, profiles = false;
  std::vector<std::string> budgets;
  std::vector<Reported> cases;
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    const BudgetCase& which = plan.cases[c];
    width = std::max(width, shown_name(which.division.name).size());
    oracles = oracles || kBudgetMethods[which.division.method].is_oracle;
    profiles = profiles || kBudgetMethods[which.division.method].needs_profile;
    place_in(budgets, kept_with_share(which.label, rest_of(which.sigma)));
    const MetricEntry& error = *table.of_case(labels[c], name_of(BudgetFigure::output_error), RowSet::none);
    cases.push_back({table.of_case(labels[c], name_of(BudgetFigure::loss), RowSet::none)->model, error.model,
                     median(error.heads)});
  }
  text += fmt::format("{:20}  {:{}}", "order", "method", width);
  for (const std::string& budget : budgets) text += fmt::format("  {:>28}", budget);
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    if (c % budgets.size() == 0)
      text += fmt::format("\n{:20}  {:{}}", plan.orders[plan.cases[c].order].name,
                          shown_name(plan.cases[c].division.name), width);
    const auto& [loss, error, of_median_head] = cases[c];
    text +=
        fmt::format("  {:>28}", fmt::format("{:.4g} ({})", loss, with_median_head(error, of_median_head)));
  }
  text += '\n' + lu_against_optimal(plan, allocations, cases);
  if (oracles)
    text += fmt::format(
        "{}{}\n", oracles_of_budgets(),
        profiles ? "" : "; of several prompts in one run each takes the others' profile, a fair one");
  return text;
}

/// Head budgets, second pass: what every allocation does to the outputs. budgets.csv, head_budgets/, maps/.
class BudgetMeasureStage final : public Stage {
 public:
  /// `allocations` has one for each of plan.cases, over `layers`; nothing for a layer that reads the cache of
  /// an earlier one.
  BudgetMeasureStage(const Dump& dump, const BudgetPlan& plan, std::vector<Index> layers,
                     std::vector<Allocation> allocations, const Compute& compute)
      : Stage(dump, compute),
        plan_(plan),
        layers_(std::move(layers)),
        orders_(dump),
        allocations_(std::move(allocations)),
        labels_(labels_of(plan)),
        columns_(MeasureColumns::alone(plan.cases.size(), RowSet::future, plan.losses)),
        kept_("kept", dump.shape().n_kv, dump.shape().l, labels_),
        measured_(dump, compute.precision, columns_) {}

  std::string_view name() const override { return "budget"; }

  std::size_t figures_per_head() const override { return static_cast<std::size_t>(columns_.end()); }
  std::size_t figures_per_layer() const override { return columns_.losses.per_layer(); }
  void begin_layer(Index) override {
    kept_.begin();
    measured_.begin();
  }
  void head(const HeadGroup<float>& group, std::span<double> figures) override { compute(group, figures); }
  void head(const HeadGroup<double>& group, std::span<double> figures) override { compute(group, figures); }
  void end_layer(const ResultFolder& folder, Index layer, LayerFigures figures) override {
    measured_.end(layer, compute_.workers, figures);
    kept_.write(folder, layer);
  }
  Json write_tables(const ResultFolder& folder, const HeadFigures& figures) override {
    const MetricTable all = table(figures);
    const std::size_t rows =
        all.write(folder, plan_.losses.any() ? split_list(facts_of(Table::budgets).optional)
                                             : std::vector<std::string>());
    write_head_budgets(folder);
    return {{"candidates", plan_.equal.front().held},
            {"future_rows", plan_.future.count()},
            {"budget_rows", rows},
            {"budget_losses", all.of_model(name_of(BudgetFigure::loss), RowSet::none)},
            {"budget_errors", all.of_model(name_of(BudgetFigure::output_error), RowSet::none)}};
  }
  std::string report(const HeadFigures& figures) const override {
    return budget_report(plan_, allocations_, table(figures), labels_);
  }

 private:
  template <class T>
  void compute(const HeadGroup<T>& group, std::span<double> figures) {
    const auto orders = orders_.of(group.layer, group.kv_head, [&] {
      return with_readers(dump_, group, [&](const HeadGroup<T>& readers) {
        return head_orders(readers, plan_, dump_.shape().n_kv, compute_);
      });
    });
    const std::size_t row = row_of(plan_.caches.first(place_of(group.layer)), group.kv_head);
    std::vector<CacheCase> caches(plan_.cases.size());
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      KeptSet& kept = caches[c].kept;
      kept.assign(group.l, 0);
      const std::vector<std::int32_t>& order = (*orders)[plan_.cases[c].order].order;
      for (Index j = 0; j < allocations_[c].budgets[row]; ++j) kept[order[j]] = 1;
      kept_.at(c, group.kv_head) = kept;
    }
    std::fill(figures.begin(), figures.end(), 0.0);
    measured_.add(case_outputs(group, {}, plan_.future, caches, measured_.with_vectors(), compute_), group,
                  {}, plan_.future, group.kv_head * group.G(), figures, compute_.workers);
  }
  MetricTable table(const HeadFigures& figures) const {
    return BudgetFigures(plan_, allocations_, figures, dump_.has(Tensor::wo)).table(labels_);
  }
  Index place_of(Index layer) const { return std::ranges::find(layers_, layer) - layers_.begin(); }
  std::size_t row_of(Index place, Index kv_head) const {
    return static_cast<std::size_t>(place * dump_.shape().n_kv + kv_head);
  }
  /// Every allocation as shares of its tokens, by the model's layers and heads: Attention Matching's form.
  void write_head_budgets(const ResultFolder& folder) const {
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      const Budgets& budgets = allocations_[c].budgets;
      const auto total = static_cast<double>(std::accumulate(budgets.begin(), budgets.end(), Index{0}));
      if (total == 0) continue;  // shares of nothing
      Json shares = Json::object();
      for (Index at = 0; at < std::ssize(layers_); ++at)
        for (Index g = 0; plan_.caches.is_first(at) && g < dump_.shape().n_kv; ++g)
          shares[fmt::format("L{}H{}", dump_.model_layer(layers_[static_cast<std::size_t>(at)]), g)] =
              static_cast<double>(budgets[row_of(at, g)]) / total;
      folder.write_json(fmt::format("head_budgets/{}.json", labels_[c]), shares);
    }
  }

  const BudgetPlan& plan_;
  std::vector<Index> layers_;
  OncePerCache<std::vector<RankedTokens>> orders_;
  std::vector<Allocation> allocations_;
  std::vector<std::string> labels_;  // of the cases
  MeasureColumns columns_;
  KeptLayer kept_;
  MeasuredLayer measured_;
};

}  // namespace

BudgetStage::BudgetStage(const Dump& dump, const BudgetOptions& options, const std::vector<Index>& layers,
                         const Compute& compute)
    : Stage(dump, compute), options_(options), plan_(budget_plan(dump, options, layers)), layers_(layers) {}

Json BudgetStage::options() const {
  BudgetOptions settled = options_;
  const BudgetSemanticsFacts& setting = kBudgetSemantics[options_.semantics];
  settled.normalise = plan_.normalise_by_layer ? Normalise::layer : Normalise::none;
  settled.floor = options_.floor.value_or(setting.floor);
  settled.sinks = options_.sinks.value_or(setting.sinks);
  settled.orders.clear();  // only orders that the dump can provide, each once
  for (const CandidateOrder& order : plan_.orders) settled.orders.push_back({order.name, order.rule.policy});
  Json json = to_json(bound(settled));
  add_fingerprints(json, "scores", plan_.scores);
  const auto of_profile = [&](std::size_t order) {
    return contents_fingerprint(std::as_bytes(std::span(plan_.profiles[order].pruned)));
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
  const Index n_kv = dump_.shape().n_kv;
  if (!plan_.caches.is_first(std::ranges::find(layers_, group.layer) - layers_.begin()))
    return void(std::ranges::fill(figures, 0));  // the cache's figures are stored with its first reader
  auto to = figures.begin();
  for (const RankedTokens& ranked : with_readers(dump_, group, [&](const HeadGroup<T>& readers) {
         return head_worths(readers, plan_, n_kv, compute_);
       })) {
    to = std::copy(ranked.worth.begin(), ranked.worth.end(), to);
    to = std::copy(ranked.scores.begin(), ranked.scores.end(), to);
  }
}

void BudgetStage::head(const HeadGroup<float>& group, std::span<double> figures) { compute(group, figures); }
void BudgetStage::head(const HeadGroup<double>& group, std::span<double> figures) { compute(group, figures); }

LossCurves BudgetStage::curves(std::size_t order, const HeadFigures& figures) const {
  const Index l = dump_.shape().l;
  return loss_curves(plan_.caches.of_caches(figures.values), static_cast<Index>(order) * 2 * l, l,
                     figures.n_kv, plan_.normalise_by_layer);
}

Json BudgetStage::write_tables(const ResultFolder& folder, const HeadFigures& figures) {
  const Index l = dump_.shape().l;
  for (std::size_t o = 0; o < plan_.profiles.size(); ++o)
    if (plan_.profiles_by_order)
      save_profile(folder.file(fmt::format("curves/{}~profile.npy", plan_.orders[o].file_name())),
                   of_layers(plan_, plan_.profiles[o]));
    else if (o == 0)
      save_profile(folder.file("curves/profile.npy"), of_layers(plan_, plan_.profiles[o]));
  const bool only_profiles = std::ranges::all_of(plan_.cases, [](const BudgetCase& which) {
    return kBudgetMethods[which.division.method].needs_profile;
  });
  if (only_profiles) return Json::object();  // profiles do not use these curves
  for (std::size_t o = 0; o < plan_.orders.size(); ++o) {
    const OrderCurves of_order(plan_, o, figures.n_kv, curves(o, figures));
    const std::size_t shape[] = {figures.layers.size(), static_cast<std::size_t>(figures.n_kv),
                                 static_cast<std::size_t>(l + 1)};
    write_npy(folder.file(fmt::format("curves/{}.npy", plan_.orders[o].file_name())), shape,
              std::span<const double>(plan_.caches.of_layers<double>(of_order.all().losses(), false)));
    const BudgetProfile profile = lu_profile(plan_, o, of_order);
    if (o == 0) save_profile(folder.file("budget_curves.npy"), profile);
    save_profile(folder.file(fmt::format("curves/{}~lu.npy", plan_.orders[o].file_name())), profile);
  }
  return Json::object();
}

std::unique_ptr<Stage> BudgetStage::follow_up(const HeadFigures& figures) const {
  const Index l = dump_.shape().l;
  std::vector<Allocation> allocations(plan_.cases.size());
  for (std::size_t o = 0; o < plan_.orders.size(); ++o) {
    const OrderCurves of_order(plan_, o, figures.n_kv, curves(o, figures));
    const Matrix<double> scores = figures.values.middleCols((2 * static_cast<Index>(o) + 1) * l, l);
    for (std::size_t c = 0; c < plan_.cases.size(); ++c)
      if (plan_.cases[c].order == o) allocations[c] = allocate(plan_, plan_.cases[c], of_order, scores);
  }
  return std::make_unique<BudgetMeasureStage>(dump_, plan_, figures.layers, std::move(allocations), compute_);
}

}  // namespace kvreplay
