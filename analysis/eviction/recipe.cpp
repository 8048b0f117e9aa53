#include "analysis/eviction/recipe.hpp"

#include "analysis/eviction/cache_format.hpp"
#include "analysis/eviction/eviction_options.hpp"
#include "analysis/results/dump_set.hpp"
#include "data/mapped_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

constexpr std::uintmax_t kMostText = std::uintmax_t{64} << 20;
constexpr const char* kKind = "recipe";

std::optional<Policy> policy_in(const std::string& name, const std::string& where) {
  if (name == "none") return std::nullopt;
  const auto fail = [&](const std::string& found) {
    return InputError(where, "a policy that ranks tokens and evicts, or none", found);
  };
  try {
    Policy policy = parse_policy(name, {});
    if (evicts_nothing(policy.name) || policy.own.threshold || kBases[policy.base].searches)
      throw fail(fmt::format("'{}'", name));
    return policy;
  } catch (const OptionError& error) {
    throw fail(fmt::format("'{}' ({})", name, error.what()));
  }
}

Recipe::Layer layer_in(const Json& json, const std::string& where) {
  if (!json.is_object()) throw InputError(where, "an object", json_text(json));
  const JsonFields fields(json, where);
  constexpr std::string_view kKnown[] = {"policy", "semantics", "sigma", "tokens", "stored"};
  fields.check_keys(kKnown);
  Recipe::Layer layer;
  layer.policy = policy_in(fields.text("policy").value_or("none"), fields.where("policy"));
  if (const auto name = fields.text("semantics")) {
    const auto semantics = kSemantics.named(in_known_spelling(*name, kSemantics.names()));
    if (!semantics)
      throw InputError(fields.where("semantics"), names_text(kSemantics.names(), Listed::one_of),
                       fmt::format("'{}'", *name));
    layer.semantics = *semantics;
  }
  const auto list_of = [&](const char* key) -> const Json& {
    const Json& list = fields.at(key);
    if (!list.is_null() && !list.is_array())
      throw InputError(fields.where(key), "a list, of every KV head", json_text(list));
    return list;
  };
  if (const Json& sigma = list_of("sigma"); !sigma.is_null())
    for (const double one : fields.numbers(sigma, fields.where("sigma"), true))
      layer.budgets.push_back({std::nullopt, one});
  for (const auto& [tokens, sigma, asked_by] : layer.budgets)
    if (sigma >= 1 || (sigma > 0 && !layer.policy))
      throw InputError(fields.where("sigma"),
                       layer.policy ? "compression ratios, at least 0 and below 1" : "0 without a policy",
                       fmt::format("{}", sigma));
  if (const Json& tokens = list_of("tokens"); !tokens.is_null()) {
    if (tokens.size() != layer.budgets.size())
      throw InputError(fields.where("tokens"), fmt::format("{} as of sigma", layer.budgets.size()),
                       fmt::format("{}", tokens.size()));
    for (std::size_t g = 0; g < tokens.size(); ++g) {
      if (tokens[g].is_null()) continue;
      const bool whole = tokens[g].is_number_unsigned() && tokens[g].get<Index>() >= 1;
      if (!whole || !layer.policy || layer.budgets[g].sigma > 0)
        throw InputError(fields.where("tokens"),
                         !whole         ? "whole numbers of at least 1, or null"
                         : layer.policy ? "null where sigma is above 0"
                                        : "null without a policy",
                         json_text(tokens[g]));
      layer.budgets[g].tokens = tokens[g].get<Index>();
    }
  }
  layer.stored.residual = 0;
  if (const Json& stored = fields.at("stored"); !stored.is_null())
    layer.stored = quantization_in(stored, fields.where("stored"));
  return layer;
}

}  // namespace

Json to_json(const Recipe& recipe) {
  Json json = {{"program", "kvreplay"}, {"kind", kKind}, {"schema", 1}, {"model", recipe.model}};
  Json& layers = json["layers"] = Json::array();
  for (const Recipe::Layer& layer : recipe.layers) {
    Json sigma = Json::array(), tokens = Json::array();
    for (const Budget& budget : layer.budgets) {
      sigma.push_back(budget.sigma);
      tokens.push_back(budget.tokens ? Json(*budget.tokens) : Json());
    }
    Json& one = layers.emplace_back(Json{{"policy", layer.policy ? layer.policy->name : "none"},
                                         {"semantics", name_of(layer.semantics)},
                                         {"sigma", std::move(sigma)}});
    if (std::ranges::any_of(layer.budgets, [](const Budget& b) { return b.tokens.has_value(); }))
      one["tokens"] = std::move(tokens);
    one["stored"] = to_json(layer.stored);
  }
  return json;
}

Recipe read_recipe(const std::filesystem::path& file) {
  const std::string where = file.string();
  const Json json = parse_json_object(file_text(file, kMostText), where);
  const JsonFields fields(json, where);
  if (fields.text("kind") != kKind)
    throw InputError(where, "a recipe, as kvreplay recommend writes it", "another JSON object");
  constexpr std::string_view kKnown[] = {"program", "kind", "schema", "model", "layers", "chosen"};
  fields.check_keys(kKnown);
  if (fields.positive_integer("schema") != 1)
    throw InputError(fields.where("schema"), "1", json_text(fields.at("schema")));
  const Json& layers = fields.at("layers");
  if (!layers.is_array() || layers.empty())
    throw InputError(fields.where("layers"), "a list of all layers", json_text(layers));
  Recipe recipe{fields.text("model").value_or(""), {}};
  for (std::size_t l = 0; l < layers.size(); ++l)
    recipe.layers.push_back(layer_in(layers[l], fmt::format("{}: layer {}", where, l)));
  return recipe;
}

void require_of_dump(const Recipe& recipe, const std::string& where, const Dump& dump) {
  const std::string model = model_of(recipe.model), found = model_of(dump.model());
  if (!model.empty() && !found.empty() && model != found)
    throw InputError(where + ": model", fmt::format("the dump's, '{}', or \"\" for any", found),
                     fmt::format("'{}'", model));
  const DumpShape& shape = dump.shape();
  const auto layers = static_cast<std::size_t>(shape.layers), heads = static_cast<std::size_t>(shape.n_kv);
  if (recipe.layers.size() != layers)
    throw InputError(where, fmt::format("the dump's {}", counted(shape.layers, "layer")),
                     fmt::format("{}", recipe.layers.size()));
  for (std::size_t l = 0; l < layers; ++l) {
    const std::string layer = fmt::format("{}: layer {}", where, l);
    if (const std::size_t found = recipe.layers[l].budgets.size(); found != heads)
      throw InputError(layer + ": sigma", fmt::format("the dump's {}", counted(shape.n_kv, "KV head")),
                       fmt::format("{}", found));
    if (const auto wanted = why_not_stored(recipe.layers[l].stored, shape))
      throw InputError(layer + ": stored", *wanted, fmt::format("{} and {}", shape.d, shape.d_v));
    for (const Index reader : dump.readers(static_cast<Index>(l)))
      if (recipe.layers[l] != recipe.layers[static_cast<std::size_t>(reader)])
        throw InputError(layer, fmt::format("what layer {} has: both read one cache", reader), "another");
  }
}

RecipeFile OptionValue<RecipeFile>::parse(const OptionFacts& option, const std::string& word) {
  const auto equals = word.find('=');
  if (equals != std::string::npos && (equals == 0 || equals + 1 == word.size()))
    throw OptionError(option, "FILE.json or name=FILE.json", fmt::format("'{}'", word));
  if (equals != std::string::npos) return {{word.substr(0, equals), word.substr(equals + 1)}};
  return {{as_own_name(std::filesystem::path(word).stem().string()), word}};
}

}  // namespace kvreplay
