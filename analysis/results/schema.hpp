#pragma once

#include "analysis/results/figure_facts.hpp"
#include "data/facts_table.hpp"

#include <concepts>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The tables of a result folder (analysis/RESULTS-FORMAT.md): their columns and their figures. Code that
// writes, reads, compares or draws a figure takes the figure's name and properties from here.

namespace kvreplay {

/// agreement.csv: how well a score s follows a reference e over n candidates.
enum class AgreementFigure {
  rel_l1,
  spearman,
  recall_40,
  recall_1pc,
  recall_5pc,
  recall_10pc,
  recall_20pc,
  mass_40,
  mass_1pc,
  mass_5pc,
  mass_10pc,
  mass_20pc,
};
inline constexpr FigureKind kRecallKind{
    .unit = "share of tokens", .better = Better::larger, .scale = FigureScale::share, .levels = kHeadsOnly},
    kMassKind{.unit = "share of the error",
              .better = Better::larger,
              .scale = FigureScale::share,
              .levels = kHeadsOnly};
inline constexpr auto kAgreementFigures = facts_table<FigureOf<AgreementFigure>>({
    {{kErrorKind.of(kHeadsOnly), "rel_l1", "Relative distance",
      "Sum of |score - reference| over the sum of the reference, between squared output distances or nats"},
     AgreementFigure::rel_l1},
    {{{.unit = "rank correlation",
       .better = Better::larger,
       .scale = FigureScale::correlation,
       .levels = kHeadsOnly},
      "spearman",
      "Spearman",
      "Rank correlation over all tokens: 1 where both rank them alike",
      kOffered,
      "rank correlation of scores with a reference, median over the heads"},
     AgreementFigure::spearman},
    {{kRecallKind, "recall@40", "Recall of 40",
      "Share of the reference's 40 largest tokens that are among the score's 40 largest"},
     AgreementFigure::recall_40},
    {{kRecallKind, "recall@1%", "Recall of 1 %",
      "Share of the reference's largest 1 % of tokens that are among the score's largest 1 %"},
     AgreementFigure::recall_1pc},
    {{kRecallKind, "recall@5%", "Recall of 5 %",
      "Share of the reference's largest 5 % of tokens that are among the score's largest 5 %"},
     AgreementFigure::recall_5pc},
    {{kRecallKind, "recall@10%", "Recall of 10 %",
      "Share of the reference's largest tenth of tokens that are in the score's largest tenth", kOffered},
     AgreementFigure::recall_10pc},
    {{kRecallKind, "recall@20%", "Recall of 20 %",
      "Share of the reference's largest 20 % of tokens that are among the score's largest 20 %"},
     AgreementFigure::recall_20pc},
    {{kMassKind, "mass@40", "Mass of 40",
      "Share of the reference's total that the score's 40 largest tokens hold"},
     AgreementFigure::mass_40},
    {{kMassKind, "mass@1%", "Mass of 1 %",
      "Share of the reference's total that the score's largest 1 % of tokens hold"},
     AgreementFigure::mass_1pc},
    {{kMassKind, "mass@5%", "Mass of 5 %",
      "Share of the reference's total that the score's largest 5 % of tokens hold"},
     AgreementFigure::mass_5pc},
    {{kMassKind, "mass@10%", "Mass of 10 %",
      "Share of the reference's total that the score's largest tenth of tokens holds", kOffered},
     AgreementFigure::mass_10pc},
    {{kMassKind, "mass@20%", "Mass of 20 %",
      "Share of the reference's total that the score's largest 20 % of tokens hold"},
     AgreementFigure::mass_20pc},
});
constexpr const FigureFacts& facts_of(AgreementFigure figure) { return kAgreementFigures[figure]; }

/// Predicted losses: what a change of the outputs costs the model, for kept sets, budgets and pruned
/// channels. Definitions: sim/loss/LOSS.md.
inline constexpr FigureFacts kLossRow{kLossKind, "loss_row", "Predicted loss, row by row",
                                      "Predicted KL of the model from the change of the outputs, of every "
                                      "row and query head by itself: squares of gradient times change",
                                      kOffered},
    kLossHead{
        kLossKind, "loss_head", "Predicted loss, head by head",
        "Predicted KL: gradient times change, summed over the rows of a query head before it is squared",
        kOffered},
    kLossLayer{
        kLossKind.of(kLayersAndModel),
        "loss_layer",
        "Predicted loss, layer by layer",
        "Predicted KL: gradient times change, summed over the rows and heads of a layer before it is squared",
        kOffered,
        "predicted nats a step, layer by layer (loss_layer)"},
    kLossStep{
        kLossKind.of(kLayersAndModel),
        "loss_step",
        "Predicted loss, step by step",
        "Predicted KL: gradient times change, summed over all heads and layers in a row before it is squared",
        kOffered,
        "predicted nats a step (loss_step)"},
    kLossJoint{
        kLossKind.of(kModelOnly), "loss_joint", "Predicted loss, all heads together",
        "Predicted KL: gradient times change, summed over all rows, heads and layers before it is squared",
        kOffered},
    kDnll{kLossKind.drawn(FigureScale::signed_log).on(kFutureRows), "dnll", "Predicted change of NLL",
          "Change of the negative log-likelihood of the tokens that followed, to first order"};
constexpr FigureFacts not_main(FigureFacts facts) {
  facts.main = {};
  return facts;
}
constexpr FigureFacts on_future(FigureFacts facts) {
  facts.rows = kFutureRows;
  return not_main(facts);
}

/// evictions.csv: what an eviction costs. Definitions: sim/eviction/POLICIES.md.
enum class EvictionFigure {
  output_error,
  layer_output_error,
  eviction_loss,
  optimality_gap,
  oracle_recall,
  excess_over_greedy_exact,
  excess_over_exchange,
  bytes,
  bytes_read,
  residual_error,
  loss_row,
  loss_head,
  loss_layer,
  loss_step,
  loss_joint,
  dnll,
};
inline constexpr auto kEvictionFigures = facts_table<FigureOf<EvictionFigure>>({
    {{kErrorKind, "output_error", "Output error",
      "Squared change of the heads' outputs over their squared norm when only what is kept is attended to",
      kOffered, "output error over all heads"},
     EvictionFigure::output_error},
    {{kErrorKind.of(kLayersAndModel), "layer_output_error", "Layer output error",
      "Squared change of a layer's output behind W_O over its squared norm: the heads' changes add up and "
      "cancel",
      kOffered},
     EvictionFigure::layer_output_error},
    {{kImportanceKind.summed(), "eviction_loss", "Eviction loss",
      "Sum of oracle_importance over the evicted tokens (LU-KV eq. 6)", kOffered},
     EvictionFigure::eviction_loss},
    {{kImportanceKind.drawn(FigureScale::signed_log).summed(), "optimality_gap", "Optimality gap",
      "Eviction loss less that of the best set of as many tokens (LU-KV eq. 7)"},
     EvictionFigure::optimality_gap},
    {{{.unit = "share of tokens",
       .better = Better::larger,
       .scale = FigureScale::share,
       .exact = false,
       .rows = kFutureRows,
       .over_heads = HeadTotal::mean},
      "oracle_recall",
      "Oracle recall",
      "Share of the best set of as many tokens, by oracle_importance, that is kept",
      kOffered},
     EvictionFigure::oracle_recall},
    {{kErrorKind.drawn(FigureScale::signed_log), "excess_over_greedy_exact", "Excess over greedy_exact",
      "Output error less that of greedy_exact with as many tokens in the same run"},
     EvictionFigure::excess_over_greedy_exact},
    {{kErrorKind.drawn(FigureScale::signed_log), "excess_over_exchange", "Excess over exchange",
      "Output error less that of exchange with as many tokens in the same run"},
     EvictionFigure::excess_over_exchange},
    {{kBytesKind, "bytes", "Bytes", "Keys and values kept, in 16 bits or as --bits stores them"},
     EvictionFigure::bytes},
    {{kBytesKind, "bytes_read", "Bytes read",
      "Mean bytes that a row reads of the prompt's cache, those that it chooses by included; only where some "
      "policy "
      "keeps the whole prompt and reads less"},
     EvictionFigure::bytes_read},
    {{kErrorKind.of(kLayersAndModel), "residual_error", "Residual error",
      "Squared change of a layer's output behind W_O over the squared norm of the residual stream that it is "
      "added to; of the model the layers' mean",
      kOffered},
     EvictionFigure::residual_error},
    {kLossRow, EvictionFigure::loss_row},
    {kLossHead, EvictionFigure::loss_head},
    {kLossLayer, EvictionFigure::loss_layer},
    {kLossStep, EvictionFigure::loss_step},
    {kLossJoint, EvictionFigure::loss_joint},
    {kDnll, EvictionFigure::dnll},
});
constexpr const FigureFacts& facts_of(EvictionFigure figure) { return kEvictionFigures[figure]; }

/// decode.csv: the output error over the decoding steps.
enum class DecodeFigure { mean, max, last, tokens, most_tokens };
inline constexpr auto kDecodeFigures = facts_table<FigureOf<DecodeFigure>>({
    {{kErrorKind.on(kFutureRows).of(kHeadsOnly), "mean", "Mean error",
      "Mean of the output error over the decoding steps", kOffered,
      "output error, mean over the steps, median over the heads"},
     DecodeFigure::mean},
    {{kErrorKind.on(kFutureRows).of(kHeadsOnly), "max", "Largest error",
      "Largest output error of any decoding step", kOffered},
     DecodeFigure::max},
    {{kErrorKind.on(kFutureRows).of(kHeadsOnly), "last", "Last error",
      "Output error of the last decoding step", kOffered},
     DecodeFigure::last},
    {{kTokensKind.on(kFutureRows).of(kHeadsOnly), "tokens", "Tokens in the cache",
      "Tokens that a decoding step attends over, mean over the steps"},
     DecodeFigure::tokens},
    {{kTokensKind.on(kFutureRows).of(kHeadsOnly), "most_tokens", "Most tokens in the cache",
      "The most tokens that any decoding step attends over"},
     DecodeFigure::most_tokens},
});
constexpr const FigureFacts& facts_of(DecodeFigure figure) { return kDecodeFigures[figure]; }

/// diff.csv: two semantics of a policy side by side.
enum class DiffFigure { kept, kept_by_other, kept_by_both, output_error, output_error_of_other };
inline constexpr auto kDiffFigures = facts_table<FigureOf<DiffFigure>>({
    {{kTokensKind.on(kNoRows), "kept", "Kept",
      "Prompt tokens that the policy keeps under the first semantics"},
     DiffFigure::kept},
    {{kTokensKind.on(kNoRows), "kept_by_other", "Kept by the other",
      "Prompt tokens that the policy keeps under the other semantics"},
     DiffFigure::kept_by_other},
    {{kTokensKind.on(kNoRows), "kept_by_both", "Kept by both",
      "Prompt tokens that the policy keeps under both semantics"},
     DiffFigure::kept_by_both},
    {{kErrorKind, "output_error", "Output error", "Output error under the first semantics"},
     DiffFigure::output_error},
    {{kErrorKind, "output_error_of_other", "Output error of the other",
      "Output error under the other semantics"},
     DiffFigure::output_error_of_other},
});
constexpr const FigureFacts& facts_of(DiffFigure figure) { return kDiffFigures[figure]; }

/// budgets.csv, a column each: one budget shared between the heads. Definitions: analysis/budgets/BUDGETS.md.
enum class BudgetFigure {
  budget,
  loss,
  output_error,
  layer_output_error,
  loss_row,
  loss_head,
  loss_layer,
  loss_step,
  loss_joint,
  dnll
};
inline constexpr auto kBudgetFigures = facts_table<FigureOf<BudgetFigure>>({
    {{kTokensKind.on(kFutureRows), "budget", "Budget", "Tokens kept of the head, the layer or the model"},
     BudgetFigure::budget},
    {{kImportanceKind, "loss", "Loss",
      "Objective of the methods: the sum of oracle_importance over the evicted tokens; with --loss row of "
      "oracle_loss, in nats",
      kOffered, "loss over all heads"},
     BudgetFigure::loss},
    {{kErrorKind.on(kFutureRows), "output_error", "Output error",
      "Squared change of the heads' outputs on the decoding steps over their squared norm", kOffered,
      "output error over all heads of divided budgets"},
     BudgetFigure::output_error},
    {{kErrorKind.on(kFutureRows).of(kLayersOnly), "layer_output_error", "Layer output error",
      "Squared change of a layer's output behind W_O on the decoding steps over its squared norm", kOffered},
     BudgetFigure::layer_output_error},
    {on_future(kLossRow), BudgetFigure::loss_row},
    {on_future(kLossHead), BudgetFigure::loss_head},
    {on_future(kLossLayer), BudgetFigure::loss_layer},
    {on_future(kLossStep), BudgetFigure::loss_step},
    {on_future(kLossJoint), BudgetFigure::loss_joint},
    {kDnll, BudgetFigure::dnll},
});
constexpr const FigureFacts& facts_of(BudgetFigure figure) { return kBudgetFigures[figure]; }

/// channels.csv: how channels interact, and what pruning them costs. Definitions: sim/channels/CHANNELS.md.
enum class ChannelFigure {
  off_diagonal_share,  ///< of the interaction itself, under no method
  rope_pair_share,     ///< likewise
  reconstruction_error,
  relative_reconstruction_error,
  reconstruction_gain,
  lower_bound,
  proven,
  output_error,
  output_gain,
  layer_output_error,
  layer_output_gain,
  bytes,
  loss_row,
  loss_head,
  loss_layer,
  loss_step,
  loss_joint,
  dnll,
};
inline constexpr auto kChannelFigures = facts_table<FigureOf<ChannelFigure>>({
    {{{.unit = "share", .scale = FigureScale::share, .rows = kWindowRows},
      "off_diagonal_share",
      "Off-diagonal share",
      "Share of H that lies off its diagonal: what channels cost only together"},
     ChannelFigure::off_diagonal_share},
    {{{.unit = "share", .scale = FigureScale::share, .rows = kWindowRows},
      "rope_pair_share",
      "RoPE pair share",
      "Share of what lies off the diagonal of H that is between the two channels of a rotation pair"},
     ChannelFigure::rope_pair_share},
    {{{.unit = "squared logits",
       .better = Better::smaller,
       .scale = FigureScale::log,
       .exact = false,
       .over_heads = HeadTotal::sum},
      "reconstruction_error",
      "Reconstruction error",
      "Squared change of the logits of the keys that lose channels"},
     ChannelFigure::reconstruction_error},
    {{kErrorKind.approximate(), "relative_reconstruction_error", "Relative reconstruction error",
      "Squared change of the logits of the keys that lose channels, over their squared norm", kOffered,
      "relative reconstruction error of the logits"},
     ChannelFigure::relative_reconstruction_error},
    {{kGainKind.approximate(), "reconstruction_gain", "Reconstruction gain",
      "Share of ThinK's reconstruction error at the same ratio that the selection saves", kOffered},
     ChannelFigure::reconstruction_gain},
    {{{.unit = "squared logits",
       .scale = FigureScale::log,
       .exact = false,
       .rows = kWindowRows,
       .over_heads = HeadTotal::sum},
      "lower_bound",
      "Lower bound",
      "No set of as many channels has a smaller reconstruction error"},
     ChannelFigure::lower_bound},
    {{{.unit = "share of heads",
       .better = Better::larger,
       .scale = FigureScale::share,
       .rows = kWindowRows,
       .over_heads = HeadTotal::mean},
      "proven",
      "Proven",
      "Share of heads in which the bound reaches the set's error: no set is better"},
     ChannelFigure::proven},
    {{kErrorKind, "output_error", "Output error",
      "Squared change of the heads' outputs without the pruned channels, over their squared norm", kOffered,
      "output error over all heads without the pruned channels"},
     ChannelFigure::output_error},
    {{kGainKind, "output_gain", "Output gain",
      "Share of ThinK's output error at the same ratio that the selection saves", kOffered},
     ChannelFigure::output_gain},
    {{kErrorKind.of(kLayersOnly), "layer_output_error", "Layer output error",
      "Squared change of a layer's output behind W_O without the pruned channels, over its squared norm",
      kOffered},
     ChannelFigure::layer_output_error},
    {{kGainKind.of(kLayersOnly), "layer_output_gain", "Layer output gain",
      "Share of ThinK's layer output error at the same ratio that the selection saves"},
     ChannelFigure::layer_output_gain},
    {{kBytesKind, "bytes", "Bytes",
      "The prompt's keys and values with the channels that are left, in 16 bits"},
     ChannelFigure::bytes},
    {kLossRow, ChannelFigure::loss_row},
    {kLossHead, ChannelFigure::loss_head},
    {not_main(kLossLayer), ChannelFigure::loss_layer},
    {not_main(kLossStep), ChannelFigure::loss_step},
    {kLossJoint, ChannelFigure::loss_joint},
    {kDnll, ChannelFigure::dnll},
});
constexpr const FigureFacts& facts_of(ChannelFigure figure) { return kChannelFigures[figure]; }

/// compensation.csv: what kept tokens make up for evicted ones. Definitions:
/// sim/compensation/COMPENSATION.md.
enum class CompensationFigure {
  output_error,
  layer_output_error,
  selection,
  mass,
  values,
  bound,
  bytes,
  loss_row,
  loss_head,
  loss_layer,
  loss_step,
  loss_joint,
  dnll,
};
inline constexpr auto kCompensationFigures = facts_table<FigureOf<CompensationFigure>>({
    {{kErrorKind.on(kAllRows), "output_error", "Output error",
      "Squared change of the heads' outputs over their squared norm with the cache that the method makes of "
      "what is kept",
      kOffered, "output error over all heads of compensated caches"},
     CompensationFigure::output_error},
    {{kErrorKind.of(kLayersAndModel), "layer_output_error", "Layer output error",
      "Squared change of a layer's output behind W_O over its squared norm", kOffered},
     CompensationFigure::layer_output_error},
    {{kErrorKind.on(kAllRows), "selection", "Error of the selection",
      "Output of the kept tokens, unchanged and with the whole prompt's mass, less the full output",
      kOffered},
     CompensationFigure::selection},
    {{kErrorKind.on(kAllRows), "mass", "Error of the mass",
      "Change of the error of the selection by the mass and the biases of the kept tokens", kOffered},
     CompensationFigure::mass},
    {{kErrorKind.on(kAllRows), "values", "Error of the values",
      "Change of the error of the selection by the replaced values", kOffered},
     CompensationFigure::values},
    {{kErrorKind.on(kAllRows), "bound", "Bound",
      "The least that any values could reach on these very rows beside the keys and biases that are kept; "
      "empty unless rows outnumber tokens",
      kOffered},
     CompensationFigure::bound},
    {{kBytesKind, "bytes", "Bytes", "Keys and values kept, in 16 bits, and four bytes a token for its bias"},
     CompensationFigure::bytes},
    {kLossRow, CompensationFigure::loss_row},
    {kLossHead, CompensationFigure::loss_head},
    {not_main(kLossLayer), CompensationFigure::loss_layer},
    {not_main(kLossStep), CompensationFigure::loss_step},
    {kLossJoint, CompensationFigure::loss_joint},
    {kDnll, CompensationFigure::dnll},
});
constexpr const FigureFacts& facts_of(CompensationFigure figure) { return kCompensationFigures[figure]; }

template <class Id>
requires requires(Id figure) {
  { facts_of(figure) } -> std::same_as<const FigureFacts&>;
}
constexpr std::string_view name_of(Id figure) { return facts_of(figure).name; }

/// The tables, in the order in which folders list them.
enum class Table { heads, agreement, evictions, decode, diff, budgets, channels, compensation };

/// Columns of a table and their roles: keys that distinguish rows, and figures. Lists are comma-separated.
struct TableFacts {
  Table id;
  std::string_view name;   ///< "agreement", without .csv
  std::string_view title;  ///< of a menu
  /// In the file's order: layer and kv_head, other keys, and figures: a column each, or `metric` and `value`.
  /// In `heads` a column for each token metric of the run follows.
  std::string_view columns;
  /// The columns behind these that a run may have: figures of dumps that hold what they need.
  std::string_view optional = {};
  /// The columns that follow from the keys and the prompt's length, or none: `kept` and `kept_share` from
  /// `budget`, `pruned` from `ratio`.
  std::string_view derived = {};
  bool heads_only = false;       ///< rows of heads, none of layers and of the model
  std::string_view count = {};   ///< the number of its rows in summary.json's "totals"; empty: not there
  std::string_view items;        ///< the keys that are laid out downwards among the main figures,
  std::string_view across = {};  ///< and that from left to right, or none
  std::string_view main = {};    ///< the title where all figures are laid out as one; else each has its own
  /// The keys of which the run's first value stands for all where there is room for one.
  std::string_view swept = {};
  /// The keys that name what is better or worse, all else alike; none where nothing is.
  std::string_view compared = {};
};
inline constexpr auto kTables = facts_table<TableFacts>({
    {.id = Table::heads,
     .name = "heads",
     .title = "Sums of token metrics",
     .columns = "layer,kv_head",
     .heads_only = true,
     .count = "heads",
     .items = "metric",
     .main = "sum over all tokens, median over the heads"},
    {.id = Table::agreement,
     .name = "agreement",
     .title = "Agreement",
     .columns = "layer,kv_head,score,reference,rows,window,reserve,metric,value",
     .heads_only = true,
     .count = "agreement_rows",
     .items = "score",
     .across = "reference",
     .swept = "window,reserve",
     .compared = "score"},
    {.id = Table::evictions,
     .name = "evictions",
     .title = "Evictions",
     .columns = "layer,kv_head,policy,semantics,phase,budget,kept,kept_share,rows,metric,value",
     .derived = "kept,kept_share",
     .count = "eviction_rows",
     .items = "policy,semantics,phase",
     .across = "budget",
     .compared = "policy"},
    {.id = Table::decode,
     .name = "decode",
     .title = "Decoding",
     .columns = "layer,kv_head,policy,semantics,budget,metric,value",
     .heads_only = true,
     .items = "policy,semantics",
     .across = "budget",
     .compared = "policy"},
    {.id = Table::diff,
     .name = "diff",
     .title = "Two semantics",
     .columns = "layer,kv_head,policy,phase,budget,semantics,other,rows,metric,value",
     .items = "policy,phase",
     .across = "budget"},
    {.id = Table::budgets,
     .name = "budgets",
     .title = "Budgets",
     .columns = "layer,kv_head,order,method,sigma,budget,loss,output_error,layer_output_error",
     .optional = "loss_row,loss_head,loss_layer,loss_step,loss_joint,dnll",
     .count = "budget_rows",
     .items = "order,method",
     .across = "sigma",
     .compared = "order,method"},
    {.id = Table::channels,
     .name = "channels",
     .title = "Channels",
     .columns = "layer,kv_head,method,semantics,ratio,recent,pruned,rows,metric,value",
     .derived = "pruned",
     .count = "channel_rows",
     .items = "method,semantics",
     .across = "ratio",
     .compared = "method"},
    {.id = Table::compensation,
     .name = "compensation",
     .title = "Compensation",
     .columns = "layer,kv_head,policy,semantics,phase,budget,kept,method,reference,rows,metric,value",
     .derived = "kept",
     .count = "compensation_rows",
     .items = "policy,semantics,phase,method,reference",
     .across = "budget",
     .compared = "policy,method"},
});
constexpr const TableFacts& facts_of(Table table) { return kTables[table]; }
constexpr std::string_view name_of(Table table) { return facts_of(table).name; }
/// "agreement.csv"
std::string file_of(Table table);

/// The figures of a table in the order of export; of `heads` the token metrics summed over all tokens.
std::span<const FigureFacts* const> figures_of(Table table);
/// Null where the table has no figure of this name.
const FigureFacts* figure_named(Table table, std::string_view name);
/// Figures that lists of the whole model's offer, in the order of export; of tables with rows of heads
/// only the heads' medians stand for it.
std::vector<const FigureFacts*> offered_figures(Table table);

/// "Squared change of ..; relative error, exact, smaller is better": what the figure says, its unit, whether
/// it is measured or approximates, and the direction, as far as they are known, behind `before` and
/// `between`. Empty for a figure that the schema does not know.
std::string meaning_of(const FigureFacts& facts, std::string_view before, std::string_view between);

/// "a,b" as its parts; none of an empty text.
std::vector<std::string> split_list(std::string_view text);
/// True if the key is one of the table's swept keys.
bool is_swept(Table table, std::string_view key);
/// True if every figure has a column of its own, instead of `metric` and `value`.
bool is_wide(Table table);
/// The columns that together tell a row from all others.
std::vector<std::string> key_columns(Table table);
/// The columns that distinguish a figure from all others: key_columns(), and `metric` if the table is wide.
std::vector<std::string> figure_keys(Table table);

/// The columns behind the keys, of a table over dumps and of a table that compares two folders.
inline constexpr std::string_view kMeanColumns = "n,mean,sd,geometric_mean,ci_low,ci_high";
inline constexpr std::string_view kComparedColumns = "a,b,difference,ratio";

}  // namespace kvreplay
