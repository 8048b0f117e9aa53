#include "analysis/results/csv.hpp"

#include <cmath>
#include <utility>

namespace kvreplay {

std::string csv_number(double value) { return std::isfinite(value) ? shortest(value) : std::string(); }

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\n\r") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

CsvFile::CsvFile(AtomicFile file, std::string_view header) : file_(std::move(file)) {
  buffer_ += header;
  buffer_ += '\n';
}

CsvFile& CsvFile::add(std::string_view field) {
  if (row_open_) buffer_ += ',';
  row_open_ = true;
  buffer_ += csv_field(field);
  return *this;
}

CsvFile& CsvFile::add(double value) { return add(std::string_view(csv_number(value))); }

void CsvFile::end_row() {
  constexpr std::size_t kFull = std::size_t{1} << 20;
  buffer_ += '\n';
  row_open_ = false;
  ++rows_;
  if (buffer_.size() >= kFull) flush();
}

void CsvFile::finish() {
  flush();
  file_.commit();
}

void CsvFile::flush() {
  file_.write(buffer_);
  buffer_.clear();
}

}  // namespace kvreplay
