#include "analysis/budgets/budget_plan.hpp"
#include "analysis/conform/parts.hpp"
#include "analysis/conform/rounding.hpp"
#include "analysis/results/figures.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

namespace kvreplay::conform {

namespace {

constexpr std::string_view kNumbers = "numbers";  // the aspect of what scores are rounded to
/// A search goes on from so many of the best readings, which depart in so many aspects at most.
constexpr std::size_t kBeam = 4, kMostDeviations = 3;
/// A departure more has to explain so much of what is left; less than that is chance.
constexpr double kExplained = 0.25;

class Deviations {
 public:
  Deviations(const ReadingSetting& setting, const Reading& meant, const FoundShape& found)
      : setting_(setting), meant_(meant), found_(found), attention_(needs_rows(meant.rule)) {}

  std::vector<Deviation> all() {
    other_policies();
    other_semantics();
    if (meant_.division || setting_.n_kv > 1) divisions();
    rows();
    places();
    if (attention_) logits();
    pooling();
    pins();
    if (!meant_.division) budgets();
    selection();
    return std::move(all_);
  }

 private:
  void add(std::string aspect, std::string text, std::function<void(Reading&)> apply, bool is_name = false) {
    all_.push_back({std::move(aspect), std::move(text), std::move(apply), is_name});
  }
  /// Adds a deviation that puts `other` in place of the number `now`. Adds nothing if the two are equal,
  /// `other` is negative, or a deviation with this text exists.
  template <class Set>
  void add_number(const char* aspect, const char* text, Index now, Index other, const Set& set) {
    if (other == now || other < 0) return;
    const std::string said = fmt::format(fmt::runtime(text), other);
    if (std::ranges::none_of(all_, [&](const Deviation& there) { return there.text == said; }))
      add(aspect, said, [set, other](Reading& reading) { set(reading, other); });
  }

  /// Keeps what departs apart from the policy; applied first.
  void replace(const std::string& aspect, const std::string& text, const Policy& policy, Semantics semantics,
               bool is_name) {
    const Reading other = reading_of(setting_, policy, semantics);
    add(
        aspect, text,
        [other](Reading& reading) {
          reading.rule = other.rule;
          reading.budget = other.budget;
          reading.divides = other.divides;
        },
        is_name);
  }

  void other_policies() {
    const Policy& own = setting_.policy;
    std::vector<std::string> names;
    const std::string base(name_of(own.base));
    if ((own.metric || own.given) && !kBases[own.base].alone) names.push_back(base);
    if (kBases[own.base].takes_score)
      for (const TokenMetric score : {TokenMetric::attn_sq, TokenMetric::value, TokenMetric::key,
                                      TokenMetric::joint, TokenMetric::caote})
        names.push_back(policy_name(base, name_of(score)));
    for (const EvictionBase other :
         {EvictionBase::streaming, EvictionBase::h2o, EvictionBase::tova, EvictionBase::snapkv,
          EvictionBase::knorm, EvictionBase::keydiff, EvictionBase::expected_attention})
      names.emplace_back(name_of(other));
    for (const std::string& name : names) {
      if (name == own.name.substr(0, own.name.find('['))) continue;
      const Policy policy = parse_policy(name, {});
      if (setting_.available(policy)) replace("policy", name, policy, setting_.semantics, true);
    }
  }

  /// Adds the other semantics. Semantics that give equal readings are listed as one.
  void other_semantics() {
    struct Other {
      Semantics first;
      std::vector<std::string> names;
    };
    std::vector<std::pair<Reading, Other>> others;
    const auto made_of = [](const Reading& reading) {
      const EvictionRule& r = reading.rule;
      return std::tuple(r.window, r.pool, r.sinks, r.recent, r.block, r.per_visible_row, r.shared_by_layer,
                        r.pins_in_first, r.least_in_first, r.expected);
    };
    for (const SemanticsFacts& facts : kSemantics) {
      if (facts.id == setting_.semantics) continue;
      const Reading other = reading_of(setting_, setting_.policy, facts.id);
      if (made_of(other) == made_of(meant_) && other.budget == meant_.budget) continue;
      const auto same = std::ranges::find_if(others, [&](const auto& one) {
        return made_of(one.first) == made_of(other) && one.first.budget == other.budget;
      });
      if (same == others.end())
        others.emplace_back(other, Other{facts.id, {std::string(facts.name)}});
      else
        same->second.names.emplace_back(facts.name);
    }
    for (const auto& [reading, other] : others)
      replace(
          "semantics",
          fmt::format("{} {}",
                      made_of(reading) == made_of(meant_) ? "the budget rounded as in" : "the settings of",
                      fmt::join(other.names, ", ")),
          setting_.policy, other.first, false);
  }

  void divisions() {
    const auto divide = [&](const BudgetMethod method, std::optional<double> alpha, const std::string& text) {
      BudgetDivision division(method);
      division.alpha = alpha;
      add("division", text, [division](Reading& reading) { reading.division = division; });
    };
    if (!meant_.division) {
      divide(BudgetMethod::ada, {}, "the budget divided as AdaKV does");
      divide(BudgetMethod::pyramid, {}, "the budget divided as PyramidKV does");
      return;
    }
    add("division", "the budget divided evenly", [](Reading& reading) { reading.division.reset(); });
    if (meant_.division->method != BudgetMethod::ada) return;
    add("division", "the sign of the score turned where the budget is divided",
        [](Reading& reading) { reading.divided_by_negated = true; });
    for (const double alpha : {0.0, 0.2, 0.5, 1.0})
      if (alpha != meant_.division->alpha) divide(BudgetMethod::ada, alpha, fmt::format("alpha = {}", alpha));
  }

  void rows() {
    const EvictionRule& rule = meant_.rule;
    if (rule.metric && on_window(*rule.metric)) {
      const bool pinned = rule.recent == rule.window;
      const auto set = [pinned](Reading& reading, Index window) {
        if (pinned && window < reading.budget) reading.rule.recent = window;
        reading.rule.window = reading.rule.pool_window = window;
      };
      for (const Index window : {rule.window - 1,
                                 rule.window + 1,
                                 rule.window / 2,
                                 2 * rule.window,
                                 Index{1},
                                 Index{8},
                                 Index{16},
                                 Index{32},
                                 Index{64},
                                 Index{128},
                                 Index{4},
                                 Index{12},
                                 Index{20},
                                 Index{24},
                                 Index{28},
                                 Index{40},
                                 Index{48},
                                 Index{96},
                                 setting_.l,
                                 pinned ? found_.trailing : 0,
                                 pinned ? found_.trailing - 1 : 0})
        if (window >= 1 && window <= setting_.rows)
          add_number("window", "window = {}", rule.window, window, set);
      const bool per_row = rule.per_visible_row;
      add("rows",
          per_row ? "sums not divided by the rows that see a token"
                  : "sums divided by the rows that see a token",
          [per_row](Reading& reading) { reading.rule.per_visible_row = !per_row; });
    }
    if (setting_.n_kv > 1 && (rule.metric || rule.given)) {
      const bool shared = rule.shared_by_layer;
      add("heads", shared ? "a ranking for each KV head" : "one ranking for all heads of a layer",
          [shared](Reading& reading) { reading.rule.shared_by_layer = !shared; });
    }
  }

  /// Deviations that keep the tokens chosen for another cache.
  void places() {
    if (!meant_.rule.metric && !meant_.rule.given) return;
    const auto add_place = [&](const char* text, auto member, Index by) {
      add("place", text, [member, by](Reading& reading) { reading.*member = by; });
    };
    if (setting_.n_kv > 1) add_place("the tokens of the next KV head", &Reading::heads_on, 1);
    if (setting_.n_kv > 2) add_place("the tokens of the KV head before", &Reading::heads_on, -1);
    if (setting_.layers > 1) add_place("the tokens of the next layer", &Reading::layers_on, 1);
    if (setting_.layers > 2) add_place("the tokens of the layer before", &Reading::layers_on, -1);
  }

  void logits() {
    const auto set = [&](const char* aspect, const std::string& text, auto member, auto value) {
      add(aspect, text, [member, value](Reading& reading) { reading.inputs.*member = value; });
    };
    if (setting_.group > 1) {
      const bool pools = meant_.rule.pool.kind != Pooling::Kind::none;
      add("heads", "the largest score of the query heads, not their sum", [pools](Reading& reading) {
        reading.inputs.heads = QueryHeads::largest, reading.inputs.pools_heads = pools;
      });
      if (pools)
        set("heads", "the largest score of the query heads, before it is pooled", &Inputs::heads,
            QueryHeads::largest);
      set("heads", "the first query head's score alone", &Inputs::heads, QueryHeads::first);
      if (setting_.n_kv > 1 && setting_.own_caches)
        set("heads", fmt::format("query head h with KV head h mod {}", setting_.n_kv), &Inputs::heads,
            QueryHeads::dealt);
    }
    if (setting_.has_rope) {
      const auto turn = [&](const char* text, Index keys, Index queries) {
        add("rotation", text, [keys, queries](Reading& reading) {
          reading.inputs.key_turns = keys, reading.inputs.query_turns = queries;
        });
      };
      turn("keys before their rotation", 0, 1);
      turn("queries and keys before their rotation", 0, 0);
      turn("keys rotated twice", 2, 1);
      turn("queries and keys rotated twice", 2, 2);
    }
    set("logits", "logits that are not scaled", &Inputs::scalings, Index{0});
    set("logits", "logits scaled twice", &Inputs::scalings, Index{2});
    if (meant_.rule.metric == TokenMetric::attn)
      set("logits", "logits before the softmax", &Inputs::softmax, false);
    if (setting_.causal) set("mask", "no causal mask", &Inputs::causal, false);
    if (meant_.rule.metric && kTokenMetrics[*meant_.rule.metric].of_values && setting_.n_kv > 1)
      set("values", "the values of the next KV head", &Inputs::values_on, Index{1});
  }

  void pooling() {
    if (!meant_.rule.metric && !meant_.rule.given) return;
    const Pooling own = meant_.rule.pool;
    std::vector<Pooling> others = {{Pooling::Kind::none, 1}};
    for (const Pooling::Kind kind :
         {own.kind == Pooling::Kind::avg ? Pooling::Kind::max : Pooling::Kind::avg,
          own.kind == Pooling::Kind::avg ? Pooling::Kind::avg : Pooling::Kind::max})
      for (const Index width :
           {own.width, Index{3}, Index{5}, Index{7}, Index{9}, Index{11}, Index{13}, Index{21}})
        if (width > 1) place_in(others, Pooling{kind, width});
    for (const Pooling& pool : others)
      if (!(pool == own)) {
        const bool none = pool.kind == Pooling::Kind::none;
        const std::string text =
            none ? "no pooling" : fmt::format("pool = {}", OptionValue<Pooling>::text(pool));
        add("pool", text, [pool](Reading& reading) { reading.rule.pool = pool; });
        if (setting_.group > 1 && pool.kind == Pooling::Kind::max)  // which is not that of a sum
          add("pool", text + " of each query head",
              [pool](Reading& reading) { reading.rule.pool = pool, reading.inputs.pools_heads = true; });
      }
    if (setting_.group > 1 && own.kind == Pooling::Kind::max)
      add("pool", "each query head pooled by itself",
          [](Reading& reading) { reading.inputs.pools_heads = true; });
    if (own.kind != Pooling::Kind::none && meant_.rule.pool_window > 0)
      add("pool", "the window pooled too", [](Reading& reading) { reading.rule.pool_window = 0; });
  }

  void pins() {
    const EvictionRule& rule = meant_.rule;
    const auto recent = [](Reading& reading, Index n) { reading.rule.recent = n; };
    const auto sinks = [](Reading& reading, Index n) { reading.rule.sinks = n; };
    if (rule.recent > 0)
      add("recent", "the last tokens not protected", [](Reading& reading) { reading.rule.recent = 0; });
    const bool by_score = rule.metric || rule.given;
    for (const Index n : {Index{1}, rule.recent - 1, rule.recent + 1, 2 * rule.recent, meant_.budget / 4,
                          meant_.budget * 3 / 4, Index{8}, Index{16}, Index{32}, Index{64}, found_.trailing,
                          found_.trailing - 1, found_.trailing - 2})
      if (by_score && n > 0 && n < meant_.budget)
        add_number("recent", "the last {} protected", rule.recent, n, recent);
    if (rule.sinks > 0)
      add("sinks", "the first tokens not protected", [](Reading& reading) { reading.rule.sinks = 0; });
    for (const Index n : {Index{4}, Index{1}, Index{8}, found_.leading})
      if (n > 0 && n < meant_.budget) add_number("sinks", "the first {} protected", rule.sinks, n, sinks);
    for (const Index n : {Index{1}, Index{4}})
      add("sinks", fmt::format("the first {} never kept", n), [n](Reading& reading) {
        reading.rule.sinks = 0;
        reading.first_out = n;
      });
    for (const Index n : {Index{1}, Index{2}}) {
      const std::string which = n == 1 ? "the newest token" : fmt::format("the newest {} tokens", n);
      add("newest", which + " never kept", [n](Reading& reading) { reading.last_out = n; });
      if (meant_.budget > n)
        add("newest", which + " dropped, none in exchange",
            [n](Reading& reading) { reading.last_out = n, reading.budget -= n; });
    }
  }

  void budgets() {
    const EvictionRule& rule = meant_.rule;
    const Index own = meant_.budget, pinned = rule.recent, all = pinned + rule.sinks;
    const auto budget = [&](Index tokens, const std::string& text) {
      const auto same = [&](const Deviation& there) {
        return there.aspect == "budget" && there.text == text;
      };
      if (tokens < 0 || tokens > setting_.l || tokens == own || std::ranges::any_of(all_, same)) return;
      add("budget", text, [tokens](Reading& reading) { reading.budget = tokens; });
    };
    if (pinned > 0 && pinned < own) {
      budget(own + pinned, "the protected tokens kept beside the budget");
      budget(own - pinned, "the protected tokens counted twice");
    }
    if (rule.sinks > 0 && pinned > 0) budget(own + all, "all protected tokens kept beside the budget");
    budget(own + 1, "a token too many");
    budget(own - 1, "a token too few");
    budget(setting_.l - own, "what is kept and what is evicted exchanged");
    budget(setting_.l, "nothing evicted");
    if (found_.tokens) budget(*found_.tokens, fmt::format("a budget of {} tokens", *found_.tokens));
    if (rule.page == 1)
      for (const Index page : {8, 16, 32, 64, 128})
        if (2 * page < own)
          add("pages", fmt::format("whole pages of {}", page),
              [page](Reading& reading) { reading.rule.page = page; });
    if (rule.page > 1) add("pages", "tokens, not pages", [](Reading& reading) { reading.rule.page = 1; });
  }

  void selection() {
    add("sign", "the sign of the score turned", [](Reading& reading) { reading.negated = true; });
    if (meant_.rule.recent + meant_.rule.sinks > 0)
      add("sign", "the sign of the score turned, protected tokens with it",
          [](Reading& reading) { reading.negated = reading.pins_negated = true; });
    add("ties", "equal scores from the back", [](Reading& reading) { reading.later_first = true; });
    add("shift", "every position one too far on", [](Reading& reading) { reading.shift = 1; });
    add("shift", "every position one too early", [](Reading& reading) { reading.shift = -1; });
    for (const auto& [numbers, name] : {std::pair(Dtype::f16, "float16"), std::pair(Dtype::bf16, "bfloat16")})
      if (rounding_of(numbers) > rounding_of(meant_.numbers))
        add(std::string(kNumbers), fmt::format("scores in {}", name),
            [numbers = numbers](Reading& reading) { reading.numbers = numbers; });
  }

  const ReadingSetting& setting_;
  const Reading& meant_;
  FoundShape found_;
  bool attention_;
  std::vector<Deviation> all_;
};

}  // namespace

std::vector<Deviation> known_deviations(const ReadingSetting& setting, const Reading& meant,
                                        const FoundShape& found) {
  return Deviations(setting, meant, found).all();
}

Reading reading_with(const Reading& meant, const std::vector<Deviation>& deviations,
                     const std::vector<std::size_t>& chosen) {
  Reading reading = meant;
  for (const std::size_t d : chosen) deviations[d].apply(reading);
  return reading;
}

ReadingSearch search_readings(const std::vector<Deviation>& deviations, const Reading& meant,
                              const std::function<Index(const Reading&, Index before)>& apart_of) {
  ReadingSearch search;
  std::vector<Departures>& all = search.found;
  std::set<std::vector<std::size_t>> seen;
  std::vector<Departures> beam = {{{}, apart_of(meant, std::numeric_limits<Index>::max())}};
  search.at_first = beam.front().apart;
  Index best = search.at_first;
  for (std::size_t depth = 1; depth <= kMostDeviations && best > 0; ++depth) {
    std::vector<Departures> next;
    for (const Departures& from : beam)
      for (std::size_t d = 0; d < deviations.size(); ++d) {
        std::vector<std::size_t> chosen = from.chosen;
        const auto same_aspect = [&](std::size_t other) {
          return deviations[other].aspect == deviations[d].aspect;
        };
        if (std::ranges::any_of(chosen, same_aspect)) continue;
        // Coarse numbers excuse much: not beside another departure.
        if (!chosen.empty() &&
            (deviations[d].aspect == kNumbers || deviations[chosen.front()].aspect == kNumbers))
          continue;
        chosen.insert(std::ranges::upper_bound(chosen, d), d);
        if (!seen.insert(chosen).second) continue;
        const Index apart = apart_of(reading_with(meant, deviations, chosen), from.apart);
        if (static_cast<double>(apart) <= (1 - kExplained) * static_cast<double>(from.apart))
          next.push_back({std::move(chosen), apart});
      }
    // Fewest departures first. The sort is stable: among equal ones the likelier, listed first, stays first.
    std::ranges::stable_sort(next, {}, &Departures::apart);
    all.insert(all.end(), next.begin(),
               next.begin() + std::min<Index>(std::ssize(next), 4 * static_cast<Index>(kBeam)));
    if (next.size() > kBeam) next.resize(kBeam);
    if (next.empty() || next.front().apart >= best) break;
    best = next.front().apart;
    beam = std::move(next);
  }
  std::ranges::stable_sort(all, {}, [](const Departures& t) { return std::pair(t.apart, t.chosen.size()); });
  search.tried = seen.size();
  return search;
}

std::string reading_text(const std::string& policy, const std::vector<Deviation>& deviations,
                         const std::vector<std::size_t>& chosen) {
  std::string name = policy;
  std::vector<std::string> texts;
  for (const std::size_t d : chosen)
    if (deviations[d].is_name)
      name = deviations[d].text;
    else
      texts.push_back(deviations[d].text);
  if (texts.empty()) return name;
  const std::string last = texts.back();
  texts.pop_back();
  return fmt::format("{} with {}{}{}", name, fmt::join(texts, ", "), texts.empty() ? "" : " and ", last);
}

}  // namespace kvreplay::conform
