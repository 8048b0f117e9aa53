#pragma once

#include "analysis/commands/command.hpp"
#include "analysis/run/run.hpp"
#include "analysis/tokens/token_stage.hpp"
#include "data/dump.hpp"

#include <CLI/CLI.hpp>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// A CLI::App for one command: description, examples (one a line) under the help text, --help and --config.
std::unique_ptr<CLI::App> make_app(const std::string& name, const std::string& description,
                                   const std::string& examples);

/// Parses; true where the help was asked for and printed. Throws InputError with one line that names the
/// option.
bool parse(CLI::App& app, const Arguments& arguments);

/// Far beyond any token count, and small enough to be added to another.
inline constexpr Index kNoLimit = std::numeric_limits<Index>::max() / 4;
/// A check that a value is a whole number from `least` to `most`.
CLI::Validator whole_number(Index least, Index most = kNoLimit);

/// A check that a value is a number, "inf" and "nan" included.
CLI::Validator real_number();

/// Makes an option a comma-separated list.
CLI::Option* list(CLI::Option* option, const std::string& text);

/// Text of the help broken into lines between words.
std::string in_lines(const std::string& text);

/// A check that the name of a folder is not empty.
CLI::Validator folder_name();

/// Throws InputError where the name of a page does not end in .html.
void check_page_name(const std::string& file, const char* option);

/// "1 layer", "2 layers".
std::string counted(Index n, const char* what);

/// Options that commands share. Each add_ function adds some of them to an app; the struct must outlive the
/// parsing.
struct CommonOptions {
  std::string dump;
  std::vector<std::string> dumps;  ///< of commands that take several
  std::string label;               ///< which of several dumps this is; empty: the only one
  std::string out;
  std::string backend = "auto";
  std::string precision = "f32";
  int threads = 0;
  std::vector<std::string> layers;
  std::optional<Index> prompt_len;
  std::string shard;
  std::vector<std::string> parts;  ///< folders of finished shards to take the layers from
  bool resume = false;
  bool force = false;
  bool quiet = false;
  bool json = false;

  void add_dump(CLI::App& app);     ///< DUMP, --prompt-len
  void add_dumps(CLI::App& app);    ///< DUMP..., --prompt-len
  void add_compute(CLI::App& app);  ///< --backend, --precision, --threads, --layers
  void add_results(CLI::App& app);  ///< --out, --resume, --force, --shard
  void add_output(CLI::App& app);   ///< --quiet, --json

  /// The dump, opened; InputError where it is not one.
  Dump open() const;
  /// Throws InputError where this build cannot do what --backend and --precision ask for.
  /// Where the backend is left to the program, `note` says why it is not a GPU, and if it `may_fall_back`,
  /// the CPU takes over what a GPU has no memory for.
  struct ChosenCompute {
    Compute compute;
    std::string note;
  };
  ChosenCompute chosen_compute(bool may_fall_back = true) const;
  std::vector<Index> chosen_layers(const Dump& dump) const;
  std::optional<Shard> chosen_shard() const;
  Existing existing() const;
};

/// Where a run computed, and what is to be said of it: "computed on the CPU; auto: there is no NVIDIA GPU".
std::string backend_line(const Backend& backend, const std::string& note);

/// "MODEL: 6 layers x 2 KV heads (2 query heads each), 896 candidates".
std::string shape_line(const Dump& dump, Index layers);

/// The options of `tokens`, wherever they are taken.
void add_token_options(CLI::App& app, TokenStageOptions& options);

/// "0,3-5" as a list of layers: each once, ascending. InputError where one is not below `layers`.
std::vector<Index> parse_layers(const std::vector<std::string>& list, Index layers);
/// "2/8". InputError where it is not i/n with 1 <= i <= n.
Shard parse_shard(const std::string& text);

}  // namespace kvreplay
