#pragma once

#include "analysis/commands/arguments.hpp"
#include "analysis/options/option.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

// The options of a command that runs several analyses in one pass: --PART.NAME each, and --NAME where that is
// no riddle.

namespace kvreplay {

/// An analysis and its options.
struct OptionsOfPart {
  std::string_view name;
  BoundOptions options;
};

/// An option that says the same to several parts: --NAME sets it in each of them.
struct SharedOption {
  OptionFacts facts;
  std::span<const std::string_view> parts;
};

class PartOptions {
 public:
  /// Adds the options of `parts` to the command line, its help (each once, by part) and the config file: all
  /// of them as --PART.NAME, or NAME in a section [PART]; those that are `shared`, and those that one part
  /// alone has, as --NAME too. --PART.NAME goes before --NAME. What the parts are bound to must outlive the
  /// parsing.
  PartOptions(CommandLine& app, const std::vector<OptionsOfPart>& parts,
              std::span<const SharedOption> shared);

  /// Throws OptionError for an option that was given though none of its parts runs.
  void require_used(const std::vector<std::string>& running) const;
  /// Whether an option of this part alone was given.
  bool mention(std::string_view part) const;
  /// A part's complaint, with its options as they are called here.
  OptionText called_here(const OptionText& complaint, std::string_view part) const;

 private:
  struct Named {
    const CLI::Option* option;
    std::string name;
    std::vector<std::string_view> parts;
  };
  const Named* find(const std::string& name) const;

  std::vector<Named> named_;
};

}  // namespace kvreplay
