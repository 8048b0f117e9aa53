#include "viewer/questions/run.hpp"

#include "analysis/results/result_reader.hpp"
#include "analysis/run/run.hpp"
#include "data/error.hpp"
#include "viewer/model/token_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

namespace kvreplay::viewer {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// ResultReader has checked that it is there.
const Json& dump_of_summary(const ResultReader& results) { return results.summary().at("dump"); }

/// The file behind an array's `where`: a member of an archive stands behind a colon.
fs::path file_of(const std::string& where) {
  const auto archive = where.rfind(".npz:");
  return archive == std::string::npos ? where : where.substr(0, archive + 4);
}

LayerNumbers numbers_of(const Dump& dump) {
  std::vector<Index> numbers;
  for (Index layer = 0; layer < dump.shape().layers; ++layer) numbers.push_back(dump.model_layer(layer));
  return LayerNumbers(std::move(numbers));
}

}  // namespace

Run::~Run() = default;

std::shared_ptr<const Run> Run::open(const fs::path& path, int id, const fs::path& dump) {
  const std::shared_ptr<Run> run(new Run);
  run->id_ = id;
  run->path_ = fs::absolute(path).lexically_normal();
  if (!run->path_.has_filename()) run->path_ = run->path_.parent_path();
  run->name_ = run->path_.filename().string();

  if (!dump.empty()) run->located_dump_ = fs::absolute(dump).lexically_normal();
  if (ResultReader::is_results(run->path_)) {
    run->results_ = std::make_unique<ResultReader>(run->path_);
    run->add_stamp(run->path_ / "summary.json");
    run->add_stamp(run->path_ / "validate.csv");
    run->open_dump_of_results();
  } else {
    run->dump_ = Dump::open(run->path_);
  }
  if (run->dump_) {
    run->shape_ = run->dump_->shape();
    run->layers_ = numbers_of(*run->dump_);
    run->model_ = run->dump_->model();
    run->add_stamp(run->dump_->folder() / "manifest.json");
    for (const DumpFile& file : run->dump_->files()) run->add_stamp(file_of(file.where));
  } else {
    run->shape_ = run->results_->shape();
    run->layers_ = run->results_->model_layers().empty() ? LayerNumbers::own(run->shape_.layers)
                                                         : LayerNumbers(run->results_->model_layers());
    run->model_ = dump_of_summary(*run->results_).value("model", std::string());
  }
  return run;
}

/// Results are complete without their dump; maps of single rows and everything live need it.
void Run::open_dump_of_results() {
  const Json& stated = dump_of_summary(*results_);
  why_no_dump_ = "the results do not say where their dump lies";
  const bool located = !located_dump_.empty();
  for (const fs::path& candidate : located ? std::vector{located_dump_} : results_->dump_paths()) {
    try {
      DumpOptions options;
      if (const auto l = stated.find("l"); l != stated.end() && l->is_number_integer())
        options.prompt_len = l->get<Index>();
      Dump dump = Dump::open(candidate, options);
      if (kvreplay::fingerprint(dump) == stated.value("fingerprint", std::string())) {
        dump_ = std::move(dump);
        why_no_dump_.clear();
        return;
      }
      why_no_dump_ = candidate.string() + " holds another dump than the results were computed from";
    } catch (const InputError& error) {
      why_no_dump_ = error.what();
    }
  }
  if (located) throw InputError(why_no_dump_);
}

std::string Run::head_text(Index layer, Index kv_head) const {
  return fmt::format("layer {} head {}", layer_number(layer), kv_head);
}

std::string Run::fingerprint() const {
  return dump_ ? kvreplay::fingerprint(*dump_)
               : dump_of_summary(*results_).value("fingerprint", std::string());
}

const std::optional<TokenLabels>& Run::labels() const {
  static const std::optional<TokenLabels> none;
  return dump_ ? dump_->tokens() : none;
}

std::shared_ptr<const HeadGroup<float>> Run::head(Index layer, Index kv_head) const {
  if (!dump_) throw InputError("the dump of " + path_.string() + " is not there: " + why_no_dump_);
  check_contents(layer);
  const auto read = [&] {
    return std::pair(std::make_shared<const HeadGroup<float>>(load_head_group<float>(*dump_, layer, kv_head)),
                     head_group_bytes(*dump_, sizeof(float)));
  };
  return heads_.get({layer, kv_head}, read, [] {});
}

std::shared_ptr<const HeadGroup<float>> Run::readers(Index layer, Index kv_head) const {
  if (!dump_ || dump_->readers(layer).size() == 1) return head(layer, kv_head);
  for (const Index reader : dump_->readers(layer)) check_contents(reader);
  return std::make_shared<const HeadGroup<float>>(load_readers<float>(*dump_, layer, kv_head));
}

void Run::check_contents(Index layer) const {
  if (!results_) return;
  const std::lock_guard lock(checking_);
  if (checked_.contains(layer)) return;
  const Json noted = results_->summary().value("layer_fingerprints", Json::object());
  const auto stated = noted.find(std::to_string(layer));
  Workers one(1);
  if (stated != noted.end() && layer_fingerprints(*dump_, std::array{layer}, one).at(layer) != *stated)
    throw InputError(fmt::format("{}: layer {} holds other numbers than when {} was computed",
                                 dump_->folder().string(), layer, path_.string()));
  checked_.insert(layer);
}

void Run::set_head_cache(std::size_t bytes) const { heads_.set_limit(bytes); }

Run::Stamp Run::stamp_of(const fs::path& path) {
  std::error_code ignored;
  const auto time = fs::last_write_time(path, ignored);
  if (ignored) return {path, fs::file_time_type::min(), 0};
  const std::uintmax_t bytes = fs::file_size(path, ignored);
  return {path, time, ignored ? 0 : bytes};
}

void Run::add_stamp(const fs::path& path) { stamps_.push_back(stamp_of(path)); }

bool Run::changed() const {
  for (const Stamp& stamp : stamps_)
    if (stamp_of(stamp.path) != stamp) return true;
  return false;
}

std::uint64_t Run::files_now() const {
  std::uint64_t hash = 1469598103934665603ULL;  // FNV-1a
  const auto take = [&hash](std::uint64_t value) { hash = (hash ^ value) * 1099511628211ULL; };
  for (const Stamp& stamp : stamps_) {
    const Stamp now = stamp_of(stamp.path);
    take(static_cast<std::uint64_t>(now.time.time_since_epoch().count()));
    take(now.bytes);
  }
  return hash | 1;
}

namespace {

using Json = nlohmann::ordered_json;

/// True if both runs are of one dump's values: the same folder, or results that recorded an equal fingerprint
/// for a layer. (The dump's own fingerprint() does not suffice: it is equal for two prompts of one length.)
bool of_one_dump(const Run& run, const Run& other) {
  if (run.dump() != nullptr && other.dump() != nullptr && run.dump()->folder() == other.dump()->folder())
    return true;
  if (run.results() == nullptr || other.results() == nullptr) return false;
  const auto noted = [](const Run& of) {
    return of.results()->summary().value("layer_fingerprints", Json::object());
  };
  const Json mine = noted(run), theirs = noted(other);
  return std::any_of(mine.items().begin(), mine.items().end(), [&](const auto& layer) {
    const auto found = theirs.find(layer.key());
    return found != theirs.end() && *found == layer.value();
  });
}

/// The first position at which two lists differ; their length where they do not.
template <class List>
Index first_difference(const List& one, const List& other) {
  return std::mismatch(one.begin(), one.end(), other.begin(), other.end()).first - one.begin();
}

}  // namespace

std::string why_not_comparable(const Run& run, const Run& other) {
  const DumpShape &a = run.shape(), &b = other.shape();
  const auto text = [](const DumpShape& s) {
    return fmt::format("{} layers x {} KV heads of {} query heads, prompt {} + {} decoded, {} queries",
                       s.layers, s.n_kv, s.group(), s.l, s.T - s.l, s.T_q);
  };
  const auto sizes = [](const DumpShape& s) {
    return std::array{s.layers, s.n_kv, s.group(), s.l, s.T, s.T_q};
  };
  if (sizes(a) != sizes(b))
    return fmt::format("{} is of another shape than {}: {}, not {}.", run.name(), other.name(), text(a),
                       text(b));
  if (run.layers().numbers() != other.layers().numbers())
    return fmt::format("{} is of other layers than {}: {}, not {}.", run.name(), other.name(),
                       run.layers().text(), other.layers().text());
  if (run.labels() && other.labels()) {
    const TokenLabels &mine = *run.labels(), &theirs = *other.labels();
    const bool ids = !mine.ids.empty() && !theirs.ids.empty();
    if (ids || (!mine.text.empty() && !theirs.text.empty())) {
      const Index at =
          ids ? first_difference(mine.ids, theirs.ids) : first_difference(mine.text, theirs.text);
      if (at == a.T) return "";
      const auto named = [&](const Run& of) {
        const std::string its = token_text(of.labels(), at, 16);
        return its.empty() ? std::to_string(of.labels()->ids[static_cast<std::size_t>(at)])
                           : fmt::format("'{}'", its);
      };
      return fmt::format("{} is of another prompt than {}: token {} is {}, not {}.", run.name(), other.name(),
                         at, named(run), named(other));
    }
  }
  if (of_one_dump(run, other)) return "";
  return fmt::format(
      "Whether {} and {} are of one prompt cannot be told: their dumps do not both name their tokens.",
      run.name(), other.name());
}

const std::string& PinnedRun::why_not(const Run& run) {
  if (compared_ != run.id()) {
    compared_ = run.id();
    why_not_ = why_not_comparable(run, *run_);
  }
  return why_not_;
}

}  // namespace kvreplay::viewer
