#include "analysis/commands/arguments.hpp"

#include "analysis/options/nearest_name.hpp"
#include "data/error.hpp"
#include "sim/backend_cuda.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

namespace kvreplay {
namespace {

std::optional<Index> parse_index(std::string_view text) {
  Index value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

CLI::Validator one_of(const std::vector<std::string>& names) {
  return CLI::Validator(
      [names](std::string& text) {
        return std::find(names.begin(), names.end(), text) != names.end()
                   ? std::string()
                   : fmt::format("expected {}, found '{}'", fmt::join(names, " or "), text);
      },
      "");
}

std::vector<std::string> option_names(const CLI::App& app, const std::string& prefix) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(prefix + name);
  return names;
}

void add_prompt_len(CLI::App& app, std::optional<Index>& prompt_len) {
  app.add_option("--prompt-len", prompt_len,
                 "Split prompt and decoding steps here, not where the manifest says")
      ->check(whole_number(1))
      ->option_text("N");
}

bool has_empty_item(const std::string& list) {
  return list.starts_with(',') || list.ends_with(',') || list.find(",,") != std::string::npos;
}

/// A list with an empty item in it, which CLI11 would drop.
void check_list(const CLI::Option* option, const std::string& where, const std::string& value) {
  if (option != nullptr && option->get_delimiter() == ',' && has_empty_item(value))
    throw InputError(where, "a list without empty items", fmt::format("'{}'", value));
}

/// What is wrong with a config file, where its name is not known yet.
struct ConfigFault {
  std::string line;
};

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

/// A short piece of a file, such that it cannot do anything to a terminal.
std::string in_quotes(const std::string& text) {
  constexpr std::size_t kLongest = 40;
  std::string piece = text.substr(0, kLongest);
  std::replace_if(
      piece.begin(), piece.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  return "'" + piece + (text.size() > kLongest ? "...'" : "'");
}

/// CLI11 reads TOML leniently; this says what it would pass over.
class StrictToml : public CLI::ConfigTOML {
 public:
  explicit StrictToml(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::string text((std::istreambuf_iterator<char>(input)), {});
    if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
    std::istringstream lines(text);
    std::string line;
    bool in_list = false;
    for (int number = 1; std::getline(lines, line); ++number) {
      line = trimmed(line);
      if (in_list || line.empty() || line.starts_with('#')) {
        if (line.find(']') != std::string::npos) in_list = false;
        continue;
      }
      const auto fault = [&](const char* expected) {
        throw ConfigFault{fmt::format("line {}: expected {}, found {}", number, expected, in_quotes(line))};
      };
      if (line.starts_with('[')) fault("options at the top level, without sections");
      const auto equals = line.find('=');
      if (equals == std::string::npos || equals == 0) fault("key = value");
      const std::string key = trimmed(line.substr(0, equals)), value = trimmed(line.substr(equals + 1));
      if (value.empty()) fault("key = value");
      in_list = value.starts_with('[') && value.find(']') == std::string::npos;
      line_of_[key] = number;
    }
    std::istringstream again(text);
    std::vector<CLI::ConfigItem> read = CLI::ConfigTOML::from_config(again);
    for (const CLI::ConfigItem& item : read) {
      const std::string key = item.fullname();
      const auto at = line_of_.find(key);
      const std::string where = at == line_of_.end() ? key : fmt::format("line {}: {}", at->second, key);
      const CLI::Option* option = app_.get_option_no_throw("--" + key);
      if (option == nullptr || !item.parents.empty())
        throw ConfigFault{fmt::format("{}unknown key {}{}",
                                      at == line_of_.end() ? "" : fmt::format("line {}: ", at->second),
                                      in_quotes(key), did_you_mean(key, option_names(app_, "")))};
      for (const std::string& value : item.inputs) {
        if (option->get_delimiter() == ',' && (value.empty() || has_empty_item(value)))
          throw ConfigFault{fmt::format("{}: expected a list without empty items, found '{}'", where, value)};
      }
    }
    return read;
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
  const CLI::App& app_;
  mutable std::map<std::string, int> line_of_;
};

std::string config_file(const CLI::App& app) {
  const CLI::Option* option = app.get_config_ptr();
  return option != nullptr && option->count() > 0 ? option->as<std::string>() : "";
}

/// "FILE: line 3: " where an error is about an option that only the config file gives.
std::string config_place(const CLI::App& app, const Arguments& arguments, const std::string& error) {
  const auto toml = std::dynamic_pointer_cast<const StrictToml>(app.get_config_formatter_base());
  const int line = toml ? toml->line_of(error) : 0;
  if (line == 0) return "";
  const std::string name = error.substr(0, error.find_first_of(": "));
  for (const std::string& argument : arguments)
    if (argument == name || argument.starts_with(name + "=")) return "";
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
    throw InputError(fmt::format("--config: {}: unknown key {}{}", config_file(app), in_quotes(key),
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

std::unique_ptr<CLI::App> make_app(const std::string& name, const std::string& description,
                                   const std::string& examples) {
  auto app = std::make_unique<CLI::App>(description, "kvreplay " + name);
  app->get_formatter()->column_width(30);
  app->get_formatter()->label("REQUIRED", "(required)");
  app->set_help_flag("-h,--help", "Print this help and exit");
  app->set_config("--config", "", "Options from a TOML file, under the same names")->option_text("FILE");
  app->config_formatter(std::make_shared<StrictToml>(*app));
  app->allow_config_extras(CLI::config_extras_mode::error);
  app->footer((examples.find('\n') == std::string::npos ? "Example:\n  " : "Examples:\n  ") + [&] {
    std::string indented;
    for (const char c : examples) indented += c == '\n' ? "\n  " : std::string(1, c);
    return indented;
  }());
  return app;
}

bool parse(CLI::App& app, const Arguments& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    if (!name.starts_with("--") || name.size() < 3) continue;
    if (equals == std::string::npos && i + 1 == arguments.size()) continue;
    check_list(app.get_option_no_throw(name), name,
               equals == std::string::npos ? arguments[i + 1] : arguments[i].substr(equals + 1));
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return true;
  } catch (const CLI::ParseError& error) {
    fail(app, arguments, error);
  } catch (const ConfigFault& fault) {
    throw InputError(fmt::format("--config: {}: {}", config_file(app), fault.line));
  }
  return false;
}

CLI::Option* list(CLI::Option* option, const std::string& text) {
  return option->delimiter(',')->allow_extra_args(false)->option_text(text);
}

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

CLI::Validator folder_name() {
  return CLI::Validator(
      [](std::string& text) {
        return text.empty() ? std::string("expected a folder, found ''") : std::string();
      },
      "");
}

void check_page_name(const std::string& file, const char* option) {
  if (!file.ends_with(".html") && !file.ends_with(".htm"))
    throw InputError(option, "a file that ends in .html", fmt::format("'{}'", file));
}

std::string counted(Index n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

CLI::Validator whole_number(Index least, Index most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        const auto value = parse_index(text);
        if (value && *value >= least && *value <= most) return std::string();
        const std::string range = most == kNoLimit ? fmt::format("of at least {}", least)
                                                   : fmt::format("from {} to {}", least, most);
        return fmt::format("expected a whole number {}, found '{}'", range, text);
      },
      "");
}

CLI::Validator real_number() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        return !text.empty() && CLI::detail::lexical_cast(text, value)
                   ? std::string()
                   : fmt::format("expected a number, found '{}'", text);
      },
      "");
}

void CommonOptions::add_dump(CLI::App& app) {
  app.add_option("DUMP", dump, "The dump: a folder with q, k and v of every layer")
      ->required()
      ->check(folder_name())
      ->option_text(" ");
  add_prompt_len(app, prompt_len);
}

void CommonOptions::add_dumps(CLI::App& app) {
  app.add_option("DUMP", dumps,
                 "The dump: a folder with q, k and v of every layer; or several of one model, whose means\n"
                 "and confidence intervals are formed")
      ->required()
      ->check(folder_name())
      ->option_text("...");
  add_prompt_len(app, prompt_len);
}

void CommonOptions::add_compute(CLI::App& app) {
  app.add_option("--backend", backend, "What computes: auto (a GPU where there is one), cpu or cuda")
      ->check(one_of({"auto", "cpu", "cuda"}))
      ->option_text("NAME [auto]");
  app.add_option("--precision", precision, "Arithmetic: f32, f64 or tensor (a GPU, about 3 digits)")
      ->check(one_of({"f32", "f64", "tensor"}))
      ->option_text("NAME [f32]");
  app.add_option("--threads", threads, "Threads; the results do not depend on it")
      ->check(whole_number(1, 4096))
      ->option_text("N [all cores, a fair share of them under mpirun]");
  app.add_option("--layers", layers, "Layers, as in 0,3-5")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->option_text("LIST [all]");
}

void CommonOptions::add_results(CLI::App& app) {
  app.add_option("--out", out, "The result folder")
      ->required()
      ->check(folder_name())
      ->option_text("DIR (required)");
  auto* resume_flag =
      app.add_flag("--resume", resume, "Go on where a run into the same folder was cut short");
  app.add_flag("--force", force, "Replace the results that the folder holds")
      ->excludes(resume_flag)
      ->option_text(" ");
  resume_flag->option_text(" ");
  app.add_option("--shard", shard,
                 "Only part i of n, 1/n to n/n; deals the layers out in turn. kvreplay merge joins the parts")
      ->option_text("i/n");
  app.add_option("--parts", parts)->allow_extra_args(false)->group("");  // what merge adds
}

void CommonOptions::add_output(CLI::App& app) {
  app.add_flag("--quiet", quiet, "Print nothing but errors");
  app.add_flag("--json", json, "Print a machine-readable summary");
}

Dump CommonOptions::open() const { return Dump::open(dump, {.prompt_len = prompt_len}); }

CommonOptions::ChosenCompute CommonOptions::chosen_compute(bool may_fall_back) const {
  ChosenCompute chosen;
  Compute& compute = chosen.compute;
  compute.precision = precision == "f64"      ? Precision::f64
                      : precision == "tensor" ? Precision::tensor
                                              : Precision::f32;
  const bool tensor = compute.precision == Precision::tensor;
  if (tensor && backend == "cpu")
    throw InputError("--precision tensor: the CPU has no matrix units for it; use f32 or f64");
  if (backend == "cpu") return chosen;
  const std::string why_not =
      compute.precision == Precision::f64 ? "float64 is computed on the CPU" : why_no_cuda();
  if (tensor && !why_not.empty())
    throw InputError(fmt::format("--precision tensor: {}; use f32 or f64", why_not));
  if (backend == "cuda" && !why_not.empty())
    throw InputError(fmt::format("--backend cuda: {}; use auto or cpu", why_not));
  if (why_not.empty())
    compute.backend =
        cuda_backend(may_fall_back && backend == "auto", tensor ? Products::tensor : Products::f32,
                     this_run().size() > 1 ? std::optional(this_run().local_rank()) : std::nullopt);
  else
    chosen.note = fmt::format("auto: {}", why_not);
  return chosen;
}

std::vector<Index> CommonOptions::chosen_layers(const Dump& dump_) const {
  return parse_layers(layers, dump_.shape().layers);
}

std::optional<Shard> CommonOptions::chosen_shard() const {
  return shard.empty() ? std::nullopt : std::optional(parse_shard(shard));
}

Existing CommonOptions::existing() const {
  return force ? Existing::replace : resume ? Existing::resume : Existing::refuse;
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

void add_token_options(CLI::App& app, TokenStageOptions& options) {
  app.add_option("--window", options.window, "Rows of scores and errors: the last N prompt queries")
      ->check(whole_number(1))
      ->option_text("N [32]");
  app.add_option("--metrics", options.metrics,
                 in_lines(fmt::format("Token metrics, comma-separated: {}; or all that the dump can give",
                                      fmt::join(kTokenMetrics.names(), ", "))))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->option_text("LIST [all]");
  app.add_option("--reserve", options.reserve, "Leave the last N candidates out of the agreement")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole_number(0))
      ->option_text("LIST [0]");
  app.add_flag("--per-query-head", options.per_query_head,
               "Token arrays for every query head, not summed over its group");
}

std::vector<Index> parse_layers(const std::vector<std::string>& list, Index layers) {
  std::set<Index> chosen;
  for (const std::string& item : list) {
    const auto dash = item.find('-');
    const auto first = parse_index(item.substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_index(item.substr(dash + 1));
    if (!first || !last || *first > *last || *first < 0)
      throw InputError("--layers", "numbers and ranges such as 0,3-5", fmt::format("'{}'", item));
    if (*last >= layers) throw InputError("--layers", fmt::format("layers from 0 to {}", layers - 1), item);
    for (Index layer = *first; layer <= *last; ++layer) chosen.insert(layer);
  }
  if (list.empty())
    for (Index layer = 0; layer < layers; ++layer) chosen.insert(layer);
  return {chosen.begin(), chosen.end()};
}

Shard parse_shard(const std::string& text) {
  const auto slash = text.find('/');
  const Index part = parse_index(text.substr(0, slash)).value_or(0);
  const Index parts = slash == std::string::npos ? 0 : parse_index(text.substr(slash + 1)).value_or(0);
  if (part < 1 || part > parts)
    throw InputError("--shard", "i/n with i from 1 to n", fmt::format("'{}'", text));
  return {part, parts};
}

}  // namespace kvreplay
