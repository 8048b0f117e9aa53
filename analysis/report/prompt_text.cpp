#include "analysis/report/prompt_text.hpp"

#include "analysis/findings/findings.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/token_figures.hpp"
#include "data/console.hpp"
#include "data/utf8.hpp"
#include "sim/eviction/policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

namespace kvreplay::report {
namespace {

constexpr Index kLevels = 64, kLevelsOfTint = 8;
/// Share of the room for single heads that kept sets may take.
constexpr double kKeptPart = 0.4;

/// Puts the most informative metrics first: the cost of a token, the scores of policies, the error on the
/// decoding steps.
std::vector<std::string> ordered(std::vector<std::string> metrics) {
  std::size_t done = 0;
  for (const char* name : {"exact_remove", "attn", "oracle_future", "caote", "joint"})
    if (const auto found = std::ranges::find(metrics, name); found != metrics.end())
      std::rotate(metrics.begin() + static_cast<std::ptrdiff_t>(done++), found, found + 1);
  return metrics;
}

void add_to(double& sum, double value) {
  if (!std::isnan(value)) sum = std::isnan(sum) ? value : sum + value;
}

std::string levels_of(const double* values, const PromptText& text) {
  const std::vector<Index> ranks = ranks_of(values, text.tokens);
  std::string digits;
  for (const Index token : text.shown) {
    const Index level = std::isnan(values[token]) ? 0 : level_of_rank(ranks[token] + 1, text.tokens);
    digits += kBase64Digits[static_cast<std::size_t>(level)];
  }
  return digits;
}

std::vector<double> sums_of(const ResultReader& results, const std::string& metric) {
  std::vector<double> sums(results.shape().l, kNan);
  for (const Index layer : results.layers()) {
    const auto array = token_array(results, layer, metric);
    for (std::size_t i = 0; i < array.values.size(); ++i) add_to(sums[i % sums.size()], array.values[i]);
  }
  return sums;
}

/// The scopes of single layers and heads, `rows` of them in each layer.
std::vector<TextScope> scopes_of(const ResultReader& results, Index rows) {
  const Index layers = std::ssize(results.layers());
  std::vector<TextScope> scopes{{"all heads", 0, layers * rows}};
  for (Index i = 0; i < layers; ++i) {
    const Index layer = results.layers()[i], first = i * rows;
    if (rows > 1) scopes.push_back({fmt::format("layer {}, all heads", layer), first, first + rows});
    for (Index head = 0; head < rows; ++head)
      scopes.push_back({head_name(results, layer, rows, head), first + head, first + head + 1});
  }
  return scopes;
}

/// Metric by metric and layer by layer, the first `detailed` of them for every scope.
void read_metric(const ResultReader& results, PromptText& text, const std::string& name, bool detailed) {
  TextMetric metric{name, {}, {}};
  std::vector<double> sums(text.tokens, kNan);
  for (const Index layer : results.layers()) {
    const auto array = token_array(results, layer, name);
    const Index rows = array.shape[0];
    std::vector<double> layer_sums(text.tokens, kNan);
    for (std::size_t i = 0; i < array.values.size(); ++i)
      add_to(layer_sums[i % layer_sums.size()], array.values[i]);
    for (Index token = 0; token < text.tokens; ++token) add_to(sums[token], layer_sums[token]);
    if (!detailed) continue;
    if (rows > 1) metric.levels.push_back(levels_of(layer_sums.data(), text));
    for (Index row = 0; row < rows; ++row)
      metric.levels.push_back(levels_of(array.values.data() + row * text.tokens, text));
  }
  metric.levels.insert(metric.levels.begin(), levels_of(sums.data(), text));
  for (const Index token : text.shown) metric.values.push_back(sums[token]);
  text.metrics.push_back(std::move(metric));
}

std::filesystem::path kept_file(Index layer, const TextPolicy& policy, const MiddleCase& at,
                                const std::string& kept) {
  return std::filesystem::path(layer_name(layer)) / "kept" /
         fmt::format("{}-{}-{}-{}.npy", file_word(policy.name), at.semantics, file_word(at.phase),
                     kept.empty() ? "mixed" : kept);
}

/// Six tokens to a digit.
std::string packed(const double* kept, const std::vector<Index>& shown) {
  std::string digits;
  for (std::size_t i = 0; i < shown.size(); i += 6) {
    std::size_t bits = 0;
    for (std::size_t j = 0; j < std::min<std::size_t>(6, shown.size() - i); ++j)
      bits |= static_cast<std::size_t>(kept[shown[i + j]] != 0) << j;
    digits += kBase64Digits[bits];
  }
  return digits;
}

/// The policies of the case that findings are about, whose kept sets the folder has.
void read_policies(const Tables& tables, PromptText& text, double most_digits) {
  const ResultReader& results = tables.results;
  const auto at = middle_case(tables.evictions, tables.shape.l);
  if (!at) return;
  const BestOf best = best_of(tables.evictions, *at);
  std::vector<const MetricEntry*> entries{best.runs, best.oracle};
  std::erase(entries, nullptr);
  for (const MetricEntry& entry : tables.evictions.entries())
    if (&entry != best.runs && &entry != best.oracle &&
        tables.evictions.matches(entry, with(at->wanted(), "metric", "output_error")))
      entries.push_back(&entry);
  // Policies with a score added (BASE+SCORE) come after all others.
  std::stable_partition(entries.begin() + (best.runs != nullptr) + (best.oracle != nullptr), entries.end(),
                        [&](const MetricEntry* one) {
                          return tables.evictions.key(*one, "policy").find('+') == std::string::npos;
                        });
  const double digits = std::ceil(static_cast<double>(text.shown.size()) / 6);
  for (const MetricEntry* const entry : entries) {
    TextPolicy policy{tables.evictions.key(*entry, "policy"), {}, {}};
    if (evicts_nothing(policy.name) ||
        !results.has(kept_file(results.layers().front(), policy, *at, entry->kept_text())))
      continue;
    std::vector<std::string> heads;
    policy.kept.resize(text.shown.size());
    for (const Index layer : results.layers()) {
      const auto array = by_head(results, kept_file(layer, policy, *at, entry->kept_text()));
      for (Index row = 0; row < array.shape[0]; ++row) {
        const double* const kept = array.values.data() + row * text.tokens;
        for (std::size_t i = 0; i < text.shown.size(); ++i) policy.kept[i] += kept[text.shown[i]] != 0;
        heads.push_back(packed(kept, text.shown));
      }
    }
    const auto rows = std::ssize(heads);
    if (text.kept_heads != 0 && rows != text.kept_heads) continue;  // of no more use beside the others
    text.kept_heads = rows;
    most_digits -= digits * static_cast<double>(rows);
    if (most_digits >= 0 && (text.heads == 0 || rows == text.heads)) policy.heads = std::move(heads);
    text.policies.push_back(std::move(policy));
  }
  if (text.policies.empty()) return;
  text.budget = at->budget, text.semantics = at->semantics, text.phase = at->phase;
}

}  // namespace

Index level_of_rank(Index rank, Index l) {
  if (l < 2) return kLevels - 1;
  const double share = 1 - std::log(static_cast<double>(rank)) / std::log(static_cast<double>(l));
  return 1 + static_cast<Index>(std::floor((kLevels - 2) * share));
}

std::array<std::pair<Index, Index>, 64> ranks_of_levels(Index l) {
  std::array<std::pair<Index, Index>, 64> ranks{};
  for (Index rank = 1; rank <= l; ++rank) {
    auto& [first, last] = ranks[static_cast<std::size_t>(level_of_rank(rank, l))];
    if (first == 0) first = rank;
    last = rank;
  }
  return ranks;
}

Index tint_of_level(Index level) { return level == 0 ? 0 : (level - 1) / kLevelsOfTint; }

std::vector<Index> shown_tokens(const std::vector<Index>& ranks, Index most) {
  const auto l = std::ssize(ranks);
  std::vector<Index> shown;
  if (l <= most) {
    shown.resize(ranks.size());
    std::iota(shown.begin(), shown.end(), Index{0});
    return shown;
  }
  std::vector<std::pair<Index, Index>> passages;  // the best rank in it, and where it begins
  for (Index begin = 0; begin < l; begin += kPassage)
    passages.emplace_back(
        *std::min_element(ranks.begin() + begin, ranks.begin() + std::min(begin + kPassage, l)), begin);
  passages.front().first = passages.back().first = -1;
  std::ranges::stable_sort(passages);
  passages.resize(static_cast<std::size_t>(most / kPassage));
  std::ranges::sort(passages, [](const auto& a, const auto& b) { return a.second < b.second; });
  for (const auto& [rank, begin] : passages)
    for (Index token = begin; token < std::min(begin + kPassage, l); ++token) shown.push_back(token);
  return shown;
}

std::string flowing_text(std::string_view token) {
  std::string flowing;
  while (!token.empty()) {
    const std::string_view first = first_character(token).bytes;
    flowing += first == "\n" ? "\u21B5\n" : first == "\t" ? "\u2192\t" : displayable(first);
    token.remove_prefix(first.size());
  }
  return flowing;
}

std::size_t fitting(const std::vector<std::string>& texts, Index lines, Index width) {
  Index line = 1, column = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    std::string_view rest = texts[i];
    while (!rest.empty()) {
      const Character first = first_character(rest);
      rest.remove_prefix(first.bytes.size());
      const bool breaks = first.code == '\n';
      if (!breaks && column == width) ++line, column = 0;
      if (line > lines) return i;
      if (breaks)
        ++line, column = 0;
      else
        ++column;
    }
  }
  return texts.size();
}

std::string named_metric(const std::string& name) {
  const auto metric = kTokenMetrics.named(name);
  return metric ? fmt::format("{} ({})", kTokenMetrics[*metric].plain, name) : name;
}

std::string named_policy(const std::string& name) {
  const std::size_t end = std::min(name.find_first_of("+:["), name.size());
  const auto base = kBases.named(name.substr(0, end));
  if (!base) return name;
  if (end == name.size() || name[end] == '[') return fmt::format("{} ({})", kBases[*base].plain, name);
  const std::string score = name.substr(end + 1, name.find('[', end) - end - 1);
  const auto metric = kTokenMetrics.named(score);
  const auto start = kBases.named(score);
  const bool searches = kBases[*base].searches.has_value();
  std::string_view by = metric ? kTokenMetrics[*metric].plain : std::string_view(score);
  if (searches && start) by = kBases[*start].plain;
  return fmt::format("{}, {} {} ({})", kBases[*base].plain, searches ? "from" : "by", by, name);
}

PromptText prompt_text(const Tables& tables, double most_digits) {
  const ResultReader& results = tables.results;
  PromptText text;
  const std::vector<std::string> metrics = ordered(metrics_in(results));
  if (results.layers().empty() || (metrics.empty() && tables.evictions.empty())) return text;
  std::optional<TokenLabels> labels = token_labels_of(results);
  text.tokens = results.shape().l;
  if (!labels || std::ssize(labels->text) < text.tokens || text.tokens == 0) return text;
  text.text = std::move(labels->text);
  text.text.resize(static_cast<std::size_t>(text.tokens));
  std::vector<Index> ranks(text.text.size());
  std::iota(ranks.begin(), ranks.end(), Index{0});
  if (text.tokens > kMostShown && !metrics.empty())
    ranks = ranks_of(sums_of(results, metrics.front()).data(), text.tokens);
  text.shown = shown_tokens(ranks, kMostShown);

  const auto layers = std::ssize(results.layers());
  Index rows = 0;
  if (!metrics.empty()) rows = token_array(results, results.layers().front(), metrics.front()).shape[0];
  text.heads = rows * layers;
  read_policies(tables, text, most_digits * kKeptPart);
  if (metrics.empty()) rows = text.kept_heads / layers;
  const std::vector<TextScope> scopes = scopes_of(results, std::max<Index>(rows, 1));
  const double of_metric = static_cast<double>((scopes.size() - 1) * text.shown.size());
  double room = most_digits * (1 - kKeptPart);
  for (const std::string& metric : metrics) read_metric(results, text, metric, (room -= of_metric) >= 0);
  const bool any =
      std::ranges::any_of(text.metrics, [](const TextMetric& one) { return one.levels.size() > 1; }) ||
      std::ranges::any_of(text.policies, [](const TextPolicy& one) { return !one.heads.empty(); });
  text.scopes.assign(scopes.begin(), any ? scopes.end() : scopes.begin() + 1);
  return text;
}

}  // namespace kvreplay::report
