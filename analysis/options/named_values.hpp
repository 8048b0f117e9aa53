#pragma once

#include "analysis/options/option.hpp"
#include "sim/eviction/policy.hpp"

#include <string>
#include <vector>

// Words that options of several analyses take.

namespace kvreplay {

template <>
struct OptionValue<Semantics> {
  static Semantics parse(const OptionFacts& option, const std::string& word);
  static std::string text(Semantics semantics) { return std::string(name_of(semantics)); }
};

/// name=FILE: an array of the user's.
struct NamedFile {
  std::string name, file;
};
std::vector<std::string> names_of(const std::vector<NamedFile>& files);

template <>
struct OptionValue<NamedFile> {
  /// Splits it; whether the name can be used is found when the file is read.
  static NamedFile parse(const OptionFacts& option, const std::string& word);
  static std::string text(const NamedFile& named) { return named.name + "=" + named.file; }
};

}  // namespace kvreplay
