#include "analysis/options/named_values.hpp"

#include <fmt/format.h>

namespace kvreplay {

Semantics OptionValue<Semantics>::parse(const OptionFacts& option, const std::string& word) {
  if (const auto semantics = kSemantics.named(word)) return *semantics;
  const std::vector<std::string> names = kSemantics.names();
  throw OptionError(option,
                    fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back()),
                    fmt::format("'{}'", word));
}

std::vector<std::string> names_of(const std::vector<NamedFile>& files) {
  std::vector<std::string> names;
  for (const NamedFile& file : files) names.push_back(file.name);
  return names;
}

NamedFile OptionValue<NamedFile>::parse(const OptionFacts& option, const std::string& word) {
  const auto equals = word.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == word.size())
    throw OptionError(option, "name=FILE.npy", fmt::format("'{}'", word));
  return {word.substr(0, equals), word.substr(equals + 1)};
}

}  // namespace kvreplay
