#pragma once

#include "analysis/results/text_file.hpp"
#include "data/atomic_file.hpp"
#include "data/number_text.hpp"

#include <concepts>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay {

/// shortest() as a field of a CSV, which is empty where there is no finite number.
std::string csv_number(double value);

/// A text as a field of a CSV: in quotes where it holds a comma, a quote or a line break.
std::string csv_field(std::string_view text);

/// A CSV in memory: a header, then rows of fields, comma-separated, a line feed after each.
class CsvTable {
 public:
  /// `header` as it stands in the text, comma-separated.
  explicit CsvTable(std::string_view header);
  virtual ~CsvTable() = default;
  CsvTable(const CsvTable&) = delete;
  CsvTable& operator=(const CsvTable&) = delete;

  CsvTable& add(std::string_view field);  ///< as csv_field()
  CsvTable& add(double value);            ///< as csv_number()
  CsvTable& add(std::integral auto value) { return add(std::string_view(std::to_string(value))); }
  void end_row();
  template <class... Fields>
  void row(const Fields&... fields) {
    (add(fields), ...);
    end_row();
  }

  std::size_t rows() const { return rows_; }
  std::string take() { return std::move(text_); }

 protected:
  virtual void flush() {}  ///< the text has become long

  std::string text_;

 private:
  std::size_t rows_ = 0;
  bool row_open_ = false;
};

/// A CSV file that appears whole, with finish(), or not at all. Memory: a buffer. Throws InputError where the
/// file cannot be written.
class CsvFile : public CsvTable {
 public:
  CsvFile(AtomicFile file, std::string_view header);
  void finish();

 private:
  void flush() override;

  AtomicFile file_;
};

/// A CSV file row by row (RFC 4180: fields in quotes may hold commas, line breaks and doubled quotes). Throws
/// InputError with path and line where a row has another number of fields than the header, a quote is
/// misplaced, or the file ends within a line.
class CsvReader {
 public:
  explicit CsvReader(const std::filesystem::path& path);
  /// Reads a text that was part of the file `path`.
  CsvReader(std::filesystem::path path, std::string text);

  const std::vector<std::string>& columns() const { return columns_; }
  std::optional<std::size_t> column(std::string_view name) const;
  /// The column; throws where there is none.
  std::size_t need(std::string_view name) const;

  /// The next row; false at the end. `row` keeps its memory from call to call.
  bool next(std::vector<std::string>& row);
  /// A field of the row read last as a number, "nan" and "inf" among them.
  double number(const std::vector<std::string>& row, std::size_t column) const;
  /// A field of the row read last as a number, nan where it is empty.
  double number_or_nan(const std::vector<std::string>& row, std::size_t column) const;
  /// A field of the row read last as a whole number of at least 0.
  std::ptrdiff_t index(const std::vector<std::string>& row, std::size_t column) const;
  std::size_t rows() const { return rows_; }  ///< read so far
  /// Throws InputError that names the row read last.
  [[noreturn]] void fail(const std::string& expected, const std::string& found) const;

 private:
  /// Reads one line into `row` and returns the number of its fields.
  std::size_t read_line(std::vector<std::string>& row);

  std::filesystem::path path_;
  std::string text_;
  std::size_t at_ = 0, line_ = 0, next_line_ = 1, rows_ = 0;
  std::vector<std::string> columns_;
};

/// A field as a number, "nan" and "inf" among them; throws InputError where it is none.
double number_in(std::string_view field);

}  // namespace kvreplay
