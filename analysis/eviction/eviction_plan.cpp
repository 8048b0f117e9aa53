#include "analysis/eviction/eviction_plan.hpp"

#include "analysis/csv.hpp"
#include "analysis/eviction/given_arrays.hpp"
#include "analysis/nearest_name.hpp"
#include "data/error.hpp"
#include "sim/eviction/decode.hpp"
#include "sim/eviction/prompt_eviction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace kvreplay {
namespace {

std::optional<Index> whole(std::string_view text) {
  Index value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  constexpr Index kMost = std::numeric_limits<Index>::max() / 4;  // so that positions can be added to it
  return value <= kMost ? std::optional(value) : std::nullopt;
}

Semantics parse_semantics(const std::string& option, const std::string& name) {
  if (const auto semantics = semantics_named(name)) return *semantics;
  throw InputError(option, "paper, official or kvpress", fmt::format("'{}'", name));
}

Phase parse_phase(const std::string& text) {
  if (text == "prefill") return {};
  if (text == "decode") return {Phase::Kind::decode, 0};
  if (text == "append-only") return {Phase::Kind::append_only, 0};
  constexpr std::string_view kBlockwise = "blockwise:";
  if (text.starts_with(kBlockwise)) {
    const auto block = whole(std::string_view(text).substr(kBlockwise.size()));
    if (block && *block >= 1) return {Phase::Kind::blockwise, *block};
  }
  throw InputError("--phase", "prefill, blockwise:N with N of at least 1, decode or append-only",
                   fmt::format("'{}'", text));
}

/// BASE[+SCORE] with the nearest names where one is unknown.
Policy parse_policy(const std::string& text, const std::vector<Given<double>>& scores) {
  const auto plus = text.find('+');
  const std::string base_name = text.substr(0, plus);
  std::vector<std::string> bases, metrics, taking;
  for (const Base base : all_bases()) {
    bases.emplace_back(name_of(base));
    if (takes_score(base)) taking.emplace_back(name_of(base));
  }
  for (const TokenMetric m : all_token_metrics()) metrics.emplace_back(name_of(m));
  for (const Given<double>& score : scores) metrics.push_back(score.name);

  Policy policy;
  policy.name = text;
  const auto base = base_named(base_name);
  if (!base)
    throw InputError(fmt::format(
        "--policy: unknown policy '{}'{}", base_name,
        scores.end() !=
                std::find_if(scores.begin(), scores.end(), [&](const auto& s) { return s.name == base_name; })
            ? fmt::format("; a score is used as BASE+{}", base_name)
            : did_you_mean(base_name, bases)));
  policy.base = *base;
  if (plus == std::string::npos) return policy;
  const std::string score = text.substr(plus + 1);
  if (!takes_score(*base))
    throw InputError(fmt::format("--policy: {} ranks by what it is named after and takes no score; {} do",
                                 base_name, fmt::join(taking, ", ")));
  const auto given =
      std::find_if(scores.begin(), scores.end(), [&](const auto& s) { return s.name == score; });
  if (given != scores.end())
    policy.given = static_cast<std::size_t>(given - scores.begin());
  else if (const auto metric = token_metric_named(score))
    policy.metric = *metric;
  else if (const auto start = base_named(score); *base == Base::exchange && start && *start != Base::exchange)
    policy.start = *start;
  else
    throw InputError(fmt::format("--policy: unknown score '{}'{}", score, did_you_mean(score, metrics)));
  return policy;
}

/// What a policy needs and the dump lacks, as one clause.
std::optional<std::string> why_unavailable(const EvictionRule& rule, const EvictionPlan& plan,
                                           const Dump& dump) {
  const Base base = rule.policy.base;
  if (base == Base::greedy_exact || base == Base::exchange) {
    const Rows rows = plan.on_future ? plan.future : plan.window;
    if (rows.count() == 0)
      return plan.on_future ? "it needs decoding steps with queries, and the dump has none"
                            : "the dump holds no query of the prompt";
  }
  return rule.metric ? why_unavailable(*rule.metric, dump) : std::nullopt;
}

class Planner {
 public:
  Planner(const Dump& dump, const EvictionOptions& options) : dump_(dump), options_(options) {}

  EvictionPlan plan() {
    const DumpShape& shape = dump_.shape();
    if (options_.on != "window" && options_.on != "future")
      throw InputError("--on", "window or future", fmt::format("'{}'", options_.on));
    plan_.on_future = options_.on == "future";
    plan_.per_query_head = options_.per_query_head;
    plan_.decode_window = options_.decode_window;
    plan_.window = window_rows(shape.l, shape.first_query(), options_.window.value_or(kMeasuredRows));
    plan_.future = future_rows(shape.l, shape.T, shape.first_query());
    overrides_ = {options_.window, options_.sinks, options_.recent, std::nullopt};
    if (!options_.pool.empty()) overrides_.pool = parse_pooling(options_.pool);
    read_given();
    choose_budgets();
    choose_semantics();
    for (const std::string& text : options_.phases) add_once(phases_, parse_phase(text), &Phase::name);
    add_policies();
    pair_semantics();
    add_given_kept();
    if (plan_.cases.empty()) throw InputError(fmt::format("nothing to simulate: {}", left_out_text()));
    if (plan_.future.count() == 0)
      plan_.left_out.push_back({"the metrics on future rows, eviction_loss, optimality_gap, oracle_recall",
                                "they need decoding steps with queries, and the dump has none"});
    if (!dump_.has(Tensor::wo))
      plan_.left_out.push_back({"layer_output_error", "it needs the output projection wo.npy"});
    return std::move(plan_);
  }

 private:
  static constexpr Index kMeasuredRows = 32;

  template <class Item, class Name>
  static void add_once(std::vector<Item>& items, Item item, Name name) {
    for (const Item& there : items)
      if ((there.*name)() == (item.*name)()) return;
    items.push_back(std::move(item));
  }

  void read_given() {
    const DumpShape& shape = dump_.shape();
    plan_.scores = read_given_scores(options_.scores, shape);
    plan_.kept = read_given_kept(options_.kept, shape);
  }

  void choose_budgets() {
    const Index l = dump_.shape().l;
    for (const Index tokens : options_.budgets) {
      if (tokens < 0 || tokens > l)
        throw InputError("--budget", fmt::format("0 to {} tokens, the prompt's length", l),
                         fmt::format("{}", tokens));
      add_once(plan_.budgets, Budget{tokens, 0}, &Budget::label);
    }
    if (!options_.budgets.empty()) return;
    for (const double sigma : options_.sigmas) {
      check_sigma("--sigma", sigma);
      add_once(plan_.budgets, Budget{std::nullopt, sigma}, &Budget::label);
    }
    if (plan_.budgets.empty()) throw InputError("--sigma", "compression ratios", "none");
  }

  void choose_semantics() {
    const auto add = [&](const std::string& option, const std::string& name) {
      const Semantics semantics = parse_semantics(option, name);
      if (std::find(plan_.semantics.begin(), plan_.semantics.end(), semantics) == plan_.semantics.end())
        plan_.semantics.push_back(semantics);
    };
    for (const std::string& name : options_.diff) add("--diff", name);
    if (options_.diff.empty()) add("--semantics", options_.semantics);
    if (!options_.diff.empty() && plan_.semantics.size() < 2)
      throw InputError("--diff", "two or three of paper, official, kvpress",
                       fmt::format("{}", fmt::join(options_.diff, ",")));
  }

  void add_policies() {
    const DumpShape& shape = dump_.shape();
    std::vector<std::string> seen;
    for (const std::string& text : options_.policies) {
      if (std::find(seen.begin(), seen.end(), text) != seen.end()) continue;
      seen.push_back(text);
      const Policy policy = parse_policy(text, plan_.scores);
      for (const Semantics semantics : plan_.semantics) {
        PolicyRun run{policy, semantics, {}};
        for (const Budget& budget : plan_.budgets)
          run.rules.push_back(rule_of(policy, semantics, overrides_, shape.l, budget.kept(shape.l, semantics),
                                      dump_.has(Tensor::wo)));
        auto why = why_unavailable(run.rules.front(), plan_, dump_);
        if (why && !options_.most_rows)
          throw InputError(fmt::format("--policy: {} is unavailable: {}", text, *why));
        if (!why && options_.most_rows && run.rules.front().window > *options_.most_rows)
          why = fmt::format("it needs the attention of all {} prompt rows (evict computes it when asked)",
                            run.rules.front().window);
        if (why) {
          plan_.left_out.push_back({text, *why});
          continue;
        }
        check_pins(run);
        note_window(run.rules.front());
        add_cases(run);
      }
    }
  }

  void check_pins(const PolicyRun& run) {
    for (std::size_t b = 0; b < run.rules.size(); ++b) {
      const EvictionRule& rule = run.rules[b];
      const Index kept = plan_.budgets[b].kept(dump_.shape().l, run.semantics);
      if (!rule.pins_exceed(kept)) continue;
      const Index asked = options_.sinks.value_or(0) + options_.recent.value_or(0);
      if ((options_.sinks || options_.recent) && asked > kept)
        throw InputError("--sinks and --recent",
                         fmt::format("at most the budget of {} tokens together", kept),
                         fmt::format("{}", asked));
      if (rule.policy.base == Base::streaming && kept >= rule.sinks) continue;
      plan_.notes.push_back(fmt::format(
          "{} ({}) at budget {}: its {} pinned tokens are cut to the {} kept, sinks first, then the most "
          "recent",
          run.policy.name, name_of(run.semantics), plan_.budgets[b].label(), rule.sinks + rule.recent, kept));
    }
  }

  void note_window(const EvictionRule& rule) {
    const DumpShape& shape = dump_.shape();
    if (!rule.metric || kind_of(*rule.metric) == MetricKind::oracle) return;
    const Index rows = window_rows(shape.l, shape.first_query(), rule.window).count();
    if (rows > 0 && rows < rule.window && *rule.metric != TokenMetric::knorm &&
        *rule.metric != TokenMetric::keydiff)
      plan_.notes.push_back(
          fmt::format("{}: window {} clipped to {}: the dump holds the queries of {} prompt "
                      "positions",
                      rule.policy.name, rule.window, rows, rows));
  }

  void add_cases(const PolicyRun& run) {
    const EvictionRule& rule = run.rules.front();
    const std::size_t number = plan_.runs.size();
    bool used = false;
    for (const Phase& phase : phases_) {
      std::optional<std::string> why;
      if (phase.kind == Phase::Kind::blockwise) why = why_not_in_blocks(rule);
      if (phase.kind == Phase::Kind::blockwise && !why && dump_.shape().first_query() > 0)
        why = "the dump does not hold the queries of every block";
      if (phase.decodes()) why = why_not_in_decoding(rule);
      if (phase.decodes() && !why && plan_.future.count() == 0)
        why = "the dump has no decoding steps with queries";
      if (why) {
        plan_.left_out.push_back(
            {fmt::format("{} ({}) in phase {}", run.policy.name, name_of(run.semantics), phase.name()),
             *why});
        continue;
      }
      used = true;
      for (std::size_t b = 0; b < plan_.budgets.size(); ++b)
        plan_.cases.push_back({run.policy.name, number, b, phase,
                               plan_.budgets[b].kept(dump_.shape().l, run.semantics),
                               std::string(name_of(run.semantics)), plan_.budgets[b].label()});
    }
    if (used) plan_.runs.push_back(run);
  }

  void pair_semantics() {
    const std::vector<EvictionCase>& cases = plan_.cases;
    for (std::size_t a = 0; a < cases.size(); ++a)
      for (std::size_t b = a + 1; b < cases.size(); ++b)
        if (cases[a].policy == cases[b].policy && cases[a].budget == cases[b].budget &&
            cases[a].phase.name() == cases[b].phase.name())
          plan_.pairs.push_back({a, b});
  }

  void add_given_kept() {
    for (std::size_t k = 0; k < plan_.kept.size(); ++k)
      plan_.cases.push_back(
          {plan_.kept[k].name, std::nullopt, k, {}, common_count(plan_.kept[k], dump_.shape()), "given", ""});
  }

  std::string left_out_text() const {
    std::vector<std::string> lines = left_out_lines(plan_.left_out);
    return lines.empty() ? "no policy and no kept set" : fmt::format("{}", fmt::join(lines, "; "));
  }

  const Dump& dump_;
  const EvictionOptions& options_;
  EvictionPlan plan_;
  PolicyOverrides overrides_;
  std::vector<Phase> phases_;
};

}  // namespace

std::string Phase::name() const {
  switch (kind) {
    case Kind::prefill:
      return "prefill";
    case Kind::blockwise:
      return fmt::format("blockwise:{}", block);
    case Kind::decode:
      return "decode";
    case Kind::append_only:
      return "append-only";
  }
  return "";
}

std::string Budget::label() const { return tokens ? fmt::format("{}", *tokens) : shortest(sigma); }

std::string EvictionCase::file_name() const {
  std::string phase_name = phase.name();
  std::replace(phase_name.begin(), phase_name.end(), ':', '_');
  return fmt::format("{}-{}-{}-{}", policy, semantics, phase_name,
                     kept ? fmt::format("{}", *kept) : std::string("mixed"));
}

std::string EvictionCase::decode_name() const {
  return phase.kind == Phase::Kind::append_only ? policy + "~append-only" : policy;
}

Pooling parse_pooling(const std::string& text) {
  if (text == "none") return {};
  const auto colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const Index width =
      colon == std::string::npos ? 0 : whole(std::string_view(text).substr(colon + 1)).value_or(0);
  if ((kind != "max" && kind != "avg") || width < 1 || width % 2 == 0)
    throw InputError("--pool", "max:N or avg:N with an odd N, or none", fmt::format("'{}'", text));
  return {kind == "max" ? Pooling::Kind::max : Pooling::Kind::avg, width};
}

void check_sigma(const std::string& option, double sigma) {
  if (!(sigma > 0 && sigma < 1))
    throw InputError(option, "compression ratios between 0 and 1, both excluded", shortest(sigma));
}

EvictionPlan eviction_plan(const Dump& dump, const EvictionOptions& options) {
  return Planner(dump, options).plan();
}

}  // namespace kvreplay
