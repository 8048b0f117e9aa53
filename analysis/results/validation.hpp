#pragma once

#include "analysis/results/metric_table.hpp"
#include "analysis/results/result_reader.hpp"

#include <array>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Measured costs of the cases of a result folder, with the model in the loop, next to the folder's own
// predictions.

namespace kvreplay {

/// validate.csv, as kvvalidate.py writes it (analysis/RESULTS-FORMAT.md): of the decoding steps, full against
/// changed; from `right` on answers.csv, of dumps of a question.
enum class ValidationFigure {
  kl,
  kl_median,
  kl_p95,
  dnll,
  perplexity,
  same_top1,
  accept,
  right,
  answer_nll,
  margin,
  kl_question,
  kl_answer,
  needles_kept,
  needles_anywhere
};
inline constexpr FigureKind kMeasuredNats{.unit = "nats",
                                          .better = Better::smaller,
                                          .scale = FigureScale::log,
                                          .rows = kFutureRows,
                                          .levels = kModelOnly};
inline constexpr FigureKind kAnswered{.unit = "share",
                                      .better = Better::larger,
                                      .scale = FigureScale::share,
                                      .rows = kFutureRows,
                                      .levels = kModelOnly};
inline constexpr auto kValidationFigures = facts_table<FigureOf<ValidationFigure>>({
    {{kMeasuredNats, "kl", "Divergence", "Mean over the decoding steps of KL(full || changed)", kOffered,
      "true KL with the model in the loop, nats a step"},
     ValidationFigure::kl},
    {{kMeasuredNats, "kl_median", "Median divergence",
      "Median over the decoding steps of KL(full || changed)"},
     ValidationFigure::kl_median},
    {{kMeasuredNats, "kl_p95", "Divergence of the worst steps",
      "95th percentile over the decoding steps of KL(full || changed)"},
     ValidationFigure::kl_p95},
    {{kMeasuredNats.drawn(FigureScale::signed_log), "dnll", "Change of NLL",
      "What the change adds to the negative log-likelihood of the tokens that followed, mean over the steps"},
     ValidationFigure::dnll},
    {{FigureKind{.unit = "perplexity",
                 .better = Better::smaller,
                 .scale = FigureScale::log,
                 .rows = kFutureRows,
                 .levels = kModelOnly},
      "perplexity", "Perplexity",
      "exp of the mean negative log-likelihood of the tokens that followed, behind what the case left",
      kOffered, "perplexity with the model in the loop"},
     ValidationFigure::perplexity},
    {{{.unit = "share of steps",
       .better = Better::larger,
       .scale = FigureScale::share,
       .rows = kFutureRows,
       .levels = kModelOnly},
      "same_top1",
      "Same likeliest token",
      "Share of the decoding steps whose likeliest token stays the same"},
     ValidationFigure::same_top1},
    {{kAnswered, "accept", "Tokens accepted",
      "Mean over the decoding steps of the sum over tokens of the smaller of both probabilities"},
     ValidationFigure::accept},
    {{kAnswered, "right", "Right answer", "Whether the model still answers the dump's question rightly",
      kOffered, "answers that are still right"},
     ValidationFigure::right},
    {{kMeasuredNats, "answer_nll", "NLL of the answer",
      "Mean negative log-likelihood of the tokens of the whole cache's answer"},
     ValidationFigure::answer_nll},
    {{FigureKind{.unit = "logits",
                 .better = Better::larger,
                 .scale = FigureScale::signed_log,
                 .rows = kFutureRows,
                 .levels = kModelOnly},
      "margin", "Margin of the answer",
      "The least logit by which a token of the answer leads; below 0 the answer flips"},
     ValidationFigure::margin},
    {{kMeasuredNats, "kl_question", "Divergence before the answer",
      "Mean KL of the decoding steps before those that predict the answer"},
     ValidationFigure::kl_question},
    {{kMeasuredNats, "kl_answer", "Divergence on the answer",
      "Mean KL of the decoding steps that predict the answer", kOffered,
      "true KL on the answer's rows, nats a step"},
     ValidationFigure::kl_answer},
    {{kAnswered, "needles_kept", "Heads that hold the needles",
      "Share of the heads that hold all tokens that the answer stands in"},
     ValidationFigure::needles_kept},
    {{kAnswered, "needles_anywhere", "Needles held anywhere",
      "Share of the needles that some head holds whole"},
     ValidationFigure::needles_anywhere},
});
constexpr const FigureFacts& facts_of(ValidationFigure figure) { return kValidationFigures[figure]; }

/// The tables whose cases the model can be run with.
inline constexpr std::array kValidatedTables{Table::evictions, Table::budgets, Table::channels,
                                             Table::compensation};

/// A kept set, compensated or not, a division of a budget or a selection of channels that the model was run
/// with.
struct ValidatedCase {
  Table table;  ///< the table of the case's figures, one of kValidatedTables
  std::string policy, semantics, phase, budget, protocol;  ///< as validate.csv has them
  bool is_oracle = false;
  std::array<double, kValidationFigures.size()> measured;     ///< NaN where there is none
  std::map<std::string, double, std::less<>> predicted = {};  ///< the model's figures on the future rows

  double measured_as(ValidationFigure figure) const { return measured[static_cast<std::size_t>(figure)]; }
  /// NaN where the results do not have it.
  double predicted_by(std::string_view figure) const;
  /// True if every key and value was stored when the model made it, as engines do. False: the cache was
  /// changed behind a prompt that was read exactly.
  bool is_written() const { return protocol == "written"; }
  /// True if both cases have the same table, semantics, phase, budget and protocol, so that only the choice
  /// of tokens differs.
  bool is_beside(const ValidatedCase& other) const;
};

/// "attn~lu (oracle)" of a method that is one.
std::string shown_policy(const ValidatedCase& one);
/// "kept 20 %, official"
std::string setting_text(const ValidatedCase& one);

struct Validation {
  std::vector<ValidatedCase> cases;  ///< in the file's order
  std::string missing;               ///< why there are none, and what would measure them
  bool finished = true;

  /// The figures of kValidationFigures that at least one case has.
  std::vector<ValidationFigure> measured() const;
  /// The figures that predict any of the cases of a table, in the order of export.
  std::vector<const FigureFacts*> predictors(Table table) const;
};
std::size_t bytes_of(const Validation& validation);

/// Without cases where nothing was measured, or of results that stood in this folder before. Throws
/// InputError, one line, where validate.csv or validate.json is not what it should be.
Validation read_validation(const ResultReader& results);

/// Measured values presented as additional figures of a table, for code that compares figures: of the model
/// on the future rows, under the keys of the case's own figures. None for the other tables.
std::span<const FigureFacts* const> measured_figures(Table table);
/// The measured metrics of cases of `table`, case by case in its order, as entries of the model; none if
/// nothing was measured. Of cases whose stored cache was changed (is_written() is false), or with `written`
/// of caches that the model writes as engines do. Throws as read_validation().
std::vector<MetricEntry> measured_metrics(const ResultReader& results, const MetricTable& table,
                                          bool written = false);
/// A table of a folder and, behind its entries, what was measured.
MetricTable table_and_measured(const ResultReader& results, Table table);

/// The ratio of two cases' KL from which their order counts.
inline constexpr double kApart = 1.5;

/// Agreement between a figure's order of the cases of one setting and the order of their measured KL.
struct OrderByFigure {
  std::size_t cases = 0;  ///< cases that have both
  std::size_t pairs = 0,
              in_order = 0;  ///< pairs of them that are kApart, and those that the figure orders alike
  double spearman;           ///< NaN of fewer than three
  double ratio;              ///< the median of predicted over measured
};
OrderByFigure order_by(std::string_view figure, std::span<const ValidatedCase* const> cases,
                       ValidationFigure by = ValidationFigure::kl);

/// The cases of a table in their settings, each of at least two; in the file's order.
std::vector<std::vector<const ValidatedCase*>> settings_of(const Validation& validation, Table table);

}  // namespace kvreplay
