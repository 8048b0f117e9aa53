#include "analysis/results/result_reader.hpp"

#include "analysis/results/recorded_files.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/text_file.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"
#include "data/npy_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostJson = std::uintmax_t{1} << 28;

Index size_field(const Json& object, const char* key, Index least, const std::string& where) {
  constexpr Index kMost = Index{1} << 40;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned() || found->get<std::uint64_t>() > kMost ||
      found->get<Index>() < least)
    throw InputError(where + ": " + key, fmt::format("a whole number of at least {}", least),
                     found == object.end() ? "none" : json_text(*found));
  return found->get<Index>();
}

DumpShape shape_of(const Json& summary, const std::string& where) {
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

/// Nothing where they are no list of ascending numbers below `end`.
std::optional<std::vector<Index>> ascending(const Json& list, Index end) {
  if (!list.is_array()) return std::nullopt;
  std::vector<Index> numbers;
  for (const auto& one : list) {
    if (!one.is_number_unsigned() || one.get<std::uint64_t>() >= static_cast<std::uint64_t>(end) ||
        (!numbers.empty() && one.get<Index>() <= numbers.back()))
      return std::nullopt;
    numbers.push_back(one.get<Index>());
  }
  return numbers;
}

std::vector<Index> layers_of(const Json& summary, Index dump_layers, const std::string& where) {
  const auto found = summary.find("layers");
  if (found != summary.end())
    if (auto layers = ascending(*found, dump_layers)) return *std::move(layers);
  throw InputError(where + ": layers", fmt::format("ascending layers below {}", dump_layers),
                   found == summary.end() ? "none" : json_text(*found));
}

std::vector<Index> model_layers_of(const Json& summary, Index dump_layers, const std::string& where) {
  const Json& dump = summary.at("dump");
  const auto found = dump.find("model_layers");
  if (found == dump.end()) return {};
  constexpr Index kEnd = std::numeric_limits<Index>::max();
  if (auto numbers = ascending(*found, kEnd); numbers && std::ssize(*numbers) == dump_layers)
    return *std::move(numbers);
  throw InputError(where + ": dump.model_layers", fmt::format("{} ascending numbers", dump_layers),
                   json_text(*found));
}

}  // namespace

ResultReader::ResultReader(fs::path folder) : folder_(std::move(folder)) {
  const fs::path path = folder_ / "summary.json";
  std::error_code ignored;
  if (!fs::exists(path, ignored) && fs::exists(folder_ / ".kvreplay" / "state.json", ignored))
    throw InputError(folder_.string(), "finished results",
                     "unfinished ones; the command that began them, with --resume, finishes them");
  if (!fs::exists(path, ignored))
    throw InputError(folder_.string(), "a result folder, with a summary.json",
                     fs::exists(folder_ / "manifest.json", ignored)
                         ? "a dump (kvreplay analyze DUMP --out DIR makes results of it)"
                     : fs::is_directory(folder_, ignored) ? "a folder without one"
                     : fs::exists(folder_, ignored)       ? "a file"
                                                          : "no folder");
  const std::string where = path.string();
  summary_ = parse_json_object(file_text(path, kMostJson), where);
  const auto is = [&](const char* key, const Json& wanted) {
    const auto found = summary_.find(key);
    if (found == summary_.end() || *found != wanted)
      throw InputError(where + ": " + key, json_text(wanted),
                       found == summary_.end() ? "none" : json_text(*found));
  };
  is("program", "kvreplay");
  is("schema", kResultSchema);
  if (const auto kind = summary_.find("kind"); kind != summary_.end())
    throw InputError(where + ": kind", "none: the results of one dump", json_text(*kind));
  shape_ = shape_of(summary_, where);
  layers_ = layers_of(summary_, shape_.layers, where);
  model_layers_ = model_layers_of(summary_, shape_.layers, where);
  if (!fs::exists(folder_ / "files.csv", ignored)) return;
  recorded_.emplace();
  for (RecordedFile& file : files_of_results(folder_, summary_)) recorded_->insert(std::move(file.name));
}

Json ResultReader::option(std::string_view command, std::string_view key) const {
  const Json::json_pointer at(fmt::format("/options/{}/{}", command, key));
  return summary_.contains(at) ? summary_[at] : Json();
}

bool ResultReader::is_results(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / "summary.json", ignored);
}

std::vector<fs::path> ResultReader::dump_paths() const {
  fs::path dump, directory, from_here;
  const fs::path name = folder_ / "run.json";
  const std::optional<Json> run = json_object_in(name);
  if (!run) return {};  // results are complete without run.json
  try {
    const auto path = [&](const char* key) {
      return fs::path(JsonFields(*run, name.string()).text(key).value_or(""));
    };
    dump = path("dump");
    directory = path("directory");
    from_here = path("dump_from_results");
  } catch (const InputError&) {
    return {};
  }
  if (dump.empty()) return {};
  const fs::path folder = fs::absolute(folder_).lexically_normal();
  std::error_code ignored;
  const fs::path lay = fs::absolute(directory / dump).lexically_normal();
  std::vector<fs::path> candidates;
  // The way may lead up through a link: it is walked as it is written.
  if (!from_here.empty()) candidates.push_back(fs::weakly_canonical(folder / from_here, ignored));
  candidates.push_back(lay);
  if (dump.is_relative()) {
    candidates.push_back(fs::absolute(dump).lexically_normal());
    for (fs::path base = folder;; base = base.parent_path()) {
      candidates.push_back((base / dump).lexically_normal());
      if (base == base.parent_path()) break;
    }
  }
  std::vector<fs::path> there;
  for (const fs::path& candidate : candidates) {
    const auto is_same = [&](const fs::path& other) { return fs::equivalent(other, candidate, ignored); };
    if (fs::exists(candidate, ignored) && std::ranges::none_of(there, is_same)) there.push_back(candidate);
  }
  return there.empty() ? std::vector<fs::path>{lay} : there;
}

bool ResultReader::has(const fs::path& name) const {
  std::error_code ignored;
  return recorded_ ? recorded_->contains(name.generic_string())
                   : fs::is_regular_file(folder_ / name, ignored);
}

std::vector<Table> ResultReader::tables() const {
  std::vector<Table> there;
  for (const Table table : kTables.all())
    if (has(table)) there.push_back(table);
  return there;
}

CsvReader ResultReader::open_table(Table table) const {
  CsvReader reader(folder_ / file_of(table));
  const std::vector<std::string> derived = split_list(facts_of(table).derived);
  for (const std::string& column : split_list(facts_of(table).columns)) {
    const auto place = std::ranges::find(derived, column) - derived.begin();
    if (place == 0 || place == std::ssize(derived)) reader.need(column);  // others follow from the first
  }
  return reader;
}

void ResultReader::check_rows(Table table, std::size_t rows) const {
  const auto totals = summary_.find("totals");
  if (facts_of(table).count.empty() || totals == summary_.end() || !totals->is_object()) return;
  const auto count = totals->find(std::string(facts_of(table).count));
  if (count == totals->end() || !count->is_number_unsigned() || count->get<std::size_t>() == rows) return;
  throw InputError((folder_ / file_of(table)).string(), count->dump() + " rows, as summary.json says",
                   fmt::format("{}", rows));
}

std::vector<std::string> ResultReader::map_names() const {
  std::vector<std::string> names = array_names("maps");
  for (std::string& name : names) name = fs::path(name).stem().string();
  return names;
}

std::vector<std::string> ResultReader::array_names(const fs::path& below) const {
  std::vector<std::string> names;
  if (recorded_) {
    const std::string begin = below.empty() ? "" : below.generic_string() + "/";
    std::copy_if(recorded_->begin(), recorded_->end(), std::back_inserter(names),
                 [&](const std::string& name) { return name.starts_with(begin) && name.ends_with(".npy"); });
    return names;
  }
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder_ / below, error), end; !error && at != end;
       at.increment(error))
    if (at->path().extension() == ".npy" && at->is_regular_file(error))
      names.push_back(at->path().lexically_relative(folder_).generic_string());
  std::ranges::sort(names);
  return names;
}

Matrix<double> ResultReader::map(const std::string& name) const {
  const Index layers = std::ssize(layers_);
  const Array found = array(fs::path("maps") / (name + ".npy"), {layers, shape_.n_kv});
  return Eigen::Map<const Matrix<double>>(found.values.data(), layers, shape_.n_kv);
}

ResultReader::Array ResultReader::array(const fs::path& name) const {
  NpyNumbers numbers = read_npy_numbers(folder_ / name);
  return {std::move(numbers.shape), std::move(numbers.values)};
}

ResultReader::Array ResultReader::array(const fs::path& name, const std::vector<Index>& shape) const {
  Array found = array(name);
  if (found.shape != shape)
    throw InputError((folder_ / name).string(), "shape " + shape_text(shape),
                     "shape " + shape_text(found.shape));
  return found;
}

}  // namespace kvreplay
