#include "analysis/commands/arguments.hpp"

#include "analysis/options/option.hpp"
#include "analysis/results/dump_set.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "sim/backend.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <istream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <toml++/toml.h>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

/// Error in a config file, thrown where the file's name is not known yet.
struct ConfigFault {
  std::string line;
};

/// A value as a word of a command line; empty for values without one (a date, a table, a list in a list).
std::optional<std::string> word_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* word = node.as_boolean()) return word->get() ? "true" : "false";
  return std::nullopt;
}

/// Every element of an array is one item, whatever commas are in it.
std::optional<std::vector<std::string>> words_of(const toml::node& node) {
  std::vector<std::string> words;
  const toml::array* list = node.as_array();
  const auto add = [&](const toml::node& item) {
    auto word = word_of(item);
    if (!word) return false;
    for (std::size_t at = 0; list != nullptr && (at = word->find(',', at)) != std::string::npos; at += 2)
      word->insert(at, 1, '\\');
    words.push_back(std::move(*word));
    return true;
  };
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

/// The names of an app's options, each behind `prefix`.
std::vector<std::string> option_names(const CLI::App& app, const std::string& prefix) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(prefix + name);
  return names;
}

/// Where a config file may have those options, as a clause.
std::string sections_in(const std::vector<std::string>& names) {
  std::vector<std::string> sections;
  for (const std::string& name : names) {
    const auto dot = name.find('.');
    const std::string section = name.substr(0, dot);
    if (dot != std::string::npos && std::ranges::find(sections, section) == sections.end())
      sections.push_back(section);
  }
  return sections.empty() ? "without sections" : fmt::format("or in a section {}", fmt::join(sections, ", "));
}

/// True if a list of several items has an empty one.
bool has_empty_item(const std::string& list) {
  const std::vector<std::string> items = items_of(list);
  return items.size() > 1 && std::ranges::find(items, "") != items.end();
}

/// The options of a command from a TOML file: one key a name; a section for what stands before the dots in
/// names. Throws ConfigFault at what is no TOML and at keys that `app` has no option for.
class TomlConfig : public CLI::ConfigTOML {
 public:
  explicit TomlConfig(const CommandLine& app) : app_(app) {}
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> items;
    const std::vector<std::string> names = option_names(app_, "");
    const auto add = [&](const std::string& key, const toml::node& node) {
      const std::string shown = fmt::format("'{}'", displayable(key, 40));
      const auto line = static_cast<int>(node.source().begin.line);
      const auto fault = [&](const std::string& what) {
        throw ConfigFault{fmt::format("line {}: {}", line, what)};
      };
      if (node.is_table() || node.is_array_of_tables())
        fault(fmt::format("expected options at the top level, {}, found {}", sections_in(names), shown));
      const CLI::Option* option = app_.get_option_no_throw("--" + key);
      if (option == nullptr) fault(fmt::format("unknown key {}{}", shown, did_you_mean(key, names)));
      const auto words = words_of(node);
      if (!words) fault(fmt::format("{}: expected a text, a number, true or false, or a list of such", key));
      if (app_.takes_list("--" + key)) {
        if (words->empty()) fault(fmt::format("{}: expected at least one item, found none", key));
        for (const std::string& word : *words)
          if (word.empty() || has_empty_item(word))
            fault(fmt::format("{}: expected a list without empty items, found '{}'", key,
                              displayable(word, 40)));
      }
      line_of_[key] = line;
      CLI::ConfigItem item;
      item.name = key;
      item.inputs = *words;
      items.push_back(std::move(item));
    };
    const auto is_part = [&](const std::string& key) {
      return std::ranges::any_of(names, [&](const std::string& name) { return name.starts_with(key + "."); });
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

  /// The line of the key that an error of CLI11 ("--window: expected ...") is about; 0 where there is none.
  int line_of(const std::string& error) const {
    constexpr std::string_view kConversion = "Could not convert: ";
    const std::string about = error.starts_with(kConversion) ? error.substr(kConversion.size()) : error;
    for (const auto& [key, number] : line_of_)
      if (about.starts_with("--" + key + ":") || about.starts_with("--" + key + " ")) return number;
    return 0;
  }

 private:
  const CommandLine& app_;
  mutable std::map<std::string, int> line_of_;
};

/// Text of the help broken into lines between words.
std::string in_lines(const std::string& text) {
  constexpr std::size_t kWidth = 70;
  std::string lines;
  std::size_t length = 0;
  std::istringstream words(text);
  for (std::string word; words >> word; length += word.size() + 1) {
    if (length + word.size() > kWidth) length = 0;
    if (!lines.empty()) lines += length == 0 ? '\n' : ' ';
    lines += word;
  }
  return lines;
}

/// Error message for a config file that exists but cannot be used, or whose name is empty; empty if there is
/// none.
std::string complaint_of_config(const std::string& file) {
  constexpr std::uintmax_t kMost = std::uintmax_t{1} << 20;
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (file.empty()) return "expected a file, found ''";
  if (!std::filesystem::exists(status)) return "";
  if (!std::filesystem::is_regular_file(status))
    return fmt::format("expected a regular file, found '{}'", file);
  if (std::filesystem::file_size(file, error) > kMost)
    return fmt::format("expected at most {} bytes, found more in '{}'", kMost, file);
  return "";
}

std::string config_file(const CLI::App& app) {
  const CLI::Option* option = app.get_config_ptr();
  return option != nullptr && option->count() > 0 ? option->as<std::string>() : "";
}

bool is_among(const Arguments& arguments, const std::string& option) {
  return std::ranges::any_of(arguments, [&](const std::string& argument) {
    return argument == option || argument.starts_with(option + "=");
  });
}

/// "FILE: line 3: " where an error is about an option that only the config file gives.
std::string config_place(const CLI::App& app, const Arguments& arguments, const std::string& error) {
  const auto toml = std::dynamic_pointer_cast<const TomlConfig>(app.get_config_formatter_base());
  const int line = toml ? toml->line_of(error) : 0;
  if (line == 0) return "";
  const std::string name = error.substr(0, error.find_first_of(": "));
  if (is_among(arguments, name)) return "";
  return fmt::format("--config: {}: line {}: ", config_file(app), line);
}

/// Everything after the last space: CLI11's messages about a config file end in the key that they are about.
std::string last_word(const std::string& text) { return text.substr(text.find_last_of(' ') + 1); }

[[noreturn]] void fail(const CLI::App& app, const Arguments& arguments, const CLI::ParseError& error) {
  const std::string command = last_word(app.get_name());
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    for (const std::string& extra : app.remaining()) {
      const std::string name = extra.substr(0, extra.find('='));
      if (extra.starts_with('-') && extra.size() > 1)
        throw InputError(fmt::format("{}: unknown option '{}'{}", command, name,
                                     did_you_mean(name, option_names(app, "--"))));
      throw InputError(fmt::format("{}: unexpected argument '{}'", command, extra));
    }
  }
  if (dynamic_cast<const CLI::ConfigError*>(&error) != nullptr) {
    const std::string key = last_word(error.what());
    throw InputError(fmt::format("--config: {}: unknown key '{}'{}", config_file(app), key,
                                 did_you_mean(key, option_names(app, ""))));
  }
  if (dynamic_cast<const CLI::FileError*>(&error) != nullptr)
    throw InputError("--config", "a readable file",
                     fmt::format("'{}'", app.get_config_ptr()->as<std::string>()));
  std::string line = error.what();
  const std::string place = config_place(app, arguments, line);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    throw InputError(place + line.substr(0, line.find(':')), "one value",
                     line.ends_with("missing") ? "none" : "several");
  std::replace(line.begin(), line.end(), '\n', ' ');
  throw InputError(place.empty() ? fmt::format("{}: {}", command, line) : place + line);
}

}  // namespace

CLI::Option* CommandLine::add(const std::string& name, const OptionFacts& facts,
                              std::vector<BoundOption> bound) {
  Given& given = given_.emplace_back();
  given.name = name;
  given.bound = std::move(bound);
  const BoundOption& first = given.bound.front();
  const std::string dashed = "--" + name, meaning = in_lines(std::string(facts.meaning) + first.words);
  if (first.flag()) return given.option = add_flag(dashed, given.flag, meaning)->option_text(" ");
  // Parts that share an option take a list if all of them do.
  given.list = std::ranges::all_of(given.bound, [](const auto& one) { return one.list; });
  given.option = given.list ? add_option(dashed, given.words, meaning)->allow_extra_args(false)
                            : add_option(dashed, given.word, meaning);
  const std::string otherwise(facts.otherwise.empty() ? std::string_view(first.initial) : facts.otherwise);
  given.option->option_text(otherwise.empty() ? std::string(facts.takes)
                                              : fmt::format("{} [{}]", facts.takes, otherwise));
  for (const BoundOption& one : given.bound)
    if (one.complaint)
      given.option->check(CLI::Validator(
          [complaint = one.complaint, list = given.list](std::string& word) {
            for (const std::string& item : list ? items_of(word) : std::vector{word})
              if (std::string fault = complaint(item); !fault.empty()) return fault;
            return std::string();
          },
          ""));
  return given.option;
}

void CommandLine::add(const BoundOptions& options) {
  for (const BoundOption& one : options) add(std::string(one.facts->name), *one.facts, {one});
  for (const BoundOption& added : options) {
    for (const OptionFacts* other : added.excludes) option(*added.facts)->excludes(option(*other));
    if (added.needs != nullptr) option(*added.facts)->needs(option(*added.needs));
  }
}

bool CommandLine::takes_list(const std::string& dashed) const {
  return std::any_of(given_.begin(), given_.end(),
                     [&](const Given& given) { return given.list && "--" + given.name == dashed; });
}

CLI::Option* CommandLine::option(const OptionFacts& facts) {
  return get_option(fmt::format("--{}", facts.name));
}

std::string CommandLine::help_text() {
  for (CLI::Option* const option : hidden_) option->group("");
  return help();
}

void CommandLine::read_options(const Arguments& arguments) {
  const auto read = [](const BoundOption& bound, const Given& given) {
    try {
      std::vector<std::string> items;
      for (const std::string& word : given.words)
        for (std::string& item : items_of(word, bound.of_files)) items.push_back(std::move(item));
      bound.read(given.list ? items : std::vector<std::string>{given.word});
    } catch (const OptionError& error) {
      throw OptionError(error.line().naming(bound.facts->name, given.name));
    }
  };
  for (const bool last : {false, true})
    for (const bool on_line : {false, true})
      for (const Given& given : given_) {
        const bool there = given.option->count() > 0 && (given.flag || !given.bound.front().flag());
        if (!there || is_among(arguments, "--" + given.name) != on_line) continue;
        for (const BoundOption& bound : given.bound)
          if (bound.last == last) read(bound, given);
      }
}

std::unique_ptr<CommandLine> make_app(const std::string& name, const std::string& description,
                                      const std::string& examples) {
  auto app = std::make_unique<CommandLine>(description, "kvreplay " + name);
  app->get_formatter()->column_width(30);
  app->get_formatter()->label("REQUIRED", "(required)");
  app->set_help_flag("-h,--help", "Print this help and exit");
  app->set_config("--config", "", "Options from a TOML file, under the same names")
      ->option_text("FILE")
      ->check(CLI::Validator([](std::string& file) { return complaint_of_config(file); }, ""));
  app->config_formatter(std::make_shared<TomlConfig>(*app));
  app->allow_config_extras(CLI::config_extras_mode::error);
  app->footer((examples.find('\n') == std::string::npos ? "Example:\n  " : "Examples:\n  ") + [&] {
    std::string indented;
    for (const char c : examples) indented += c == '\n' ? "\n  " : std::string(1, c);
    return indented;
  }());
  return app;
}

bool parse(CommandLine& app, const Arguments& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    if (!name.starts_with("--") || name.size() < 3) continue;
    if (equals == std::string::npos && i + 1 == arguments.size()) continue;
    const std::string value =
        equals == std::string::npos ? arguments[i + 1] : arguments[i].substr(equals + 1);
    if (app.takes_list(name) && has_empty_item(value))
      throw InputError(name, "a list without empty items", fmt::format("'{}'", value));
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    say("{}", app.help_text());
    return true;
  } catch (const CLI::ParseError& error) {
    fail(app, arguments, error);
  } catch (const ConfigFault& fault) {
    throw InputError(fmt::format("--config: {}: {}", config_file(app), fault.line));
  }
  app.read_options(arguments);
  return false;
}

void say_next(const std::vector<std::string>& commands) { say("next: {}\n", fmt::join(commands, ", or ")); }

std::string open_command(const std::string& page) { return shell_line({"xdg-open", page}); }

std::string analyze_command(const CommonOptions& options) {
  std::vector<std::string> words{"kvreplay", "analyze", options.dump, "--out",
                                 "results/" + dump_name(options.dump)};
  if (options.prompt_len)
    words.insert(words.end(), {"--prompt-len", OptionValue<PromptEnd>::text(*options.prompt_len)});
  return shell_line(words);
}

void print_json(const nlohmann::ordered_json& json) {
  fmt::print("{}\n", json.dump(1, ' ', false, Json::error_handler_t::replace));
}

void with_dashes(const std::function<void()>& work) {
  try {
    work();
  } catch (const OptionError& error) {
    throw InputError(error.line().dashed());
  }
}

CLI::Validator folder_name() {
  return CLI::Validator(
      [](std::string& text) {
        return text.empty() ? std::string("expected a folder, found ''") : std::string();
      },
      "");
}

CLI::Validator file_ending(std::vector<std::string> endings) {
  return CLI::Validator(
      [endings = std::move(endings)](std::string& file) {
        for (const std::string& ending : endings)
          if (file.ends_with(ending)) return std::string();
        return fmt::format("expected a file that ends in {}, found '{}'", endings.front(), file);
      },
      "");
}

void CommonOptions::add_dump(CommandLine& app) {
  app.add_folders("DUMP", dump, "The dump: a folder with q, k and v of every layer");
  app.add({bind_option(run_option::prompt_len, prompt_len)});
}

void CommonOptions::add_dumps(CommandLine& app) {
  app.add_folders("DUMP", dumps,
                  "The dump: a folder with q, k and v of every layer; or several of one model, whose means\n"
                  "and confidence intervals are formed");
  app.add({bind_option(run_option::prompt_len, prompt_len)});
}

void CommonOptions::add_compute(CommandLine& app) {
  app.add({bind_option(compute_option::backend, backend), bind_option(compute_option::device, device),
           bind_option(compute_option::precision, precision), bind_option(compute_option::threads, threads),
           bind_option(run_option::layers, layers)});
}

void CommonOptions::add_folder(CommandLine& app) {
  app.add({bind_option(run_option::out, out), bind_option(run_option::resume, resume),
           bind_option(run_option::force, force).excluding(run_option::resume)});
  app.option(run_option::out)->required()->check(folder_name())->option_text("DIR (required)");
}

void CommonOptions::add_results(CommandLine& app) {
  BoundOption part = bind_option(run_option::shard, shard);
  part.read = [this, read = part.read](const std::vector<std::string>& words) {
    if (words.front() == kWholeRun)
      shard.reset();  // merge takes back what a config file says
    else
      read(words);
  };
  add_folder(app);
  app.add({part, bind_option(run_option::parts, parts)});
  app.hide(app.option(run_option::parts));  // set by merge
}

void CommonOptions::add_output(CommandLine& app) {
  app.add({bind_option(run_option::quiet, quiet), bind_option(run_option::json, json)});
}

Dump CommonOptions::open() const {
  return Dump::open(dump, {.prompt_len = prompt_len, .name = name.empty() ? DumpSet().name_of(dump) : name});
}

ComputeWish CommonOptions::compute_wish() const {
  ComputeWish wish{.backend = backend, .precision = precision, .device = device};
  if (this_run().size() > 1) wish.share = this_run().local_rank();
  return wish;
}

ChosenCompute CommonOptions::chosen_compute(const Dump& dump_) const {
  const DumpShape& s = dump_.shape();
  ComputeWish wish = compute_wish();
  // Logits and outputs of all queries: what is asked takes a part of that, or a few times as much.
  wish.multiply_adds = static_cast<double>(std::ssize(chosen_layers(dump_)) * s.n_q * (s.d + s.d_v)) *
                       static_cast<double>(s.T_q) * static_cast<double>(s.T);
  return choose_compute(wish);
}

std::vector<Index> CommonOptions::chosen_layers(Index all) const {
  std::set<Index> chosen;
  for (const auto& [first, last] : layers) {
    if (last >= all)
      throw OptionError(run_option::layers, fmt::format("layers from 0 to {}", all - 1),
                        OptionValue<LayerRange>::text({first, last}));
    for (Index layer = first; layer <= last; ++layer) chosen.insert(layer);
  }
  if (layers.empty())
    for (Index layer = 0; layer < all; ++layer) chosen.insert(layer);
  return {chosen.begin(), chosen.end()};
}

Existing CommonOptions::existing() const {
  return force ? Existing::replace : renew ? Existing::renew : resume ? Existing::resume : Existing::refuse;
}

std::string backend_line(const Backend& backend, const std::string& note) {
  return fmt::format("computed on {}; {}", backend.name() == "cpu" ? "the CPU" : "a CUDA device", note);
}

std::string shape_line(const Dump& dump, Index layers) {
  const DumpShape& shape = dump.shape();
  const std::string some = layers == shape.layers ? "" : fmt::format("{} of ", layers);
  return fmt::format("{}: {}{} x {} ({} each), {}", dump.model(), some, counted(shape.layers, "layer"),
                     counted(shape.n_kv, "KV head"), counted(shape.group(), "query head"),
                     counted(shape.l, "candidate"));
}

namespace {

/// Any other word is parsed as a number, so that the number's own error is reported.
bool is_name_of_end(const std::string& word) {
  return !word.empty() && std::isalpha(static_cast<unsigned char>(word.front())) != 0;
}

}  // namespace

std::string OptionValue<PromptEnd>::complaint(const OptionFacts& option, const std::string& word) {
  if (is_name_of_end(word)) return "";
  return or_else(OptionValue<Index>::complaint(option, word), ", or an end that prompt_ends names");
}
PromptEnd OptionValue<PromptEnd>::parse(const OptionFacts& option, const std::string& word) {
  if (is_name_of_end(word)) return {word};
  return {OptionValue<Index>::parse(option, word)};
}
std::string OptionValue<PromptEnd>::text(const PromptEnd& end) {
  return end.name.empty() ? fmt::format("{}", end.tokens) : end.name;
}

LayerRange OptionValue<LayerRange>::parse(const OptionFacts& option, const std::string& word) {
  const auto dash = word.find('-');
  const auto first = index_in(word.substr(0, dash));
  const auto last = dash == std::string::npos ? first : index_in(word.substr(dash + 1));
  if (!first || !last || *first > *last || *first < 0)
    throw OptionError(option, "numbers and ranges such as 0,3-5", fmt::format("'{}'", word));
  return {*first, *last};
}
std::string OptionValue<LayerRange>::text(const LayerRange& range) {
  return range.first == range.last ? fmt::format("{}", range.first)
                                   : fmt::format("{}-{}", range.first, range.last);
}

Shard OptionValue<Shard>::parse(const OptionFacts& option, const std::string& word) {
  if (const auto shard = shard_named(word)) return *shard;
  throw OptionError(option, "i/n with i from 1 to n", fmt::format("'{}'", word));
}

}  // namespace kvreplay
