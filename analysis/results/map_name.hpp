#pragma once

#include "analysis/results/schema.hpp"
#include "sim/head_group.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace kvreplay {

/// A word of a table as names of files have it: '_' for ':'.
std::string file_word(std::string_view word);

/// The parts of a file name in maps/. Such a file holds one figure of every head.
struct MapName {
  Table table = Table::heads;
  std::string figure = {};  ///< as the table has it
  std::string item =
      {};  ///< the score, or the kept set, allocation or selection as its array is called; or empty
  std::string against =
      {};  ///< the reference, or the rows: "window", "future"; empty where the table has neither
  std::optional<Index> window = {}, reserve = {};  ///< of agreement, but for the run's first

  /// The file's name without ".npy".
  std::string text() const;
};
/// Nothing where a map of the format cannot have this name.
std::optional<MapName> map_named(std::string_view text);

}  // namespace kvreplay
