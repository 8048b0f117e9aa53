#pragma once

#include "analysis/eviction/budget.hpp"
#include "analysis/given/given_arrays.hpp"
#include "analysis/options/option.hpp"
#include "data/dump.hpp"
#include "sim/cache/quantize.hpp"
#include "sim/eviction/policy.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

// Recipe: for every head of a model, the policy and budget that evict from the prompt's cache, and the format
// in which the rest is stored. `kvreplay recommend` chooses recipes; `evict` and kvreplay.press() run them.
// The file's form: analysis/eviction/recipe.schema.json.

namespace kvreplay {

struct Recipe {
  struct Layer {
    std::optional<Policy> policy;  ///< nothing: the whole prompt stays
    Semantics semantics = Semantics::paper;
    std::vector<Budget> budgets;  ///< of every KV head; more tokens than the cache holds: all stay
    Quantization stored;          ///< of what stays
    bool operator==(const Layer&) const = default;
  };
  std::string model;  ///< the model that the recipe was chosen for; may be empty
  std::vector<Layer> layers;
};

Json to_json(const Recipe& recipe);
/// Throws InputError, one line, if the file is missing or is not a recipe. The key `chosen`, which explains
/// the choice, is ignored.
Recipe read_recipe(const std::filesystem::path& file);
/// Throws InputError where the dump is of another model, where both say of which, has other layers or heads,
/// or heads that cannot be stored so.
void require_of_dump(const Recipe& recipe, const std::string& where, const Dump& dump);

/// FILE, or name=FILE; without a name it is the file's, '_' in place of what names cannot have; {dump} in
/// FILE is the dump's name.
struct RecipeFile : NamedFile {};

template <>
struct OptionValue<RecipeFile> {
  static constexpr bool kFiles = true;
  static RecipeFile parse(const OptionFacts& option, const std::string& word);
  static std::string text(const RecipeFile& file) { return OptionValue<NamedFile>::text(file); }
};

}  // namespace kvreplay
