#include "analysis/budgets/budget_stage.hpp"

#include "analysis/budgets/budget_plan.hpp"
#include "analysis/eviction/head_evictions.hpp"
#include "analysis/given/given_arrays.hpp"
#include "analysis/measure/loss_columns.hpp"
#include "analysis/measure/measured_layer.hpp"
#include "analysis/results/agreement.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/schema.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "analysis/results/table_writer.hpp"
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

/// Head budgets, second pass: what every allocation does to the outputs. budgets.csv, maps/.
class BudgetMeasureStage final : public Stage {
 public:
  /// `allocations` has one for each of plan.cases, over `layers`.
  BudgetMeasureStage(const Dump& dump, const BudgetPlan& plan, std::vector<Index> layers,
                     std::vector<Allocation> allocations, const Compute& compute);

  std::string_view name() const override { return "budget"; }

  std::size_t figures_per_head() const override;
  std::size_t figures_per_layer() const override { return losses_.per_layer(); }
  void begin_layer(Index layer) override;
  void head(const HeadGroup<float>& group, std::span<double> figures) override;
  void head(const HeadGroup<double>& group, std::span<double> figures) override;
  void end_layer(const ResultFolder& folder, Index layer, LayerFigures figures) override;
  Json write_tables(const ResultFolder& folder, const HeadFigures& figures) override;
  std::string report(const HeadFigures& figures) const override;

 private:
  template <class T>
  void compute(const HeadGroup<T>& group, std::span<double> figures);
  Index row_of(Index layer, Index kv_head) const;
  double total_loss(std::size_t which) const;
  std::size_t write_budgets(const ResultFolder& folder, const HeadFigures& figures) const;
  /// Every allocation as shares of its tokens, by the model's layers and heads: Attention Matching's form.
  void write_head_budgets(const ResultFolder& folder) const;
  void write_maps(const ResultFolder& folder, const HeadFigures& figures) const;
  std::string label(std::size_t which) const;
  std::optional<double> loss_of(const ScopedFigures& figures, std::size_t which, Scope scope,
                                BudgetFigure figure) const;

  const BudgetPlan& plan_;
  std::vector<Index> layers_;
  std::vector<Allocation> allocations_;
  LossColumns losses_;
  KeptLayer kept_;
  MeasuredLayer measured_;
};

namespace {

// Figures of a head: ||o||^2 of the head and of its layer, then for every case its changes.
constexpr Index kFull = 0, kLayerFull = 1, kHeadFigures = 2;
constexpr Index change_of(std::size_t which) { return kHeadFigures + 2 * static_cast<Index>(which); }
constexpr Index layer_change_of(std::size_t which) { return change_of(which) + 1; }

MeasureColumns columns_of(const BudgetPlan& plan) {
  MeasureColumns columns;
  columns.future = {kFull, kLayerFull, {}, {}};
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    columns.future.change.push_back(change_of(c));
    columns.future.layer_change.push_back(layer_change_of(c));
  }
  columns.losses = LossColumns(plan.losses, change_of(plan.cases.size()), plan.cases.size());
  return columns;
}

std::string label_of(const BudgetPlan& plan, const BudgetCase& which) {
  return fmt::format("{}-{}-{}", plan.orders[which.order].file_name(), which.division.name, which.label);
}

std::vector<std::string> labels_of(const BudgetPlan& plan) {
  std::vector<std::string> labels;
  for (const BudgetCase& which : plan.cases) labels.push_back(label_of(plan, which));
  return labels;
}

double output_error(const ScopedFigures& figures, std::size_t which, Scope scope) {
  return relative_error(figures.sum(scope, change_of(which)), figures.sum(scope, kFull));
}

}  // namespace

BudgetMeasureStage::BudgetMeasureStage(const Dump& dump, const BudgetPlan& plan, std::vector<Index> layers,
                                       std::vector<Allocation> allocations, const Compute& compute)
    : Stage(dump, compute),
      plan_(plan),
      layers_(std::move(layers)),
      allocations_(std::move(allocations)),
      losses_(columns_of(plan).losses),
      kept_("kept", dump.shape().n_kv, dump.shape().l, labels_of(plan)),
      measured_(dump, compute.precision, columns_of(plan)) {}

std::size_t BudgetMeasureStage::figures_per_head() const {
  return static_cast<std::size_t>(change_of(plan_.cases.size()) + losses_.count());
}

Index BudgetMeasureStage::row_of(Index layer, Index kv_head) const {
  const Index at = std::find(layers_.begin(), layers_.end(), layer) - layers_.begin();
  return at * dump_.shape().n_kv + kv_head;
}

void BudgetMeasureStage::begin_layer(Index) {
  kept_.begin();
  measured_.begin();
}

template <class T>
void BudgetMeasureStage::compute(const HeadGroup<T>& group, std::span<double> figures) {
  const std::vector<RankedTokens> orders = head_orders(group, plan_, dump_.shape().n_kv, compute_);
  const auto row = static_cast<std::size_t>(row_of(group.layer, group.kv_head));
  std::vector<CacheCase> caches(plan_.cases.size());
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    KeptSet& kept = caches[c].kept;
    kept.assign(group.l, 0);
    const std::vector<std::int32_t>& order = orders[plan_.cases[c].order].order;
    for (Index j = 0; j < allocations_[c].budgets[row]; ++j) kept[order[j]] = 1;
    kept_.at(c, group.kv_head) = kept;
  }
  std::fill(figures.begin(), figures.end(), 0.0);
  measured_.add(case_outputs(group, {}, plan_.future, caches, measured_.with_vectors(), compute_), group, {},
                plan_.future, group.kv_head * group.G(), figures, compute_.workers);
}

void BudgetMeasureStage::head(const HeadGroup<float>& group, std::span<double> figures) {
  compute(group, figures);
}
void BudgetMeasureStage::head(const HeadGroup<double>& group, std::span<double> figures) {
  compute(group, figures);
}

void BudgetMeasureStage::end_layer(const ResultFolder& folder, Index layer, LayerFigures figures) {
  measured_.end(layer, compute_.workers, figures);
  kept_.write(folder, layer);
}

std::string BudgetMeasureStage::label(std::size_t which) const { return label_of(plan_, plan_.cases[which]); }

double BudgetMeasureStage::total_loss(std::size_t which) const {
  return compensated_sum(allocations_[which].loss);
}

std::size_t BudgetMeasureStage::write_budgets(const ResultFolder& folder, const HeadFigures& figures) const {
  const bool with_losses = losses_.count() > 0;
  TableWriter csv(folder, Table::budgets,
                  with_losses ? split_list(facts_of(Table::budgets).optional) : std::vector<std::string>());
  const ScopedFigures scoped(figures);
  for (const Scope scope : scoped.scopes())
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      const BudgetCase& which = plan_.cases[c];
      const auto& [budgets, losses] = allocations_[c];
      const RowRange heads = scoped.heads_in(scope);
      csv.at(scoped.layer_of(scope), scope.head).set("order", plan_.orders[which.order].name);
      csv.set("method", which.division.name).set("sigma", which.label);
      csv.set(BudgetFigure::budget,
              std::accumulate(budgets.begin() + heads.begin, budgets.begin() + heads.end, Index{0}));
      csv.set(BudgetFigure::loss, compensated_sum(std::span(losses).subspan(heads.begin, heads.count())));
      csv.set(BudgetFigure::output_error, output_error(scoped, c, scope));
      if (dump_.has(Tensor::wo) && level_of(scope) == Level::layer) {
        const double change = figures.values(heads.begin, layer_change_of(c)),
                     full = figures.values(heads.begin, kLayerFull);
        csv.set(BudgetFigure::layer_output_error, relative_error(change, full));
      }
      for (const BudgetFigure figure : kBudgetFigures.all())
        if (const auto loss = loss_of(scoped, c, scope, figure)) csv.set(figure, *loss);
      csv.end_row();
    }
  return csv.finish();
}

std::optional<double> BudgetMeasureStage::loss_of(const ScopedFigures& figures, std::size_t which,
                                                  Scope scope, BudgetFigure figure) const {
  if (!facts_of(figure).levels.has(level_of(scope))) return std::nullopt;
  return predicted_loss(figures, losses_, which, scope, name_of(figure), RowSet::future);
}

void BudgetMeasureStage::write_maps(const ResultFolder& folder, const HeadFigures& figures) const {
  const ScopedFigures scoped(figures);
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    const auto write = [&](BudgetFigure figure, const std::vector<double>& map) {
      write_map(folder, {.table = Table::budgets, .figure = std::string(name_of(figure)), .item = label(c)},
                figures, map);
    };
    std::vector<double> errors;
    for (const Scope scope : scoped.scopes())
      if (scope.head) errors.push_back(output_error(scoped, c, scope));
    write(BudgetFigure::budget, {allocations_[c].budgets.begin(), allocations_[c].budgets.end()});
    write(BudgetFigure::loss, allocations_[c].loss);
    write(BudgetFigure::output_error, errors);
    for (const BudgetFigure figure : kBudgetFigures.all()) {
      std::vector<double> losses;
      for (const Scope scope : scoped.scopes())
        if (const auto loss = loss_of(scoped, c, scope, figure); loss && scope.head) losses.push_back(*loss);
      if (!losses.empty()) write(figure, losses);
    }
  }
}

void BudgetMeasureStage::write_head_budgets(const ResultFolder& folder) const {
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    const Budgets& budgets = allocations_[c].budgets;
    const auto total = static_cast<double>(std::accumulate(budgets.begin(), budgets.end(), Index{0}));
    if (total == 0) continue;  // shares of nothing
    Json shares = Json::object();
    for (const Index layer : layers_)
      for (Index g = 0; g < dump_.shape().n_kv; ++g) {
        const auto tokens = static_cast<double>(budgets[static_cast<std::size_t>(row_of(layer, g))]);
        shares[fmt::format("L{}H{}", dump_.model_layer(layer), g)] = tokens / total;
      }
    folder.write_json(fmt::format("head_budgets/{}.json", label(c)), shares);
  }
}

Json BudgetMeasureStage::write_tables(const ResultFolder& folder, const HeadFigures& figures) {
  const std::size_t rows = write_budgets(folder, figures);
  write_maps(folder, figures);
  write_head_budgets(folder);
  Json losses = Json::object(), errors = Json::object();
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    losses[label(c)] = total_loss(c);
    errors[label(c)] = output_error(ScopedFigures(figures), c, {});
  }
  return {{"candidates", dump_.shape().l},
          {"future_rows", plan_.future.count()},
          {"budget_rows", rows},
          {"budget_losses", losses},
          {"budget_errors", errors}};
}

std::string BudgetMeasureStage::report(const HeadFigures& figures) const {
  std::string text =
      fmt::format("loss of all heads, and in brackets the output error {} on the future rows\n", kOverHeads);
  std::size_t width = 10;
  bool oracles = false, profiles = false;
  for (const BudgetCase& which : plan_.cases) {
    width = std::max(width, shown_name(which.division.name).size());
    oracles = oracles || kBudgetMethods[which.division.method].is_oracle;
    profiles = profiles || kBudgetMethods[which.division.method].needs_profile;
  }
  text += fmt::format("{:20}  {:{}}", "order", "method", width);
  std::vector<std::string> budgets;
  for (const BudgetCase& which : plan_.cases)
    if (std::find(budgets.begin(), budgets.end(), which.label) == budgets.end())
      budgets.push_back(which.label);
  const ScopedFigures scoped(figures);
  for (const std::string& label : budgets) text += fmt::format("  {:>28}", kept_text(label));
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    if (c % budgets.size() == 0)
      text += fmt::format("\n{:20}  {:{}}", plan_.orders[plan_.cases[c].order].name,
                          shown_name(plan_.cases[c].division.name), width);
    const double median =
        scoped.median_head([&](Scope scope) { return std::optional(output_error(scoped, c, scope)); });
    text += fmt::format("  {:>28}", fmt::format("{:.4g} ({})", total_loss(c),
                                                with_median_head(output_error(scoped, c, {}), median)));
  }
  text += '\n';
  // LU-KV's claim that its greedy is optimal, where both were computed.
  for (std::size_t lu = 0; lu < plan_.cases.size(); ++lu)
    for (std::size_t best = 0; best < plan_.cases.size(); ++best) {
      const BudgetCase &a = plan_.cases[lu], &b = plan_.cases[best];
      if (a.division.method != BudgetMethod::lu || b.division.method != BudgetMethod::optimal ||
          a.order != b.order || a.sigma != b.sigma)
        continue;
      Index moved = 0;
      for (std::size_t row = 0; row < allocations_[lu].budgets.size(); ++row)
        moved += std::abs(allocations_[lu].budgets[row] - allocations_[best].budgets[row]);
      const double excess = total_loss(lu) - total_loss(best);
      text +=
          fmt::format("lu against optimal, {}, {}: {}\n", plan_.orders[a.order].name, kept_text(a.label),
                      moved == 0 || excess == 0 ? std::string("equal")
                                                : fmt::format("{:.3g} % more loss, {} tokens elsewhere",
                                                              100 * excess / total_loss(best), moved / 2));
    }
  if (oracles)
    text += fmt::format(
        "{}{}\n", oracles_of_budgets(),
        profiles ? "" : "; of several prompts in one run each takes the others' profile, a fair one");
  return text;
}

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
