#include "analysis/eviction/eviction_plan.hpp"

#include "analysis/channels/channel_plan.hpp"
#include "analysis/given/given_arrays.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/map_name.hpp"
#include "data/error.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "sim/gradient_rows.hpp"
#include "sim/loss/change_loss.hpp"
#include "sim/tokens/leverage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>

namespace kvreplay {
namespace {

/// A policy's requirement that the dump does not meet, as one clause; nothing if it meets all.
std::optional<std::string> why_unavailable(const EvictionRule& rule, const EvictionPlan& plan,
                                           const Dump& dump) {
  if (rule.two_stages && !dump.projects_values())
    return "it needs the output projection alone behind the heads, and the dump has " +
           std::string(dump.has(Tensor::wo) ? "a norm or a gate before it" : "none");
  if (rule.greedy_by() == SearchBy::leverage)
    if (auto why = why_no_leverage(dump)) return why;
  if (rule.by && rule.by != SearchBy::leverage && plan.search_rows(SearchBy::error).count() == 0)
    return plan.on_future ? "it needs decoding steps with queries, and the dump has none"
                          : "the dump holds no query of the prompt";
  if (rule.by == SearchBy::loss || rule.greedy_by() == SearchBy::loss)
    if (const auto why = why_no_loss(dump, plan.on_future ? Tensor::g_future : Tensor::g_window,
                                     plan.search_rows(SearchBy::error)))
      return why;
  if (rule.reads == ReadBy::heavy_channels && dump.shape().first_query() >= dump.shape().l)
    return "its channels are chosen by the prompt's queries, and the dump holds none";
  return rule.metric ? why_unavailable(*rule.metric, dump) : std::nullopt;
}

/// The compression that the options channels and bits request; nothing if neither was given. Throws
/// OptionError for key formats that do not allow pruned channels, for a method whose input the dump lacks,
/// and for a phase that decodes. `window` selects the queries that rank channels.
std::optional<Compression> compression_of(const Dump& dump, const EvictionOptions& options,
                                          const std::vector<Phase>& phases, RowRange window) {
  if (!options.channels && options.stored.formats.empty()) return std::nullopt;
  Compression compression;
  if (options.channels) {
    const auto& [rule, ratio] = *options.channels;
    compression.channels = rule;
    compression.ratio = ratio;
    if (rule.recent)
      throw OptionError(evict_option::channels,
                        option_text("a method whose recent keys {} says", evict_option::recent),
                        fmt::format("'{}'", rule.name));
    if (options.recent) compression.recent = options.recent->of(dump.shape().l);
    compression.protection = rule.protection ? rule.protection : options.protect;
    if (const auto& share = options.protect)
      check_protection(evict_option::protect, *share, OptionValue<Protection>::text(*share));
    if (window.count() == 0)
      throw OptionError(option_text("{}: channels are ranked by queries of the prompt, and the dump has none",
                                    evict_option::channels));
    if (const auto why = why_no_rope_pairs(dump); rule.needs_rope() && why)
      throw OptionError(option_text("{}: {} is unavailable: {}", evict_option::channels, rule.name, *why));
  }
  compression.formats =
      cache_format_runs(options.stored, dump.shape(), evict_option::bits, evict_option::rotate);
  for (const CacheFormatRun& run : compression.formats)
    for (const Quantization& stored : run.of_layers)
      if (options.channels &&
          (stored.k.turned > 0 || stored.k.centered ||
           (stored.k.format != NumberFormat::exact && !kNumberFormats[stored.k.format].uniform)))
        throw OptionError(option_text("{} and {}", evict_option::channels, evict_option::bits),
                          "keys in 2 to 8 bits that nothing turns or centers, which can lack channels",
                          run.name);
  for (const Phase& phase : phases)
    if (phase.decodes())
      throw OptionError(option_text("{} and {}", evict_option::channels, evict_option::bits),
                        "phases that end with the prompt (prefill, blockwise:N)", phase.name());
  return compression;
}

/// Notes on data that the plan's compression leaves unchanged and on behaviour that may surprise; one line
/// each.
std::vector<OptionText> compression_notes(const EvictionPlan& plan, const DumpShape& shape) {
  const bool channels = plan.compression->channels.has_value();
  std::vector<std::string> whole, exact, keys;  // numbers of tokens kept
  std::vector<OptionText> notes;
  const auto add = [](std::vector<std::string>& to, Index kept) { place_in(to, std::to_string(kept)); };
  for (const EvictionCase& which : plan.cases) {
    if (!which.kept || *which.kept == 0) continue;
    if (channels && *which.kept <= plan.compression->recent_of(semantics_of(plan, which)))
      add(whole, *which.kept);
    if (plan.compression->formats.empty()) continue;
    const Quantization& stored = plan.compression->formats[which.format].of_layers.front();
    if (*which.kept <= stored.residual)
      add(exact, *which.kept);
    else if (stored.k.per_channel && quantized_keys(*which.kept, stored) == 0)
      add(keys, *which.kept);
  }
  const auto note = [&](const std::vector<std::string>& kept, const OptionText& what) {
    if (!kept.empty()) notes.push_back(option_text("with {} tokens kept {}", fmt::join(kept, ", "), what));
  };
  note(whole, fmt::format("no key loses channels: the last {} stay whole",
                          plan.compression->recent_of(Semantics::paper)));
  if (!plan.compression->formats.empty()) {
    const Quantization& stored = plan.compression->formats.front().of_layers.front();
    note(exact, option_text("nothing is quantized: the last {} stay as they are ({})", stored.residual,
                            evict_option::residual));
    note(keys, option_text("no key is quantized: they do not fill a group of {} ({})", stored.group,
                           evict_option::group));
  }
  const auto official = [&](const EvictionCase& which) {
    return semantics_of(plan, which) == Semantics::official;
  };
  if (channels && shape.group() > 1 && !plan.per_query_head && std::ranges::any_of(plan.cases, official))
    notes.push_back(
        option_text("official: channels are chosen for every KV head; ThinK's code repeats the cache for "
                    "each query head ({})",
                    evict_option::per_query_head));
  return notes;
}

class Planner {
 public:
  Planner(const Dump& dump, const EvictionOptions& options) : dump_(dump), options_(options) {}

  EvictionPlan of_kept(std::vector<GivenArray<std::uint8_t>> kept) {
    choose_rows();
    plan_.kept = std::move(kept);
    add_given_kept();
    add_windowed_layers();
    return std::move(plan_);
  }

  EvictionPlan plan() {
    choose_rows();
    overrides_.window = options_.window;
    overrides_.sinks = options_.sinks;
    overrides_.recent = options_.recent;
    overrides_.pool = options_.pool;
    overrides_.by = options_.by;
    overrides_.seed = options_.seed;
    if (options_.pool) check_pooling(evict_option::pool, *options_.pool);
    if (options_.recipes.empty())
      choose_cases();
    else
      take_recipes();
    for (auto& [what, why] : formats_left_out(options_.stored, dump_.shape()))
      plan_.left_out.push_back({std::move(what), std::move(why)});
    if (plan_.compression)
      for (OptionText& note : compression_notes(plan_, dump_.shape())) plan_.notes.push_back(std::move(note));
    add_windowed_layers();
    if (plan_.cases.empty()) throw InputError(fmt::format("nothing to simulate: {}", left_out_text()));
    if (plan_.future.count() == 0)
      plan_.left_out.push_back({"the metrics on future rows, eviction_loss, optimality_gap, oracle_recall",
                                "they need decoding steps with queries, and the dump has none"});
    if (!dump_.has(Tensor::wo))
      plan_.left_out.push_back({"layer_output_error", "it needs the output projection wo.npy"});
    for (LeftOut& losses : losses_left_out(dump_, plan_.window, plan_.future))
      plan_.left_out.push_back(std::move(losses));
    for (const std::string& note : loss_notes(dump_, plan_.window, plan_.future)) plan_.notes.push_back(note);
    return std::move(plan_);
  }

 private:
  void choose_cases() {
    take_given();
    choose_budgets();
    for (const Phase& phase : options_.phases) add_once(phases_, phase, &Phase::name);
    plan_.compression = compression_of(dump_, options_, phases_, plan_.window);
    add_policies();
    for (const auto& [what, policies] : cut_pins_)
      plan_.notes.push_back(fmt::format("{}, cut to it, first positions first, then the most recent: {}",
                                        what, fmt::join(policies, ", ")));
    for (const auto& [what, policies] : short_pages_)
      plan_.notes.push_back(fmt::format("{}: {}", what, fmt::join(policies, ", ")));
    note_choices();
    pair_semantics();
    add_given_kept();
    if (!plan_.compression) return add_key_probes();
    add_whole_prompt();
    for_each_format();
  }

  /// The whole prompt with keys in kKeyProbe, as they are, rotated, centered, and both.
  void add_key_probes() {
    const auto decodes = [](const Phase& phase) { return phase.decodes(); };
    if (!options_.probe_keys || options_.per_query_head || !options_.compensate.empty() ||
        std::ranges::any_of(phases_, decodes) ||
        dump_.shape().d % kNumberFormats[NumberFormat::q4_0].block != 0)
      return;
    const auto parsed = [](const OptionFacts& option, auto as, const char* word) {
      return OptionValue<decltype(as)>::parse(option, word);
    };
    CacheFormatOptions probed;
    probed.formats = {parsed(evict_option::bits, CacheFormat(), kKeyProbe.data())};
    probed.rotations.push_back(parsed(evict_option::rotate, Rotation(), "hadamard"));
    probed.centerings.push_back(parsed(evict_option::center, Centering(), "k"));
    plan_.probes = cache_format_runs(probed, dump_.shape(), evict_option::bits, evict_option::rotate);
    for (std::size_t n = 0; n < plan_.probes.size(); ++n) {
      EvictionCase& one = plan_.cases.emplace_back(whole_prompt(plan_.semantics.front()));
      one.policy += "~" + plan_.probes[n].name;
      one.probe = n;
    }
  }

  /// Sets the prompt's length and the rows on which kept sets are measured.
  void choose_rows() {
    const DumpShape& shape = dump_.shape();
    for (Index layer = 0; layer < shape.layers; ++layer)
      plan_.l = std::max(plan_.l, dump_.rule(layer).held(shape.l));
    plan_.with_residual = dump_.has(Tensor::residual_norm);
    plan_.on_future = options_.on == SearchRows::future;
    plan_.per_query_head = options_.per_query_head;
    plan_.ties = options_.ties;
    plan_.decode_window = options_.decode_window;
    plan_.prompt = options_.prompt;
    plan_.window_asked = options_.window.value_or(kMeasuredRows).of(shape.l);
    plan_.window = window_rows(shape.l, shape.first_query(), plan_.window_asked);
    plan_.future = future_rows(shape.l, shape.T, shape.first_query());
    plan_.losses = LossRows::of(dump_, plan_.window, plan_.future);
    plan_.semantics = options_.semantics;
    plan_.reserves = options_.windows == WindowBytes::reserved;
  }

  template <class Item, class Name>
  static void add_once(std::vector<Item>& items, Item item, Name name) {
    for (const Item& there : items)
      if ((there.*name)() == (item.*name)()) return;
    items.push_back(std::move(item));
  }

  void take_given() {
    plan_.scores = read_given<double>(evict_option::score, options_.scores, dump_, options_.per_query_head);
    plan_.kept = read_given<std::uint8_t>(evict_option::kept, options_.kept, dump_, options_.per_query_head);
    join_readers(plan_.scores, dump_);
    require_joint(evict_option::kept, plan_.kept, dump_);
    for (std::size_t s = 0; s < plan_.scores.size(); ++s) {
      const std::string& name = plan_.scores[s].name;
      if (std::ranges::none_of(options_.policies,
                               [&](const PolicyChoice& choice) { return choice && choice->given == s; }))
        throw OptionError(option_text("{} {}: no policy uses it: {} {}, or {}", evict_option::score, name,
                                      evict_option::policy, policy_name(name_of(EvictionBase::score), name),
                                      policy_name(name_of(EvictionBase::snapkv), name)));
    }
  }

  void choose_budgets() {
    const Index l = dump_.shape().l;
    for (const Budget& budget : options_.budgets) {
      if (!budget.tokens)
        check_sigma(evict_option::sigma, budget.sigma);
      else if (*budget.tokens < 0 || *budget.tokens > l)
        throw OptionError(budget.asked_by != nullptr ? *budget.asked_by : evict_option::budget,
                          fmt::format("at most {} tokens, the prompt's length", l),
                          fmt::format("{}", *budget.tokens));
      add_once(plan_.budgets, budget, &Budget::label);
    }
    if (plan_.budgets.empty()) throw OptionError(evict_option::sigma, "compression ratios", "none");
  }

  void add_policies() {
    // Default policies whose input the dump lacks are left out. Policies requested by name are refused.
    const EvictionOptions usual;
    const bool asked = !options_.quick && options_.policies != usual.policies;
    std::vector<std::string> seen;
    for (const PolicyChoice& choice : options_.policies) {
      if (!choice || is_in(seen, choice->name)) continue;
      const Policy& policy = *choice;
      seen.push_back(policy.name);
      for (const Semantics semantics : plan_.semantics) {
        PolicyRun run = run_of(policy, semantics);
        auto why = why_unavailable(run.rules.front(), plan_, dump_);
        if (why && asked) refuse_unavailable(policy, *why);
        if (!why && options_.quick) why = why_slow(run.rules.front(), *options_.quick);
        if (why) {
          plan_.left_out.push_back({policy.name, *why});
          continue;
        }
        check_pins(run);
        note_window(run.rules.front());
        add_cases(run);
      }
    }
  }

  [[noreturn]] static void refuse_unavailable(const Policy& policy, const std::string& why) {
    throw OptionError(option_text("{}: {} is unavailable: {}", evict_option::policy, policy.name, why));
  }

  /// A policy's rules at all budgets, for a cache that holds the last `held` tokens of the prompt. The
  /// prompt's first positions are pinned if the cache holds them.
  PolicyRun run_for(const Policy& policy, Semantics semantics, Index held) const {
    PolicyRun run{policy, semantics, {}};
    for (const Budget& budget : plan_.budgets)
      run.rules.push_back(rule_of(policy, semantics, overrides_, held,
                                  kept_of(policy, semantics, budget, held), dump_.projects_values(),
                                  dump_.shape().l - held));
    if (policy.own.chunk) take_chunks(run, held);
    return run;
  }

  /// The rules for the layers that hold most. Throws OptionError if a policy's own options exceed the
  /// prompt.
  PolicyRun run_of(const Policy& policy, Semantics semantics) const {
    const DumpShape& shape = dump_.shape();
    PolicyRun run = run_for(policy, semantics, plan_.l);
    const EvictionRule& rule = run.rules.front();
    const auto refuse = [&](const OptionFacts& own, const std::string& expected, Index found) {
      throw OptionError(option_text("{}: '{}': {}", evict_option::policy, policy.name, own.name), expected,
                        fmt::format("{}", found));
    };
    if (policy.own.n_sink && rule.expected.n_sink >= shape.l)
      refuse(evict_option::n_sink, fmt::format("fewer than the prompt's {} tokens", shape.l),
             rule.expected.n_sink);
    if (rule.page > std::max<Index>(shape.l, 1))
      refuse(evict_option::page, fmt::format("at most the prompt's {} tokens", shape.l), rule.page);
    if (rule.r > shape.d)
      refuse(evict_option::r, fmt::format("at most the keys' {} channels", shape.d), *rule.r);
    return run;
  }

  /// --recipe: a case each, with a policy, a budget and a format of their own in every head.
  void take_recipes() {
    plan_.compression.emplace();
    std::vector<Recipe> recipes;
    for (const RecipeFile& named : options_.recipes) {
      require_own_name(evict_option::recipe, named.name);
      const std::string file = named.of_dump(dump_.name());
      const Recipe& recipe = recipes.emplace_back(read_recipe(file));
      require_of_dump(recipe, file, dump_);
      for (const PlannedRecipe& other : plan_.recipes)
        if (other.name == named.name)
          throw OptionError(evict_option::recipe, "one recipe of a name (name=FILE.json)",
                            fmt::format("'{}' twice", named.name));
      const std::string text = to_json(recipe).dump();
      plan_.recipes.push_back({named.name, contents_fingerprint(std::as_bytes(std::span(text))), {}});
      for (const Recipe::Layer& layer : recipe.layers)
        for (const Budget& budget : layer.budgets)
          if (budget.evicts()) add_once(plan_.budgets, budget, &Budget::label);
    }
    for (std::size_t r = 0; r < recipes.size(); ++r) add_recipe(recipes[r], r);
  }

  void add_recipe(const Recipe& recipe, std::size_t number) {
    PlannedRecipe& planned = plan_.recipes[number];
    CacheFormatRun& stored = plan_.compression->formats.emplace_back();
    stored.name = planned.name;
    std::set<Index> counts;
    for (const Recipe::Layer& layer : recipe.layers) {
      stored.of_layers.push_back(layer.stored);
      std::vector<PlannedRecipe::Head>& heads = planned.heads.emplace_back();
      for (const Budget& budget : layer.budgets) {
        PlannedRecipe::Head& head = heads.emplace_back();
        head.kept = plan_.l;
        if (budget.evicts()) {
          head.run = number_of_run(*layer.policy, layer.semantics);
          head.budget = static_cast<std::size_t>(
              std::ranges::find(plan_.budgets, budget.label(), &Budget::label) - plan_.budgets.begin());
          head.kept = kept_of(*layer.policy, layer.semantics, plan_.budgets[head.budget]);
        }
        counts.insert(head.kept);
      }
    }
    read_centers(stored.of_layers, dump_.shape());
    EvictionCase& which = plan_.cases.emplace_back();
    which.policy = "recipe~" + planned.name;
    which.semantics = "given";
    which.format = which.recipe.emplace(number);
    if (counts.size() == 1) which.kept = *counts.begin();
  }

  std::size_t number_of_run(const Policy& policy, Semantics semantics) {
    for (std::size_t r = 0; r < plan_.runs.size(); ++r)
      if (plan_.runs[r].policy == policy && plan_.runs[r].semantics == semantics) return r;
    PolicyRun run = run_of(policy, semantics);
    if (const auto why = why_unavailable(run.rules.front(), plan_, dump_)) refuse_unavailable(policy, *why);
    note_window(run.rules.front());
    plan_.runs.push_back(std::move(run));
    return plan_.runs.size() - 1;
  }

  void take_chunks(PolicyRun& run, Index held) const {
    const std::string& name = run.policy.name;
    if (!dump_.tokens() || dump_.tokens()->text.empty())
      throw OptionError(
          option_text("{}: {} is unavailable: it needs the texts of the tokens, and the dump has none",
                      evict_option::policy, name));
    const Index l = dump_.shape().l;
    std::vector<Index> ends =
        chunk_ends(std::span(dump_.tokens()->text).first(static_cast<std::size_t>(l)), *run.policy.own.chunk);
    for (Index& end : ends) end -= l - held;
    std::erase_if(ends, [](Index end) { return end <= 0; });
    for (EvictionRule& rule : run.rules) rule.chunk_ends = ends;
  }

  std::optional<std::string> why_slow(const EvictionRule& rule, const EvictionOptions::Quick& quick) const {
    if (kBases[rule.policy.base].searches && dump_.shape().l > quick.longest_search)
      return fmt::format("its search takes long beyond {} tokens (evict runs it when asked)",
                         quick.longest_search);
    if (rule.window > quick.most_rows)
      return fmt::format("it needs the attention of all {} prompt rows (evict computes it when asked)",
                         rule.window);
    return std::nullopt;
  }

  void check_pins(const PolicyRun& run) {
    if (run.rules.front().threshold) return;
    for (std::size_t b = 0; b < run.rules.size(); ++b) {
      const EvictionRule& rule = run.rules[b];
      const Index l = plan_.l, kept = kept_of(run.policy, run.semantics, plan_.budgets[b]);
      const Index all = rule.sinks + rule.recent == 0 && rule.reads
                            ? 0
                            : pinned_tokens(rule.sinks, rule.recent, rule.page, l);
      if (all <= kept) continue;
      const PolicyOverrides& own = run.policy.own;
      const PolicyOverrides asked = own.before(overrides_);
      const auto of_prompt = [&](const std::optional<Positions>& positions) {
        return positions ? positions->of(l) : 0;
      };
      const Index pinned = asked.sinks || asked.recent
                               ? pinned_tokens(of_prompt(asked.sinks), of_prompt(asked.recent), rule.page, l)
                               : 0;
      if (pinned > kept)
        throw OptionError(
            own.sinks || own.recent || rule.page > 1
                ? option_text("{}: '{}': sinks and recent", evict_option::policy, run.policy.name)
                : option_text("{} and {}", evict_option::sinks, evict_option::recent),
            fmt::format("at most the budget of {} tokens{} together", kept,
                        rule.page > 1 ? " in whole pages" : ""),
            fmt::format("{}", pinned));
      if (kBases[rule.policy.base].pins_all && kept >= pinned_tokens(rule.sinks, 0, rule.page, l)) continue;
      cut_pins_[fmt::format("more is pinned ({}) than budget {} keeps ({})", all, plan_.budgets[b].label(),
                            kept)]
          .push_back(name_in_notes(run));
    }
  }

  std::string name_in_notes(const PolicyRun& run) const {
    if (plan_.semantics.size() < 2) return run.policy.name;
    return fmt::format("{} ({})", run.policy.name, name_of(run.semantics));
  }

  /// The number of tokens that a policy keeps at a budget, of a cache that holds `held` tokens.
  static Index kept_of(const Policy& policy, Semantics semantics, const Budget& budget, Index held) {
    return tokens_within(policy, std::min(budget.kept(held, semantics), held), held);
  }
  Index kept_of(const Policy& policy, Semantics semantics, const Budget& budget) const {
    return kept_of(policy, semantics, budget, plan_.l);
  }

  /// Notes the tokens of the budgets that whole pages leave unused.
  void note_pages(const PolicyRun& run) {
    for (const Budget& budget : plan_.budgets) {
      const Index tokens = std::min(budget.kept(plan_.l, run.semantics), plan_.l),
                  kept = kept_of(run.policy, run.semantics, budget);
      if (kept < tokens)
        short_pages_[fmt::format("whole pages {} {} of the {} tokens of budget {}",
                                 kBases[run.policy.base].reads ? "let rows read" : "keep", kept, tokens,
                                 budget.label())]
            .push_back(name_in_notes(run));
    }
  }

  void note_window(const EvictionRule& rule) {
    const DumpShape& shape = dump_.shape();
    if (!rule.metric || !on_window(*rule.metric)) return;
    RowRange window = window_rows(shape.l, shape.first_query(), rule.window);
    const bool of_gradients = kTokenMetrics[*rule.metric].of_gradients;
    if (of_gradients) window = loss_rows(window, gradient_rows(dump_, Tensor::g_window));
    const Index rows = window.count();
    if (rows > 0 && rows < rule.window)
      plan_.notes.push_back(
          fmt::format("{}: window {} clipped to {}: the dump holds the {} of {} prompt positions",
                      rule.policy.name, rule.window, rows, of_gradients ? "gradients" : "queries", rows));
  }

  void add_cases(const PolicyRun& run) {
    const EvictionRule& rule = run.rules.front();
    const std::size_t number = plan_.runs.size();
    bool used = false;
    for (const Phase& phase : phases_) {
      std::optional<std::string> why;
      if (phase.kind == Phase::Kind::blockwise || rule.block > 0) why = why_not_in_blocks(rule);
      if (phase.kind == Phase::Kind::blockwise && !why && needs_rows(rule) && dump_.shape().first_query() > 0)
        why = "the dump does not hold the queries of every block";
      if (phase.decodes()) why = phase.block > 0 ? why_not_at_intervals(rule) : why_not_in_decoding(rule);
      if (phase.decodes() && phase.block > 0 && !why && needs_rows(rule) &&
          dump_.shape().first_query() > dump_.shape().l)
        why = "the dump does not hold the queries of every decoding step";
      if (phase.decodes() && !why && plan_.future.count() == 0)
        why = "the dump has no decoding steps with queries";
      if (phase.decodes() && !why && !causal())
        why = "its queries see later positions, and decoding has none yet";
      if (why) {
        plan_.left_out.push_back(
            {fmt::format("{} ({}) in phase {}", run.policy.name, name_of(run.semantics), phase.name()),
             *why});
        continue;
      }
      used = true;
      if (rule.threshold) {
        plan_.cases.push_back(
            {run.policy.name, number, 0, phase, std::nullopt, std::string(name_of(run.semantics)), ""});
        continue;
      }
      for (std::size_t b = 0; b < plan_.budgets.size(); ++b) {
        plan_.cases.push_back({run.policy.name, number, b, phase,
                               kept_of(run.policy, run.semantics, plan_.budgets[b]),
                               std::string(name_of(run.semantics)), plan_.budgets[b].label()});
      }
    }
    if (!used) return;
    if (!rule.threshold) note_pages(run);
    plan_.runs.push_back(run);
  }

  bool causal() const {
    for (Index layer = 0; layer < dump_.shape().layers; ++layer)
      if (!dump_.rule(layer).causal) return false;
    return true;
  }

  /// Choices that a user may not know to have made, or that come to nothing.
  void note_choices() {
    std::vector<std::string> reading;
    for (const EvictionCase& which : plan_.cases)
      if (plan_.reads(which) != nullptr) place_in(reading, which.policy);
    if (!reading.empty())
      plan_.notes.push_back(
          fmt::format("nothing is evicted, a budget is how many tokens of the prompt a row reads: {}",
                      fmt::join(reading, ", ")));
    const Index rows = plan_.window.count();
    if (rows < plan_.window_asked)
      plan_.notes.push_back(fmt::format("window rows measured: {} clipped to {}", plan_.window_asked, rows));
    const auto any_run = [&](const auto& which) { return std::ranges::any_of(plan_.runs, which); };
    if (dump_.shape().group() > 1 && !options_.per_query_head && any_run([](const PolicyRun& run) {
          return run.semantics == Semantics::official && run.policy.base == EvictionBase::snapkv;
        }))
      plan_.notes.push_back(
          option_text("official snapkv sums over the query heads of a KV head; its authors' code repeats the "
                      "cache for each ({})",
                      evict_option::per_query_head));
    // Leverage is of queries of its own.
    const auto searches_rows = [](const auto& facts) {
      return facts.searches && *facts.searches != SearchBy::leverage;
    };
    if (plan_.on_future &&
        !any_run([&](const PolicyRun& run) { return searches_rows(kBases[run.policy.base]); }))
      plan_.notes.push_back(option_text("{} has no effect: neither {} is among the policies",
                                        evict_option::on,
                                        fmt::join(kBases.names_where(searches_rows), " nor ")));
    const auto may_search_by = [](const auto& facts) { return facts.searches && !facts.greedy; };
    if (options_.by && !any_run([&](const PolicyRun& run) { return may_search_by(kBases[run.policy.base]); }))
      plan_.notes.push_back(option_text("{} has no effect: {} is not among the policies", evict_option::by,
                                        fmt::join(kBases.names_where(may_search_by), ", ")));
    if (options_.protect && !options_.channels)
      plan_.notes.push_back(
          option_text("{} has no effect: it is of {}", evict_option::protect, evict_option::channels));
    if (options_.decode_window &&
        std::ranges::none_of(phases_, [](const Phase& phase) { return phase.decodes(); }))
      plan_.notes.push_back(option_text("{} has no effect: no phase decodes", evict_option::decode_window));
    if (options_.prompt != PromptCache::cut &&
        std::ranges::none_of(phases_, [](const Phase& phase) { return phase.decodes(); }))
      plan_.notes.push_back(option_text("{} has no effect: no phase decodes", evict_option::prompt));
  }

  void pair_semantics() {
    const std::vector<EvictionCase>& cases = plan_.cases;
    for (std::size_t a = 0; a < cases.size(); ++a)
      for (std::size_t b = a + 1; b < cases.size(); ++b)
        if (plan_.reads(cases[a]) == nullptr && cases[a].policy == cases[b].policy &&
            cases[a].budget == cases[b].budget && cases[a].phase.name() == cases[b].phase.name())
          plan_.pairs.push_back({a, b});
  }

  void add_given_kept() {
    for (std::size_t k = 0; k < plan_.kept.size(); ++k)
      plan_.cases.push_back(
          {plan_.kept[k].name, std::nullopt, k, {}, common_count(plan_.kept[k], dump_.shape()), "given", ""});
  }

  /// --policy none: what channels and bits cost alone.
  void add_whole_prompt() {
    const auto& policies = options_.policies;
    if (!is_in(policies, std::nullopt)) return;
    for (const Semantics semantics : plan_.semantics) plan_.cases.push_back(whole_prompt(semantics));
  }
  EvictionCase whole_prompt(Semantics semantics) const {
    return {"none", std::nullopt, plan_.kept.size(), {}, plan_.l, std::string(name_of(semantics)), ""};
  }

  /// Adds plans for layers whose sliding window holds less of the prompt than another layer does.
  void add_windowed_layers() {
    const DumpShape& shape = dump_.shape();
    std::vector<Index> windowed;
    std::vector<EvictionPlan> plans;
    for (Index layer = 0; layer < shape.layers; ++layer) {
      const Index held = dump_.rule(layer).held(shape.l);
      if (held < shape.l) windowed.push_back(held);
      if (held < plan_.l && std::ranges::none_of(plans, [&](const EvictionPlan& p) { return p.l == held; }))
        plans.push_back(plan_for(held));
    }
    plan_.of_windowed = std::move(plans);
    if (windowed.empty()) return;
    const auto [least, most] = std::ranges::minmax(windowed);
    plan_.notes.push_back(option_text(
        "{} of {} layers hold the last {} of {} prompt tokens (sliding window): their budgets, kept tokens "
        "and bytes count {}",
        windowed.size(), shape.layers,
        least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most), shape.l,
        !plan_.reserves ? "these alone" : "these alone, but bytes all, as asked for"));
  }

  /// The plan with budgets and rules for layers that hold `held` tokens.
  EvictionPlan plan_for(Index held) const {
    EvictionPlan plan = plan_;
    plan.l = held;
    plan.scores.clear();  // the stage has them
    plan.kept.clear();
    plan.notes.clear();
    for (PolicyRun& run : plan.runs) run = run_for(run.policy, run.semantics, held);
    const auto kept = [&](std::size_t run, std::size_t budget) {
      return kept_of(plan.runs[run].policy, plan.runs[run].semantics, plan_.budgets[budget], held);
    };
    for (EvictionCase& which : plan.cases)
      if (which.kept) which.kept = which.run ? kept(*which.run, which.budget) : std::min(*which.kept, held);
    for (PlannedRecipe& recipe : plan.recipes)
      for (std::vector<PlannedRecipe::Head>& heads : recipe.heads)
        for (PlannedRecipe::Head& head : heads) head.kept = head.run ? kept(*head.run, head.budget) : held;
    return plan;
  }

  /// Every case once for every format, named after it where there are several.
  void for_each_format() {
    const std::vector<CacheFormatRun>& formats = plan_.compression->formats;
    if (formats.size() < 2) return;
    const std::vector<EvictionCase> cases = std::exchange(plan_.cases, {});
    for (const EvictionCase& which : cases)
      for (std::size_t f = 0; f < formats.size(); ++f) {
        EvictionCase& one = plan_.cases.emplace_back(which);
        one.policy += "~" + formats[f].name;
        one.format = f;
      }
    const std::vector<SemanticsPair> pairs = std::exchange(plan_.pairs, {});
    for (const SemanticsPair& pair : pairs)
      for (std::size_t f = 0; f < formats.size(); ++f)
        plan_.pairs.push_back({pair.first * formats.size() + f, pair.second * formats.size() + f});
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
  // Policies, by what is cut, and by what is left.
  std::map<std::string, std::vector<std::string>> cut_pins_, short_pages_;
};

}  // namespace

Semantics semantics_of(const EvictionPlan& plan, const EvictionCase& which) {
  return kSemantics.named(which.semantics).value_or(plan.semantics.front());
}

std::string EvictionCase::file_name() const {
  return fmt::format("{}-{}-{}-{}", file_word(policy), semantics, phase.file_name(),
                     kept ? fmt::format("{}", *kept) : std::string("mixed"));
}

std::string EvictionCase::decode_name() const {
  return phase.kind == Phase::Kind::append_only || phase.block > 0 ? policy + "~" + phase.name() : policy;
}

EvictionPlan eviction_plan(const Dump& dump, const EvictionOptions& options) {
  return Planner(dump, options).plan();
}

EvictionPlan plan_of_kept(const Dump& dump, const EvictionOptions& options,
                          std::vector<GivenArray<std::uint8_t>> kept) {
  return Planner(dump, options).of_kept(std::move(kept));
}

}  // namespace kvreplay
