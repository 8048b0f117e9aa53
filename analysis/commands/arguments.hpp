#pragma once

#include "analysis/options/option.hpp"
#include "analysis/run/compute_choice.hpp"
#include "analysis/run/ranks.hpp"
#include "analysis/run/run.hpp"
#include "data/dump.hpp"

#include <CLI/CLI.hpp>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace kvreplay {

/// Arguments behind a command's name on the command line.
using Arguments = std::vector<std::string>;

/// The ranks that run this command together: main() starts them.
Ranks& this_run();

/// A check that the name of a folder is not empty.
CLI::Validator folder_name();

/// The options of one command.
class CommandLine : public CLI::App {
 public:
  using CLI::App::App;

  /// Adds options to the command line, its help and the config file. The fields they are bound to must
  /// outlive the parsing, and change at its end only.
  void add(const BoundOptions& options);
  /// One option, --name, described by `facts`, that sets all of `bound`.
  CLI::Option* add(const std::string& name, const OptionFacts& facts, std::vector<BoundOption> bound);
  CLI::Option* option(const OptionFacts& facts);
  /// True if "--name" takes items that commas separate.
  bool takes_list(const std::string& dashed) const;
  /// Leaves an option out of the help. Its group stays: CLI11 has no name for an option without one.
  void hide(CLI::Option* option) { hidden_.push_back(option); }
  std::string help_text();
  /// A folder, or several, by their place.
  template <class Folders>
  void add_folders(const char* name, Folders& folders, const char* meaning, bool required = true) {
    add_option(name, folders, meaning)
        ->required(required)
        ->check(folder_name())
        ->option_text(std::is_same_v<Folders, std::string> ? " " : "...");
  }

  /// Sets the fields of all added options, in the order of adding: first from a config file, then from the
  /// command line.
  void read_options(const Arguments& arguments);

 private:
  struct Given {
    std::string name;
    std::vector<BoundOption> bound;
    CLI::Option* option = nullptr;
    std::vector<std::string> words;  ///< as given, lists not yet split
    std::string word;                ///< for options that take no list
    bool flag = false, list = false;
  };
  std::deque<Given> given_;  // CLI11 keeps pointers into it
  std::vector<CLI::Option*> hidden_;
};

/// For one command: description, examples (one a line) under the help text, --help and --config.
std::unique_ptr<CommandLine> make_app(const std::string& name, const std::string& description,
                                      const std::string& examples);

/// Parses the arguments. Returns true if the help was requested and printed. Throws InputError with one line
/// that names the option.
bool parse(CommandLine& app, const Arguments& arguments);

/// Prints the last line of a command: "next: " and the commands to type next, as alternatives.
void say_next(const std::vector<std::string>& commands);
/// "xdg-open FILE"
std::string open_command(const std::string& page);
/// Prints JSON to standard output.
void print_json(const nlohmann::ordered_json& json);

/// Runs `work`. Its error messages name options as they are written on a command line.
void with_dashes(const std::function<void()>& work);

/// A check that the name of a file ends in one of these; error messages name the first.
CLI::Validator file_ending(std::vector<std::string> endings);

/// Value of --shard in the command that merge repeats: the whole run, whatever a config file says.
inline constexpr const char* kWholeRun = "whole";

/// "0,3-5", item by item.
struct LayerRange {
  Index first = 0, last = 0;
};

/// Options that commands share. Each add_ function adds some of them to an app; the struct must outlive the
/// parsing.
struct CommonOptions {
  std::string dump;
  std::vector<std::string> dumps;  ///< of commands that take several
  std::string name;                ///< of the dump among several; empty: the only one
  std::string label;               ///< text that identifies the dump among several; empty: the only one
  std::string out;
  BackendChoice backend = BackendChoice::automatic;
  std::optional<Index> device;
  Precision precision = Precision::f32;
  Index threads = 0;               ///< 0: all cores, a fair share of them under mpirun
  std::vector<LayerRange> layers;  ///< none: all
  std::optional<PromptEnd> prompt_len;
  std::optional<Shard> shard;
  std::vector<std::string> parts;  ///< folders of finished shards to take the layers from
  bool resume = false;
  bool renew = false;  ///< of folders that follow from others: Existing::renew
  bool force = false;
  bool quiet = false;
  bool json = false;

  void add_dump(CommandLine& app);     ///< DUMP, --prompt-len
  void add_dumps(CommandLine& app);    ///< DUMP..., --prompt-len
  void add_compute(CommandLine& app);  ///< --backend, --device, --precision, --threads, --layers
  void add_folder(CommandLine& app);   ///< --out, --resume, --force
  void add_results(CommandLine& app);  ///< --out, --resume, --force, --shard
  void add_output(CommandLine& app);   ///< --quiet, --json

  /// The dump, opened; InputError where it is not one.
  Dump open() const;
  ComputeWish compute_wish() const;
  /// choose_compute() for that dump.
  ChosenCompute chosen_compute(const Dump& dump) const;
  std::vector<Index> chosen_layers(const Dump& dump) const { return chosen_layers(dump.shape().layers); }
  std::vector<Index> chosen_layers(Index all) const;
  Existing existing() const;
};

/// "kvreplay analyze DUMP --out results/NAME", for one dump.
std::string analyze_command(const CommonOptions& options);

/// Where a run computed, and what is to be said of it: "computed on the CPU; auto: there is no NVIDIA GPU".
std::string backend_line(const Backend& backend, const std::string& note);

/// "MODEL: 6 layers x 2 KV heads (2 query heads each), 896 candidates".
std::string shape_line(const Dump& dump, Index layers);

namespace run_option {
inline constexpr OptionFacts prompt_len{"prompt-len", "N",
                                        "Split prompt and decoding steps here, not where the manifest says: "
                                        "a number, or an end that its\nprompt_ends names",
                                        "", 1},
    layers{"layers", "LIST", "Layers, as in 0,3-5", "all"}, out{"out", "DIR", "The result folder"},
    resume{"resume", "", "Go on where a run into the same folder was cut short"},
    force{"force", "", "Replace the results that the folder holds"},
    shard{"shard", "i/n",
          "Only part i of n, 1/n to n/n; deals the layers out in turn. kvreplay merge joins the parts"},
    parts{"parts", "DIR", ""}, quiet{"quiet", "", "Print nothing but errors"},
    json{"json", "", "Print a machine-readable summary"};
}  // namespace run_option

template <>
struct OptionValue<PromptEnd> {
  static std::string complaint(const OptionFacts& option, const std::string& word);
  static PromptEnd parse(const OptionFacts& option, const std::string& word);
  static std::string text(const PromptEnd& end);
};

template <>
struct OptionValue<LayerRange> {
  static LayerRange parse(const OptionFacts& option, const std::string& word);
  static std::string text(const LayerRange& range);
};

template <>
struct OptionValue<Shard> {
  static Shard parse(const OptionFacts& option, const std::string& word);
  static std::string text(const Shard& shard) { return shard.name(); }
};

}  // namespace kvreplay
