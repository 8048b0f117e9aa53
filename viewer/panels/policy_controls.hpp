#pragma once

#include "analysis/options/option.hpp"
#include "sim/eviction/policy.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Pieces of controls for policies, as wide as their cell.

namespace kvreplay::viewer {

struct Choice {
  std::string name;
  std::string_view tip = {};
  bool enabled = true;
};

/// A combo box that shows `now`: the number of the choice that was made, or nothing.
std::optional<std::size_t> combo(const char* id, const std::string& now, const std::vector<Choice>& choices);
/// An option's whole number, from its least to `most`, that may be left out; `own` is shown in its place
/// then. True where it changed.
bool edit_optional(const OptionFacts& option, std::optional<Index>& value, const std::string& own,
                   Index most);

}  // namespace kvreplay::viewer
