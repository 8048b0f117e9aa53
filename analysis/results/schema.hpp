#pragma once

#include "analysis/results/figure_facts.hpp"
#include "data/facts_table.hpp"

#include <concepts>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The tables of a result folder (analysis/RESULTS-FORMAT.md): their columns and the figures that stand in
// them. Who writes, reads, compares or draws a figure takes its name and all else from here.

namespace kvreplay {

/// agreement.csv: how well a score follows a reference. Of a score s and a reference e over n candidates.
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
inline constexpr auto kAgreementFigures = facts_table<FigureOf<AgreementFigure>>({
    {{.name = "rel_l1",
      .title = "Relative distance",
      .unit = "relative error",
      .what = "Sum of |score - reference| over the sum of the reference, between squared output distances",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .levels = kHeadsOnly},
     AgreementFigure::rel_l1},
    {{.name = "spearman",
      .title = "Spearman",
      .unit = "rank correlation",
      .what = "Rank correlation over all tokens: 1 where both rank them alike",
      .better = Better::larger,
      .scale = FigureScale::correlation,
      .levels = kHeadsOnly,
      .offered = true,
      .main = "rank correlation of scores with a reference, median over the heads"},
     AgreementFigure::spearman},
    {{.name = "recall@40",
      .title = "Recall of 40",
      .unit = "share of tokens",
      .what = "Share of the reference's 40 largest tokens that are among the score's 40 largest",
      .better = Better::larger,
      .scale = FigureScale::share,
      .levels = kHeadsOnly},
     AgreementFigure::recall_40},
    {{.name = "recall@1%",
      .title = "Recall of 1 %",
      .unit = "share of tokens",
      .what = "Share of the reference's largest 1 % of tokens that are among the score's largest 1 %",
      .better = Better::larger,
      .scale = FigureScale::share,
      .levels = kHeadsOnly},
     AgreementFigure::recall_1pc},
    {{.name = "recall@5%",
      .title = "Recall of 5 %",
      .unit = "share of tokens",
      .what = "Share of the reference's largest 5 % of tokens that are among the score's largest 5 %",
      .better = Better::larger,
      .scale = FigureScale::share,
      .levels = kHeadsOnly},
     AgreementFigure::recall_5pc},
    {{.name = "recall@10%",
      .title = "Recall of 10 %",
      .unit = "share of tokens",
      .what = "Share of the reference's largest tenth of tokens that are in the score's largest tenth",
      .better = Better::larger,
      .scale = FigureScale::share,
      .levels = kHeadsOnly,
      .offered = true},
     AgreementFigure::recall_10pc},
    {{.name = "recall@20%",
      .title = "Recall of 20 %",
      .unit = "share of tokens",
      .what = "Share of the reference's largest 20 % of tokens that are among the score's largest 20 %",
      .better = Better::larger,
      .scale = FigureScale::share,
      .levels = kHeadsOnly},
     AgreementFigure::recall_20pc},
    {{.name = "mass@40",
      .title = "Mass of 40",
      .unit = "share of the error",
      .what = "Share of the reference's total that the score's 40 largest tokens hold",
      .better = Better::larger,
      .scale = FigureScale::share,
      .levels = kHeadsOnly},
     AgreementFigure::mass_40},
    {{.name = "mass@1%",
      .title = "Mass of 1 %",
      .unit = "share of the error",
      .what = "Share of the reference's total that the score's largest 1 % of tokens hold",
      .better = Better::larger,
      .scale = FigureScale::share,
      .levels = kHeadsOnly},
     AgreementFigure::mass_1pc},
    {{.name = "mass@5%",
      .title = "Mass of 5 %",
      .unit = "share of the error",
      .what = "Share of the reference's total that the score's largest 5 % of tokens hold",
      .better = Better::larger,
      .scale = FigureScale::share,
      .levels = kHeadsOnly},
     AgreementFigure::mass_5pc},
    {{.name = "mass@10%",
      .title = "Mass of 10 %",
      .unit = "share of the error",
      .what = "Share of the reference's total that the score's largest tenth of tokens holds",
      .better = Better::larger,
      .scale = FigureScale::share,
      .levels = kHeadsOnly,
      .offered = true},
     AgreementFigure::mass_10pc},
    {{.name = "mass@20%",
      .title = "Mass of 20 %",
      .unit = "share of the error",
      .what = "Share of the reference's total that the score's largest 20 % of tokens hold",
      .better = Better::larger,
      .scale = FigureScale::share,
      .levels = kHeadsOnly},
     AgreementFigure::mass_20pc},
});
constexpr const FigureFacts& facts_of(AgreementFigure figure) { return kAgreementFigures[figure]; }

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
};
inline constexpr auto kEvictionFigures = facts_table<FigureOf<EvictionFigure>>({
    {{.name = "output_error",
      .title = "Output error",
      .unit = "relative error",
      .what = "Squared change of the heads' outputs over their squared norm when only what is kept is "
              "attended to",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .offered = true,
      .main = "output error over all heads"},
     EvictionFigure::output_error},
    {{.name = "layer_output_error",
      .title = "Layer output error",
      .unit = "relative error",
      .what = "Squared change of a layer's output behind W_O over its squared norm: the heads' changes add "
              "up and cancel",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .levels = kLayersOnly,
      .offered = true},
     EvictionFigure::layer_output_error},
    {{.name = "eviction_loss",
      .title = "Eviction loss",
      .unit = "importance",
      .what = "Sum of oracle_importance over the evicted tokens (LU-KV eq. 6)",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .exact = false,
      .rows = kFutureRows,
      .offered = true},
     EvictionFigure::eviction_loss},
    {{.name = "optimality_gap",
      .title = "Optimality gap",
      .unit = "importance",
      .what = "Eviction loss less that of the best set of as many tokens (LU-KV eq. 7)",
      .better = Better::smaller,
      .scale = FigureScale::signed_log,
      .exact = false,
      .rows = kFutureRows},
     EvictionFigure::optimality_gap},
    {{.name = "oracle_recall",
      .title = "Oracle recall",
      .unit = "share of tokens",
      .what = "Share of the best set of as many tokens, by oracle_importance, that is kept",
      .better = Better::larger,
      .scale = FigureScale::share,
      .exact = false,
      .rows = kFutureRows,
      .offered = true},
     EvictionFigure::oracle_recall},
    {{.name = "excess_over_greedy_exact",
      .title = "Excess over greedy_exact",
      .unit = "relative error",
      .what = "Output error less that of greedy_exact with as many tokens in the same run",
      .better = Better::smaller,
      .scale = FigureScale::signed_log},
     EvictionFigure::excess_over_greedy_exact},
    {{.name = "excess_over_exchange",
      .title = "Excess over exchange",
      .unit = "relative error",
      .what = "Output error less that of exchange with as many tokens in the same run",
      .better = Better::smaller,
      .scale = FigureScale::signed_log},
     EvictionFigure::excess_over_exchange},
    {{.name = "bytes",
      .title = "Bytes",
      .unit = "bytes",
      .what = "Keys and values kept, in the dump's number format",
      .better = Better::smaller,
      .rows = kNoRows},
     EvictionFigure::bytes},
});
constexpr const FigureFacts& facts_of(EvictionFigure figure) { return kEvictionFigures[figure]; }

/// decode.csv: the output error over the decoding steps.
enum class DecodeFigure { mean, max, last };
inline constexpr auto kDecodeFigures = facts_table<FigureOf<DecodeFigure>>({
    {{.name = "mean",
      .title = "Mean error",
      .unit = "relative error",
      .what = "Mean of the output error over the decoding steps",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .rows = kFutureRows,
      .levels = kHeadsOnly,
      .offered = true,
      .main = "output error, mean over the steps, median over the heads"},
     DecodeFigure::mean},
    {{.name = "max",
      .title = "Largest error",
      .unit = "relative error",
      .what = "Largest output error of any decoding step",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .rows = kFutureRows,
      .levels = kHeadsOnly,
      .offered = true},
     DecodeFigure::max},
    {{.name = "last",
      .title = "Last error",
      .unit = "relative error",
      .what = "Output error of the last decoding step",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .rows = kFutureRows,
      .levels = kHeadsOnly,
      .offered = true},
     DecodeFigure::last},
});
constexpr const FigureFacts& facts_of(DecodeFigure figure) { return kDecodeFigures[figure]; }

/// diff.csv: two semantics of a policy side by side.
enum class DiffFigure { kept, kept_by_other, kept_by_both, output_error, output_error_of_other };
inline constexpr auto kDiffFigures = facts_table<FigureOf<DiffFigure>>({
    {{.name = "kept",
      .title = "Kept",
      .unit = "tokens",
      .what = "Prompt tokens that the policy keeps under the first semantics",
      .rows = kNoRows},
     DiffFigure::kept},
    {{.name = "kept_by_other",
      .title = "Kept by the other",
      .unit = "tokens",
      .what = "Prompt tokens that the policy keeps under the other semantics",
      .rows = kNoRows},
     DiffFigure::kept_by_other},
    {{.name = "kept_by_both",
      .title = "Kept by both",
      .unit = "tokens",
      .what = "Prompt tokens that the policy keeps under both semantics",
      .rows = kNoRows},
     DiffFigure::kept_by_both},
    {{.name = "output_error",
      .title = "Output error",
      .unit = "relative error",
      .what = "Output error under the first semantics",
      .better = Better::smaller,
      .scale = FigureScale::log},
     DiffFigure::output_error},
    {{.name = "output_error_of_other",
      .title = "Output error of the other",
      .unit = "relative error",
      .what = "Output error under the other semantics",
      .better = Better::smaller,
      .scale = FigureScale::log},
     DiffFigure::output_error_of_other},
});
constexpr const FigureFacts& facts_of(DiffFigure figure) { return kDiffFigures[figure]; }

/// budgets.csv, a column each: one budget shared between the heads. Definitions: analysis/budgets/BUDGETS.md.
enum class BudgetFigure { budget, loss, output_error, layer_output_error };
inline constexpr auto kBudgetFigures = facts_table<FigureOf<BudgetFigure>>({
    {{.name = "budget",
      .title = "Budget",
      .unit = "tokens",
      .what = "Tokens kept of the head, the layer or the model",
      .rows = kFutureRows},
     BudgetFigure::budget},
    {{.name = "loss",
      .title = "Loss",
      .unit = "importance",
      .what = "What the methods minimise: the sum of oracle_importance over the evicted tokens",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .exact = false,
      .rows = kFutureRows,
      .offered = true,
      .main = "loss over all heads"},
     BudgetFigure::loss},
    {{.name = "output_error",
      .title = "Output error",
      .unit = "relative error",
      .what = "Squared change of the heads' outputs on the decoding steps over their squared norm",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .rows = kFutureRows,
      .offered = true,
      .main = "output error over all heads of divided budgets"},
     BudgetFigure::output_error},
    {{.name = "layer_output_error",
      .title = "Layer output error",
      .unit = "relative error",
      .what = "Squared change of a layer's output behind W_O on the decoding steps over its squared norm",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .rows = kFutureRows,
      .levels = kLayersOnly,
      .offered = true},
     BudgetFigure::layer_output_error},
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
};
inline constexpr auto kChannelFigures = facts_table<FigureOf<ChannelFigure>>({
    {{.name = "off_diagonal_share",
      .title = "Off-diagonal share",
      .unit = "share",
      .what = "Share of H that lies off its diagonal: what channels cost only together",
      .scale = FigureScale::share,
      .rows = kWindowRows},
     ChannelFigure::off_diagonal_share},
    {{.name = "rope_pair_share",
      .title = "RoPE pair share",
      .unit = "share",
      .what = "Share of what lies off the diagonal of H that is between the two channels of a rotation pair",
      .scale = FigureScale::share,
      .rows = kWindowRows},
     ChannelFigure::rope_pair_share},
    {{.name = "reconstruction_error",
      .title = "Reconstruction error",
      .unit = "squared logits",
      .what = "Squared change of the logits of the keys that lose channels",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .exact = false},
     ChannelFigure::reconstruction_error},
    {{.name = "relative_reconstruction_error",
      .title = "Relative reconstruction error",
      .unit = "relative error",
      .what = "Squared change of the logits of the keys that lose channels, over their squared norm",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .exact = false,
      .offered = true,
      .main = "relative reconstruction error of the logits"},
     ChannelFigure::relative_reconstruction_error},
    {{.name = "reconstruction_gain",
      .title = "Reconstruction gain",
      .unit = "share of think's error",
      .what = "Share of ThinK's reconstruction error at the same ratio that the selection saves",
      .better = Better::larger,
      .scale = FigureScale::gain,
      .exact = false,
      .offered = true},
     ChannelFigure::reconstruction_gain},
    {{.name = "lower_bound",
      .title = "Lower bound",
      .unit = "squared logits",
      .what = "No set of as many channels has a smaller reconstruction error",
      .scale = FigureScale::log,
      .exact = false,
      .rows = kWindowRows},
     ChannelFigure::lower_bound},
    {{.name = "proven",
      .title = "Proven",
      .unit = "share of heads",
      .what = "Share of heads in which the search for the best set came to its end",
      .better = Better::larger,
      .scale = FigureScale::share,
      .rows = kWindowRows},
     ChannelFigure::proven},
    {{.name = "output_error",
      .title = "Output error",
      .unit = "relative error",
      .what = "Squared change of the heads' outputs without the pruned channels, over their squared norm",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .offered = true,
      .main = "output error over all heads without the pruned channels"},
     ChannelFigure::output_error},
    {{.name = "output_gain",
      .title = "Output gain",
      .unit = "share of think's error",
      .what = "Share of ThinK's output error at the same ratio that the selection saves",
      .better = Better::larger,
      .scale = FigureScale::gain,
      .offered = true},
     ChannelFigure::output_gain},
    {{.name = "layer_output_error",
      .title = "Layer output error",
      .unit = "relative error",
      .what =
          "Squared change of a layer's output behind W_O without the pruned channels, over its squared norm",
      .better = Better::smaller,
      .scale = FigureScale::log,
      .levels = kLayersOnly,
      .offered = true},
     ChannelFigure::layer_output_error},
    {{.name = "layer_output_gain",
      .title = "Layer output gain",
      .unit = "share of think's error",
      .what = "Share of ThinK's layer output error at the same ratio that the selection saves",
      .better = Better::larger,
      .scale = FigureScale::gain,
      .levels = kLayersOnly},
     ChannelFigure::layer_output_gain},
    {{.name = "bytes",
      .title = "Bytes",
      .unit = "bytes",
      .what = "The prompt's keys and values with the channels that are left, in the dump's number format",
      .better = Better::smaller,
      .rows = kNoRows},
     ChannelFigure::bytes},
});
constexpr const FigureFacts& facts_of(ChannelFigure figure) { return kChannelFigures[figure]; }

template <class Id>
requires requires(Id figure) {
  { facts_of(figure) } -> std::same_as<const FigureFacts&>;
}
constexpr std::string_view name_of(Id figure) { return facts_of(figure).name; }

/// The tables, in the order in which folders list them.
enum class Table { heads, agreement, evictions, decode, diff, budgets, channels };

/// How the rows of a table are told apart, and what they say. Lists are comma-separated.
struct TableFacts {
  Table id;
  std::string_view name;   ///< "agreement", without .csv
  std::string_view title;  ///< of a menu
  /// In the file's order: layer and kv_head, other keys, and figures: a column each, or `metric` and `value`.
  /// Of `heads` a column for each token metric of the run follows.
  std::string_view columns;
  /// The column that follows from the keys and the prompt's length, or none: `kept` from `budget`, `pruned`
  /// from `ratio`.
  std::string_view derived;
  bool heads_only;          ///< rows of heads, none of layers and of the model
  std::string_view count;   ///< the number of its rows in summary.json's "totals"; empty: not there
  std::string_view items;   ///< the keys that are laid out downwards among the main figures,
  std::string_view across;  ///< and that from left to right, or none
  std::string_view main;    ///< the title where all figures are laid out as one; else each has its own
};
inline constexpr auto kTables = facts_table<TableFacts>({
    {.id = Table::heads,
     .name = "heads",
     .title = "Sums of token metrics",
     .columns = "layer,kv_head",
     .derived = "",
     .heads_only = true,
     .count = "heads",
     .items = "metric",
     .across = "",
     .main = "sum over all tokens, median over the heads"},
    {.id = Table::agreement,
     .name = "agreement",
     .title = "Agreement",
     .columns = "layer,kv_head,score,reference,rows,reserve,metric,value",
     .derived = "",
     .heads_only = true,
     .count = "agreement_rows",
     .items = "score",
     .across = "reference",
     .main = ""},
    {.id = Table::evictions,
     .name = "evictions",
     .title = "Evictions",
     .columns = "layer,kv_head,policy,semantics,phase,budget,kept,rows,metric,value",
     .derived = "kept",
     .heads_only = false,
     .count = "eviction_rows",
     .items = "policy,semantics,phase",
     .across = "budget",
     .main = ""},
    {.id = Table::decode,
     .name = "decode",
     .title = "Decoding",
     .columns = "layer,kv_head,policy,semantics,budget,metric,value",
     .derived = "",
     .heads_only = true,
     .count = "",
     .items = "policy,semantics",
     .across = "budget",
     .main = ""},
    {.id = Table::diff,
     .name = "diff",
     .title = "Two semantics",
     .columns = "layer,kv_head,policy,phase,budget,semantics,other,rows,metric,value",
     .derived = "",
     .heads_only = false,
     .count = "",
     .items = "policy,phase",
     .across = "budget",
     .main = ""},
    {.id = Table::budgets,
     .name = "budgets",
     .title = "Budgets",
     .columns = "layer,kv_head,order,method,sigma,budget,loss,output_error,layer_output_error",
     .derived = "",
     .heads_only = false,
     .count = "budget_rows",
     .items = "order,method",
     .across = "sigma",
     .main = ""},
    {.id = Table::channels,
     .name = "channels",
     .title = "Channels",
     .columns = "layer,kv_head,method,semantics,ratio,recent,pruned,rows,metric,value",
     .derived = "pruned",
     .heads_only = false,
     .count = "channel_rows",
     .items = "method,semantics",
     .across = "ratio",
     .main = ""},
});
constexpr const TableFacts& facts_of(Table table) { return kTables[table]; }
constexpr std::string_view name_of(Table table) { return facts_of(table).name; }
/// "agreement.csv"
std::string file_of(Table table);

/// The figures of a table in the order of export; of `heads` the token metrics summed over all tokens.
std::span<const FigureFacts* const> figures_of(Table table);
/// Null where the table has no figure of this name.
const FigureFacts* figure_named(Table table, std::string_view name);
/// Those that lists of the whole model's figures offer, in the order of export; of tables with rows of heads
/// only the heads' medians stand for it.
std::vector<const FigureFacts*> offered_figures(Table table);

/// "Squared change of ..; relative error, exact, smaller is better": what the figure says, its unit, whether
/// it is measured or approximates, and the direction, as far as they are known, behind `before` and
/// `between`. Empty for a figure that the schema does not know.
std::string meaning_of(const FigureFacts& facts, std::string_view before, std::string_view between);

/// "a,b" as its parts; none of an empty text.
std::vector<std::string> split_list(std::string_view text);
/// Whether every figure has a column of its own, instead of `metric` and `value`.
bool is_wide(Table table);
/// The columns that together tell a row from all others.
std::vector<std::string> key_columns(Table table);
/// What tells a figure from all others: the same, and `metric` where the table is wide.
std::vector<std::string> figure_keys(Table table);

/// What a table over dumps has behind its keys, and one that compares two folders.
inline constexpr std::string_view kMeanColumns = "n,mean,sd,ci_low,ci_high";
inline constexpr std::string_view kComparedColumns = "a,b,difference,ratio";

}  // namespace kvreplay
