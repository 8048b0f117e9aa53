#pragma once

#include "analysis/results/metric_table.hpp"
#include "analysis/results/result_reader.hpp"
#include "data/dump.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// The few facts about a dump that its results are worth opening for.

namespace kvreplay {

enum class FindingKind {
  head,          ///< the head that a score misranks most
  future,        ///< decoding steps that scores of the window miss
  policy,        ///< the policy that loses least, next to an oracle
  layer,         ///< the layer that loses most
  compensation,  ///< the loss that a method makes up for
  cost,          ///< the loss that a method makes worse
  budgets,       ///< savings from sharing a budget between heads
  channels,      ///< the cheapest way to prune key channels
  keys,          ///< the cost of 4-bit keys, and the cure that helps
  sum,           ///< the few heads that rule a sum over all of them
};
/// "head"
std::string_view name_of(FindingKind kind);

/// Where a finding is to be seen: a figure of a table, and of it a layer, a head, a token.
struct FindingPlace {
  Table table = Table::agreement;
  std::vector<std::pair<std::string, std::string>> keys;      ///< the table's columns and their values
  std::optional<Index> layer = {}, kv_head = {}, token = {};  ///< by the dump's numbers
};

struct Finding {
  FindingKind kind;
  std::string text;  ///< a sentence with its full stop
  double weight;     ///< see findings_of()
  FindingPlace place;
};

/// The range of a head's keys: the largest magnitude of any channel over the prompt, and of the median
/// channel.
struct KeyReach {
  Index channel = 0;
  double most = 0, median = 0;
};

/// Data on single tokens and heads that findings need and no table contains.
struct TokenSource {
  /// A metric of one head's candidates by its name in the tables, [l], summed over its query heads; empty
  /// where it is not there.
  std::function<std::vector<double>(Index layer, Index kv_head, const std::string& metric)> values;
  /// The labels of the tokens; requested at most once.
  std::function<std::optional<TokenLabels>()> labels;
  /// The reach of one head's keys, read from the dump; empty where it is not there any more. May be unset.
  std::function<std::optional<KeyReach>(Index layer, Index kv_head)> keys = {};
};
/// The source of a result folder, which must outlive it.
TokenSource token_source(const ResultReader& results);

inline constexpr std::size_t kMostFindings = 5;
/// Below this ratio of two errors it is no decision which is the larger (README.md), and nothing is found.
inline constexpr double kDecides = 1.5;

/// Nats a step, or without gradients the output error, above which 4-bit keys are worth a finding.
inline constexpr double kKeysCost = 0.02;

/// The findings of a run, the most surprising first, at most kMostFindings. The weight of a finding is the
/// factor between a number and its value if there were nothing to find: for the worst head's lack of rank
/// correlation, that of the median head. Findings with a weight below kDecides are left out, with two
/// exceptions: the best policy, whose text then says that the difference decides nothing, and 4-bit keys that
/// no cure helps. Throws InputError if a file is invalid; missing tables have no findings.
std::vector<Finding> findings_of(const FigureTables& tables, const TokenSource& tokens);
std::vector<Finding> findings_of(const Tables& tables);
std::vector<Finding> findings_of(const ResultReader& results);

/// The compensated evictions that gain most and that cost most; weights below kDecides, too.
std::vector<Finding> compensation_findings(const MetricTable& compensation);

/// "Worth knowing:" and a line each; empty without findings.
std::string text_of(const std::vector<Finding>& findings);
nlohmann::ordered_json json_of(const std::vector<Finding>& findings);

/// The dump that results are of, where it still lies there unchanged in make.
std::optional<Dump> dump_of(const ResultReader& results);

/// The labels of the dump's tokens, if the dump is there and has labels.
std::optional<TokenLabels> token_labels_of(const ResultReader& results);

/// "' len'": a token's text in quotes, short and on one line. Empty where it has none.
std::string quoted_token(const std::optional<TokenLabels>& labels, Index token);

// Candidates for findings, table by table; nothing if a table lacks the data.

std::optional<Finding> misranked_head(const FigureTables& tables, const TokenSource& tokens);
std::optional<Finding> missing_future(const MetricTable& agreement);
std::optional<Finding> best_policy(const FigureTables& tables);
std::optional<Finding> heaviest_layer(const FigureTables& tables);
std::optional<Finding> shared_budget(const MetricTable& budgets);
std::optional<Finding> pruned_channels(const MetricTable& channels);
/// Beyond kKeysCost the loss of kKeyProbe, without a cure and with each that was measured.
std::optional<Finding> low_bit_keys(const MetricTable& evictions);
std::optional<Finding> ruled_sum(const FigureTables& tables, const TokenSource& tokens);

/// The middle one of the ratios of channels pruned that a table has, of an even number the smaller of
/// the two; nothing where it has none.
std::optional<std::string> middle_ratio(const MetricTable& channels, const Wanted& common);

/// The reach of the prompt's keys. Cost: reads them once.
KeyReach key_reach(const Dump& dump, Index layer, Index kv_head);

/// "2.1", "14"
std::string factor_text(double factor);
/// "0.0287"
std::string value_text(double value);

/// The case that findings on kept sets use: after the prompt, with the papers' semantics, at the middle
/// budget (of an even number the smaller of the two), on the decoding steps if there are any. The fields fix
/// all keys but the policy and the metric. Empty if there are no kept sets.
struct MiddleCase {
  std::string rows, phase, semantics, budget;
  Wanted wanted() const {
    return {{"rows", rows}, {"phase", phase}, {"semantics", semantics}, {"budget", budget}};
  }
};
std::optional<MiddleCase> middle_case(const MetricTable& evictions, Index l);
/// The lowest output error in that case among policies that can run, and among oracles; null if there is
/// none. Policies that evict are not compared with those that keep the whole prompt and read less: if there
/// are both, only policies that evict count.
struct BestOf {
  const MetricEntry *runs = nullptr, *oracle = nullptr;
};
BestOf best_of(const MetricTable& evictions, const MiddleCase& at);

}  // namespace kvreplay
