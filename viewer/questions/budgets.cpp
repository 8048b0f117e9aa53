#include "viewer/questions/budgets.hpp"

#include "analysis/eviction/head_evictions.hpp"
#include "analysis/results/agreement.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "data/error.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/stored.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {

namespace {

Matrix<double> rows_of(const std::vector<std::shared_ptr<const HeadWorth>>& heads, Index l,
                       const std::vector<double> HeadWorth::*numbers) {
  Matrix<double> rows(std::ssize(heads), l);
  for (std::size_t h = 0; h < heads.size(); ++h)
    std::copy_n(((*heads[h]).*numbers).data(), l, rows.row(static_cast<Index>(h)).data());
  return rows;
}

}  // namespace

BoundOptions bound(BudgetSettings& settings) {
  using namespace budget_option;
  static constexpr OptionFacts linked{.name = "linked"};
  return {bind_option(order, settings.order),         bind_option(method, settings.methods).keyed("methods"),
          bind_option(semantics, settings.semantics), bind_option(sigma, settings.sigma),
          bind_option(normalise, settings.normalise), bind_option(budget_option::floor, settings.floor),
          bind_option(sinks, settings.sinks),         bind_option(recent, settings.recent),
          bind_option(linked, settings.linked)};
}

BudgetPlan budget_view_plan(const BudgetSettings& settings, const Dump& dump) {
  BudgetOptions options;
  options.orders = {settings.order};
  options.methods = settings.methods;
  options.sigmas = {{std::nullopt, settings.sigma}};
  options.semantics = settings.semantics;
  options.normalise = settings.normalise;
  options.floor = settings.floor;
  options.sinks = settings.sinks;
  options.recent = settings.recent;
  std::vector<Index> layers(dump.shape().layers);
  std::iota(layers.begin(), layers.end(), 0);
  return budget_plan(dump, options, layers);
}

Key order_key(const BudgetPlan& plan) {
  const CandidateOrder& order = plan.orders.front();
  return {order.name, order.rule.sinks, order.rule.recent};
}

Key curves_key(const BudgetPlan& plan) {
  return {order_key(plan), plan.orders.front().lower, plan.normalise_by_layer};
}

HeadWorth head_worth(const HeadGroup<float>& group, const BudgetPlan& plan, JobControl& job) {
  RankedTokens ranked = std::move(head_worths(group, plan, 1, job.compute()).front());
  return {std::move(ranked.order), std::move(ranked.worth), std::move(ranked.scores)};
}

std::vector<double> loss_of(const HeadWorth& worth) {
  const auto l = std::ssize(worth.worth);
  const Matrix<double> row = Eigen::Map<const Matrix<double>>(worth.worth.data(), 1, l);
  return loss_curves(row, 0, l, 1, false).losses();
}

BudgetCurves budget_curves(const BudgetPlan& plan, const DumpShape& shape,
                           std::vector<std::shared_ptr<const HeadWorth>> heads, JobControl& job) {
  LossCurves curves = loss_curves(plan.caches.of_caches(rows_of(heads, shape.l, &HeadWorth::worth)), 0,
                                  shape.l, shape.n_kv, plan.normalise_by_layer);
  job.check();
  OrderCurves of_order(plan, 0, shape.n_kv, std::move(curves));
  job.check();
  BudgetProfile profile = lu_profile(plan, 0, of_order);
  return {std::move(heads), std::move(of_order), std::move(profile)};
}

std::vector<double> shares_kept(const BudgetProfile& profile, Index head) {
  std::vector<double> kept;
  const auto heads = static_cast<std::size_t>(profile.layers * profile.heads);
  for (std::size_t at = static_cast<std::size_t>(head); at < profile.pruned.size(); at += heads)
    kept.push_back(1 - profile.pruned[at]);
  return kept;
}

BudgetShare budget_share(const BudgetPlan& plan, std::size_t which, const BudgetCurves& curves,
                         JobControl& job) {
  const BudgetCase& asked = plan.cases.at(which);
  BudgetShare share;
  share.method = asked.division.name;
  job.check();
  const Matrix<double> scores = kBudgetMethods[asked.division.method].needs_scores
                                    ? rows_of(curves.heads, curves.of_order.all().l(), &HeadWorth::scores)
                                    : Matrix<double>();
  Allocation found = allocate(plan, asked, curves.of_order, scores);
  share.total = std::accumulate(found.budgets.begin(), found.budgets.end(), Index{0});
  share.total_loss = compensated_sum(found.loss);
  share.budgets = std::move(found.budgets);
  share.loss = std::move(found.loss);
  return share;
}

std::size_t bytes_of(const BudgetCurves& curves) {
  return sizeof(curves) + curves.of_order.bytes() +
         curves.heads.size() *
             (sizeof(curves.heads.front()) +
              static_cast<std::size_t>(2 * curves.of_order.all().l() + 1) * sizeof(double)) +
         curves.profile.pruned.size() * sizeof(double);
}

namespace {

/// The element of `items` that `matches`, made where there is none.
template <class Item, class Matches, class Make>
Item& found_or_made(std::vector<Item>& items, Matches matches, Make make) {
  const auto found = std::find_if(items.begin(), items.end(), matches);
  return found != items.end() ? *found : items.emplace_back(make());
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

void bring_into(std::string& choice, const std::vector<std::string>& choices) {
  if (!choices.empty() && std::find(choices.begin(), choices.end(), choice) == choices.end())
    choice = choices.front();
}

bool is_normalised(const ResultReader& results) {
  const auto& summary = results.summary();
  const nlohmann::ordered_json::json_pointer where("/options/budget/normalise");
  return summary.contains(where) && summary[where] == "layer";
}

}  // namespace

const BudgetResults::Division* BudgetResults::find(const std::string& order, const std::string& sigma) const {
  const auto found = std::find_if(divisions.begin(), divisions.end(), [&](const Division& one) {
    return one.order == order && one.sigma == sigma;
  });
  return found == divisions.end() ? nullptr : &*found;
}

std::vector<std::string> BudgetResults::orders() const {
  std::vector<std::string> names;
  for (const Division& division : divisions) add_once(names, division.order);
  return names;
}

std::vector<std::string> BudgetResults::sigmas(const std::string& order) const {
  std::vector<std::string> names;
  for (const Division& division : divisions)
    if (division.order == order) add_once(names, division.sigma);
  return names;
}

std::optional<std::string> why_no_budget_results(const ResultReader& results) {
  if (!results.has(Table::budgets)) return fmt::format("the results have no {}", file_of(Table::budgets));
  return std::nullopt;
}

BudgetResults read_budgets(const ResultReader& results) {
  const DumpShape& shape = results.shape();
  const auto heads = static_cast<std::size_t>(shape.layers * shape.n_kv);
  BudgetResults all;
  all.normalised = is_normalised(results);
  const MetricTable table(results, Table::budgets);
  table.each_row([&](const MetricEntry& entry, Scope scope, double value) {
    const std::string &order = table.key(entry, "order"), &method = table.key(entry, "method"),
                      &sigma = table.key(entry, "sigma");
    BudgetResults::Division& division = found_or_made(
        all.divisions, [&](const auto& one) { return one.order == order && one.sigma == sigma; },
        [&] {
          return BudgetResults::Division{order, sigma, {}};
        });
    BudgetShare& share = found_or_made(
        division.methods, [&](const BudgetShare& one) { return one.method == method; },
        [&] {
          BudgetShare made;
          made.method = method;
          made.budgets.assign(heads, 0);
          made.loss.assign(heads, kNone);
          return made;
        });
    // A layer's row says nothing that its heads do not; the model's has the sums as they were formed.
    if (level_of(scope) == Level::layer) return;
    const bool total = level_of(scope) == Level::model;
    const auto head =
        total ? 0
              : static_cast<std::size_t>(table.layers()[static_cast<std::size_t>(*scope.layer)] * shape.n_kv +
                                         *scope.head);
    const auto which = kBudgetFigures.named(entry.metric());
    if (which == BudgetFigure::loss) (total ? share.total_loss : share.loss[head]) = value;
    if (which != BudgetFigure::budget) return;
    const double most = static_cast<double>(total ? shape.l * shape.layers * shape.n_kv : shape.l);
    if (!(value >= 0 && value <= most) || value != std::floor(value))
      throw InputError((results.folder() / file_of(Table::budgets)).string(),
                       fmt::format("budgets of whole tokens, at most {}", most), fmt::format("{}", value));
    (total ? share.total : share.budgets[head]) = static_cast<Index>(value);
  });
  return all;
}

BudgetResultCurves read_budget_curves(const ResultReader& results, const std::string& order) {
  const DumpShape& shape = results.shape();
  const std::filesystem::path name = std::filesystem::path("curves") / (file_word(order) + ".npy");
  const ResultReader::Array array =
      stored_array(results, name, {{std::ssize(results.layers()), shape.n_kv, shape.l + 1}});
  BudgetResultCurves curves;
  curves.loss.resize(shape.layers * shape.n_kv);
  auto from = array.values.begin();
  for (const Index layer : results.layers())
    for (Index g = 0; g < shape.n_kv; ++g, from += shape.l + 1)
      curves.loss[layer * shape.n_kv + g].assign(from, from + shape.l + 1);
  curves.kept.resize(curves.loss.size());
  const std::filesystem::path lu = std::filesystem::path("curves") / (file_word(order) + "~lu.npy");
  if (!results.has(lu)) return curves;
  const BudgetProfile profile = load_profile(results.folder() / lu, std::ssize(results.layers()), shape.n_kv);
  Index row = 0;
  for (const Index layer : results.layers())
    for (Index g = 0; g < shape.n_kv; ++g, ++row)
      curves.kept[layer * shape.n_kv + g] = shares_kept(profile, row);
  return curves;
}

void BudgetFigures::begin_with(const Run& run) {
  pending_ = false;
  if (run_key_ == run.key()) return;
  const std::uint64_t version = version_;
  *this = {};
  version_ = version + 1;
  run_key_ = run.key();
  missing_ = run.shape().layers * run.shape().n_kv;
  losses_.resize(missing_);
  worths_.resize(missing_);
}

bool BudgetFigures::is_of(const Run& run) const { return run_key_ == run.key(); }

void BudgetFigures::look_at_results(PanelContext& context, std::string& order, std::string& sigma) {
  const std::shared_ptr<const Run>& run = context.state.run();
  begin_with(*run);
  missing_ = 0;
  methods_.clear();
  const auto table = context.queue.ask<BudgetResults>(
      {.key = {run->key(), "budget_results"}, .title = "Budgets of " + run->name()},
      [run](JobControl&) { return read_budgets(*run->results()); });
  results_ = table.value;
  pending_ = table.pending;
  error_ = table.error;
  if (!table) return;
  bring_into(order, results_->orders());
  bring_into(sigma, results_->sigmas(order));
  if (const BudgetResults::Division* division = results_->find(order, sigma))
    for (const BudgetShare& share : division->methods)
      methods_.push_back({share.method, {.value = {results_, &share}, .error = {}}});

  const auto curves = context.queue.ask<BudgetResultCurves>(
      {.key = {run->key(), "budget_result_curves", order}, .title = fmt::format("Loss curves of {}", order)},
      [run, order](JobControl&) { return read_budget_curves(*run->results(), order); });
  pending_ = pending_ || curves.pending;
  if (error_.empty()) error_ = curves.error;
  if (curves && curves.value != result_curves_) {
    losses_ = curves->loss;
    ++version_;
  }
  result_curves_ = curves.value;
}

void BudgetFigures::look(PanelContext& context, const BudgetSettings& settings) {
  const Run& run = *context.state.run();
  begin_with(run);
  if (plan_ == nullptr || !(settings_ == settings)) {
    error_.clear();
    settings_ = settings;
    try {
      take_plan(budget_view_plan(settings, *run.dump()));
    } catch (const InputError& error) {
      error_ = error.what();
    }
  }
  if (plan_ == nullptr) return;
  const Selection& selection = context.state.selection();
  ask_heads(context, selection.layer * run.shape().n_kv + selection.kv_head);
  ask_shares(context);
}

/// Results that do not depend on the changed settings are kept.
void BudgetFigures::take_plan(BudgetPlan plan) {
  plan_ = std::make_shared<const BudgetPlan>(std::move(plan));
  notes_.clear();
  for (const OptionText& note : plan_->notes) notes_.push_back(note.plain());
  const bool other_order = order_key_ != order_key(*plan_);
  if (!other_order && curves_key_ == curves_key(*plan_)) return;
  order_key_ = order_key(*plan_);
  curves_key_ = curves_key(*plan_);
  if (other_order) worths_.assign(worths_.size(), nullptr);
  curves_ = nullptr;
  losses_.assign(losses_.size(), {});
  ++version_;
}

void BudgetFigures::ask_heads(PanelContext& context, Index selected) {
  const std::shared_ptr<const Run>& run = context.state.run();
  const Index n_kv = run->shape().n_kv;
  int asked = 0;
  missing_ = 0;
  const auto ask = [&](Index head, Urgency urgency) {
    std::shared_ptr<const HeadWorth>& worth = worths_[head];
    if (worth != nullptr) return;
    const Index layer = head / n_kv, g = head % n_kv;
    const JobRequest request{.key = {run->key(), "budget_worth", order_key_, layer, g},
                             .title = "Loss of " + run->head_text(layer, g),
                             .urgency = urgency};
    const auto answer = context.queue.ask<HeadWorth>(request, [run, plan = plan_, layer, g](JobControl& job) {
      return head_worth(*run->readers(layer, g), *plan, job);
    });
    worth = answer.value;
    if (worth != nullptr) ++version_;
    if (answer.pending) ++asked;
    if (!answer.error.empty()) error_ = answer.error;
  };
  ask(selected, Urgency::soon);
  for (Index head = 0; head < heads(); ++head) {
    if (asked < kAskedAtOnce) ask(head, Urgency::background);
    if (worths_[head] == nullptr) ++missing_;
  }
  pending_ = asked > 0;
}

void BudgetFigures::ask_shares(PanelContext& context) {
  const std::shared_ptr<const Run>& run = context.state.run();
  if (missing_ == 0 && curves_ == nullptr) {
    const JobRequest request{.key = {run->key(), "budget_curves", curves_key_},
                             .title = "Loss curves of all heads"};
    const auto answer =
        context.queue.ask<BudgetCurves>(request, [run, plan = plan_, worths = worths_](JobControl& job) {
          return budget_curves(*plan, run->shape(), worths, job);
        });
    pending_ = pending_ || answer.pending;
    if (!answer.error.empty()) error_ = answer.error;
    if (answer) {
      curves_ = answer.value;
      losses_.assign(worths_.size(), {});
      ++version_;
    }
  }
  if (curves_ == nullptr) {
    // The last order's budgets stand in.
    for (Method& method : methods_) method.share.stale = true;
    return;
  }
  std::vector<Method> methods;
  for (std::size_t c = 0; c < plan_->cases.size(); ++c) {
    Method method{plan_->cases[c].division.name, {}};
    const bool takes_long = kBudgetMethods[plan_->cases[c].division.method].is_slow;
    const Key slot(run->key(), "budget_share", method.name);
    const JobRequest request{.key = {slot, curves_key_, plan_->divides, plan_->cases[c].sigma},
                             .title = fmt::format("Budgets of {}", method.name),
                             .urgency = takes_long ? Urgency::soon : Urgency::now,
                             .slot = slot};
    method.share =
        context.queue.ask<BudgetShare>(request, [plan = plan_, curves = curves_, c](JobControl& job) {
          return budget_share(*plan, c, *curves, job);
        });
    pending_ = pending_ || method.share.pending;
    methods.push_back(std::move(method));
  }
  methods_ = std::move(methods);
}

std::vector<std::string> BudgetFigures::methods() const {
  std::vector<std::string> names;
  for (const Method& method : methods_) names.push_back(method.name);
  return names;
}

bool BudgetFigures::stale() const {
  return std::any_of(methods_.begin(), methods_.end(),
                     [](const Method& method) { return method.share.stale; });
}

const BudgetShare* BudgetFigures::find(const std::string& name) const {
  for (const Method& method : methods_)
    if (method.name == name && method.share) return &*method.share;
  return nullptr;
}

std::vector<double> BudgetFigures::kept(Index head) const {
  if (curves_ != nullptr) return shares_kept(curves_->profile, head);
  const bool known = result_curves_ != nullptr && head < std::ssize(result_curves_->kept);
  return known ? result_curves_->kept[head] : std::vector<double>();
}

const std::vector<double>& BudgetFigures::loss(Index head) {
  static const std::vector<double> none;
  const auto h = static_cast<std::size_t>(head);
  if (h >= losses_.size()) return none;
  std::vector<double>& known = losses_[h];
  if (!known.empty()) return known;
  if (curves_ != nullptr) {
    const Index n_kv = curves_->of_order.n_kv();
    const auto curve = curves_->of_order.all().loss(plan_->caches.cache(head / n_kv) * n_kv + head % n_kv);
    known.assign(curve.begin(), curve.end());
  } else if (worths_[h] != nullptr && !settings_.normalised()) {
    known = loss_of(*worths_[h]);
  }
  return known;
}

}  // namespace kvreplay::viewer
