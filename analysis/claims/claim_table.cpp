#include "analysis/claims/claim.hpp"

namespace kvreplay {
namespace {

constexpr const char* kNeedsBudgets = "kvreplay budget --method uniform,ada,lu,optimal, and decoding steps";
constexpr const char* kNeedsProfile =
    "kvreplay budget --method uniform,pyramid,ada of several dumps, with decoding steps";
constexpr const char* kNeedsChannels = "kvreplay channels --method think,iap,output";

/// One token of 40.
constexpr double kOneInForty = 1.0 / 40;
/// Ratio to the optimum below which a loss counts as optimal.
constexpr double kAsGoodAsOptimal = 1.001;
/// Rank correlation from which ranks count as equal.
constexpr double kSameRanks = 0.95;

const Keys kNextSteps = {{"reference", "oracle_next"}, {"metric", "recall@40"}};
const Keys kEvicted = {{"semantics", "paper"}, {"phase", "prefill"}, {"rows", "future"}};
const Keys kWindowLogits = {{"semantics", "paper"}, {"metric", "reconstruction_error"}, {"rows", "window"}};
const Keys kPrunedOutputs = {{"semantics", "paper"}, {"metric", "output_error"}};
const Keys kImportance = {{"metric", "loss"}};

Keys method(const char* name) { return {{"method", name}}; }
Keys score(const char* name) { return {{"score", name}}; }

Keys ranks(const char* of, const char* reference) { return {{"score", of}, {"reference", reference}}; }

/// Claim: a method lowers the cost of an eviction, compared with kept tokens left as they were.
ClaimFacts compensation(const char* id, const char* paper, const char* figure, const char* name,
                        const char* sentence) {
  return {.id = id,
          .paper = paper,
          .figure = figure,
          .sentence = sentence,
          .table = Table::compensation,
          .of = {{"semantics", "paper"}, {"rows", "future"}},
          .sides = {{method(name), method("none")}},
          .each = {{"policy", {}}, {"phase", {}}, {"budget", {}}, {"metric", {"output_error", "kl"}}},
          .needs = "kvreplay evict --compensate none and the method, and decoding steps"};
}

}  // namespace

const std::vector<ClaimFacts>& claim_table() {
  static const std::vector<ClaimFacts> claims = {
      {.id = "obcache-2a-exact",
       .paper = "OBCache",
       .figure = "fig. 2a",
       .sentence = "Taylor scores find the tokens that the next steps miss most as well as the exact proxy "
                   "does (to one token in forty)",
       .table = Table::agreement,
       .of = kNextSteps,
       .sides = {{score("joint"), score("exact_joint")},
                 {score("key"), score("exact_joint")},
                 {score("value"), score("exact_joint")}},
       .each = {{"window", {}}, {"reserve", {}}},
       .reduced = Reduced::mean_of_heads,
       .effect = Effect::difference,
       .better = Better::larger,
       .bound = -kOneInForty,
       .needs = "joint, key, value, exact_joint and oracle_next of kvreplay tokens"},
      {.id = "obcache-2a-attn",
       .paper = "OBCache",
       .figure = "fig. 2a",
       .sentence = "Taylor scores find more of the tokens that the next steps miss most than attention sums",
       .table = Table::agreement,
       .of = kNextSteps,
       .sides = {{score("joint"), score("attn")},
                 {score("key"), score("attn")},
                 {score("value"), score("attn")}},
       .each = {{"window", {}}, {"reserve", {}}},
       .reduced = Reduced::mean_of_heads,
       .effect = Effect::difference,
       .better = Better::larger,
       .bound = 0,
       .needs = "attn, joint, key, value and oracle_next of kvreplay tokens"},
      {.id = "obcache-2b",
       .paper = "OBCache",
       .figure = "fig. 2b",
       .sentence =
           "Twenty recent tokens, reserved among the kept, find more of what the next steps miss most",
       .table = Table::agreement,
       .of = kNextSteps,
       .sides = {{{{"reserve", "20"}}, {{"reserve", "0"}}}},
       .each = {{"score", {"attn", "joint", "key", "value"}}, {"window", {}}},
       .reduced = Reduced::mean_of_heads,
       .effect = Effect::difference,
       .better = Better::larger,
       .bound = 0,
       .needs = "kvreplay tokens --reserve 0,20"},
      {.id = "obcache-taylor",
       .paper = "OBCache",
       .figure = "eq. 4 to 6",
       .sentence = "Taylor scores rank tokens as the exact errors that they expand do (Spearman, median of "
                   "the heads)",
       .table = Table::agreement,
       .of = {{"metric", "spearman"}, {"reserve", "0"}},
       .sides = {{ranks("key", "exact_key"), {}},
                 {ranks("joint", "exact_joint"), {}},
                 {ranks("value", "exact_remove"), {}},
                 {ranks("key", "exact_remove"), {}},
                 {ranks("joint", "exact_remove"), {}}},
       .each = {{"window", {}}},
       .reduced = Reduced::median_of_heads,
       .effect = Effect::correlation,
       .better = Better::larger,
       .bound = kSameRanks,
       .needs = "key, joint and value, exact_key, exact_joint and exact_remove of kvreplay tokens"},
      {.id = "obcache-scores",
       .paper = "OBCache",
       .figure = "tables",
       .sentence = "OBCache's scores lower what a policy's eviction costs",
       .table = Table::evictions,
       .of = kEvicted,
       .ended = "policy",
       .endings = {"+value", "+key", "+joint"},
       .each = {{"budget", {}}, {"metric", {"output_error", "kl"}}},
       .needs = "h2o, tova or snapkv with and without +value, +key or +joint of kvreplay evict, and decoding "
                "steps"},
      {.id = "obcache-ada",
       .paper = "OBCache",
       .figure = "tables",
       .sentence = "OBCache's scores lower what AdaKV costs",
       .table = Table::budgets,
       .of = method("ada"),
       .ended = "order",
       .endings = {"+value", "+key", "+joint"},
       .each = {{"sigma", {}}, {"metric", {"output_error", "kl"}}},
       .needs = "kvreplay budget --method ada of an order with and without +value, +key or +joint"},
      {.id = "caote-3",
       .paper = "CAOTE",
       .figure = "fig. 3",
       .sentence = "CAOTE and FastCAOTE lower what H2O, TOVA and SnapKV cost",
       .table = Table::evictions,
       .of = kEvicted,
       .ended = "policy",
       .endings = {"+caote", "+fastcaote"},
       .each = {{"budget", {}}, {"metric", {"output_error", "kl"}}},
       .needs = "h2o, tova or snapkv with and without +caote of kvreplay evict, and decoding steps"},
      {.id = "caote-10",
       .paper = "CAOTE",
       .figure = "table 10",
       .sentence = "Smaller blocks help CAOTE",
       .table = Table::evictions,
       .of = {{"semantics", "paper"}, {"metric", "output_error"}, {"rows", "future"}},
       .sides = {{{{"phase", "blockwise:32"}}, {{"phase", "blockwise:128"}}}},
       .each = {{"policy", {"h2o+caote", "tova+caote", "snapkv+caote"}}, {"budget", {}}},
       .needs =
           "kvreplay evict --phase blockwise:32,blockwise:128 of a +caote policy, and more than 128 tokens",
       .longer_than = 128},
      {.id = "lukv-3",
       .paper = "LU-KV",
       .figure = "fig. 3",
       .sentence = "A budget divided by the profile of other prompts loses less importance than ada's and "
                   "than an even one, and an even one less than pyramid's",
       .table = Table::budgets,
       .of = kImportance,
       .sides = {{method("profile"), method("ada")},
                 {method("profile"), method("uniform")},
                 {method("uniform"), method("pyramid")}},
       .each = {{"order", {}}, {"sigma", {}}},
       .needs = kNeedsProfile},
      {.id = "lukv-4",
       .paper = "LU-KV",
       .figure = "fig. 4",
       .sentence = "Under the profile of other prompts the worst head loses less importance than under ada's "
                   "budgets and even ones",
       .table = Table::budgets,
       .of = kImportance,
       .sides = {{method("profile"), method("ada")}, {method("profile"), method("uniform")}},
       .each = {{"order", {}}, {"sigma", {}}},
       .reduced = Reduced::largest_head,
       .needs = kNeedsProfile},
      {.id = "lukv-2a",
       .paper = "LU-KV",
       .figure = "fig. 2a",
       .sentence = "Greedy on the hull loses as little as the exact optimum (to 0.1 %)",
       .table = Table::budgets,
       .of = kImportance,
       .sides = {{method("lu"), method("optimal")}},
       .each = {{"order", {}}, {"sigma", {}}},
       .bound = kAsGoodAsOptimal,
       .needs = kNeedsBudgets},
      {.id = "lukv-steps",
       .paper = "LU-KV",
       .figure = "tables",
       .sentence =
           "A budget divided by lu, which knows the steps, costs less than ada's and than an even one",
       .table = Table::budgets,
       .sides = {{method("lu"), method("ada")}, {method("lu"), method("uniform")}},
       .each = {{"order", {}}, {"sigma", {}}, {"metric", {"output_error", "kl"}}},
       .needs = kNeedsBudgets},
      {.id = "lukv-profile",
       .paper = "LU-KV",
       .figure = "tables",
       .sentence =
           "A budget divided by the profile of other prompts costs less than ada's and than an even one",
       .table = Table::budgets,
       .sides = {{method("profile"), method("ada")}, {method("profile"), method("uniform")}},
       .each = {{"order", {}}, {"sigma", {}}, {"metric", {"output_error", "kl"}}},
       .needs = kNeedsProfile},
      {.id = "iap-3",
       .paper = "IAP",
       .figure = "fig. 3",
       .sentence = "A selection that knows how channels interact reconstructs the logits better than ThinK",
       .table = Table::channels,
       .of = kWindowLogits,
       .sides = {{method("iap"), method("think")}},
       .each = {{"ratio", {}}, {"recent", {}}},
       .needs = kNeedsChannels},
      {.id = "iap-output",
       .paper = "IAP",
       .figure = "tables",
       .sentence =
           "A selection that knows how channels interact keeps the attention output better than ThinK",
       .table = Table::channels,
       .of = kPrunedOutputs,
       .sides = {{method("iap"), method("think")}},
       .each = {{"ratio", {}}, {"recent", {}}, {"rows", {}}},
       .needs = kNeedsChannels},
      {.id = "channels-output",
       .paper = "kvreplay",
       .figure = "output",
       .sentence = "Channels chosen in output space keep the attention output better than ThinK's and IAP's",
       .table = Table::channels,
       .of = kPrunedOutputs,
       .sides = {{method("output"), method("think")}, {method("output"), method("iap")}},
       .each = {{"ratio", {}}, {"recent", {}}, {"rows", {}}},
       .needs = kNeedsChannels},
      compensation("matching-mass", "Attention Matching", "biases", "mass",
                   "Biases that give the kept tokens the whole prompt's mass lower what an eviction costs"),
      compensation("grkv-values", "GRKV", "ridge regression", "values",
                   "Values fitted by ridge regression lower what an eviction costs"),
      compensation("matching-fit", "Attention Matching", "biases and values", "fit",
                   "Biases and then values, fitted, lower what an eviction costs"),
      compensation("cam-merge", "CaM", "merging", "cam",
                   "Merging evicted values into kept ones lowers what an eviction costs"),
      compensation("d2o-merge", "D2O", "merging", "d2o",
                   "Merging evicted tokens into the kept ones nearest to them lowers what an eviction costs"),
      compensation("kvmerger-merge", "KVMerger", "merging", "kvmerger",
                   "Merging runs of similar keys lowers what an eviction costs"),
      compensation("keepkv-merge", "KeepKV", "merging", "keepkv",
                   "Merging that keeps the attention's perturbation at 0 lowers what an eviction costs"),
      compensation("mergingpress-merge", "kvpress' MergingPress", "merging", "merging_press",
                   "Merging by the keys' similarity lowers what an eviction costs"),
      {.id = "leverage-fit",
       .paper = "kvreplay",
       .figure = "greedy_leverage",
       .sentence = "Evicting what fitted values make up for best loses less, once they are fitted, than an "
                   "exact search of the window with the same fit",
       .table = Table::compensation,
       .of = {{"semantics", "paper"}, {"method", "fit"}, {"rows", "future"}},
       .sides = {{{{"policy", "greedy_leverage"}}, {{"policy", "greedy_exact"}}}},
       .each = {{"phase", {}}, {"budget", {}}, {"metric", {"output_error", "kl"}}},
       .needs = "kvreplay evict --policy greedy_leverage,greedy_exact --compensate fit, and decoding steps"},
  };
  return claims;
}

}  // namespace kvreplay
