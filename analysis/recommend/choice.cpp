#include "analysis/recommend/choice.hpp"

#include "analysis/recommend/knapsack.hpp"
#include "analysis/recommend/left_out.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace kvreplay::recommend {
namespace {

using Numbers = std::vector<std::size_t>;

std::string policy_name(const Lever& lever) {
  return lever.evicts ? lever.evicts->name + "|" + std::string(name_of(lever.semantics)) : "";
}

/// The levers that a wish allows.
Numbers allowed(const MeasuredLevers& measured, const Wish& wish) {
  Numbers found;
  for (std::size_t n = 0; n < measured.levers.size(); ++n) {
    const Lever& lever = measured.levers[n];
    if (!lever.keeps_all() && wish.use == Use::bits) continue;
    if (!lever.is_exact() && wish.use == Use::tokens) continue;
    if (!why_left_out(measured, lever, wish.engine)) found.push_back(n);
  }
  return found;
}

double sum_of(const Matrix<double>& figures, std::size_t lever) {
  return figures.row(static_cast<Index>(lever)).sum();
}

double sum_on(const Chosen& chosen, const Matrix<double>& figures) {
  double sum = 0;
  for (std::size_t head = 0; head < chosen.levers.size(); ++head)
    sum += figures(static_cast<Index>(chosen.levers[head]), static_cast<Index>(head));
  return sum;
}

/// The cost of a choice over the prompts of `means`: the mean or the worst, as `means.by` selects.
double cost_over(const MeasuredLevers& measured, const Means& means, const Chosen& chosen) {
  double sum = 0, worst = -std::numeric_limits<double>::infinity();
  for (const std::size_t p : means.prompts) {
    const double nats = nats_on(measured, chosen, measured.prompts[p]);
    sum += nats;
    worst = std::max(worst, nats);
  }
  return means.by == By::worst ? worst : sum / static_cast<double>(means.prompts.size());
}

/// The share of the bytes that a configuration takes at another budget, counted as in `means`.
double share_at(const MeasuredLevers& measured, const Means& means, const Lever& lever, const Budget& keeps) {
  if (means.context) return counted_bytes(measured, lever, keeps, *means.context).bytes;
  double sum = 0;
  for (const std::size_t p : means.prompts)
    sum += counted_bytes(measured, lever, keeps, measured.prompts[p].l).bytes;
  return sum / static_cast<double>(means.prompts.size());
}

/// The number of tokens of the longest prompt that bytes are counted at.
Index longest(const MeasuredLevers& measured, const Means& means) {
  if (means.context) return *means.context;
  Index tokens = 0;
  for (const std::size_t p : means.prompts) tokens = std::max(tokens, measured.prompts[p].l);
  return tokens;
}

/// The largest budget that fits into the bytes, between two neighbours of `levers`. All of these have one
/// policy and format, and budgets of one kind, in ascending order. Shares of tokens are whole thousandths.
std::optional<Chosen> filling(const MeasuredLevers& measured, const Means& means, const Numbers& levers,
                              double bytes) {
  for (std::size_t n = 0; n + 1 < levers.size(); ++n) {
    if (!(sum_of(means.asked, levers[n]) < bytes && bytes < sum_of(means.asked, levers[n + 1]))) continue;
    const Lever &less = measured.levers[levers[n]], &more = measured.levers[levers[n + 1]];
    const bool in_tokens = less.keeps.tokens.has_value();
    const Index steps = in_tokens ? longest(measured, means) : 1000;
    const auto budget_of = [&](Index step) {
      return in_tokens ? Budget{step} : Budget{{}, rest_of(static_cast<double>(step) / 1000)};
    };
    const Index least = less.keeps.tokens.value_or(static_cast<Index>(std::floor(1000 * less.kept_share(1))));
    Index most = more.keeps.tokens.value_or(
                     static_cast<Index>(std::ceil(static_cast<double>(steps) * more.kept_share(1)))) -
                 1;
    const auto share_of = [&](Index step) { return share_at(measured, means, less, budget_of(step)); };
    // Bytes grow with the budget but for groups of tokens, which take less once they are full: of many
    // budgets those far above the bytes are passed over, the others are tried one by one.
    constexpr Index kTried = 1000;
    for (Index fits = least; most - fits > kTried;) {
      const Index middle = std::midpoint(fits, most);
      (share_of(middle) <= bytes ? fits : most) = middle;
    }
    for (Index step = most; step > least; --step)
      if (const double share = share_of(step); share <= bytes)
        return Chosen{.levers = Numbers(static_cast<std::size_t>(means.bytes.cols()), levers[n]),
                      .bytes = share,
                      .between = Between{levers[n + 1], budget_of(step)}};
  }
  return std::nullopt;
}

std::optional<Chosen> cheapest_everywhere(const MeasuredLevers& measured, const Means& means,
                                          const Numbers& levers, double bytes) {
  std::vector<Chosen> all;
  std::map<std::tuple<std::string, std::string, bool>, Numbers> series;  // key: format, policy, in tokens
  for (const std::size_t n : levers) {
    const Lever& lever = measured.levers[n];
    if (sum_of(means.asked, n) <= bytes)
      all.push_back(Chosen{.levers = Numbers(static_cast<std::size_t>(means.bytes.cols()), n)});
    if (!lever.keeps_all())
      series[{lever.format, policy_name(lever), lever.keeps.tokens.has_value()}].push_back(n);
  }
  for (auto& [key, budgets] : series) {
    for (const std::size_t n : levers)
      if (measured.levers[n].keeps_all() && measured.levers[n].format == std::get<0>(key))
        budgets.push_back(n);
    const Index tokens = longest(measured, means);
    std::ranges::sort(budgets, {}, [&](std::size_t n) { return measured.levers[n].kept_share(tokens); });
    if (auto between = filling(measured, means, budgets, bytes)) all.push_back(std::move(*between));
  }
  std::optional<Chosen> best;
  for (Chosen& one : all) {
    one.nats = one.bound = cost_over(measured, means, one);
    if (best && one.nats >= best->nats) continue;
    if (!one.between) one.bytes = sum_on(one, means.bytes);
    best = std::move(one);
  }
  return best;
}

/// The knapsack of some levers, and which of them each of its choices is.
class LeverKnapsack {
 public:
  LeverKnapsack(const MeasuredLevers& measured, const Means& means, const Numbers& levers)
      : measured_(measured), means_(means) {
    std::set<std::string> formats, policies;
    for (const std::size_t n : levers) {
      formats.insert(measured.levers[n].format);
      if (!measured.levers[n].keeps_all()) policies.insert(policy_name(measured.levers[n]));
    }
    for (const std::string& format : formats) {
      Numbers whole;
      for (const std::size_t n : levers)
        if (measured.levers[n].format == format && measured.levers[n].keeps_all()) whole.push_back(n);
      bool any = false;
      for (const std::string& policy : policies) {
        Numbers mine = whole;
        for (const std::size_t n : levers)
          if (measured.levers[n].format == format && policy_name(measured.levers[n]) == policy)
            mine.push_back(n);
        if (mine.size() == whole.size()) continue;
        settings_.push_back(std::move(mine));
        any = true;
      }
      if (!any && !whole.empty()) settings_.push_back(std::move(whole));
    }
  }

  std::optional<Chosen> cheapest(double bytes) const {
    if (settings_.empty()) return std::nullopt;
    const Index n_kv = measured_.shape.n_kv;
    Layers layers(static_cast<std::size_t>(measured_.shape.layers));
    for (std::size_t l = 0; l < layers.size(); ++l)
      for (const Numbers& levers : settings_) {
        Setting& setting = layers[l].emplace_back(is_tied(levers) ? 1 : static_cast<std::size_t>(n_kv));
        for (Index g = 0; g < n_kv; ++g) {
          auto& head = setting[is_tied(levers) ? 0 : static_cast<std::size_t>(g)];
          head.resize(levers.size());
          for (std::size_t c = 0; c < levers.size(); ++c) {
            const Index row = static_cast<Index>(levers[c]), column = static_cast<Index>(l) * n_kv + g;
            head[c].bytes += means_.asked(row, column);
            head[c].nats += means_.nats(row, column);
          }
        }
      }
    const auto solution = recommend::cheapest(layers, bytes);
    if (!solution) return std::nullopt;
    Chosen chosen{.nats = solution->nats, .bound = solution->bound};
    for (const auto& [setting, choices] : solution->layers)
      for (std::size_t g = 0; g < static_cast<std::size_t>(n_kv); ++g)
        chosen.levers.push_back(settings_[setting][choices[choices.size() == 1 ? 0 : g]]);
    chosen.bytes = sum_on(chosen, means_.bytes);
    return chosen;
  }

 private:
  /// True if the policy of these levers frees the same tokens in all heads of a layer.
  bool is_tied(const Numbers& levers) const {
    return std::ranges::any_of(levers, [&](std::size_t n) {
      const auto& evicts = measured_.levers[n].evicts;
      return evicts && evicts->own.page_heads == PageHeads::layer;
    });
  }

  const MeasuredLevers& measured_;
  const Means& means_;
  std::vector<Numbers> settings_;  // of a layer: levers of one policy and format
};

/// `levers` in parts, of which a solution takes one: the policies, or formats, that an engine has one of.
std::vector<Numbers> parted(const MeasuredLevers& measured, const Numbers& levers,
                            const EngineFacts& engine) {
  std::set<std::string> formats, policies = {""};
  for (const std::size_t n : levers) {
    if (!measured.levers[n].is_exact()) formats.insert(measured.levers[n].format);
    policies.insert(policy_name(measured.levers[n]));
  }
  formats.insert("16");
  std::vector<Numbers> parts;
  for (const std::string& format : formats)
    for (const std::string& policy : policies) {
      Numbers& part = parts.emplace_back();
      for (const std::size_t n : levers) {
        const Lever& lever = measured.levers[n];
        const bool fits = engine.formats == FormatsOf::layer || lever.format == format ||
                          (engine.formats == FormatsOf::model_but_some && lever.is_exact());
        const bool by_policy = !engine.one_policy || lever.keeps_all() || policy_name(lever) == policy;
        if (fits && by_policy) part.push_back(n);
      }
    }
  std::ranges::sort(parts);
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  return parts;
}

}  // namespace

Means means_of(const MeasuredLevers& measured, By by, std::optional<Index> context,
               std::span<const std::size_t> left_out) {
  Means means{.by = by, .prompts = {}, .context = context, .bytes = {}, .asked = {}, .nats = {}};
  for (std::size_t p = 0; p < measured.prompts.size(); ++p) {
    if (std::ranges::find(left_out, p) != left_out.end()) continue;
    const MeasuredPrompt& prompt = measured.prompts[p];
    if (means.prompts.empty()) {
      means.bytes = prompt.bytes;
      means.asked = prompt.asked;
      means.nats = prompt.nats;
    } else {
      means.bytes += prompt.bytes;
      means.asked += prompt.asked;
      if (by == By::worst)
        means.nats = means.nats.cwiseMax(prompt.nats).eval();
      else
        means.nats += prompt.nats;
    }
    means.prompts.push_back(p);
  }
  const auto n = static_cast<double>(means.prompts.size());
  means.bytes /= n;
  means.asked /= n;
  if (by == By::mean) means.nats /= n;
  if (context) {
    LeverBytes at = bytes_at(measured, *context);
    means.bytes = std::move(at.bytes);
    means.asked = std::move(at.asked);
  }
  return means;
}

CountedBytes bytes_on(const MeasuredLevers& measured, const Chosen& chosen, const MeasuredPrompt& prompt) {
  if (const auto& between = chosen.between)
    return counted_bytes(measured, measured.levers[chosen.levers.front()], between->keeps, prompt.l);
  return {sum_on(chosen, prompt.bytes), sum_on(chosen, prompt.asked)};
}

double nats_on(const MeasuredLevers& measured, const Chosen& chosen, const MeasuredPrompt& prompt) {
  if (!chosen.between) return sum_on(chosen, prompt.nats);
  const std::size_t less = chosen.levers.front(), more = chosen.between->more;
  const double from = sum_of(prompt.nats, less), to = sum_of(prompt.nats, more);
  const double begin = measured.levers[less].kept_share(prompt.l),
               end = measured.levers[more].kept_share(prompt.l),
               at = std::min(rest_of(chosen.between->keeps.ratio(prompt.l)), 1.0);
  if (!(from > 0 && to > 0)) return std::lerp(from, to, (at - begin) / (end - begin));
  return from * std::pow(to / from, std::log(at / begin) / std::log(end / begin));
}

std::optional<std::size_t> smallest(const MeasuredLevers& measured, const Means& means, Engine engine) {
  const Numbers levers = allowed(measured, {.engine = engine});
  const auto least =
      std::ranges::min_element(levers, {}, [&](std::size_t n) { return sum_of(means.asked, n); });
  return least == levers.end() ? std::nullopt : std::optional(*least);
}

std::optional<Chosen> choose(const MeasuredLevers& measured, const Means& means, const Wish& wish) {
  const Numbers levers = allowed(measured, wish);
  if (wish.where == Where::everywhere) return cheapest_everywhere(measured, means, levers, wish.bytes);
  std::optional<Chosen> best;
  double bound = std::numeric_limits<double>::infinity();
  for (const Numbers& part : parted(measured, levers, kEngines[wish.engine]))
    if (auto chosen = LeverKnapsack(measured, means, part).cheapest(wish.bytes)) {
      bound = std::min(bound, chosen->bound);
      if (!best || chosen->nats < best->nats) best = std::move(chosen);
    }
  if (best) best->bound = bound;
  return best;
}

Recipe recipe_of(const MeasuredLevers& measured, const Chosen& chosen) {
  Recipe recipe{measured.model, {}};
  const auto n_kv = static_cast<std::size_t>(measured.shape.n_kv);
  for (std::size_t l = 0; l < static_cast<std::size_t>(measured.shape.layers); ++l) {
    Recipe::Layer& layer = recipe.layers.emplace_back();
    for (std::size_t g = 0; g < n_kv; ++g) {
      const Lever& lever = measured.levers[chosen.levers[l * n_kv + g]];
      layer.budgets.push_back(chosen.between ? chosen.between->keeps : lever.keeps);
      layer.stored = lever.stored[l];
      if (!lever.evicts) continue;
      layer.policy = lever.evicts;
      layer.semantics = lever.semantics;
    }
  }
  return recipe;
}

std::string engine_flags(const MeasuredLevers& measured, Engine engine, const Recipe& recipe) {
  std::vector<Quantization> stored;
  for (const Recipe::Layer& layer : recipe.layers) stored.push_back(layer.stored);
  if (engine != Engine::any) return kvreplay::engine_flags(engine, stored, measured.shape);
  std::vector<std::string> engines;
  const bool evicts =
      std::ranges::any_of(recipe.layers, [](const Recipe::Layer& layer) { return layer.policy.has_value(); });
  for (const EngineFacts& facts : kEngines)
    if (!evicts && !facts.evicts && !why_not_run(facts.id, stored, measured.shape))
      engines.emplace_back(facts.name);
  if (engines.empty()) return "runs in kvreplay.press() alone: in transformers, where it saves no memory";
  return fmt::format("runs in {} (--for says how)", names_text(engines, Listed::all));
}

}  // namespace kvreplay::recommend
