#include "analysis/tokens/token_agreement.hpp"

#include "analysis/results/agreement.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "sim/backend.hpp"
#include "sim/tokens/expected_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

namespace kvreplay {

namespace {

template <class Values>
std::size_t extent(const Values& values) {
  return static_cast<std::size_t>(values.size());
}

}  // namespace

std::vector<TokenPair> token_pairs(const MetricSet& metrics, const std::vector<std::string>& given) {
  std::vector<TokenScore> scores;
  std::vector<TokenMetric> references;
  for (const TokenMetric m : kTokenMetrics.all()) {
    if (!metrics.contains(m)) continue;
    if (kTokenMetrics[m].kind != MetricKind::oracle) scores.emplace_back(m);
    if (kTokenMetrics[m].kind != MetricKind::score) references.push_back(m);
  }
  for (std::size_t s = 0; s < given.size(); ++s) scores.emplace_back(given[s], s);
  std::vector<TokenPair> pairs;
  for (const TokenScore& score : scores)
    for (const TokenMetric reference : references)
      if (score.metric != reference) pairs.push_back({score, reference});
  return pairs;
}

TokenMetrics summed_over_group(const TokenMetrics& metrics) {
  TokenMetrics summed;
  for (const TokenMetric m : kTokenMetrics.all()) {
    const Matrix<double>& all = metrics[m];
    if (all.size() == 0) continue;
    switch (kTokenMetrics[m].heads) {
      case OverHeads::same:
        summed[m] = all.topRows(1);
        break;
      case OverHeads::mean:
        summed[m] = all.colwise().sum() / static_cast<double>(all.rows());
        summed[m]
            .leftCols(kExpectedAttentionFirst)
            .setConstant(summed[m].rightCols(all.cols() - kExpectedAttentionFirst).maxCoeff());
        break;
      case OverHeads::max:
        summed[m] = all.colwise().maxCoeff();
        break;
      case OverHeads::sum:
        summed[m] = all.colwise().sum();
        break;
    }
  }
  return summed;
}

TokenRankings::TokenRankings(const GivenScores& given, Workers& workers, Index first)
    : workers_(workers), first_(first), metrics_(kTokenMetrics.size()), given_(given.size()) {
  workers_.parallel_for(std::ssize(given_), [&](Index s) {
    given_[s].emplace(std::span(given[s].data(), extent(given[s])).subspan(static_cast<std::size_t>(first_)));
  });
}

void TokenRankings::rank(const TokenMetrics& metrics) {
  workers_.parallel_for(std::ssize(metrics_), [&](Index m) {
    const Matrix<double>& values = metrics.values[m];
    if (values.size() > 0)
      metrics_[m].emplace(std::span(values.data(), extent(values)).subspan(static_cast<std::size_t>(first_)));
  });
}

const Ranking& TokenRankings::of(const TokenScore& score) const {
  return score.metric ? *metrics_[static_cast<std::size_t>(*score.metric)] : *given_[score.given];
}

std::vector<Agreement> TokenRankings::agreements(const std::vector<TokenPair>& pairs,
                                                 const std::vector<Index>& reserves) const {
  std::vector<Agreement> agreements(pairs.size() * reserves.size());
  workers_.parallel_for(std::ssize(pairs), [&](Index at) {
    const TokenPair& pair = pairs[at];
    const Ranking &score = of(pair.score), &reference = of(pair.reference);
    const Agreement plain = agreement(score, reference, pair.same_unit());
    for (std::size_t r = 0; r < reserves.size(); ++r)
      agreements[static_cast<std::size_t>(at) * reserves.size() + r] =
          reserves[r] == 0 ? plain
                           : with_reserve(plain, score, reference, static_cast<std::size_t>(reserves[r]));
  });
  return agreements;
}

std::vector<Agreement> token_agreements(const TokenMetrics& metrics, const std::vector<TokenPair>& pairs,
                                        Workers& workers, const GivenScores& given, Index first) {
  TokenRankings rankings(given, workers, first);
  rankings.rank(metrics);
  return rankings.agreements(pairs, {0});
}

TensorAgreement tensor_agreement(const HeadGroup<float>& group, TokenOptions options, const Compute& tensor) {
  constexpr Index kRows = 128;
  options.window = std::min(options.window, kRows);
  const TokenMetrics got = tensor.backend.token_metrics(group, options, tensor.workers),
                     want = cpu_backend().token_metrics(group, options, tensor.workers);
  TensorAgreement worst;
  for (const TokenMetric metric : kTokenMetrics.all()) {
    const Matrix<double>&a = got[metric], &b = want[metric];
    if (b.size() == 0 || !b.allFinite() || !a.allFinite()) continue;
    const double norm = b.norm();
    if (norm > 0) worst.difference = std::max(worst.difference, (a - b).norm() / norm);
    const auto values = [](const Matrix<double>& m) {
      return std::span<const double>(m.data(), static_cast<std::size_t>(m.size()));
    };
    const double rank = agreement(values(a), values(b), false)[AgreementFigure::spearman];
    if (!std::isnan(rank)) worst.spearman = std::min(worst.spearman, rank);
  }
  return worst;
}

namespace {

constexpr std::size_t kWorstShown = 3;

double spearman(const AgreementTable& table, std::size_t pair, std::size_t head) {
  return table.heads[head].agreements[pair][AgreementFigure::spearman];
}

/// A figure between -1 and 1 in a column of `width`; "-" where there is none.
std::string share_cell(double value, int width) {
  return std::isnan(value) ? fmt::format("{:>{}}", "-", width) : fmt::format("{:>{}.3f}", value, width);
}

std::string head_name(const AgreementTable::Head& head) {
  return fmt::format("{}.{}", head.layer, head.kv_head);
}

std::optional<std::size_t> find_pair(const AgreementTable& table, const TokenScore& score,
                                     TokenMetric reference) {
  for (std::size_t pair = 0; pair < table.pairs.size(); ++pair)
    if (table.pairs[pair].score == score && table.pairs[pair].reference == reference) return pair;
  return std::nullopt;
}

std::vector<TokenMetric> references_in(const AgreementTable& table) {
  std::vector<TokenMetric> references;
  for (const TokenMetric m : kTokenMetrics.all())
    if (std::ranges::any_of(table.pairs, [&](const TokenPair& p) { return p.reference == m; }))
      references.push_back(m);
  return references;
}

/// In the order of the pairs.
std::vector<TokenScore> scores_in(const AgreementTable& table) {
  std::vector<TokenScore> scores;
  for (const TokenPair& pair : table.pairs) place_in(scores, pair.score);
  return scores;
}

std::string trimmed(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  line.push_back('\n');
  return line;
}

/// Up to three references side by side.
std::string compact_block(const AgreementTable& table, const std::vector<TokenMetric>& references) {
  std::string top = fmt::format("  {:<19}", ""), head = fmt::format("  {:<19}", "score"), body;
  for (const TokenMetric reference : references) {
    top += fmt::format("{:<26}", name_of(reference));
    head += fmt::format("{:<26}", "   rho top10%  worst head");
  }
  for (const TokenScore& score : scores_in(table)) {
    std::string line = fmt::format("  {:<19}", score.name);
    bool any = false;
    for (const TokenMetric reference : references) {
      const auto pair = find_pair(table, score, reference);
      if (!pair) {
        line += fmt::format("{:26}", "");
        continue;
      }
      any = true;
      const auto worst = worst_heads(table, *pair);
      line += share_cell(median_over_heads(table, *pair, AgreementFigure::spearman), 6);
      line += share_cell(median_over_heads(table, *pair, AgreementFigure::recall_10pc), 7);
      line += worst.empty() ? fmt::format("{:>7}{:7}", "-", "")
                            : fmt::format("{} {:<6}", share_cell(spearman(table, *pair, worst[0]), 7),
                                          head_name(table.heads[worst[0]]));
    }
    if (any) body += trimmed(std::move(line));
  }
  return trimmed(std::move(top)) + trimmed(std::move(head)) + body;
}

}  // namespace

double median_over_heads(const AgreementTable& table, std::size_t pair, AgreementFigure figure) {
  std::vector<double> values;
  for (const auto& head : table.heads)
    if (const double value = head.agreements[pair][figure]; !std::isnan(value)) values.push_back(value);
  return quantile(values, 0.5);
}

std::vector<std::size_t> worst_heads(const AgreementTable& table, std::size_t pair) {
  std::vector<std::size_t> heads;
  for (std::size_t head = 0; head < table.heads.size(); ++head)
    if (!std::isnan(spearman(table, pair, head))) heads.push_back(head);
  std::ranges::stable_sort(heads, [&](std::size_t a, std::size_t b) {
    return spearman(table, pair, a) < spearman(table, pair, b);
  });
  return heads;
}

std::string compact_text(const AgreementTable& table) {
  if (table.pairs.empty() || table.heads.empty()) return "";
  std::string text = fmt::format(
      "Which score follows which error, median over {} head{} (rho: Spearman; top10%: recall among the top "
      "10 %;\n"
      "worst head: the lowest rho, and layer.kv_head):\n",
      table.heads.size(), table.heads.size() == 1 ? "" : "s");
  std::vector<TokenMetric> exact, oracles;
  for (const TokenMetric m : references_in(table)) {
    if (kTokenMetrics[m].kind == MetricKind::oracle)
      oracles.push_back(m);
    else
      exact.push_back(m);
  }
  // `value` is exact_value by definition, so that column says little; it is in agreement.csv.
  if (exact.size() > 3) std::erase(exact, TokenMetric::exact_value);
  if (!exact.empty()) text.append("\n").append(compact_block(table, exact));
  if (!oracles.empty()) text.append("\n").append(compact_block(table, oracles));
  return text;
}

std::string rank_text(const AgreementTable& table) {
  const std::vector<TokenMetric> references = references_in(table);
  const auto width = [](TokenMetric reference) { return static_cast<int>(name_of(reference).size()) + 2; };
  std::string text = fmt::format("  {:<19}", "score");
  for (const TokenMetric reference : references)
    text += fmt::format("{:>{}}", name_of(reference), width(reference));
  text += '\n';
  for (const TokenScore& score : scores_in(table)) {
    std::string line = fmt::format("  {:<19}", score.name);
    for (const TokenMetric reference : references) {
      const auto pair = find_pair(table, score, reference);
      line += pair ? share_cell(median_over_heads(table, *pair, AgreementFigure::spearman), width(reference))
                   : fmt::format("{:{}}", "", width(reference));
    }
    text += trimmed(std::move(line));
  }
  return text;
}

void write_medians(AtomicFile file, const AgreementTable& table) {
  std::string header = "score,reference,rows";
  for (const AgreementFigure figure : kAgreementFigures.all()) header += fmt::format(",{}", name_of(figure));
  CsvFile csv(std::move(file), header + ",lowest_spearman,layer,kv_head");
  for (std::size_t pair = 0; pair < table.pairs.size(); ++pair) {
    csv.add(table.pairs[pair].score.name).add(name_of(table.pairs[pair].reference));
    csv.add(table.pairs[pair].rows());
    for (const AgreementFigure figure : kAgreementFigures.all())
      csv.add(median_over_heads(table, pair, figure));
    if (const auto worst = worst_heads(table, pair); worst.empty()) {
      csv.add("").add("").add("");
    } else {
      const AgreementTable::Head& head = table.heads[worst[0]];
      csv.add(spearman(table, pair, worst[0])).add(head.layer).add(head.kv_head);
    }
    csv.end_row();
  }
  csv.finish();
}

Json full_json(const AgreementTable& table) {
  Json rows = Json::array();
  for (std::size_t pair = 0; pair < table.pairs.size(); ++pair) {
    Json row = {{"score", table.pairs[pair].score.name},
                {"reference", name_of(table.pairs[pair].reference)},
                {"rows", table.pairs[pair].rows()}};
    for (const AgreementFigure figure : kAgreementFigures.all())
      row[std::string(name_of(figure))] = median_over_heads(table, pair, figure);  // nan is written as null
    row["worst_heads"] = Json::array();
    const auto worst = worst_heads(table, pair);
    for (std::size_t w = 0; w < std::min(kWorstShown, worst.size()); ++w) {
      const auto& head = table.heads[worst[w]];
      row["worst_heads"].push_back(
          {{"layer", head.layer}, {"kv_head", head.kv_head}, {"spearman", spearman(table, pair, worst[w])}});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

MetricTable agreement_figures(const AgreementTable& table, const std::vector<Index>& layers, Index n_kv,
                              Index l, Index window) {
  assert(std::ssize(table.heads) == std::ssize(layers) * n_kv);
  MetricTable all(Table::agreement, layers, n_kv);
  for (std::size_t pair = 0; pair < table.pairs.size(); ++pair)
    for (const AgreementFigure figure : kAgreementFigures.all()) {
      const TokenPair& of = table.pairs[pair];
      if (!figure_applies(figure, static_cast<std::size_t>(l), of.same_unit())) continue;
      std::vector<double> heads;
      for (const AgreementTable::Head& head : table.heads) heads.push_back(head.agreements[pair][figure]);
      all.add_heads({of.score.name, std::string(name_of(of.reference)), std::string(of.rows()),
                     std::to_string(window), "0", std::string(name_of(figure))},
                    heads);
    }
  return all;
}

}  // namespace kvreplay
