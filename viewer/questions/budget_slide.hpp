#pragma once

#include "viewer/questions/ask.hpp"
#include "viewer/questions/what_if.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// What two settings keep and lose as one budget slides from the whole prompt to little of it: of one head, or
// of all together.

namespace kvreplay::viewer {

/// Budgets in tokens from l down to `least` of it, each the same share less, every one once.
std::vector<Index> sliding_budgets(Index l, int steps, double least);

/// What one setting keeps and loses at one budget.
struct SlideSide {
  std::vector<std::int32_t> evicted;  ///< [l]: how many heads evict a token
  double error = kNone;               ///< output_error, as `evict` has it of the head, or of the model
  double nats = kNone;                ///< likewise loss_row, or of the model loss_step; nan without gradients
};

struct SlideStep {
  Index budget = 0;
  std::array<SlideSide, 2> sides;  ///< of settings A and B
};

/// The tokens that a slide watches for.
struct NeededTokens {
  std::vector<Index> tokens;  ///< ascending; empty where nothing says what is needed
  bool of_question = false;   ///< the needles of the dump's question; else those of largest `metric`
  TokenMetric metric = TokenMetric::exact_remove;
};
/// How many tokens count as needed.
inline constexpr std::size_t kDearest = 10;
/// Those of largest value, ascending by position; NaN is none.
std::vector<Index> dearest_tokens(const std::vector<double>& values, std::size_t most = kDearest);

class BudgetSlide {
 public:
  struct Head {
    Index layer = 0, kv_head = 0;
  };
  /// The run has its dump. Empty `head`: all of them. What the settings say of budgets does not count.
  BudgetSlide(std::shared_ptr<const Run> run, std::optional<Head> head,
              std::array<WhatIfSettings, 2> settings, const std::vector<Index>& budgets);

  /// Asks for what is missing, and takes what has come in.
  void ask(PanelContext& context);
  bool done() const;
  double progress() const;  ///< 0..1
  /// Why it will never be done; empty where it may.
  const std::string& error() const { return error_; }

  const std::shared_ptr<const Run>& run() const { return run_; }
  const std::optional<Head>& head() const { return head_; }
  const std::array<WhatIfSettings, 2>& settings() const { return settings_; }
  Index heads() const { return head_ ? 1 : run_->shape().layers * run_->shape().n_kv; }

  // Once it is done.
  const std::vector<SlideStep>& steps() const { return steps_; }
  const NeededTokens& needed() const { return *needed_; }
  /// Whether errors are those of decoding steps; else of the window's rows.
  bool on_future() const { return on_future_; }
  /// The step at which more than half of the heads lack a needed token for the first time, and the first such
  /// token in the text; empty where it does not come to that.
  struct Lost {
    std::size_t step = 0;
    Index token = 0;
  };
  std::optional<Lost> first_lost(std::size_t side) const;
  double largest_error() const;
  double largest_nats() const;  ///< nan where there are none

 private:
  struct Part {  // of one step and setting, while heads come in
    Index missing = 0;
    double full_sq = 0, change_sq = 0;
    std::vector<PredictedLoss> losses;  // of each head
  };
  void ask_needed(PanelContext& context);
  WhatIfSettings settings_at(std::size_t step, std::size_t side) const;
  void take(Index which, const WhatIf& answer);

  std::shared_ptr<const Run> run_;
  std::optional<Head> head_;
  std::array<WhatIfSettings, 2> settings_;
  std::vector<SlideStep> steps_;
  std::vector<Part> parts_;  // [steps, 2]
  BackgroundRound round_;    // [steps, 2, heads]
  std::optional<NeededTokens> needed_;
  TokenMetric metric_ = TokenMetric::exact_remove;  // that says which are
  std::vector<double> costs_;                       // [l]: of the heads that have come in
  BackgroundRound cost_round_;
  bool on_future_ = false;
  std::string error_;
};

}  // namespace kvreplay::viewer
