#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <variant>
#include <vector>

// A run's tables, as Markdown while it goes on and as JSON at its end.

namespace kvreplay::bench {

/// Text, or a number in the column's unit.
using Cell = std::variant<std::string, double>;

/// To three digits or so, without an exponent where a reader needs none.
std::string readable(double number);

class Report {
 public:
  explicit Report(nlohmann::json about) : json_(std::move(about)) {}
  /// Begins a table and prints its head.
  void table(const std::string& name, const std::string& title, std::vector<std::string> columns);
  /// As many cells as the table has columns.
  void row(const std::vector<Cell>& cells);
  /// A line below the table, such as why something is missing.
  void note(const std::string& line) { notes_.push_back(line); }
  /// Ends the table; table() does so too.
  void end_table();
  const nlohmann::json& json() const { return json_; }

 private:
  std::string name_;
  std::vector<std::string> columns_;
  nlohmann::json json_;
  std::vector<std::string> notes_;  // of the table that is being printed
};

}  // namespace kvreplay::bench
