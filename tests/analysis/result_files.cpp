#include "tests/analysis/result_files.hpp"

#include "data/npy_write.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

namespace kvreplay::test {

namespace fs = std::filesystem;

namespace {

/// The text between two marks of a header.
std::string between(const std::string& text, const std::string& from, const std::string& to) {
  const std::size_t begin = text.find(from);
  REQUIRE(begin != std::string::npos);
  const std::size_t end = text.find(to, begin + from.size());
  REQUIRE(end != std::string::npos);
  return text.substr(begin + from.size(), end - begin - from.size());
}

/// At the commas that do not stand in quotes; the quotes go.
std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (const char c : line)
    if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      cells.emplace_back();
    else
      cells.back() += c;
  return cells;
}

std::vector<fs::path> layer_folders(const std::string& dump) {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(dump))
    if (entry.is_directory()) folders.push_back(entry.path());
  return folders;
}

}  // namespace

std::string Npy::bytes() const {
  std::string tuple;
  for (const std::size_t n : shape) tuple += std::to_string(n) + ", ";
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + tuple + "), }";
  while ((11 + header.size()) % 64 != 0) header += ' ';
  header += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(header.size() & 0xff);
  out += static_cast<char>(header.size() >> 8);
  return out + header + data;
}

Npy npy_of(const std::string& bytes) {
  REQUIRE(bytes.size() > 10);
  REQUIRE(bytes.compare(0, 8, std::string("\x93NUMPY\x01\x00", 8)) == 0);
  const std::size_t length =
      static_cast<unsigned char>(bytes[8]) + std::size_t{256} * static_cast<unsigned char>(bytes[9]);
  const std::string header = bytes.substr(10, length);
  REQUIRE(header.find("'fortran_order': False") != std::string::npos);
  Npy array;
  array.descr = between(header, "'descr': '", "'");
  std::istringstream tuple(between(header, "'shape': (", ")"));
  for (std::string n; std::getline(tuple, n, ',');)
    if (n.find_first_of("0123456789") != std::string::npos) array.shape.push_back(std::stoul(n));
  array.data = bytes.substr(10 + length);
  return array;
}

Npy npy_file(const fs::path& path) {
  INFO(path.string());
  REQUIRE(fs::exists(path));
  return npy_of(file_text(path));
}

void forget_record(const fs::path& results) {
  std::vector<fs::path> summaries;
  for (const auto& entry : fs::recursive_directory_iterator(results))
    if (entry.path().filename() == "summary.json") summaries.push_back(entry.path());
  for (const fs::path& path : summaries) {
    auto json = nlohmann::ordered_json::parse(file_text(path));
    json.erase("files_xxh3");
    write_file(path, json.dump(1) + "\n");
  }
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  REQUIRE(out.good());
}

std::vector<CsvRow> csv_rows(const fs::path& path, const std::string& header) {
  INFO(path.string());
  std::istringstream in(file_text(path));
  std::string line;
  std::getline(in, line);
  REQUIRE(line == header);
  const std::vector<std::string> columns = split(header);
  std::vector<CsvRow> rows;
  while (std::getline(in, line)) {
    const std::vector<std::string> cells = split(line);
    REQUIRE(cells.size() == columns.size());
    CsvRow row;
    for (std::size_t c = 0; c < cells.size(); ++c) row[columns[c]] = cells[c];
    rows.push_back(std::move(row));
  }
  return rows;
}

Evictions::Evictions(const fs::path& folder)
    : rows_(csv_rows(folder / "evictions.csv",
                     "layer,kv_head,policy,semantics,phase,budget,kept,kept_share,rows,metric,value")) {
  for (CsvRow& row : rows_) {
    const std::string scope = row["layer"] + "," + row["kv_head"];
    const std::string run = row["policy"] + "," + row["semantics"] + "," + row["phase"] + "," + row["budget"];
    INFO(scope << " " << run << " " << row["rows"] << " " << row["metric"]);
    const std::string& value = row["value"];  // empty: none
    const double number = value.empty() ? std::numeric_limits<double>::quiet_NaN() : std::stod(value);
    REQUIRE(values_.emplace(std::tuple(scope, run, row["rows"], row["metric"]), number).second);
  }
}

bool Evictions::has(const std::string& scope, const std::string& run, const std::string& rows,
                    const std::string& metric) const {
  return values_.count({scope, run, rows, metric}) == 1;
}

double Evictions::at(const std::string& scope, const std::string& run, const std::string& rows,
                     const std::string& metric) const {
  INFO(scope << " " << run << " " << rows << " " << metric);
  REQUIRE(has(scope, run, rows, metric));
  return values_.at({scope, run, rows, metric});
}

std::string report_of(const fs::path& results, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"report", results.string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const ProcessResult result = run_kvreplay(arguments);
  INFO(result.err);
  REQUIRE(result.code == 0);
  return file_text(results / "report" / "index.html");
}

void make_small_dump(const std::string& folder, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"synth",    folder,       "--layers", "2",          "--q-heads",
                                        "4",        "--kv-heads", "2",        "--head-dim", "8",
                                        "--prompt", "61",         "--decode", "9",          "--quiet"};
  for (std::size_t i = 0; i + 1 < more.size(); i += 2) {
    const auto at = std::find(arguments.begin(), arguments.end(), more[i]);
    if (at != arguments.end())
      at[1] = more[i + 1];
    else
      arguments.insert(arguments.end(), {more[i], more[i + 1]});
  }
  const ProcessResult made = run_kvreplay(arguments);
  INFO(made.err);
  REQUIRE(made.code == 0);
}

void add_second_reading(const std::string& dump, std::size_t rows) {
  const std::size_t shape[] = {4, rows, 8};
  std::mt19937 bits(5);
  for (const char* layer : {"layer_00", "layer_01"}) {
    std::vector<float> values(4 * rows * 8);
    for (float& value : values) value = static_cast<float>(bits() % 2001) / 500.0F - 2.0F;
    write_npy(std::filesystem::path(dump) / layer / "q_ref.npy", shape, values);
  }
}

void keep_late_queries(const std::string& dump, std::size_t count) {
  for (const fs::path& layer : layer_folders(dump))
    for (const char* name : {"q.npy", "o.npy"}) {
      Npy all = npy_file(layer / name);
      REQUIRE(all.shape.size() == 3);
      REQUIRE(count <= all.shape[1]);
      const std::size_t row = all.shape[2] * sizeof(float);
      std::string late;
      for (std::size_t h = 0; h < all.shape[0]; ++h)
        late += all.data.substr((h * all.shape[1] + all.shape[1] - count) * row, count * row);
      all.shape[1] = count;
      all.data = late;
      write_file(layer / name, all.bytes());
    }
}

void remove_tensor(const std::string& dump, const std::string& name) {
  for (const fs::path& layer : layer_folders(dump)) REQUIRE(fs::remove(layer / (name + ".npy")));
}

std::string complaint(const std::vector<std::string>& arguments) {
  const ProcessResult result = run_kvreplay(arguments);
  INFO(result.out << result.err);
  CHECK(result.code == 2);
  CHECK(result.out.empty());
  CHECK(lines(result.err) == 1);
  CHECK(result.err.rfind("kvreplay: ", 0) == 0);
  return result.err;
}

std::string refusal(std::vector<std::string> arguments, const fs::path& out) {
  arguments.insert(arguments.end(), {"--out", out.string()});
  const std::string error = complaint(arguments);
  INFO(error);
  CHECK_FALSE(fs::exists(out));
  return error;
}

std::filesystem::path validated_results(const std::filesystem::path& folder) {
  make_small_dump(folder / "dump");
  const std::filesystem::path results = folder / "r";
  const ProcessResult run =
      run_kvreplay({"analyze", folder / "dump", "--out", results, "--only", "evict,budget,channels",
                    "--policy", "h2o,streaming,oracle", "--sigma", "0.5,0.8", "--order", "attn",
                    "--budget.method", "uniform,lu", "--channels.method", "think", "--quiet"});
  INFO(run.err);
  REQUIRE(run.code == 0);
  std::string table = "policy,semantics,phase,budget,kept,metric,value\n";
  const auto add = [&](const std::string& keys, const std::string& kl) {
    table += keys + ",kl," + kl + "\n" + keys + ",dnll,\n" + keys + ",same_top1,0.75\n";
  };
  add("h2o,paper,prefill,0.5,30", "0.04");
  add("streaming,paper,prefill,0.5,30", "0.08");
  add("oracle,paper,prefill,0.5,30", "0.001");
  add("h2o,paper,prefill,0.8,12", "0.2");
  add("streaming,paper,prefill,0.8,12", "0.3");
  add("oracle,paper,prefill,0.8,12", "0.05");
  add("attn~uniform,paper,prefill,0.5,", "0.03");
  add("attn~lu,paper,prefill,0.5,", "0.02");
  add("channels:think,paper,prefill,0.4,61", "0.06");
  write_file(results / "validate.csv", table);
  const auto summary = nlohmann::json::parse(file_text(results / "summary.json"));
  const nlohmann::json how = {{"results", summary.at("files_xxh3")}, {"finished", true}};
  write_file(results / "validate.json", how.dump());
  return results;
}

}  // namespace kvreplay::test
