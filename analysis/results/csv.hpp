#pragma once

#include "data/atomic_file.hpp"
#include "data/number_text.hpp"

#include <concepts>
#include <string>
#include <string_view>

namespace kvreplay {

/// shortest() as a field of a CSV, which is empty where there is no finite number.
std::string csv_number(double value);

/// A text as a field of a CSV: in quotes where it holds a comma, a quote or a line break.
std::string csv_field(std::string_view text);

/// A CSV file that appears whole, with finish(), or not at all: a header, then rows of fields,
/// comma-separated, a line feed after each. Memory: a buffer. Throws InputError where the file cannot be
/// written.
class CsvFile {
 public:
  /// `header` as it stands in the file, comma-separated.
  CsvFile(AtomicFile file, std::string_view header);

  CsvFile& add(std::string_view field);  ///< as csv_field()
  CsvFile& add(double value);
  CsvFile& add(std::integral auto value) { return add(std::string_view(std::to_string(value))); }
  void end_row();
  void finish();

  std::size_t rows() const { return rows_; }

 private:
  void flush();

  AtomicFile file_;
  std::string buffer_;
  std::size_t rows_ = 0;
  bool row_open_ = false;
};

}  // namespace kvreplay
