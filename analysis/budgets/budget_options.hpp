#pragma once

#include "analysis/budgets/allocation.hpp"
#include "analysis/eviction/eviction_options.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// The methods that run by default.
std::vector<BudgetDivision> usual_budget_methods();

/// Order of a head's tokens, the same for all budgets: by a policy's scores (snapkv+joint[window=16]), or by
/// one token metric or score of the user's.
struct BudgetOrder {
  std::string name;
  Policy policy;
  bool operator==(const BudgetOrder&) const = default;
};
/// Throws OptionError with the nearest names for an unknown name, and for a policy that searches or ranks by
/// position; `scores` are the names of the user's.
BudgetOrder parse_order(const std::string& name, const std::vector<std::string>& scores);

enum class Normalise { none, layer };

/// Named settings for the division of budgets.
enum class BudgetSemantics { paper, raw, official, kvpress, kvpress_0_5_5 };

struct BudgetSemanticsFacts {
  BudgetSemantics id;
  std::string_view name;
  std::string_view meaning;
  Semantics divides;  ///< semantics of pyramid, ada and profiles
  Normalise normalise = Normalise::none;
  double floor = 0;  ///< share of the prompt that every head keeps
  Index sinks = 0;
  /// True: the window that an order's policy pins comes first; for policies without one, the last token.
  bool keeps_window = false;
};
inline constexpr auto kBudgetSemantics = facts_table<BudgetSemanticsFacts>({
    {.id = BudgetSemantics::paper,
     .name = "paper",
     .meaning =
         "LU-KV's appendix E: importance normalised within each layer; 4 sinks, the rows that rank and at "
         "least 1 % stay in every head",
     .divides = Semantics::paper,
     .normalise = Normalise::layer,
     .floor = 0.01,
     .sinks = 4,
     .keeps_window = true},
    {.id = BudgetSemantics::raw,
     .name = "raw",
     .meaning = "the bare problem: nothing normalised, nothing kept in any case",
     .divides = Semantics::paper},
    {.id = BudgetSemantics::official,
     .name = "official",
     .meaning = "what the authors' code of pyramid and ada makes of sigma",
     .divides = Semantics::official},
    {.id = BudgetSemantics::kvpress,
     .name = "kvpress",
     .meaning = "what NVIDIA kvpress 0.5.4 makes of it",
     .divides = Semantics::kvpress},
    {.id = BudgetSemantics::kvpress_0_5_5,
     .name = "kvpress-0.5.5",
     .meaning = "what NVIDIA kvpress 0.5.5 makes of it: every head keeps a token",
     .divides = Semantics::kvpress_0_5_5},
});
constexpr std::string_view name_of(BudgetSemantics semantics) { return kBudgetSemantics[semantics].name; }

/// Loss that a head's curve sums over its evicted tokens.
enum class CurveLoss { importance, row };

struct CurveLossFacts {
  CurveLoss id;
  std::string_view name;
  TokenMetric metric;
};
inline constexpr auto kCurveLosses = facts_table<CurveLossFacts>({
    {CurveLoss::importance, "importance", TokenMetric::oracle_importance},
    {CurveLoss::row, "row", TokenMetric::oracle_loss},
});
constexpr std::string_view name_of(CurveLoss loss) { return kCurveLosses[loss].name; }

struct BudgetOptions {
  std::vector<BudgetOrder> orders = {parse_order("snapkv", {}), parse_order("keydiff", {})};
  std::vector<BudgetDivision> methods = usual_budget_methods();
  std::vector<Budget> sigmas = {{{}, 0.5}, {{}, 0.8}};  ///< of all heads; tokens are those of the mean head
  BudgetSemantics semantics = BudgetSemantics::paper;
  std::optional<CurveLoss> loss;  ///< importance where unset
  /// Unset: the semantics' own.
  std::optional<Normalise> normalise;
  std::optional<double> floor;  ///< share of the prompt that every head keeps
  std::optional<Positions> sinks, recent;
  std::vector<std::string> profiles;  ///< files, averaged; the last {order} in a name is the order's
  /// Each of several dumps takes the mean of the other dumps' lu profiles; unset: if possible.
  std::optional<bool> leave_one_out;
  std::vector<NamedFile> scores;
};

/// Binds each option to its field; the options must outlive the result.
BoundOptions bound(BudgetOptions& options);

/// Copy of the options with these orders only; the mean of these profiles is the only method.
BudgetOptions by_profile(BudgetOptions options, const std::vector<std::string>& orders,
                         std::vector<std::string> files);

namespace budget_option {
inline constexpr OptionFacts order{"order", "LIST", "What ranks a head's tokens, once for all budgets"},
    method{"method", "LIST", "How the total is divided; ada and pyramid take options as in ada[alpha=0.5]",
           "all of these but duo and lu_without_gap"},
    alpha{"alpha", "X", "The share of a head's even budget that is its own", "the semantics' own"},
    beta{"beta", "X", "The mean budget over the last layer's", "20"},
    sigma{"sigma", "LIST", "Compression ratios, 0.8 keeps a fifth"},
    keep{"keep", "LIST", "What stays of all heads' tokens: 20% or 0.2, or 410 tokens of the mean head"},
    budget{"budget", "LIST", "The same in tokens of the mean head; 20% is a share"},
    semantics{"semantics", "NAME", "In whose setting, and whose pyramid, ada and reading of a profile"},
    loss{
        "loss", "importance|row",
        "What lu and optimal make small, added up over evicted tokens: oracle_importance, or oracle_loss, in "
        "nats",
        "importance"},
    normalise{"normalise", "none|layer",
              "layer: importance is divided by its layer's sum first (LU-KV, appendix E)",
              "the semantics' own"},
    floor{"floor", "X", "Share of the prompt that every head keeps", "the semantics' own"},
    sinks{"sinks", "N", "The first N positions lead every order", "the semantics' own"},
    recent{"recent", "N", "The last N positions lead every order", "the semantics' own"},
    profile{
        "profile", "FILES|leave-one-out|none",
        "One more method, a mean of budget profiles: of files (budget_curves.npy, or curves/{order}~lu.npy "
        "for each order's own), or of all other dumps",
        "leave-one-out where there are several dumps"},
    score{
        "score", "name=PATH",
        "Your score, .npy [layers, kv_heads, l], used as an order; {dump} in PATH is the dump's name, and a "
        "folder holds one array a dump, <dump>.npy"};
}  // namespace budget_option

template <>
struct OptionValue<BudgetDivision> {
  static constexpr bool kAlternatives = true;
  /// Divisions that a profile does not stand for.
  static BudgetDivision parse(const OptionFacts& option, const std::string& word);
  static std::string text(const BudgetDivision& division) { return division.name; }
};

template <>
struct OptionValue<BudgetOrder> {
  static BudgetOrder parse(const OptionFacts&, const std::string& word) { return parse_order(word, {}); }
  static std::string text(const BudgetOrder& order) { return order.name; }
};

template <>
struct OptionValue<BudgetSemantics> : NamedValue<kBudgetSemantics, Listed::all> {};

template <>
struct OptionValue<CurveLoss> : NamedValue<kCurveLosses, Listed::either> {};

template <>
struct OptionValue<Normalise> {
  static Normalise parse(const OptionFacts& option, const std::string& word);
  static std::string text(Normalise normalise) { return normalise == Normalise::layer ? "layer" : "none"; }
};

}  // namespace kvreplay
