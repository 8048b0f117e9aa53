#include "analysis/commands/toml_config.hpp"

#include "analysis/options/option.hpp"
#include "data/console.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <istream>
#include <iterator>
#include <optional>
#include <string_view>
#include <toml++/toml.h>

namespace kvreplay {
namespace {

/// A value as it would stand on a command line; nothing where none does (a date, a table, a list in a list).
std::optional<std::string> word_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* word = node.as_boolean()) return word->get() ? "true" : "false";
  return std::nullopt;
}

std::optional<std::vector<std::string>> words_of(const toml::node& node) {
  std::vector<std::string> words;
  const auto add = [&](const toml::node& item) {
    if (auto word = word_of(item)) words.push_back(std::move(*word));
    return word_of(item).has_value();
  };
  const toml::array* list = node.as_array();
  const bool all = list != nullptr ? std::all_of(list->begin(), list->end(), add) : add(node);
  return all ? std::optional(words) : std::nullopt;
}

toml::table parsed(std::istream& input) {
  const std::string text((std::istreambuf_iterator<char>(input)), {});
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw ConfigFault{fmt::format("line {}: expected TOML: {}", error.source().begin.line,
                                  displayable(error.description(), 200))};
  }
}

}  // namespace

std::vector<CLI::ConfigItem> TomlConfig::from_config(std::istream& input) const {
  std::vector<CLI::ConfigItem> items;
  const std::vector<std::string> names = option_names(app_, "");
  const auto add = [&](const std::string& key, const toml::node& node) {
    const std::string shown = fmt::format("'{}'", displayable(key, 40));
    const auto line = static_cast<int>(node.source().begin.line);
    const auto fault = [&](const std::string& what) {
      throw ConfigFault{fmt::format("line {}: {}", line, what)};
    };
    if (node.is_table() || node.is_array_of_tables())
      fault("expected options at the top level, without sections, found " + shown);
    const CLI::Option* option = app_.get_option_no_throw("--" + key);
    if (option == nullptr) fault(fmt::format("unknown key {}{}", shown, did_you_mean(key, names)));
    const auto words = words_of(node);
    if (!words) fault(fmt::format("{}: expected a text, a number, true or false, or a list of such", key));
    for (const std::string& word : *words)
      if (option->get_delimiter() == ',' && (word.empty() || has_empty_item(word)))
        fault(fmt::format("{}: expected a list without empty items, found '{}'", key, displayable(word, 40)));
    line_of_[key] = line;
    CLI::ConfigItem item;
    item.name = key;
    item.inputs = *words;
    items.push_back(std::move(item));
  };
  const auto is_part = [&](const std::string& key) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return name.starts_with(key + "."); });
  };
  for (const auto& [name, node] : parsed(input)) {
    const std::string key(name.str());
    const toml::table* const part = node.as_table();
    if (part == nullptr || !is_part(key))
      add(key, node);
    else
      for (const auto& [option, value] : *part) add(key + "." + std::string(option.str()), value);
  }
  return items;
}

int TomlConfig::line_of(const std::string& error) const {
  constexpr std::string_view kConversion = "Could not convert: ";
  const std::string about = error.starts_with(kConversion) ? error.substr(kConversion.size()) : error;
  for (const auto& [key, number] : line_of_)
    if (about.starts_with("--" + key + ":") || about.starts_with("--" + key + " ")) return number;
  return 0;
}

std::vector<std::string> option_names(const CLI::App& app, const std::string& prefix) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(prefix + name);
  return names;
}

bool has_empty_item(const std::string& list) {
  return list.starts_with(',') || list.ends_with(',') || list.find(",,") != std::string::npos;
}

}  // namespace kvreplay
