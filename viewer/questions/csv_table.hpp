#pragma once

#include "analysis/results/csv.hpp"

#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>

namespace kvreplay::viewer {

/// A table as a CSV in memory, for the clipboard and for panels' exports. Of numbers that are not finite it
/// says which; an optional without a value is an empty field.
class CsvTable : public kvreplay::CsvTable {
 public:
  using kvreplay::CsvTable::CsvTable;

  template <class... Fields>
  void row(const Fields&... fields) {
    (add(fields), ...);
    end_row();
  }
  template <class Field>
  CsvTable& add(const Field& field) {
    kvreplay::CsvTable::add(std::string_view(text_of(field)));
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  template <class Field>
  static std::string text_of(const Field& field) {
    if constexpr (std::convertible_to<const Field&, std::string_view>)
      return std::string(std::string_view(field));
    else if constexpr (std::same_as<Field, float>)
      return fmt::format("{}", field);  // as a double it would have digits that are not its own
    else if constexpr (std::floating_point<Field>)
      return shortest(field);
    else if constexpr (std::integral<Field>)
      return std::to_string(field);
    else
      return field ? text_of(*field) : std::string();
  }
};

/// A figure, or an empty field where there is none.
inline std::optional<double> if_any(double value) {
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

}  // namespace kvreplay::viewer
