#pragma once

#include "sim/eviction/decode/decode.hpp"
#include "tests/support/random_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

// The head groups, rules and options on which every decoding replay is judged.

namespace kvreplay::test {

struct NamedRule {
  std::string name;
  EvictionRule rule;
};

inline PolicyOverrides pins(Index sinks, Index recent) {
  PolicyOverrides overrides;
  overrides.sinks = sinks;
  overrides.recent = recent;
  return overrides;
}

inline EvictionRule rule_named(EvictionBase base, std::optional<TokenMetric> metric, Semantics semantics,
                               Index l, Index budget, const PolicyOverrides& overrides = {}) {
  Policy policy;
  policy.base = base;
  policy.metric = metric;
  return rule_of(policy, semantics, overrides, l, budget, false);
}

/// Every metric that decoding knows under H2O, and every base; or that decoding at intervals knows.
inline std::vector<NamedRule> all_rules(Index l, Index budget, bool with_exact, bool at_intervals = false) {
  std::vector<NamedRule> rules;
  const auto add = [&](std::string name, const EvictionRule& rule) {
    if (!(at_intervals ? why_not_at_intervals(rule) : why_not_in_decoding(rule)))
      rules.push_back({std::move(name), rule});
  };
  for (const TokenMetric metric : kTokenMetrics.all()) {
    if (kTokenMetrics[metric].kind == MetricKind::exact && !with_exact) continue;
    if (metric == TokenMetric::keydiff && budget == 1) continue;  // two keys are as near to their mean: a tie
    add(fmt::format("h2o+{}", name_of(metric)),
        rule_named(EvictionBase::h2o, metric, Semantics::paper, l, budget, pins(0, 2)));
  }
  for (const EvictionBase base : kBases.all()) {
    if (base == EvictionBase::keydiff && budget == 1) continue;
    for (const Semantics semantics : {Semantics::paper, Semantics::official, Semantics::kvpress})
      add(fmt::format("{}, {}", name_of(base), name_of(semantics)),
          rule_named(base, {}, semantics, l, budget));
  }
  add("h2o+joint, kvpress", rule_named(EvictionBase::h2o, TokenMetric::joint, Semantics::kvpress, l, budget));
  add("h2o+caote, kvpress", rule_named(EvictionBase::h2o, TokenMetric::caote, Semantics::kvpress, l, budget));
  add("tova+key", rule_named(EvictionBase::tova, TokenMetric::key, Semantics::paper, l, budget));
  add("snapkv+value, sinks",
      rule_named(EvictionBase::snapkv, TokenMetric::value, Semantics::paper, l, budget, pins(2, 3)));
  return rules;
}

/// `keep` of l positions, spread over all of them.
inline KeptSet spread(Index l, Index keep) {
  Vector<double> score(l);
  for (Index p = 0; p < l; ++p) score[p] = static_cast<double>((p * 7919 + 3) % 1009);
  return largest(score, keep);
}

/// How far an output may be from the reference's, as a share of the largest ||o_i||. A change of the output
/// is a difference of two of them and known no better. float64: logits of 200 are known to 1e-13; float32: to
/// 2e-5.
inline constexpr double kOfOutput64 = 1e-12, kOfOutput32 = 5e-5;

/// One line for everything in which two runs differ. Errors are compared step by step and output by output:
/// one wrong eviction changes both from the next step on.
template <class T>
std::string differences(const std::string& name, const DecodeReplay<double>& want, const DecodeReplay<T>& got,
                        double of_output) {
  if (want.change_sq.size() != got.change_sq.size() || want.full_sq.size() != got.full_sq.size() ||
      want.change.size() != got.change.size())
    return name + ": number of steps or heads";
  std::string lines;
  const double largest_sq =
      want.full_sq.empty() ? 0 : *std::max_element(want.full_sq.begin(), want.full_sq.end());
  const double allowed = of_output * std::sqrt(largest_sq);
  const auto check = [&](const char* what, std::size_t step, double wanted, double found) {
    if (std::abs(wanted - found) <= allowed) return;  // never for NaN
    lines += fmt::format("\n{}: {} of step {}: want {}, got {}, allowed {}", name, what, step, wanted, found,
                         allowed);
  };
  for (std::size_t step = 0; step < want.change_sq.size(); ++step) {
    check("||change||", step, std::sqrt(want.change_sq[step]), std::sqrt(got.change_sq[step]));
    check("||o||", step, std::sqrt(want.full_sq[step]), std::sqrt(got.full_sq[step]));
    for (std::size_t g = 0; g < want.change.size(); ++g) {
      const auto row = static_cast<Index>(step);
      const Vector<double> miss =
          want.change[g].row(row).transpose() - got.change[g].row(row).transpose().template cast<double>();
      check("distance of the changes", step, 0, miss.norm());
    }
    if (!lines.empty()) break;  // the rest follows
  }
  if (want.kept != got.kept) lines += "\n" + name + ": kept set";
  if (want.cache_size != got.cache_size) lines += "\n" + name + ": cache size";
  if (want.left != got.left) lines += "\n" + name + ": what left when";
  if (want.first_step != got.first_step) lines += "\n" + name + ": first step";
  return lines;
}

struct Unkind {
  std::string name;
  GroupSpec spec;
  Index budget;
  bool exact = true;  ///< whether the judge's exact errors of the lightest tokens still have digits
};

inline std::vector<Unkind> unkind_groups() {
  return {
      {"plain", {.l = 14, .T = 30, .seed = 11}, 9},
      {"G = 1, odd d", {.l = 12, .T = 27, .G = 1, .d = 5, .d_v = 5, .seed = 12}, 7},
      {"G = 3, d_v != d", {.l = 13, .T = 26, .G = 3, .d = 7, .d_v = 19, .seed = 13}, 8},
      {"more tokens than a tile", {.l = 70, .T = 80, .G = 2, .d = 6, .d_v = 35, .seed = 14}, 66},
      {"one step", {.l = 12, .T = 13, .seed = 15}, 6},
      {"no step", {.l = 12, .T = 12, .seed = 15}, 6},
      {"B = 0", {.l = 9, .T = 16, .seed = 16}, 0},
      {"B = 1", {.l = 9, .T = 16, .seed = 17}, 1},
      {"B = l", {.l = 9, .T = 20, .seed = 18}, 9},
      {"queries from the prompt's end on", {.l = 12, .T = 24, .T_q = 15, .seed = 19}, 7},
      {"queries of later steps only", {.l = 12, .T = 24, .T_q = 8, .seed = 20}, 7},
      {"sliding window", {.l = 14, .T = 30, .sliding_window = 6, .seed = 21}, 9},
      {"sliding window 1", {.l = 9, .T = 15, .sliding_window = 1, .seed = 22}, 5},
      {"soft cap", {.l = 14, .T = 28, .logit_std = 8.0, .softcap = 6.0, .seed = 23}, 8},
      {"sink logit", {.l = 14, .T = 28, .sink_logit = 1.5, .seed = 24}, 8},
      {"sink logit that takes nearly all", {.l = 14, .T = 28, .sink_logit = 12.0, .seed = 25}, 8},
      {"sink", {.l = 14, .T = 28, .attention_sink = 0, .seed = 26}, 14},
      {"sink among the decoded", {.l = 14, .T = 28, .attention_sink = 17, .seed = 27}, 8},
      {"sink, logits + 200", {.l = 14, .T = 26, .logit_shift = 200, .attention_sink = 1, .seed = 28}, 13},
      {"logits + 200", {.l = 14, .T = 26, .logit_shift = 200, .seed = 29}, 8},
      {"logits - 200", {.l = 14, .T = 26, .logit_shift = -200, .seed = 30}, 8},
      {"keys with one large part in common", {.l = 14, .T = 26, .logit_shift = 200, .seed = 1029}, 8},
      {"tokens that would each take the row", {.l = 14, .T = 26, .logit_shift = -200, .seed = 1030}, 8},
      {"logits times 20", {.l = 14, .T = 26, .logit_std = 20, .seed = 31}, 8, false},
      {"values far from 0", {.l = 14, .T = 26, .value_offset = 30, .seed = 32}, 8},
      {"a zero key and value", {.l = 14, .T = 26, .zero_token = 3, .seed = 33}, 8},
  };
}

/// Sinks of value 0, whose steps' errors are relative to outputs next to nothing.
inline std::vector<Unkind> worthless_sinks() {
  std::vector<Unkind> all;
  for (const double gap : {20.0, 30.0, 40.0, 60.0, 80.0})
    all.push_back(
        {fmt::format("worthless sink {}", gap),
         {.l = 14, .T = 28, .value_offset = 0.5, .attention_sink = 0, .worthless_by = gap, .seed = 34},
         8});
  all.push_back(
      {"a sink that holds all",
       {.l = 14, .T = 28, .value_offset = 0.5, .attention_sink = 0, .worthless_by = 1000.0, .seed = 35},
       8});
  return all;
}

inline std::vector<DecodeOptions> all_options() {
  return {{}, {.window = 1}, {.window = 3}, {.window = 15}, {.window = 100}, {.append_only = true}};
}

inline std::string name_of_options(const DecodeOptions& options) {
  return fmt::format("{}{}{}", options.interval > 0 ? fmt::format(", every {}", options.interval) : "",
                     options.window ? fmt::format(", window {}", *options.window) : "",
                     options.append_only ? ", append-only" : "");
}

}  // namespace kvreplay::test
