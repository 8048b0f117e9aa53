#pragma once

#include "analysis/results/csv.hpp"

#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kvreplay::viewer {

/// A table as a CSV in memory, its fields as in the result folder's files: shortest decimals, texts in quotes
/// where they need them. For the clipboard and for panels' exports.
class CsvTable {
 public:
  /// `header` as it stands in the file, comma-separated.
  explicit CsvTable(std::string_view header) { text_.append(header) += '\n'; }

  /// Fields of one row; an optional without a value is an empty one.
  template <class... Fields>
  void row(const Fields&... fields) {
    (add(fields), ...);
    end_row();
  }
  template <class Field>
  CsvTable& add(const Field& field) {
    if (row_open_) text_ += ',';
    row_open_ = true;
    text_ += text_of(field);
    return *this;
  }
  void end_row() {
    text_ += '\n';
    row_open_ = false;
    ++rows_;
  }

  std::size_t rows() const { return rows_; }
  const std::string& text() const { return text_; }

 private:
  template <class Field>
  static std::string text_of(const Field& field) {
    if constexpr (std::convertible_to<const Field&, std::string_view>)
      return csv_field(field);
    else if constexpr (std::same_as<Field, float>)
      return fmt::format("{}", field);  // as a double it would have digits that are not its own
    else if constexpr (std::floating_point<Field>)
      return shortest(field);
    else if constexpr (std::integral<Field>)
      return std::to_string(field);
    else
      return field ? text_of(*field) : std::string();
  }

  std::string text_;
  std::size_t rows_ = 0;
  bool row_open_ = false;
};

/// A figure, or an empty field where there is none.
inline std::optional<double> if_any(double value) {
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

}  // namespace kvreplay::viewer
