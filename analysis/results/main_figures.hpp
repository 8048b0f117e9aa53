#pragma once

#include "analysis/results/schema.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// The figures that a table is read for first, laid out on a page: items down, settings across.
struct Pivot {
  Table table = Table::heads;
  std::string metric,
      rows;  ///< `metric` is empty where all are laid out as one, `rows` where settings imply it
  std::string title;
  Better better = Better::neither;
  FigureScale scale = FigureScale::linear;
  std::vector<std::string> item_keys;           ///< "policy", "semantics", ...
  std::vector<std::vector<std::string>> items;  ///< the values of item_keys, in order of appearance
  std::vector<std::string> settings;            ///< "budget 0.5", in order of appearance
  std::vector<std::vector<std::optional<std::size_t>>> cells;  ///< [items][settings]: a number of a figure
};

/// Lays out the figures of the whole model among `figures`, given by their keys
/// (analysis/results/figures.hpp) under the names `keys`. On the future rows where there are any, else on the
/// window; of swept keys with the first value. Empty where the table has no such figures.
std::vector<Pivot> pivots(Table table, std::span<const std::string> keys,
                          std::span<const std::vector<std::string>> figures);

/// A value of a table's key `across` in words: "kept 20 %", "ratio 0.5", "no budget"; of a reference itself.
std::string setting_text(std::string_view across, const std::string& value);

/// The items' names on one line each, their keys' values without those that all share; in front of them the
/// names of these keys.
struct ItemNames {
  std::string heading;
  std::vector<std::string> names;
  std::vector<std::string> shown;  ///< as people read them
  std::vector<bool> oracles;       ///< is_oracle() of one of the keys
};
ItemNames item_names(const Pivot& pivot);

/// Aligned text: the first column left, the others right.
std::string aligned(std::span<const std::vector<std::string>> rows, std::string_view indent = "  ");
/// A Markdown table; the first row is the header.
std::string markdown(std::span<const std::vector<std::string>> rows);

}  // namespace kvreplay
