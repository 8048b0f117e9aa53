#include "viewer/panels/budgets/budget_result_source.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {
namespace {

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

void bring_into(std::string& choice, const std::vector<std::string>& choices) {
  if (!choices.empty() && std::find(choices.begin(), choices.end(), choice) == choices.end())
    choice = choices.front();
}

}  // namespace

void BudgetResultSource::look(PanelContext& context, std::string& order, std::string& sigma) {
  const std::shared_ptr<const Run>& run = context.state.run();
  heads_ = run->shape().layers * run->shape().n_kv;
  const auto table = context.desk.ask<BudgetResults>(
      {.key = {run->key(), "budget_results"}, .title = "Budgets of " + run->name()},
      [run](JobControl&) { return read_budgets(*run->results()); });
  results_ = table.value;
  division_ = nullptr;
  pending_ = table.pending;
  error_ = table.error;
  if (results_ == nullptr) return;
  bring_into(order, orders());
  bring_into(sigma, sigmas(order));
  division_ = results_->find(order, sigma);

  const Key key(run->key(), "budget_result_curves", order);
  const auto curves = context.desk.ask<BudgetResultCurves>(
      {.key = key, .title = fmt::format("Loss curves of {}", order)},
      [run, order](JobControl&) { return read_budget_curves(*run->results(), order); });
  pending_ = pending_ || curves.pending;
  if (error_.empty()) error_ = curves.error;
  curves_ = curves.value;
  if (curves_ == nullptr) {
    curves_key_ = {};
  } else if (curves_key_ != key) {
    curves_key_ = key;
    ++version_;
  }
}

std::vector<std::string> BudgetResultSource::orders() const {
  std::vector<std::string> names;
  if (results_ != nullptr)
    for (const auto& division : results_->divisions) add_once(names, division.order);
  return names;
}

std::vector<std::string> BudgetResultSource::sigmas(const std::string& order) const {
  std::vector<std::string> names;
  if (results_ != nullptr)
    for (const auto& division : results_->divisions)
      if (division.order == order) add_once(names, division.sigma);
  return names;
}

std::vector<std::string> BudgetResultSource::methods() const {
  std::vector<std::string> names;
  if (division_ != nullptr)
    for (const BudgetShare& share : division_->methods) names.push_back(share.method);
  return names;
}

const BudgetShare* BudgetResultSource::find(const std::string& method) const {
  if (division_ == nullptr) return nullptr;
  for (const BudgetShare& share : division_->methods)
    if (share.method == method) return &share;
  return nullptr;
}

const std::vector<double>& BudgetResultSource::loss(Index head) {
  static const std::vector<double> none;
  const auto h = static_cast<std::size_t>(head);
  return curves_ != nullptr && h < curves_->loss.size() ? curves_->loss[h] : none;
}

std::vector<double> BudgetResultSource::kept(Index head) const {
  const auto h = static_cast<std::size_t>(head);
  return curves_ != nullptr && h < curves_->kept.size() ? curves_->kept[h] : std::vector<double>();
}

}  // namespace kvreplay::viewer
