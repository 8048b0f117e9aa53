#pragma once

#include "analysis/budgets/allocation.hpp"
#include "analysis/eviction/eviction_options.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// The methods that are asked for by name.
std::vector<BudgetMethod> named_budget_methods();

/// What ranks a head's tokens: snapkv's score, a token metric, or a score of the user's.
struct BudgetOrder {
  std::string name;
  std::optional<TokenMetric> metric;
  std::optional<std::size_t> given;  ///< number of the user's score
  bool operator==(const BudgetOrder&) const = default;
};
/// Throws OptionError with the nearest names where it is unknown; `scores` are the names of the user's.
BudgetOrder parse_order(const std::string& name, const std::vector<std::string>& scores);

enum class Normalise { none, layer };

/// What a head's loss curve adds up over its evicted tokens.
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
  std::vector<BudgetMethod> methods = named_budget_methods();
  std::vector<Budget> sigmas = {{{}, 0.5}, {{}, 0.8}};  ///< of all heads; tokens are those of the mean head
  Semantics semantics = Semantics::paper;
  std::optional<CurveLoss> loss;  ///< importance where unset
  Normalise normalise = Normalise::none;
  double floor = 0;  ///< share of the prompt that every head keeps
  Index sinks = 0, recent = 0;
  std::vector<std::string> profiles;  ///< files, averaged; the last {order} in a name is the order's
  /// Whether each of several dumps takes the mean of the others' lu profiles; nothing: where it can.
  std::optional<bool> leave_one_out;
  std::vector<NamedFile> scores;
};

/// What is said of each of them, and where it is kept; they must outlive it.
BoundOptions bound(BudgetOptions& options);

/// The same of these orders alone, and divided by the mean of these profiles only.
BudgetOptions by_profile(BudgetOptions options, const std::vector<std::string>& orders,
                         std::vector<std::string> files);

namespace budget_option {
inline constexpr OptionFacts order{"order", "LIST", "What ranks a head's tokens, once for all budgets"},
    method{"method", "LIST", "How the total is divided", "all of these"},
    sigma{"sigma", "LIST", "Compression ratios, 0.8 keeps a fifth"},
    keep{"keep", "LIST", "What stays of all heads' tokens: 20% or 0.2, or 410 tokens of the mean head"},
    budget{"budget", "LIST", "The same in tokens of the mean head; 20% is a share"},
    semantics{"semantics", "NAME", "Whose pyramid, ada and reading of a profile"},
    loss{
        "loss", "importance|row",
        "What lu and optimal make small, added up over evicted tokens: oracle_importance, or oracle_loss, in "
        "nats",
        "importance"},
    normalise{"normalise", "none|layer",
              "layer: importance is divided by its layer's sum first (LU-KV, appendix E)"},
    floor{"floor", "X", "Share of the prompt that every head keeps"},
    sinks{"sinks", "N", "The first N positions lead every order"},
    recent{"recent", "N", "The last N positions lead every order"},
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
struct OptionValue<BudgetMethod> {
  /// Those that a profile does not stand for.
  static BudgetMethod parse(const OptionFacts& option, const std::string& word);
  static std::string text(BudgetMethod method) { return std::string(name_of(method)); }
};

template <>
struct OptionValue<BudgetOrder> {
  static BudgetOrder parse(const OptionFacts&, const std::string& word) { return parse_order(word, {}); }
  static std::string text(const BudgetOrder& order) { return order.name; }
};

template <>
struct OptionValue<CurveLoss> {
  static CurveLoss parse(const OptionFacts& option, const std::string& word);
  static std::string text(CurveLoss loss) { return std::string(name_of(loss)); }
};

template <>
struct OptionValue<Normalise> {
  static Normalise parse(const OptionFacts& option, const std::string& word);
  static std::string text(Normalise normalise) { return normalise == Normalise::layer ? "layer" : "none"; }
};

}  // namespace kvreplay
