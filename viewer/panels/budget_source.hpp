#pragma once

#include "viewer/panels/panel.hpp"
#include "viewer/work/budget_view.hpp"

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// The selected run's loss curves and every method's budgets, as they come in. Drawing thread only.
class BudgetSource {
 public:
  /// Asks for what is missing and takes what is there. Where the settings cannot be followed error() says
  /// why, and what was known stays.
  void look(PanelContext& context, const BudgetSettings& settings);

  const std::string& error() const { return error_; }
  const std::vector<std::string>& notes() const { return notes_; }
  Index heads() const { return static_cast<Index>(worths_.size()); }
  Index missing() const { return missing_; }
  bool pending() const { return pending_; }

  /// One of the settings' methods.
  struct Method {
    std::string name;
    Answer<BudgetShare> share;
  };
  const std::vector<Method>& methods() const { return methods_; }
  /// Null where the method is unknown or has no budgets yet.
  const BudgetShare* find(const std::string& method) const;
  /// L(0..l) of a head, in the importance's unit or, normalised, as a share of its layer's; empty while it is
  /// unknown.
  const std::vector<double>& loss(Index head);
  /// Another number whenever loss() of any head is another.
  std::uint64_t version() const { return version_; }

 private:
  void ask_heads(PanelContext& context, Index selected);
  void ask_shares(PanelContext& context);

  std::string run_key_, order_key_, curves_key_, error_;
  BudgetSettings settings_;
  std::shared_ptr<const BudgetPlan> plan_;
  std::vector<std::string> notes_;
  std::vector<std::shared_ptr<const HeadWorth>> worths_;  // [layers, n_kv]
  std::vector<std::vector<double>> losses_;               // [layers, n_kv], as far as they were looked at
  std::shared_ptr<const BudgetCurves> curves_;
  std::vector<Method> methods_;
  Index missing_ = 0;
  bool pending_ = false;
  std::uint64_t version_ = 0;
};

}  // namespace kvreplay::viewer
