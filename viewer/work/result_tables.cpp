#include "viewer/work/result_tables.hpp"

#include "analysis/result_folder.hpp"
#include "data/error.hpp"
#include "data/json_fields.hpp"
#include "data/npy/npy_header.hpp"
#include "data/npy_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace kvreplay::viewer {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostJson = std::uintmax_t{1} << 28;

/// The columns of a table of the format, and the summary's name for the number of its rows.
struct TableFormat {
  std::string_view name, columns, count;
};
constexpr TableFormat kTables[] = {
    {"heads.csv", "layer,kv_head", "heads"},
    {"agreement.csv", "layer,kv_head,score,reference,rows,reserve,metric,value", "agreement_rows"},
    {"evictions.csv", "layer,kv_head,policy,semantics,phase,budget,kept,rows,metric,value", "eviction_rows"},
    {"decode.csv", "layer,kv_head,policy,semantics,budget,metric,value", ""},
    {"diff.csv", "layer,kv_head,policy,phase,budget,semantics,other,rows,metric,value", ""},
    {"budgets.csv", "layer,kv_head,order,method,sigma,budget,loss,output_error,layer_output_error",
     "budget_rows"},
    {"channels.csv", "layer,kv_head,method,semantics,ratio,recent,pruned,rows,metric,value", "channel_rows"},
};

const TableFormat* format_of(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kTables), std::end(kTables),
                                         [&](const TableFormat& f) { return f.name == name; });
  return found == std::end(kTables) ? nullptr : found;
}

Index size_field(const nlohmann::json& object, const char* key, Index least, const std::string& where) {
  constexpr Index kMost = Index{1} << 40;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned() || found->get<std::uint64_t>() > kMost ||
      found->get<Index>() < least)
    throw InputError(where + ": " + key, fmt::format("a whole number of at least {}", least),
                     found == object.end() ? "none" : json_text(*found));
  return found->get<Index>();
}

DumpShape shape_of(const nlohmann::json& summary, const std::string& where) {
  const auto dump = summary.find("dump");
  if (dump == summary.end() || !dump->is_object())
    throw InputError(where + ": dump", "an object", dump == summary.end() ? "none" : json_text(*dump));
  for (const char* key : {"model", "fingerprint"})
    if (const auto text = dump->find(key); text != dump->end() && !text->is_string())
      throw InputError(where + ": dump." + key, "a string", json_text(*text));
  const auto size = [&](const char* key, Index least) {
    return size_field(*dump, key, least, where + ": dump");
  };
  DumpShape shape;
  shape.layers = size("layers", 1);
  shape.n_q = size("n_q", 1);
  shape.n_kv = size("n_kv", 1);
  shape.d = size("d", 1);
  shape.d_v = size("d_v", 1);
  shape.d_model = size("d_model", 0);
  shape.T = size("T", 1);
  shape.T_q = size("T_q", 0);
  shape.l = size("l", 0);
  if (shape.n_q % shape.n_kv != 0 || shape.l > shape.T || shape.T_q > shape.T)
    throw InputError(where + ": dump", "n_q a multiple of n_kv, l and T_q at most T",
                     fmt::format("n_q {}, n_kv {}, T {}, T_q {}, l {}", shape.n_q, shape.n_kv, shape.T,
                                 shape.T_q, shape.l));
  return shape;
}

std::vector<Index> layers_of(const nlohmann::json& summary, Index dump_layers, const std::string& where) {
  const auto found = summary.find("layers");
  std::vector<Index> layers;
  bool good = found != summary.end() && found->is_array();
  if (good)
    for (const auto& layer : *found) {
      good = good && layer.is_number_unsigned() &&
             layer.get<std::uint64_t>() < static_cast<std::uint64_t>(dump_layers) &&
             (layers.empty() || layer.get<Index>() > layers.back());
      if (!good) break;
      layers.push_back(layer.get<Index>());
    }
  if (!good)
    throw InputError(where + ": layers", fmt::format("ascending layers below {}", dump_layers),
                     found == summary.end() ? "none" : json_text(*found));
  return layers;
}

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

ResultTables::ResultTables(fs::path folder) : folder_(std::move(folder)) {
  const fs::path path = folder_ / "summary.json";
  const std::string where = path.string(), text = file_text(path, kMostJson);
  const nlohmann::json plain = parse_json_object(text, where);
  const auto is = [&](const char* key, const nlohmann::json& wanted) {
    const auto found = plain.find(key);
    if (found == plain.end() || *found != wanted)
      throw InputError(where + ": " + key, json_text(wanted),
                       found == plain.end() ? "none" : json_text(*found));
  };
  is("program", "kvreplay");
  is("schema", kResultSchema);
  shape_ = shape_of(plain, where);
  layers_ = layers_of(plain, shape_.layers, where);
  summary_ = nlohmann::ordered_json::parse(text);
}

bool ResultTables::is_results(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / "summary.json", ignored);
}

std::vector<fs::path> ResultTables::dump_paths() const {
  fs::path dump;
  try {
    const std::string name = (folder_ / "run.json").string();
    dump = JsonFields(parse_json_object(file_text(name, kMostJson), name), name).text("dump").value_or("");
  } catch (const InputError&) {
    return {};  // results are complete without run.json
  }
  if (dump.empty()) return {};
  if (dump.is_absolute()) return {dump};
  std::vector<fs::path> candidates{fs::absolute(dump).lexically_normal()};
  const auto add = [&](const fs::path& base) {
    const fs::path candidate = (base / dump).lexically_normal();
    if (std::find(candidates.begin(), candidates.end(), candidate) == candidates.end())
      candidates.push_back(candidate);
  };
  for (fs::path base = fs::absolute(folder_).lexically_normal();; base = base.parent_path()) {
    add(base);
    if (base == base.parent_path()) break;
  }
  std::vector<fs::path> there;
  std::error_code ignored;
  for (const fs::path& candidate : candidates)
    if (fs::exists(candidate, ignored)) there.push_back(candidate);
  return there.empty() ? std::vector<fs::path>{candidates.front()} : there;
}

bool ResultTables::has(const fs::path& name) const {
  std::error_code ignored;
  return fs::is_regular_file(folder_ / name, ignored);
}

CsvReader ResultTables::open_table(const std::string& name) const {
  CsvReader reader(folder_ / name);
  if (const TableFormat* format = format_of(name)) {
    std::string_view rest = format->columns;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find(','), rest.size());
      reader.need(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return reader;
}

void ResultTables::check_rows(const std::string& name, std::size_t rows) const {
  const TableFormat* format = format_of(name);
  if (format == nullptr || format->count.empty()) return;
  const auto totals = summary_.find("totals");
  if (totals == summary_.end() || !totals->is_object()) return;
  const auto count = totals->find(std::string(format->count));
  if (count == totals->end() || !count->is_number_unsigned() || count->get<std::size_t>() == rows) return;
  throw InputError((folder_ / name).string(), count->dump() + " rows, as summary.json says",
                   fmt::format("{}", rows));
}

ResultTable ResultTables::table(const std::string& name) const {
  ResultTable table;
  CsvReader reader = open_table(name);
  table.columns = reader.columns();
  std::vector<std::string> row;
  while (reader.next(row)) table.rows.push_back(row);
  check_rows(name, reader.rows());
  return table;
}

std::vector<std::string> ResultTables::map_names() const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder_ / "maps", error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".npy") names.push_back(at->path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

Matrix<double> ResultTables::map(const std::string& name) const {
  const fs::path path = fs::path("maps") / (name + ".npy");
  const Array found = array(path);
  const std::vector<Index> shape{static_cast<Index>(layers_.size()), shape_.n_kv};
  if (found.shape != shape)
    throw InputError((folder_ / path).string(), "shape " + shape_text(shape),
                     "shape " + shape_text(found.shape));
  return Eigen::Map<const Matrix<double>>(found.values.data(), shape[0], shape[1]);
}

ResultTables::Array ResultTables::array(const fs::path& name) const {
  NpyNumbers numbers = read_npy_numbers(folder_ / name);
  return {std::move(numbers.shape), std::move(numbers.values)};
}

}  // namespace kvreplay::viewer
