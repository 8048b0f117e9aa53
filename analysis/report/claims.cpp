#include "analysis/report/claim_tally.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

namespace kvreplay::report {
namespace {

double recall(const FigureTable& table, const char* score, const char* reserve) {
  const auto* const entry = table.find(
      {{"score", score}, {"reference", "oracle_next"}, {"metric", "recall@10%"}, {"reserve", reserve}});
  return entry == nullptr ? std::nan("") : mean(entry->heads);
}

constexpr const char* kOutputAware[] = {"value", "key", "joint"};

Claim output_aware_recall(const Tables& tables) {
  Tally tally;
  const double attn = recall(tables.agreement, "attn", "0");
  tally.texts.push_back(fmt::format("attn {:.3f}", attn));
  for (const char* score : kOutputAware) {
    const double found = recall(tables.agreement, score, "0");
    if (std::isnan(found)) continue;
    tally.compare(attn, found);
    tally.texts.push_back(fmt::format("{} {:.3f}", score, found));
  }
  return decided(
      "Output-aware scores find more of the next step's costliest tokens than attention sums (OBCache fig. "
      "2a; mean recall@10% of oracle_next)",
      tally, "needs attn, value, key, joint and oracle_next of kvreplay tokens");
}

Claim reserved_window(const Tables& tables) {
  Tally tally;
  for (const char* score : {"attn", "value", "key", "joint"}) {
    const double without = recall(tables.agreement, score, "0"),
                 reserved = recall(tables.agreement, score, "32");
    if (std::isnan(without) || std::isnan(reserved)) continue;
    tally.compare(without, reserved);
    tally.texts.push_back(fmt::format("{} {:.3f} -> {:.3f}", score, without, reserved));
  }
  return decided(
      "Reserving a recent window of 32 raises the recall of the next step's costliest tokens (OBCache fig. "
      "2b)",
      tally, "needs kvreplay tokens --reserve 0,32");
}

Claim taylor_ranks(const Tables& tables) {
  Tally tally;
  constexpr std::pair<const char*, const char*> kPairs[] = {{"key", "exact_key"},
                                                            {"joint", "exact_joint"},
                                                            {"value", "exact_remove"},
                                                            {"key", "exact_remove"},
                                                            {"joint", "exact_remove"}};
  for (const auto& [score, reference] : kPairs) {
    const auto* const entry = tables.agreement.find(
        {{"score", score}, {"reference", reference}, {"metric", "spearman"}, {"reserve", "0"}});
    const double rho = entry == nullptr ? std::nan("") : median(entry->heads);
    if (std::isnan(rho)) continue;
    tally.held += rho > 0.95, ++tally.total;
    tally.texts.push_back(fmt::format("{}/{} {:.2f}", score, reference, rho));
  }
  return decided("Taylor scores rank as the exact errors do (median Spearman over heads; above 0.95 counts)",
                 tally,
                 "needs key, joint and value, exact_key, exact_joint and exact_remove of kvreplay tokens");
}

std::string caote_metric(const FigureTable& table) {
  return table.find({{"metric", "layer_output_error"}}) != nullptr ? "layer_output_error" : "output_error";
}

const FigureTable::Entry* eviction(const FigureTable& table, const std::string& policy, const char* phase,
                                   const std::string& metric) {
  return table.find(
      {{"policy", policy}, {"phase", phase}, {"budget", "0.8"}, {"metric", metric}, {"rows", "future"}});
}

Claim caote_by_layer(const Tables& tables) {
  Tally tally;
  const std::string metric = caote_metric(tables.evictions);
  for (const char* base : {"h2o", "tova", "snapkv"})
    for (const char* score : {"caote", "fastcaote"}) {
      const std::string policy = fmt::format("{}+{}", base, score);
      const auto *const with = eviction(tables.evictions, policy, "prefill", metric),
                        *const without = eviction(tables.evictions, base, "prefill", metric);
      if (with == nullptr || without == nullptr) continue;
      Tally layers;
      for (std::size_t i = 0; i < with->layers.size(); ++i)
        layers.compare(with->layers[i], without->layers[i]);
      tally.held += layers.held, tally.total += layers.total;
      tally.texts.push_back(layers.total == 0 ? fmt::format("{} keeps the same", policy)
                                              : fmt::format("{} {}/{}", policy, layers.held, layers.total));
    }
  return decided(
      "CAOTE and FastCAOTE lower the output error of H2O, TOVA and SnapKV in every layer (CAOTE fig. 3; "
      "sigma 0.8)",
      tally, "needs h2o, tova or snapkv with and without +caote at 0.8 and decoding steps (kvreplay evict)",
      fmt::format("layers with less {}: ", metric));
}

Claim smaller_blocks(const Tables& tables) {
  Tally tally;
  for (const char* base : {"h2o", "tova", "snapkv"}) {
    const std::string policy = fmt::format("{}+caote", base);
    const auto *const small = eviction(tables.evictions, policy, "blockwise:32", "output_error"),
                      *const large = eviction(tables.evictions, policy, "blockwise:128", "output_error");
    if (small == nullptr || large == nullptr || tables.results.shape().l <= 128) continue;
    tally.compare(small->model, large->model);
    tally.texts.push_back(fmt::format("{} {:.4f} (32) / {:.4f} (128)", policy, small->model, large->model));
  }
  return decided(
      "Smaller blocks help CAOTE (table 10; output error, sigma 0.8)", tally,
      "needs kvreplay evict --phase blockwise:32,blockwise:128 and a prompt of more than 128 tokens");
}

/// Calls back with a budget entry of every order and sigma that have all of these methods, by their order.
void each_division(
    const FigureTable& table, const std::vector<const char*>& methods,
    const std::function<void(const std::string&, const std::vector<const FigureTable::Entry*>&)>& visit) {
  for (const std::string& order : table.distinct("order"))
    for (const std::string& sigma : table.distinct("sigma", {{"order", order}})) {
      std::vector<const FigureTable::Entry*> entries;
      for (const char* method : methods)
        entries.push_back(
            table.find({{"order", order}, {"sigma", sigma}, {"method", method}, {"metric", "loss"}}));
      if (std::find(entries.begin(), entries.end(), nullptr) == entries.end())
        visit(fmt::format("{} {}", order, sigma), entries);
    }
}

constexpr const char* kNeedsBudgets = "needs lu, ada, uniform and optimal of kvreplay budget";

Claim lu_ada_uniform(const Tables& tables) {
  Tally tally;
  each_division(tables.budgets, {"lu", "ada", "uniform"}, [&](const std::string& name, const auto& of) {
    tally.held += (of[0]->model < of[1]->model) + (of[1]->model < of[2]->model), tally.total += 2;
    tally.texts.push_back(
        fmt::format("{}: {:.3g} / {:.3g} / {:.3g}", name, of[0]->model, of[1]->model, of[2]->model));
  });
  return decided("lu loses less than ada, ada less than uniform (LU-KV fig. 3)", tally, kNeedsBudgets,
                 "lu / ada / uniform: ");
}

Claim bursts(const Tables& tables) {
  Tally tally;
  each_division(tables.budgets, {"lu", "ada", "uniform"}, [&](const std::string& name, const auto& of) {
    const double lu = largest(of[0]->layers), ada = largest(of[1]->layers), uniform = largest(of[2]->layers);
    tally.held += lu <= std::min(ada, uniform), ++tally.total;
    tally.texts.push_back(fmt::format("{}: {:.3g} / {:.3g} / {:.3g}", name, lu, ada, uniform));
  });
  return decided("lu has no layer with a burst of loss (LU-KV fig. 4)", tally, kNeedsBudgets,
                 "largest loss of a layer, lu / ada / uniform: ");
}

Claim hull_is_optimal(const Tables& tables) {
  Tally tally;
  each_division(tables.budgets, {"lu", "optimal"}, [&](const std::string& name, const auto& of) {
    const double excess = of[1]->model == 0 ? 0 : 100 * (of[0]->model / of[1]->model - 1);
    tally.held += excess == 0, ++tally.total;
    tally.texts.push_back(fmt::format("{}: +{:.2g} %", name, excess));
  });
  return decided("Greedy on the hull equals the exact optimum (LU-KV fig. 2a; loss above it)", tally,
                 kNeedsBudgets);
}

/// Layers x ratios in which `method` has less of an error than each of the others.
Claim channel_claim(const Tables& tables, const char* text, const char* method,
                    const std::vector<const char*>& others, const char* metric, const std::string& rows) {
  const FigureTable& table = tables.channels;
  Tally tally;
  for (const std::string& ratio : table.distinct("ratio")) {
    const auto of = [&](const char* name) {
      return table.find({{"method", name}, {"ratio", ratio}, {"metric", metric}, {"rows", rows}});
    };
    const auto* const mine = of(method);
    std::vector<const FigureTable::Entry*> theirs;
    for (const char* other : others) theirs.push_back(of(other));
    if (mine == nullptr || std::find(theirs.begin(), theirs.end(), nullptr) != theirs.end()) continue;
    std::string models;
    for (const auto* const other : theirs) models += fmt::format(" / {:.3g}", other->model);
    tally.texts.push_back(fmt::format("{}: {:.3g}{}", ratio, mine->model, models));
    for (std::size_t i = 0; i < mine->layers.size(); ++i) {
      double best = theirs.front()->layers[i];
      for (const auto* const other : theirs) best = std::min(best, other->layers[i]);
      tally.compare(mine->layers[i], best);
    }
  }
  return decided(text, tally, "needs think, iap and output of kvreplay channels",
                 fmt::format("{}, {} / {} ", metric, method, fmt::join(others, " / ")),
                 fmt::format("; layers x ratios won: {}/{}", tally.held, tally.total));
}

}  // namespace

std::vector<Claim> claims_of(const Tables& tables) {
  const bool future = best_rows(tables.channels) == "future";
  std::vector<Claim> claims = {
      output_aware_recall(tables), reserved_window(tables), taylor_ranks(tables), caote_by_layer(tables),
      smaller_blocks(tables),      lu_ada_uniform(tables),  bursts(tables),       hull_is_optimal(tables)};
  claims.push_back(channel_claim(
      tables,
      "A selection that knows how channels interact reconstructs the logits better than ThinK (IAP fig. 3)",
      "iap", {"think"}, "reconstruction_error", "window"));
  claims.push_back(channel_claim(
      tables,
      "A selection that knows how channels interact keeps the attention output better than ThinK, too", "iap",
      {"think"}, "output_error", future ? "future" : "window"));
  claims.push_back(channel_claim(tables,
                                 "Choosing channels in output space keeps the output better than both, on "
                                 "the rows that it was chosen for",
                                 "output", {"think", "iap"}, "output_error", "window"));
  if (future)
    claims.push_back(channel_claim(tables, "The same on the decoding steps: output space against both",
                                   "output", {"think", "iap"}, "output_error", "future"));
  std::ranges::move(compensation_claims(tables), std::back_inserter(claims));
  return claims;
}

Section claim_section(const Tables& tables) {
  Section section{"claims", "What papers claim, replayed", "", {}, ""};
  std::string rows, undecided, csv = "claim,measured,holds\n";
  for (const Claim& claim : claims_of(tables)) {
    if (claim.verdict.empty()) {
      undecided += fmt::format("<li>{}: {}</li>", escaped(claim.text), escaped(claim.measured));
      continue;
    }
    const char* const kind = claim.verdict == "yes" ? "yes" : claim.verdict == "no" ? "no" : "part";
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td class=\"holds-{}\">{}</td></tr>\n",
                        escaped(claim.text), escaped(claim.measured), kind, escaped(claim.verdict));
    csv += fmt::format("{},{},{}\n", csv_field(claim.text), csv_field(claim.measured), claim.verdict);
  }
  if (rows.empty()) {
    section.missing = "These results decide none of the claims that this report knows.";
  } else {
    Figure figure;
    figure.name = "papers-claims";
    figure.heading = "Claims and verdicts";
    figure.reading =
        "Decided by the numbers of these results alone, one model and one prompt: a \"no\" refutes a claim's "
        "generality, not its paper. Comparisons between equal numbers do not count.";
    figure.body = fmt::format(
        "<div class=\"scroll\"><table><thead><tr><th>claim</th><th>measured</th><th>holds "
        "here</th></tr></thead><tbody>\n{}</tbody></table></div>\n",
        rows);
    figure.files = {csv_file(figure.name, std::move(csv))};
    section.figures.push_back(std::move(figure));
  }
  if (!undecided.empty())
    section.html = fmt::format(
        "<details><summary>Not decided by these results</summary><ul>{}</ul></details>\n", undecided);
  return section;
}

}  // namespace kvreplay::report
