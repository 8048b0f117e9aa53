#include "analysis/results/result_table.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

constexpr TableFormat kFormats[] = {
    {"heads", "layer,kv_head", "", "", true, "heads"},
    {"agreement", "layer,kv_head,score,reference,rows,reserve,metric", "", "value", true, "agreement_rows"},
    {"evictions", "layer,kv_head,policy,semantics,phase,budget,rows,metric", "kept", "value", false,
     "eviction_rows"},
    {"decode", "layer,kv_head,policy,semantics,budget,metric", "", "value", true, ""},
    {"diff", "layer,kv_head,policy,phase,budget,semantics,other,rows,metric", "", "value", false, ""},
    {"budgets", "layer,kv_head,order,method,sigma", "", "budget,loss,output_error,layer_output_error", false,
     "budget_rows"},
    {"channels", "layer,kv_head,method,semantics,ratio,recent,rows,metric", "pruned", "value", false,
     "channel_rows"},
};

}  // namespace

std::optional<std::size_t> ResultTable::column(std::string_view name) const {
  const auto found = std::find(columns.begin(), columns.end(), name);
  if (found == columns.end()) return std::nullopt;
  return static_cast<std::size_t>(found - columns.begin());
}

std::size_t bytes_of(const ResultTable& table) {
  std::size_t bytes = sizeof(table);
  for (const auto& row : table.rows) {
    bytes += sizeof(std::vector<std::string>);
    for (const std::string& field : row)
      bytes += sizeof(std::string) + (field.size() > 15 ? field.capacity() : 0);
  }
  return bytes;
}

std::span<const TableFormat> table_formats() { return kFormats; }

const TableFormat* table_format(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                         [&](const TableFormat& f) { return f.name == name; });
  return found == std::end(kFormats) ? nullptr : found;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

}  // namespace kvreplay
