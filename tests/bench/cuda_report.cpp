#include "tests/bench/cuda_report.hpp"

#include <cstdio>

namespace kvreplay::bench {

std::string readable(double number) {
  const double size = number < 0 ? -number : number;
  const char* format = size >= 100   ? "%.0f"
                       : size >= 10  ? "%.1f"
                       : size >= 1   ? "%.2f"
                       : size >= 0.1 ? "%.3f"
                                     : "%.3g";
  char text[64];
  std::snprintf(text, sizeof(text), format, number);
  return text;
}

void Report::table(const std::string& name, const std::string& title, std::vector<std::string> columns) {
  end_table();
  name_ = name;
  columns_ = std::move(columns);
  json_[name_] = nlohmann::json::array();
  std::printf("\n%s\n\n|", title.c_str());
  for (const std::string& column : columns_) std::printf(" %s |", column.c_str());
  std::printf("\n|");
  for (std::size_t i = 0; i < columns_.size(); ++i) std::printf("---|");
  std::printf("\n");
}

void Report::row(const std::vector<Cell>& cells) {
  nlohmann::json object;
  std::printf("|");
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (const auto* number = std::get_if<double>(&cells[i])) {
      object[columns_.at(i)] = *number;
      std::printf(" %s |", readable(*number).c_str());
    } else {
      object[columns_.at(i)] = std::get<std::string>(cells[i]);
      std::printf(" %s |", std::get<std::string>(cells[i]).c_str());
    }
  }
  std::printf("\n");
  std::fflush(stdout);
  json_[name_].push_back(object);
}

void Report::end_table() {
  if (!notes_.empty()) std::printf("\n");
  for (const std::string& note : notes_) {
    std::printf("- %s\n", note.c_str());
    json_["notes"].push_back(name_ + ": " + note);
  }
  notes_.clear();
  std::fflush(stdout);
}

}  // namespace kvreplay::bench
