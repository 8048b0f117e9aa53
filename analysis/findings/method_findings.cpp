#include "analysis/eviction/eviction_options.hpp"
#include "analysis/findings/findings.hpp"
#include "analysis/results/kept_text.hpp"
#include "sim/compensation/compensation_facts.hpp"
#include "sim/eviction/policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

// Findings on the costs of evictions: evictions.csv.

namespace kvreplay {
namespace {

/// The value that most results have, or what stands first in its place.
std::string usual(const std::vector<std::string>& values, const char* value) {
  return is_in(values, value) ? value : values.front();
}

/// The columns that name a policy's figure there.
std::vector<std::pair<std::string, std::string>> keys_of(const MiddleCase& at, const std::string& policy,
                                                         const char* metric) {
  return {{"policy", policy},    {"semantics", at.semantics}, {"phase", at.phase},
          {"budget", at.budget}, {"rows", at.rows},           {"metric", metric}};
}

/// The output errors of the middle case that are set against each other.
std::vector<const MetricEntry*> compared(const MetricTable& evictions, const MiddleCase& at) {
  const Wanted common = with(at.wanted(), "metric", "output_error");
  std::vector<const MetricEntry*> evicting, reading;
  for (const MetricEntry& entry : evictions.entries())
    if (evictions.matches(entry, common) && !std::isnan(entry.model))
      (evicts_nothing(evictions.key(entry, "policy")) ? reading : evicting).push_back(&entry);
  return evicting.empty() ? reading : evicting;
}

/// ". Keeping all of it and reading as many tokens a step, sparq loses 0.24 times as much": of who is not
/// compared.
std::string beside(const MetricTable& evictions, const MiddleCase& at, const MetricEntry& best) {
  const MetricEntry* lowest = nullptr;
  const auto policy = [&](const MetricEntry& entry) { return evictions.key(entry, "policy"); };
  if (evicts_nothing(policy(best))) return "";
  for (const MetricEntry& entry : evictions.entries())
    if (evictions.matches(entry, with(at.wanted(), "metric", "output_error")) &&
        evicts_nothing(policy(entry)) && !is_oracle(Table::evictions, "policy", policy(entry)) &&
        (lowest == nullptr || entry.model < lowest->model))
      lowest = &entry;
  if (lowest == nullptr) return "";
  return fmt::format(
      "; {}, which keeps the whole prompt and lets a row read as many tokens, loses {} times as much",
      policy(*lowest), value_text(lowest->model / best.model));
}

}  // namespace

std::optional<MiddleCase> middle_case(const MetricTable& evictions, Index l) {
  Wanted common = {{"metric", "output_error"}};
  const std::vector<std::string> all_rows = evictions.distinct("rows", common);
  if (all_rows.empty()) return std::nullopt;
  MiddleCase at;
  at.rows = usual(all_rows, "future");
  common.emplace_back("rows", at.rows);
  at.phase = usual(evictions.distinct("phase", common), "prefill");
  common.emplace_back("phase", at.phase);
  at.semantics = usual(evictions.distinct("semantics", common), "paper");
  common.emplace_back("semantics", at.semantics);
  std::vector<std::pair<double, std::string>> budgets;
  for (const std::string& budget : evictions.distinct("budget", common))
    if (const double kept = tokens_kept(budget, "", l); !std::isnan(kept)) budgets.emplace_back(kept, budget);
  if (budgets.empty()) return std::nullopt;
  std::ranges::sort(budgets);
  at.budget = budgets[(budgets.size() - 1) / 2].second;
  return at;
}

BestOf best_of(const MetricTable& evictions, const MiddleCase& at) {
  BestOf best;
  for (const MetricEntry* const alike : compared(evictions, at)) {
    const MetricEntry& entry = *alike;
    const bool oracle = is_oracle(Table::evictions, "policy", evictions.key(entry, "policy"));
    const MetricEntry*& lowest = oracle ? best.oracle : best.runs;
    if (lowest == nullptr || entry.model < lowest->model) lowest = &entry;
  }
  return best;
}

std::optional<Finding> best_policy(const FigureTables& tables) {
  const MetricTable& evictions = tables.evictions;
  const auto at = middle_case(evictions, tables.shape.l);
  if (!at) return std::nullopt;
  const auto [best, oracle] = best_of(evictions, *at);
  if (best == nullptr || !(best->model > 0)) return std::nullopt;
  Index others = 0, near = 0;
  const MetricEntry* worst = best;
  for (const MetricEntry* const alike : compared(evictions, *at)) {
    const MetricEntry& entry = *alike;
    if (&entry == best || is_oracle(Table::evictions, "policy", evictions.key(entry, "policy"))) continue;
    ++others;
    if (entry.model < kDecides * best->model) ++near;
    if (entry.model > worst->model) worst = &entry;
  }
  const bool with_oracle = oracle != nullptr && oracle->model > 0;
  if (others == 0 && !with_oracle) return std::nullopt;
  const std::string name = evictions.key(*best, "policy");
  const double middle = median(best->heads);
  std::string more = std::isnan(middle) ? "" : fmt::format("; median head {}", value_text(middle));
  if (const auto* const nats =
          evictions.find(with(with(at->wanted(), "policy", name), "metric", kLossStep.name));
      nats != nullptr && !std::isnan(nats->model))
    more += fmt::format("; predicted {} nats a step", value_text(nats->model));
  Finding finding{
      FindingKind::policy,
      fmt::format("{} is the {} ({}, {}{})", value_text(best->model),
                  others > 0 ? fmt::format("lowest output error of {} policies, that of {}", others + 1, name)
                             : fmt::format("output error of {}", name),
                  kept_text(at->budget), rows_text(at->rows), more),
      std::max(1.0, worst->model / best->model),
      {Table::evictions, keys_of(*at, name, "output_error")}};
  if (with_oracle) {
    finding.weight = best->model / oracle->model;
    const std::string reference = evictions.key(*oracle, "policy");
    finding.text +=
        fmt::format(", {} times that of {}, which {}", factor_text(finding.weight), reference,
                    evicts_nothing(reference) ? "reads everything to choose" : "knows the future");
  }
  if (near > 0)
    finding.text += fmt::format("; {} of the others within {:g} times, no clear difference", near, kDecides);
  if (worst->model >= kDecides * best->model)
    finding.text += fmt::format("; {} has {} times as much", evictions.key(*worst, "policy"),
                                factor_text(worst->model / best->model));
  finding.text += beside(evictions, *at, *best) + '.';
  return finding;
}

std::optional<Finding> heaviest_layer(const FigureTables& tables) {
  const MetricTable& evictions = tables.evictions;
  const std::vector<Index>& layers = tables.layers;
  const auto at = middle_case(evictions, tables.shape.l);
  const MetricEntry* const best = at ? best_of(evictions, *at).runs : nullptr;
  if (best == nullptr || layers.size() < 2) return std::nullopt;
  const std::string policy = evictions.key(*best, "policy");
  const auto finding = [&](const MetricEntry& entry, double largest, const char* metric) {
    const auto row = std::ranges::find(entry.layers, largest) - entry.layers.begin();
    return Finding{FindingKind::layer,
                   "",
                   0,
                   {Table::evictions, keys_of(*at, policy, metric), layers[static_cast<std::size_t>(row)]}};
  };
  const Wanted common = with(at->wanted(), "policy", policy);
  if (const auto* const nats = evictions.find(with(common, "metric", "loss_layer"));
      nats != nullptr && nats->model > 0) {
    const double most = largest(nats->layers), share = most / nats->model;
    Finding found = finding(*nats, most, "loss_layer");
    found.weight = share * static_cast<double>(layers.size());
    found.text = fmt::format(
        "{:.0f} % of the nats that {} is predicted to cost, layer by layer ({}), come from layer {}, of {} "
        "layers.",
        100 * share, policy, kept_text(at->budget), tables.layer_called(*found.place.layer), layers.size());
    return found;
  }
  const double most = largest(best->layers), middle = median(best->layers);
  if (!(middle > 0)) return std::nullopt;
  Finding found = finding(*best, most, "output_error");
  found.weight = most / middle;
  found.text = fmt::format("{} is the output error of layer {}, {} times the median layer's {} ({}, {}).",
                           value_text(most), tables.layer_called(*found.place.layer),
                           factor_text(found.weight), value_text(middle), policy, kept_text(at->budget));
  return found;
}

namespace {

/// "centered and rotated" of "+hadamard+center"
std::string cure_text(std::string_view suffix) {
  const bool rotated = suffix.find("+hadamard") != std::string_view::npos;
  const std::size_t center = suffix.find("+center");
  if (center == std::string_view::npos) return "rotated";
  const std::size_t from = suffix.find(':', center);
  return fmt::format("centered{}{}", rotated ? " and rotated" : "",
                     from == std::string_view::npos
                         ? ""
                         : fmt::format(" (mean without the first {} tokens)", suffix.substr(from + 1)));
}

}  // namespace

std::optional<Finding> low_bit_keys(const MetricTable& evictions) {
  const std::string rows = best_rows(evictions, {{"metric", "output_error"}}),
                    uncured = "none~" + std::string(kKeyProbe);
  const auto at = [&](std::string_view policy, std::string_view metric) {
    return Wanted{{"policy", policy}, {"phase", "prefill"}, {"rows", rows}, {"metric", metric}};
  };
  std::string_view metric = kLossStep.name;
  const MetricEntry* plain = evictions.find(at(uncured, metric));
  const bool in_nats = plain != nullptr && !std::isnan(plain->model);
  if (!in_nats) plain = evictions.find(at(uncured, metric = "output_error"));
  if (plain == nullptr || !(plain->model >= kKeysCost)) return std::nullopt;
  std::string cures, best_text, best_policy = uncured;
  double best = plain->model;
  for (const std::string& policy : evictions.distinct("policy", {{"metric", metric}})) {
    if (!policy.starts_with(uncured + "+")) continue;
    const MetricEntry* const entry = evictions.find(at(policy, metric));
    if (entry == nullptr || std::isnan(entry->model)) continue;
    const std::string cure = cure_text(std::string_view(policy).substr(uncured.size()));
    cures += fmt::format(", {} {}", cure, value_text(entry->model));
    if (entry->model < best) best = entry->model, best_text = cure, best_policy = policy;
  }
  const std::string cost = value_text(plain->model);
  Finding finding{
      FindingKind::keys,
      "4-bit keys (q4_0) " +
          (in_nats ? fmt::format("are predicted to cost {} nats a step (loss_step)", cost)
                   : fmt::format("have an output error of {}", cost)) +
          cures,
      best > 0 ? plain->model / best : kDecides,
      {Table::evictions, {{"policy", best_policy}, {"rows", rows}, {"metric", std::string(metric)}}}};
  if (cures.empty()) return finding.text += '.', finding;
  finding.text += finding.weight < kDecides
                      ? fmt::format("; no cure helps {:g} times", kDecides)
                      : fmt::format("; {} they lose {} times less", best_text, factor_text(finding.weight));
  finding.text +=
      ". An engine that writes quantized keys loses more than these stored ones, and another cure may win "
      "there: kvvalidate.py --written measures it (sim/cache/CURES.md).";
  return finding;
}

// Findings on methods other than choosing tokens: compensation.csv, budgets.csv, channels.csv.

std::vector<Finding> compensation_findings(const MetricTable& table) {
  const std::string rows = best_rows(table, {{"metric", "output_error"}});
  const std::string_view none = name_of(Compensation::none);
  struct Extreme {
    double ratio = kNan;
    const MetricEntry *entry = nullptr, *plain = nullptr;
  } best, worst;
  for (const MetricEntry& entry : table.entries()) {
    if (!table.matches(entry, {{"metric", "output_error"}, {"rows", rows}}) ||
        table.key(entry, "method") == none)
      continue;
    Wanted same = {{"rows", rows}, {"metric", "output_error"}, {"method", none}};
    for (const char* column : {"policy", "semantics", "phase", "budget"})
      same.emplace_back(column, table.key(entry, column));
    const MetricEntry* const plain = table.find(same);
    if (plain == nullptr || !(plain->model > 0) || std::isnan(entry.model)) continue;
    const Extreme here{entry.model / plain->model, &entry, plain};
    if (!(here.ratio >= best.ratio)) best = here;
    if (!(here.ratio <= worst.ratio)) worst = here;
  }
  std::vector<Finding> found;
  const auto say = [&](FindingKind kind, const Extreme& one, const char* what, double weight) {
    const auto value_of = [&](std::string_view column) { return table.key(*one.entry, column); };
    Finding finding{kind,
                    fmt::format("{} times the output error is left by {} on what {} keeps, the {} "
                                "compensation ({}, {}: {} instead of {}).",
                                value_text(one.ratio), value_of("method"), value_of("policy"), what,
                                kept_text(value_of("budget")), rows_text(rows), value_text(one.entry->model),
                                value_text(one.plain->model)),
                    weight,
                    {Table::compensation, {}}};
    for (const char* column : {"policy", "semantics", "phase", "budget", "rows", "metric", "method"})
      finding.place.keys.emplace_back(column, value_of(column));
    found.push_back(std::move(finding));
  };
  constexpr double kLeast = 1e-6;
  if (best.ratio < 1) say(FindingKind::compensation, best, "best", 1 / std::max(best.ratio, kLeast));
  if (worst.ratio > 1) say(FindingKind::cost, worst, "worst", worst.ratio);
  return found;
}

std::optional<Finding> shared_budget(const MetricTable& budgets) {
  if (budgets.empty()) return std::nullopt;
  const std::string order = budgets.distinct("order").front();
  const Wanted common = {{"order", order}, {"metric", "output_error"}};
  struct Saving {
    double ratio = kNan;
    std::string method;
  };
  /// The lowest error in shares of uniform's, of oracles or of the others.
  const auto lowest = [&](const std::string& sigma, bool oracles) {
    Saving saving;
    const Wanted here = with(common, "sigma", sigma);
    const MetricEntry* const uniform = budgets.find(with(here, "method", "uniform"));
    if (uniform == nullptr || !(uniform->model > 0)) return saving;
    for (const MetricEntry& entry : budgets.entries()) {
      if (&entry == uniform || !budgets.matches(entry, here) || std::isnan(entry.model) ||
          is_oracle(Table::budgets, "method", budgets.key(entry, "method")) != oracles)
        continue;
      if (!(entry.model / uniform->model >= saving.ratio))
        saving = {entry.model / uniform->model, budgets.key(entry, "method")};
    }
    return saving;
  };
  Saving best;
  std::string sigma;
  for (const std::string& one : budgets.distinct("sigma", common))
    for (const bool oracles : {false, true})
      if (Saving saving = lowest(one, oracles); saving.ratio < 1 && !(saving.ratio >= best.ratio))
        best = std::move(saving), sigma = one;
  if (sigma.empty()) return std::nullopt;
  Finding finding{
      FindingKind::budgets,
      fmt::format("{:.0f} % of the output error of equal budgets is saved if {} divides one budget between "
                  "the heads ({}, tokens ranked by {})",
                  100 * (1 - best.ratio), shown_key(Table::budgets, "method", best.method), kept_text(sigma),
                  order),
      1 / std::max(best.ratio, 1e-6),
      {Table::budgets,
       {{"order", order}, {"method", best.method}, {"sigma", sigma}, {"metric", "output_error"}}}};
  if (is_oracle(Table::budgets, "method", best.method))
    if (const Saving fair = lowest(sigma, false); !std::isnan(fair.ratio))
      finding.text += fair.ratio < 1 ? fmt::format("; {}, which does not know the future, saves {:.0f} %",
                                                   fair.method, 100 * (1 - fair.ratio))
                                     : std::string("; no method that does not know the future saves any");
  finding.text += '.';
  return finding;
}

std::optional<std::string> middle_ratio(const MetricTable& channels, const Wanted& common) {
  std::vector<std::string> ratios = channels.distinct("ratio", common);
  if (ratios.empty()) return std::nullopt;
  std::ranges::sort(ratios,
                    [](const std::string& a, const std::string& b) { return number_in(a) < number_in(b); });
  return ratios[(ratios.size() - 1) / 2];
}

std::optional<Finding> pruned_channels(const MetricTable& channels) {
  const std::string rows = best_rows(channels, {{"metric", "output_error"}});
  Wanted common = {{"metric", "output_error"}, {"rows", rows}};
  const std::optional<std::string> middle = middle_ratio(channels, common);
  if (!middle) return std::nullopt;
  const std::string& ratio = *middle;
  common = with(common, "ratio", ratio);
  const MetricEntry *best = nullptr, *worst = nullptr;
  for (const MetricEntry& entry : channels.entries()) {
    if (!channels.matches(entry, common) || std::isnan(entry.model)) continue;
    if (best == nullptr || entry.model < best->model) best = &entry;
    if (worst == nullptr || entry.model > worst->model) worst = &entry;
  }
  if (best == nullptr || best == worst || !(best->model > 0)) return std::nullopt;
  const MetricEntry* const think = channels.find(with(common, "method", "think"));
  const MetricEntry& other = think != nullptr && think != best ? *think : *worst;
  const std::string& method = channels.key(*best, "method");
  return Finding{
      FindingKind::channels,
      fmt::format("{} is the lowest output error with {:g} of the key channels pruned, that of {} ({}); {} "
                  "costs {} times as much{}.",
                  value_text(best->model), number_in(ratio), method, rows_text(rows),
                  channels.key(other, "method"), factor_text(other.model / best->model),
                  &other == worst ? ""
                                  : fmt::format(" and {} {} times", channels.key(*worst, "method"),
                                                factor_text(worst->model / best->model))),
      other.model / best->model,
      {Table::channels, {{"method", method}, {"ratio", ratio}, {"rows", rows}, {"metric", "output_error"}}}};
}

// Sums over all heads that a few of them rule: channels.csv, whose reconstruction errors add up.

namespace {

constexpr double kRules = 0.5;    // of the sum
constexpr double kFewest = 10;    // at most one head of so many
constexpr double kOutlying = 10;  // times the median channel

/// The fewest heads that hold half of a sum, the heaviest first, and their share.
struct Rulers {
  std::vector<std::size_t> heads;
  double share = 0;
  std::size_t of = 0;  // heads
};
Rulers rulers_of(const std::vector<double>& heads) {
  std::vector<std::size_t> order;
  for (std::size_t h = 0; h < heads.size(); ++h)
    if (!std::isnan(heads[h])) order.push_back(h);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return heads[a] > heads[b]; });
  const double all = std::accumulate(order.begin(), order.end(), 0.0,
                                     [&](double sum, std::size_t h) { return sum + heads[h]; });
  Rulers rulers{{}, 0, order.size()};
  for (const std::size_t h : order) {
    if (!(all > 0) || rulers.share >= kRules) break;
    rulers.heads.push_back(h);
    rulers.share += heads[h] / all;
  }
  return rulers;
}

/// "layer 0 heads 0 and 1", "layer 0 head 1 and layer 3 head 0"
std::string places_of(const Rulers& rulers, const FigureTables& tables) {
  std::map<Index, std::vector<Index>> by_layer;
  for (const std::size_t h : rulers.heads)
    by_layer[tables.layers[h / static_cast<std::size_t>(tables.shape.n_kv)]].push_back(static_cast<Index>(h) %
                                                                                       tables.shape.n_kv);
  std::vector<std::string> places;
  for (auto& [layer, heads] : by_layer) {
    std::ranges::sort(heads);
    places.push_back(fmt::format("layer {} head{} {}", tables.layer_called(layer),
                                 heads.size() == 1 ? "" : "s",
                                 fmt::join(heads, heads.size() == 2 ? " and " : ", ")));
  }
  return fmt::format("{}", fmt::join(places, " and "));
}

}  // namespace

KeyReach key_reach(const Dump& dump, Index layer, Index kv_head) {
  const Index d = dump.shape().d;
  std::vector<float> keys(static_cast<std::size_t>(dump.shape().T * d));
  dump.read(Tensor::k, layer, kv_head, keys.data());
  std::vector<double> reach(static_cast<std::size_t>(d), 0.0);
  for (std::size_t at = 0; at < static_cast<std::size_t>(dump.shape().l * d); ++at)
    reach[at % reach.size()] = std::max(reach[at % reach.size()], std::abs(static_cast<double>(keys[at])));
  const auto most = std::ranges::max_element(reach);
  return {most - reach.begin(), *most, median(reach)};
}

std::optional<Finding> ruled_sum(const FigureTables& tables, const TokenSource& tokens) {
  const MetricTable& channels = tables.channels;
  Wanted common = {{"metric", name_of(ChannelFigure::reconstruction_error)}, {"rows", "window"}};
  const std::optional<std::string> middle = middle_ratio(channels, common);
  if (!middle) return std::nullopt;
  const std::string& ratio = *middle;
  common = with(common, "ratio", ratio);
  const MetricEntry* entry = channels.find(with(common, "method", "think"));
  if (entry == nullptr) entry = channels.find(common);
  if (entry == nullptr) return std::nullopt;
  const Rulers rulers = rulers_of(entry->heads);
  if (rulers.heads.empty() ||
      kFewest * static_cast<double>(rulers.heads.size()) > static_cast<double>(rulers.of))
    return std::nullopt;

  const std::string& method = channels.key(*entry, "method");
  const std::size_t n_kv = static_cast<std::size_t>(tables.shape.n_kv), heaviest = rulers.heads.front();
  const Index layer = tables.layers[heaviest / n_kv], head = static_cast<Index>(heaviest % n_kv);
  Finding finding{
      FindingKind::sum,
      fmt::format("{} of {} heads hold{} {:.0f} % of the model's reconstruction error ({}, {:g} of the key "
                  "channels pruned): {}",
                  rulers.heads.size(), rulers.of, rulers.heads.size() == 1 ? "s" : "", 100 * rulers.share,
                  method, number_in(ratio), places_of(rulers, tables)),
      rulers.share * static_cast<double>(rulers.of) / static_cast<double>(rulers.heads.size()),
      {Table::channels,
       {{"method", method},
        {"ratio", ratio},
        {"rows", "window"},
        {"metric", std::string(name_of(ChannelFigure::reconstruction_error))}},
       layer,
       head}};
  const MetricEntry* const relative =
      channels.find({{"metric", name_of(ChannelFigure::relative_reconstruction_error)},
                     {"rows", "window"},
                     {"ratio", ratio},
                     {"method", method},
                     {"semantics", channels.key(*entry, "semantics")},
                     {"recent", channels.key(*entry, "recent")}});
  if (relative != nullptr)
    finding.text += fmt::format("; relative to the logits it is {} over all heads, {} in the median head",
                                value_text(relative->model), value_text(median(relative->heads)));
  if (const auto reach = tokens.keys ? tokens.keys(layer, head) : std::nullopt;
      reach && reach->most >= kOutlying * reach->median)
    finding.text +=
        fmt::format("; in layer {} head {} keys reach {} in channel {}, where the median channel has {}",
                    layer, head, value_text(reach->most), reach->channel, value_text(reach->median));
  finding.text += '.';
  return finding;
}

}  // namespace kvreplay
