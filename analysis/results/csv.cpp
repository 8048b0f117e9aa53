#include "analysis/results/csv.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>
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

CsvTable::CsvTable(std::string_view header) {
  text_ += header;
  text_ += '\n';
}

CsvTable& CsvTable::add(std::string_view field) {
  if (row_open_) text_ += ',';
  row_open_ = true;
  text_ += csv_field(field);
  return *this;
}

CsvTable& CsvTable::add(double value) { return add(std::string_view(csv_number(value))); }

void CsvTable::end_row() {
  constexpr std::size_t kFull = std::size_t{1} << 20;
  text_ += '\n';
  row_open_ = false;
  ++rows_;
  if (text_.size() >= kFull) flush();
}

CsvFile::CsvFile(AtomicFile file, std::string_view header) : CsvTable(header), file_(std::move(file)) {}

void CsvFile::finish() {
  flush();
  file_.commit();
}

void CsvFile::flush() {
  file_.write(text_);
  text_.clear();
}

namespace {

/// A field as messages quote it: at most 40 characters, on one line.
std::string in_quotes(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 40)) shown += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return "'" + shown + (text.size() > 40 ? "...'" : "'");
}

/// The number that a field spells from end to end.
template <class Number>
std::optional<Number> spelled(std::string_view field) {
  Number value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  return error == std::errc() && end == field.data() + field.size() ? std::optional(value) : std::nullopt;
}

}  // namespace

CsvReader::CsvReader(const std::filesystem::path& path)
    : CsvReader(path, file_text(path, std::uintmax_t{1} << 32)) {}

CsvReader::CsvReader(std::filesystem::path path, std::string text)
    : path_(std::move(path)), text_(std::move(text)) {
  if (text_.empty()) throw InputError(path_.string(), "a line of column names", "an empty file");
  columns_.resize(read_line(columns_));
}

std::optional<std::size_t> CsvReader::column(std::string_view name) const {
  const auto found = std::ranges::find(columns_, name);
  if (found == columns_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - columns_.begin());
}

std::size_t CsvReader::need(std::string_view name) const {
  if (const auto found = column(name)) return *found;
  throw InputError(path_.string(), fmt::format("a column {}", name),
                   "columns " + in_quotes(fmt::format("{}", fmt::join(columns_, ","))));
}

void CsvReader::fail(const std::string& expected, const std::string& found) const {
  throw InputError(fmt::format("{}: line {}", path_.string(), line_), expected, found);
}

std::size_t CsvReader::read_line(std::vector<std::string>& row) {
  line_ = next_line_;
  std::size_t fields = 0;
  while (true) {
    if (fields == row.size()) row.emplace_back();
    std::string& field = row[fields++];
    field.clear();
    if (at_ < text_.size() && text_[at_] == '"') {
      for (++at_;;) {
        const std::size_t quote = text_.find('"', at_);
        if (quote == std::string::npos) fail("a quote that closes", "the end of the file");
        field.append(text_, at_, quote - at_);
        at_ = quote + 1;
        if (at_ >= text_.size() || text_[at_] != '"') break;
        field += '"';
        ++at_;
      }
      next_line_ += static_cast<std::size_t>(std::count(field.begin(), field.end(), '\n'));
    } else {
      const std::size_t end = std::min(text_.find_first_of(",\n\"", at_), text_.size());
      field.append(text_, at_, end - at_);
      at_ = end;
      if (at_ < text_.size() && text_[at_] == '\n' && field.ends_with('\r')) field.pop_back();
    }
    if (text_.compare(at_, 2, "\r\n") == 0) ++at_;
    if (at_ >= text_.size()) fail("a line end", "the end of the file");
    const char separator = text_[at_++];
    if (separator == '\n') break;
    if (separator != ',') fail("quotes around a whole field", "one within it");
  }
  ++next_line_;
  return fields;
}

bool CsvReader::next(std::vector<std::string>& row) {
  if (at_ >= text_.size()) return false;
  const std::size_t fields = read_line(row);
  if (fields != columns_.size()) fail(fmt::format("{} fields", columns_.size()), fmt::format("{}", fields));
  row.resize(fields);
  ++rows_;
  return true;
}

double CsvReader::number(const std::vector<std::string>& row, std::size_t column) const {
  if (const auto value = spelled<double>(row[column])) return *value;
  fail("a number as " + columns_[column], in_quotes(row[column]));
}

double CsvReader::number_or_nan(const std::vector<std::string>& row, std::size_t column) const {
  return row[column].empty() ? std::numeric_limits<double>::quiet_NaN() : number(row, column);
}

std::ptrdiff_t CsvReader::index(const std::vector<std::string>& row, std::size_t column) const {
  if (const auto value = spelled<std::ptrdiff_t>(row[column]); value && *value >= 0) return *value;
  fail("a whole number as " + columns_[column], in_quotes(row[column]));
}

double number_in(std::string_view field) {
  if (const auto value = spelled<double>(field)) return *value;
  throw InputError("a field of a table", "a number", in_quotes(field));
}

}  // namespace kvreplay
