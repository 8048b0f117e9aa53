#pragma once

#include <CLI/CLI.hpp>

#include <map>
#include <string>
#include <vector>

namespace kvreplay {

/// What is wrong with a config file, where its name is not known yet.
struct ConfigFault {
  std::string line;
};

/// The options of a command from a TOML file: one key a name; a section for what stands before the dots in
/// names. Throws ConfigFault at what is no TOML and at keys that `app` has no option for.
class TomlConfig : public CLI::ConfigTOML {
 public:
  explicit TomlConfig(const CLI::App& app) : app_(app) {}
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

  /// The line of the key that an error of CLI11 ("--window: expected ...") is about; 0 where there is none.
  int line_of(const std::string& error) const;

 private:
  const CLI::App& app_;
  mutable std::map<std::string, int> line_of_;
};

/// The names of an app's options, each behind `prefix`.
std::vector<std::string> option_names(const CLI::App& app, const std::string& prefix);

/// Whether a list has an item that CLI11 would drop.
bool has_empty_item(const std::string& list);

}  // namespace kvreplay
