#include "analysis/recommend/choice.hpp"

#include "analysis/recommend/knapsack.hpp"
#include "analysis/recommend/left_out.hpp"
#include "analysis/results/schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

namespace kvreplay::recommend {
namespace {

using Numbers = std::vector<std::size_t>;

bool is_exact(const Lever& lever) { return std::ranges::all_of(lever.stored, &Quantization::stores_exactly); }

std::string policy_name(const Lever& lever) {
  return lever.evicts ? lever.evicts->name + "|" + std::string(name_of(lever.semantics)) : "";
}

/// The levers that a wish allows.
Numbers allowed(const MeasuredLevers& measured, const Wish& wish) {
  Numbers found;
  for (std::size_t n = 0; n < measured.levers.size(); ++n) {
    const Lever& lever = measured.levers[n];
    if (!lever.keeps_all() && wish.use == Use::bits) continue;
    if (!is_exact(lever) && wish.use == Use::tokens) continue;
    if (!why_left_out(measured, lever, wish.engine)) found.push_back(n);
  }
  return found;
}

double sum_of(const Matrix<double>& figures, std::size_t lever) {
  return figures.row(static_cast<Index>(lever)).sum();
}

std::optional<Chosen> cheapest_everywhere(const Means& means, const Numbers& levers, double bytes) {
  std::optional<Chosen> best;
  for (const std::size_t lever : levers) {
    const double size = sum_of(means.bytes, lever), nats = sum_of(means.nats, lever);
    if (size > bytes || (best && nats >= best->nats)) continue;
    best = Chosen{Numbers(static_cast<std::size_t>(means.bytes.cols()), lever), size, nats, nats};
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
            head[c].bytes += means_.bytes(row, column);
            head[c].nats += means_.nats(row, column);
          }
        }
      }
    const auto solution = recommend::cheapest(layers, bytes);
    if (!solution) return std::nullopt;
    Chosen chosen{{}, solution->bytes, solution->nats, solution->bound};
    for (const auto& [setting, choices] : solution->layers)
      for (std::size_t g = 0; g < static_cast<std::size_t>(n_kv); ++g)
        chosen.levers.push_back(settings_[setting][choices[choices.size() == 1 ? 0 : g]]);
    return chosen;
  }

 private:
  /// Whether their policy frees the same tokens in all heads of a layer.
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
    if (!is_exact(measured.levers[n])) formats.insert(measured.levers[n].format);
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
                          (engine.formats == FormatsOf::model_but_some && is_exact(lever));
        const bool by_policy = !engine.one_policy || lever.keeps_all() || policy_name(lever) == policy;
        if (fits && by_policy) part.push_back(n);
      }
    }
  std::ranges::sort(parts);
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  return parts;
}

}  // namespace

Means means_of(const MeasuredLevers& measured, std::span<const std::size_t> left_out) {
  Means means;
  double n = 0;
  for (std::size_t p = 0; p < measured.prompts.size(); ++p) {
    if (std::ranges::find(left_out, p) != left_out.end()) continue;
    const MeasuredPrompt& prompt = measured.prompts[p];
    if (n++ == 0) {
      means = {prompt.bytes, prompt.nats};
      continue;
    }
    means.bytes += prompt.bytes;
    means.nats += prompt.nats;
  }
  means.bytes /= n;
  means.nats /= n;
  return means;
}

std::optional<Chosen> choose(const MeasuredLevers& measured, const Means& means, const Wish& wish) {
  const Numbers levers = allowed(measured, wish);
  if (wish.where == Where::everywhere) return cheapest_everywhere(means, levers, wish.bytes);
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
      layer.sigma.push_back(lever.sigma);
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
