#include "analysis/findings/findings.hpp"

#include "analysis/results/result_folder.hpp"
#include "analysis/results/token_figures.hpp"
#include "analysis/run/run.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "sim/tokens/token_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

// Findings on scores that rank tokens: agreement.csv and, for a single token, the arrays of its layer.

namespace kvreplay {
namespace {

/// The smallest distance from 1 that findings divide by; tables have no more digits.
constexpr double kFinest = 1e-3;
/// A score that follows the exact cost this closely in every head misranks none.
constexpr double kFollows = 0.9;

/// "exact_remove" on the window, or what stands first in its place.
std::string exact_reference(const MetricTable& agreement) {
  const std::string usual(name_of(TokenMetric::exact_remove));
  std::string first;
  for (const std::string& reference : agreement.distinct("reference", {{"rows", "window"}})) {
    if (reference == usual) return usual;
    if (first.empty() && kind_of_metric(reference) == MetricKind::exact) first = reference;
  }
  return first;
}

struct MissedToken {
  Index token;
  Index real_rank, score_rank;  ///< from 1
  double fall() const { return static_cast<double>(score_rank) / static_cast<double>(real_rank); }
};

/// The token that falls furthest: by the largest factor from its rank by real cost to that by the score.
std::optional<MissedToken> missed_token(const TokenSource& tokens, Index layer, Index head,
                                        const std::string& score, const std::string& reference,
                                        Index candidates) {
  if (candidates < 2) return std::nullopt;
  const std::vector<double> guessed = tokens.values(layer, head, score),
                            real = tokens.values(layer, head, reference);
  if (std::ssize(guessed) < candidates || std::ssize(real) < candidates) return std::nullopt;
  const std::vector<Index> score_rank = ranks_of(guessed.data(), candidates),
                           real_rank = ranks_of(real.data(), candidates);
  std::optional<MissedToken> missed;
  for (Index token = 0; token < candidates; ++token) {
    const MissedToken here{token, real_rank[static_cast<std::size_t>(token)] + 1,
                           score_rank[static_cast<std::size_t>(token)] + 1};
    if (!missed || here.fall() > missed->fall()) missed = here;
  }
  if (missed && missed->fall() < kDecides) missed.reset();
  return missed;
}

std::string ordinal(Index n) {
  const Index ten = n % 100 / 10, one = n % 10;
  const char* ending = ten == 1 ? "th" : one == 1 ? "st" : one == 2 ? "nd" : one == 3 ? "rd" : "th";
  return fmt::format("{}{}", n, ending);
}

}  // namespace

TokenSource token_source(const ResultReader& results) {
  const auto values = [&results](Index layer, Index head, const std::string& metric) {
    const std::filesystem::path path = token_file(layer, metric);
    const Index l = results.shape().l;
    std::vector<double> row;
    if (!results.has(path)) return row;
    const ResultReader::Array array = results.array(path);
    // Arrays of query heads have another shape.
    if (array.shape == std::vector<Index>{results.shape().n_kv, l})
      row.assign(array.values.begin() + head * l, array.values.begin() + (head + 1) * l);
    return row;
  };
  const auto keys = [&results](Index layer, Index head) -> std::optional<KeyReach> {
    const std::optional<Dump> dump = dump_of(results);
    if (!dump || layer >= dump->shape().layers || head >= dump->shape().n_kv) return std::nullopt;
    return key_reach(*dump, layer, head);
  };
  return {values, [&results] { return token_labels_of(results); }, keys};
}

std::optional<Finding> misranked_head(const FigureTables& tables, const TokenSource& tokens) {
  const MetricTable& agreement = tables.agreement;
  const std::string reference = exact_reference(agreement);
  if (reference.empty()) return std::nullopt;
  Wanted common = agreement.first_of_swept();
  common = with(with(common, "reference", reference), "rows", "window");
  // Attention is what most policies rank by.
  std::string score(name_of(TokenMetric::attn));
  const std::vector<std::string> scores = agreement.distinct("score", common);
  if (!is_in(scores, score)) {
    const auto guess = std::ranges::find_if(
        scores, [](const std::string& one) { return kind_of_metric(one) == MetricKind::score; });
    if (guess == scores.end()) return std::nullopt;
    score = *guess;
  }
  common = with(with(common, "score", score), "metric", "spearman");
  const MetricEntry* const entry = agreement.find(common);
  if (entry == nullptr) return std::nullopt;
  const double middle = median(entry->heads), worst = smallest(entry->heads);
  if (std::isnan(middle) || worst > kFollows) return std::nullopt;
  const auto place = std::ranges::find(entry->heads, worst) - entry->heads.begin();
  const Index n_kv = tables.shape.n_kv, head = place % n_kv,
              layer = tables.layers[static_cast<std::size_t>(place / n_kv)];
  Finding finding{
      FindingKind::head,
      fmt::format("{:.2f} is the lowest rank correlation of {} with the exact cost ({}): layer {} head {}; "
                  "the median head has {:.2f}",
                  worst, score, reference, tables.layer_called(layer), head, middle),
      (1 - worst) / std::max(1 - middle, kFinest),
      {Table::agreement, {{"score", score}, {"reference", reference}, {"metric", "spearman"}}, layer, head}};
  if (const auto missed = missed_token(tokens, layer, head, score, reference, tables.shape.l)) {
    finding.place.token = missed->token;
    const std::string text = quoted_token(tokens.labels(), missed->token);
    finding.text += fmt::format("; token {}{} is {} by cost and {} by {}", missed->token,
                                text.empty() ? "" : fmt::format(", {},", text), ordinal(missed->real_rank),
                                ordinal(missed->score_rank), score);
  }
  finding.text += '.';
  return finding;
}

std::optional<Finding> missing_future(const MetricTable& agreement) {
  // Beyond these it is precision that is missing, or nothing.
  constexpr double kPrecise = 0.9, kFound = 0.75;
  const std::string exact = exact_reference(agreement);
  const std::string usual(name_of(TokenMetric::oracle_future));
  std::vector<std::string> futures = agreement.distinct("reference", {{"rows", "future"}});
  if (exact.empty() || futures.empty()) return std::nullopt;
  const bool has_usual = is_in(futures, usual);
  const std::string future = has_usual ? usual : futures.front();

  const Wanted first = agreement.first_of_swept();
  const auto wanted = [&](const std::string& reference, const char* metric) {
    return with(with(first, "reference", reference), "metric", metric);
  };
  /// The best score in the median head.
  struct Best {
    double value = kNan;
    std::string score;
  };
  const auto best = [&](const std::string& reference, const char* metric) {
    Best found;
    const Wanted these = wanted(reference, metric);
    for (const MetricEntry& entry : agreement.entries()) {
      const std::string& score = agreement.key(entry, "score");
      if (!agreement.matches(entry, these) || kind_of_metric(score) != MetricKind::score) continue;
      if (const double here = median(entry.heads); !(here <= found.value) && !std::isnan(here))
        found = {here, score};
    }
    return found;
  };
  const Best recall = best(future, "recall@10%"), rho = best(exact, "spearman");
  if (!(recall.value <= kFound) || !(rho.value >= kPrecise)) return std::nullopt;
  const MetricEntry* const itself = agreement.find(with(wanted(future, "recall@10%"), "score", exact));
  const double by_exact = itself == nullptr ? kNan : median(itself->heads);
  return Finding{
      FindingKind::future,
      fmt::format(
          "{:.0f} % of the tenth of tokens that decoding misses most is what the best score finds ({}{}), "
          "although {} follows the exact cost on the window with rank correlation {:.3g} (median head).",
          100 * recall.value, recall.score,
          std::isnan(by_exact) ? "" : fmt::format("; the exact cost on the window {:.0f} %", 100 * by_exact),
          rho.score, rho.value),
      (1 - recall.value) / std::max(1 - rho.value, kFinest),
      {Table::agreement, {{"score", recall.score}, {"reference", future}, {"metric", "recall@10%"}}}};
}

std::string_view name_of(FindingKind kind) {
  constexpr std::array<std::string_view, 10> kNames{"head", "future",  "policy",   "layer", "compensation",
                                                    "cost", "budgets", "channels", "keys",  "sum"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string factor_text(double factor) {
  return factor < 10 ? fmt::format("{:.2g}", factor) : fmt::format("{:.0f}", factor);
}

std::string value_text(double value) { return fmt::format("{:.3g}", value); }

std::vector<Finding> findings_of(const FigureTables& tables, const TokenSource& tokens) {
  std::vector<Finding> found = compensation_findings(tables.compensation);
  for (const std::optional<Finding>& one :
       {misranked_head(tables, tokens), missing_future(tables.agreement), best_policy(tables),
        heaviest_layer(tables), shared_budget(tables.budgets), pruned_channels(tables.channels),
        low_bit_keys(tables.evictions), ruled_sum(tables, tokens)})
    if (one) found.push_back(*one);
  std::erase_if(found, [](const Finding& one) {
    return one.weight < kDecides && one.kind != FindingKind::policy && one.kind != FindingKind::keys;
  });
  std::ranges::sort(found, [](const Finding& a, const Finding& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.kind < b.kind;
  });
  if (found.size() > kMostFindings) found.resize(kMostFindings, found.front());
  return found;
}

std::vector<Finding> findings_of(const Tables& tables) {
  return findings_of(tables, token_source(tables.results));
}

std::vector<Finding> findings_of(const ResultReader& results) { return findings_of(Tables(results)); }

std::string text_of(const std::vector<Finding>& findings) {
  std::string text = findings.empty() ? "" : "Worth knowing:\n";
  for (const Finding& one : findings) text += fmt::format("- {}\n", one.text);
  return text;
}

nlohmann::ordered_json json_of(const std::vector<Finding>& findings) {
  auto json = nlohmann::ordered_json::array();
  for (const Finding& one : findings) {
    nlohmann::ordered_json place = {{"table", name_of(one.place.table)}};
    const auto add = [&](const char* name, const std::optional<Index>& number) {
      if (number) place[name] = *number;
    };
    add("layer", one.place.layer);
    add("kv_head", one.place.kv_head);
    add("token", one.place.token);
    for (const auto& [column, value] : one.place.keys) place[column] = value;
    json.push_back({{"kind", name_of(one.kind)}, {"text", one.text}, {"place", std::move(place)}});
  }
  return json;
}

std::optional<Dump> dump_of(const ResultReader& results) {
  const auto& stated = results.summary()["dump"];
  for (const std::filesystem::path& candidate : results.dump_paths()) {
    try {
      DumpOptions options;
      options.prompt_len = results.shape().l;
      Dump dump = Dump::open(candidate, options);
      if (dump.shape().T == results.shape().T &&
          fingerprint(dump) == stated.value("fingerprint", std::string()))
        return dump;
    } catch (const InputError&) {  // results are complete without their dump
    }
  }
  return std::nullopt;
}

std::optional<TokenLabels> token_labels_of(const ResultReader& results) {
  const std::optional<Dump> dump = dump_of(results);
  return dump ? dump->tokens() : std::nullopt;
}

std::string quoted_token(const std::optional<TokenLabels>& labels, Index token) {
  constexpr std::size_t kLongest = 40;
  if (!labels || token < 0 || token >= std::ssize(labels->text)) return "";
  return fmt::format("'{}'", displayable(labels->text[static_cast<std::size_t>(token)], kLongest));
}

}  // namespace kvreplay
