#include "analysis/run/run.hpp"

#include "analysis/results/figures.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/text_file.hpp"
#include "analysis/run/stage.hpp"
#include "data/error.hpp"
#include "data/file_contents.hpp"
#include "data/mapped_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

Json summary_json(const Dump& dump, const Stages& stages, const std::vector<LeftOut>& left_out,
                  const ResultFolder& folder, const Json& totals) {
  const Json& settings = folder.settings();
  Json summary = settings;
  summary["totals"] = totals;
  summary["left_out"] = Json::array();
  summary["notes"] = dump.notes();
  const auto leave_out = [&](const LeftOut& left) {  // data that several stages lack are reported once
    Json entry = {{"what", left.what}, {"why", left.why}};
    Json& all = summary["left_out"];
    if (!is_in(all, entry)) all.push_back(std::move(entry));
  };
  for (const LeftOut& left : left_out) leave_out(left);
  for (const auto& stage : stages) {
    for (const LeftOut& left : stage->left_out()) leave_out(left);
    for (const OptionText& note : stage->notes()) summary["notes"].push_back(note.dashed());
    if (settings.contains("shard") && stage->joins_layers())
      leave_out({std::string(stage->name()),
                 "its tables join all layers, and a shard has but some; kvreplay merge writes them"});
  }
  for (const std::string& note : folder.notes()) summary["notes"].push_back(note);
  return summary;
}

}  // namespace

std::optional<Shard> shard_named(const std::string& name) {
  const auto slash = name.find('/');
  const Index part = index_in(name.substr(0, slash)).value_or(0);
  const Index parts = slash == std::string::npos ? 0 : index_in(name.substr(slash + 1)).value_or(0);
  return part >= 1 && part <= parts ? std::optional(Shard{part, parts}) : std::nullopt;
}

std::vector<Index> layers_of_shard(const std::vector<Index>& layers, const Shard& shard) {
  std::vector<Index> mine;
  for (std::size_t j = static_cast<std::size_t>(shard.part - 1); j < layers.size();
       j += static_cast<std::size_t>(shard.parts))
    mine.push_back(layers[j]);
  return mine;
}

std::vector<Index> layers_of_run(const RunOptions& options) {
  return options.shard ? layers_of_shard(options.layers, *options.shard) : options.layers;
}

Json shape_json(const DumpShape& shape) {
  return {{"layers", shape.layers}, {"n_q", shape.n_q}, {"n_kv", shape.n_kv},
          {"d", shape.d},           {"d_v", shape.d_v}, {"d_model", shape.d_model},
          {"T", shape.T},           {"T_q", shape.T_q}, {"l", shape.l}};
}

/// The model's numbers of a dump's layers; empty where they are the dump's own.
static std::vector<Index> model_layers(const Dump& dump) {
  std::vector<Index> numbers;
  bool own = true;
  for (Index layer = 0; layer < dump.shape().layers; ++layer) {
    numbers.push_back(dump.model_layer(layer));
    own = own && numbers.back() == layer;
  }
  return own ? std::vector<Index>() : numbers;
}

/// The sliding window of every layer, null for none; empty if no layer has a window that affects later rows.
static Json sliding_windows(const Dump& dump) {
  Json windows = Json::array();
  bool any = false;
  for (Index layer = 0; layer < dump.shape().layers; ++layer) {
    const AttentionRule rule = dump.rule(layer);
    const bool has = rule.sliding_window && !rule.two_sided;
    windows.push_back(has ? Json(*rule.sliding_window) : Json());
    any = any || has;
  }
  return any ? windows : Json();
}

Json run_settings(const Dump& dump, const Stages& stages, const RunOptions& options) {
  Json settings;
  settings["dump"] = {{"model", dump.model()}, {"fingerprint", fingerprint(dump)}};
  settings["dump"].update(shape_json(dump.shape()));
  if (const std::vector<Index> numbers = model_layers(dump); !numbers.empty())
    settings["dump"]["model_layers"] = numbers;
  if (Json windows = sliding_windows(dump); !windows.is_null())
    settings["dump"]["sliding_window"] = std::move(windows);
  settings["precision"] = name_of(options.precision);
  settings["layers"] = layers_of_run(options);
  if (options.shard) settings["shard"] = options.shard->name();
  for (const auto& stage : stages) settings["options"][std::string(stage->name())] = stage->options();
  return settings;
}

std::vector<std::vector<std::size_t>> dealt_out(std::span<const double> costs, int parts) {
  std::vector<std::vector<std::size_t>> dealt(static_cast<std::size_t>(parts));
  std::vector<double> sums(dealt.size());
  for (std::size_t item = 0; item < costs.size(); ++item) {
    const auto least = std::ranges::min_element(sums);
    *least += costs[item];
    dealt[static_cast<std::size_t>(least - sums.begin())].push_back(item);
  }
  return dealt;
}

namespace {

/// One pass of `stages` over a dump.
struct LayerPass {
  const Dump& dump;
  const Stages& stages;
  const RunOptions& options;
  int number;  ///< from 1
  const ResultFolder& folder;
  Workers& workers;
  Ranks& ranks;

  std::size_t figures_per_head() const {
    std::size_t count = 0;
    for (const auto& stage : stages) count += stage->figures_per_head();
    return count;
  }
  /// Number of values (figures) of one layer: of all its heads, and of the layer as a whole.
  std::size_t figures_of_layer() const {
    std::size_t count = static_cast<std::size_t>(dump.shape().n_kv) * figures_per_head();
    for (const auto& stage : stages) count += stage->figures_per_layer();
    return count;
  }
  /// The parts of a head group that the stages need.
  HeadParts parts() const {
    HeadParts all = stages.front()->parts();
    for (const auto& stage : stages) all |= stage->parts();
    return all;
  }
};

/// Computes the values of all heads of a layer, [n_kv, figures].
template <class T>
void compute_heads(const LayerPass& pass, Index layer, std::span<double> figures,
                   const std::function<void()>& head_done) {
  const std::size_t width = pass.figures_per_head();
  const Index n_kv = pass.dump.shape().n_kv;
  const HeadParts parts = pass.parts();
  const auto load = [&](Index g) { return load_head_group<T>(pass.dump, layer, g, parts); };
  const auto compute = [&](const HeadGroup<T>& group) {
    std::span<double> mine = figures.subspan(static_cast<std::size_t>(group.kv_head) * width, width);
    for (const auto& stage : pass.stages) {
      stage->head(group, mine.first(stage->figures_per_head()));
      mine = mine.subspan(stage->figures_per_head());
    }
    head_done();
  };
  // The layer's files are hashed beside what reads them: a disk gives them once.
  const auto hash = [&] { pass.folder.fingerprint(layer); };
  if (head_group_bytes(pass.dump, sizeof(T)) <= kLargeHeadGroup)
    return pass.workers.parallel_for(n_kv + 1,
                                     [&](Index job) { job == 0 ? hash() : compute(load(job - 1)); });
  // Two at a time in memory, one in use and one being read.
  HeadGroup<T> group, next;
  pass.workers.parallel_for(2, [&](Index job) { job == 0 ? hash() : void(group = load(0)); });
  for (Index g = 0; g < n_kv; ++g) {
    pass.workers.parallel_for(g + 1 < n_kv ? 2 : 1, [&](Index job) {
      if (job == 0)
        compute(group);
      else
        next = load(g + 1);
    });
    group = std::exchange(next, HeadGroup<T>{});
  }
}

void end_layer(const LayerPass& pass, Index layer, std::span<double> figures) {
  Eigen::Map<Matrix<double>> heads(figures.data(), pass.dump.shape().n_kv,
                                   static_cast<Index>(pass.figures_per_head()));
  std::span<double> whole = figures.subspan(static_cast<std::size_t>(heads.size()));
  Index column = 0;
  for (const auto& stage : pass.stages) {
    const Index width = static_cast<Index>(stage->figures_per_head());
    Matrix<double> mine = heads.middleCols(column, width);
    stage->end_layer(pass.folder, layer, {mine, whole.first(stage->figures_per_layer())});
    heads.middleCols(column, width) = mine;
    column += width;
    whole = whole.subspan(stage->figures_per_layer());
  }
  pass.folder.keep_layer(layer, figures, pass.number);
}

/// The `layers` that are not done, as rank 0 sees them: another rank that looks later may see more of them
/// done.
std::vector<Index> layers_to_do(const LayerPass& pass, const std::vector<Index>& layers) {
  std::string told;
  if (pass.ranks.rank() == 0) told = Json(pass.folder.missing_layers(layers, pass.number)).dump();
  return Json::parse(pass.ranks.gather(told).front()).get<std::vector<Index>>();
}

/// Cost of a layer, in multiply-adds of a query head: every query reads the keys and values that it sees.
double layer_cost(const Dump& dump, Index layer) {
  const DumpShape& shape = dump.shape();
  const AttentionRule rule = dump.rule(layer);
  double visible = 0;
  for (Index i = shape.first_query(); i < shape.T; ++i) {
    const Index end = rule.causal      ? i + 1
                      : rule.two_sided ? std::min(i + *rule.sliding_window, shape.T)
                                       : shape.T;
    const Index first = rule.sliding_window ? std::max<Index>(i + 1 - *rule.sliding_window, 0) : 0;
    visible += static_cast<double>(end - first);
  }
  return visible * static_cast<double>(shape.d + shape.d_v);
}

/// Computes those of `layers` that the folder does not hold yet, and returns their number. The ranks share
/// the layers; each rank finishes its own and writes their files. All ranks call it; when it returns, all
/// layers are in the folder.
Index pass_over_layers(const LayerPass& pass, const std::vector<Index>& layers) {
  const std::vector<Index> missing = layers_to_do(pass, layers);
  std::vector<double> costs;
  for (const Index layer : missing) costs.push_back(layer_cost(pass.dump, layer));
  const std::vector<std::size_t> mine = dealt_out(costs, pass.ranks.size())[pass.ranks.rank()];

  std::mutex progress_mutex;
  Index done = 0;
  const Index total = std::ssize(mine) * pass.dump.shape().n_kv;
  const auto head_done = [&] {
    if (!pass.options.on_progress) return;
    const std::lock_guard lock(progress_mutex);
    pass.options.on_progress(++done, total);
  };
  if (pass.options.on_progress) pass.options.on_progress(0, total);

  for (const std::size_t at : mine) {
    for (const auto& stage : pass.stages) stage->begin_layer(missing[at]);
    std::vector<double> figures(pass.figures_of_layer(), kNan);
    if (in_float32(pass.options.precision))
      compute_heads<float>(pass, missing[at], figures, head_done);
    else
      compute_heads<double>(pass, missing[at], figures, head_done);
    end_layer(pass, missing[at], figures);
    if (pass.workers.stopping()) throw Interrupted{};
  }
  pass.ranks.gather("");
  return std::ssize(missing);
}

/// Values of all `layers` from the folder, for each stage.
std::vector<HeadFigures> gather_figures(const LayerPass& pass, const std::vector<Index>& layers) {
  const Index n_kv = pass.dump.shape().n_kv;
  const Index width = static_cast<Index>(pass.figures_per_head());
  std::vector<HeadFigures> all(pass.stages.size());
  for (std::size_t s = 0; s < pass.stages.size(); ++s) {
    all[s].layers = layers;
    all[s].n_kv = n_kv;
    all[s].values.resize(std::ssize(layers) * n_kv, static_cast<Index>(pass.stages[s]->figures_per_head()));
    all[s].of_layers.resize(pass.stages[s]->figures_per_layer());
  }
  for (std::size_t at = 0; at < layers.size(); ++at) {
    const std::vector<double> layer =
        pass.folder.layer_figures(layers[at], pass.figures_of_layer(), pass.number);
    const Eigen::Map<const Matrix<double>> heads(layer.data(), n_kv, width);
    Index column = 0;
    auto whole = layer.begin() + heads.size();
    for (HeadFigures& figures : all) {
      figures.values.middleRows(static_cast<Index>(at) * n_kv, n_kv) =
          heads.middleCols(column, figures.values.cols());
      column += figures.values.cols();
      for (double& sum : figures.of_layers) sum += *whole++;
    }
  }
  return all;
}

}  // namespace

RunResult run_stages(const Dump& dump, const Stages& stages, const RunOptions& options, ResultFolder& folder,
                     Workers& workers, Ranks& ranks) {
  RunResult result;
  if (folder.finished()) return result;
  const std::vector<Index> layers = layers_of_run(options);
  const bool writes = ranks.rank() == 0;

  Json totals = {{"layers", layers.size()}, {"heads", std::ssize(layers) * dump.shape().n_kv}};
  std::vector<Stages> follow_ups;  // kept until the summary is written
  for (int number = 1; number == 1 || !follow_ups.back().empty(); ++number) {
    const Stages& now = number == 1 ? stages : follow_ups.back();
    const LayerPass pass{dump, now, options, number, folder, workers, ranks};
    const Index computed = pass_over_layers(pass, layers);
    if (number == 1) {
      result.layers_computed = computed;
      result.layers_resumed = std::ssize(layers) - computed;
    }
    Stages next;
    // The other ranks need figures for a further pass only.
    if (!writes && std::ranges::none_of(now, [](const auto& s) { return s->joins_layers(); })) {
      follow_ups.push_back({});
      continue;
    }
    const std::vector<HeadFigures> figures = gather_figures(pass, layers);
    for (std::size_t s = 0; s < now.size(); ++s) {
      if (options.shard && now[s]->joins_layers()) continue;
      if (writes) {
        const Json mine = now[s]->write_tables(folder, figures[s]);
        for (const auto& [key, value] : mine.items())
          if (!totals.contains(key)) totals[key] = value;
        const std::string report = now[s]->report(figures[s]);
        if (!report.empty()) result.report += (result.report.empty() ? "" : "\n") + report;
      }
      if (auto follow_up = now[s]->follow_up(figures[s])) next.push_back(std::move(follow_up));
      if (workers.stopping()) throw Interrupted{};
    }
    follow_ups.push_back(std::move(next));
  }
  result.summary = summary_json(dump, stages, options.left_out, folder, totals);
  return result;
}

namespace {

std::string hash_of(const std::string& text) {
  return fmt::format("{:016x}", contents_of(std::as_bytes(std::span(text))).xxh3);
}

std::string make_of(const DumpFile& file) {
  return fmt::format("{} {} [{}]\n", name_of(file.tensor), name_of(file.dtype), fmt::join(file.shape, ", "));
}

}  // namespace

std::string fingerprint(const Dump& dump) {
  namespace fs = std::filesystem;
  std::string all;
  if (const fs::path manifest = dump.folder() / "manifest.json"; fs::exists(manifest))
    all += file_text(manifest, kMostManifest) + '\n';
  for (const DumpFile& file : dump.files())
    all += fs::path(file.where).lexically_relative(dump.folder()).generic_string() + '\n' + make_of(file);
  return hash_of(all);
}

std::map<Index, std::string> layer_fingerprints(const Dump& dump, std::span<const Index> layers,
                                                Workers& workers) {
  const std::vector<DumpFile>& files = dump.files();
  std::vector<std::size_t> needed;
  for (std::size_t i = 0; i < files.size(); ++i)
    if (files[i].layer < 0 || is_in(layers, files[i].layer)) needed.push_back(i);
  std::vector<std::uint64_t> hashes(files.size());
  workers.parallel_for(std::ssize(needed),
                       [&](Index n) { hashes[needed[n]] = dump.contents(needed[n]).xxh3; });
  std::map<Index, std::string> fingerprints;
  for (const Index layer : layers) {
    std::string all;
    for (const std::size_t i : needed)
      if (files[i].layer < 0 || files[i].layer == layer)
        all += fmt::format("{}{:016x}\n", make_of(files[i]), hashes[i]);
    fingerprints[layer] = hash_of(all);
  }
  return fingerprints;
}

LayerFingerprints fingerprints_in_turn(const Dump& dump, const std::vector<Index>& layers, Workers& workers) {
  if (std::ranges::any_of(dump.files(), [](const DumpFile& file) { return file.layer < 0; }))
    return layer_fingerprints(dump, layers, workers);
  return {layers, [&dump, &workers](Index layer) {
            return layer_fingerprints(dump, std::array{layer}, workers).at(layer);
          }};
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::ceil(std::max(0.0, seconds)));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string progress_line(Index done, Index total, double seconds) {
  constexpr Index kWidth = 30;
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
  const auto filled = static_cast<Index>(share * kWidth);
  std::string bar(static_cast<std::size_t>(filled), '=');
  if (filled < kWidth) bar += '>';
  std::string line =
      fmt::format("[{:<{}}] {:3.0f} %  {}/{} heads", bar, kWidth, std::floor(share * 100), done, total);
  if (done > 0 && seconds > 0) {
    const double rate = static_cast<double>(done) / seconds;
    line += rate >= 1 ? fmt::format("  {:.1f} heads/s", rate) : fmt::format("  {:.1f} s/head", 1 / rate);
    if (done < total) line += fmt::format("  {} left", clock_text(static_cast<double>(total - done) / rate));
  }
  return line;
}

std::vector<std::string> left_out_lines(const std::vector<LeftOut>& left_out) {
  std::vector<LeftOut> grouped;
  for (const LeftOut& item : left_out) {
    const auto same = std::ranges::find_if(grouped, [&](const LeftOut& g) { return g.why == item.why; });
    if (same == grouped.end())
      grouped.push_back(item);
    else
      same->what.append(", ").append(item.what);
  }
  std::vector<std::string> lines;
  for (const LeftOut& group : grouped) lines.push_back(group.what + " (" + group.why + ")");
  return lines;
}

namespace {

namespace fs = std::filesystem;

Json object_in(const fs::path& path) {
  auto json = json_object_in(path);
  if (!json) throw InputError(path.string(), "what kvreplay writes", "a damaged file");
  return std::move(*json);
}

Part read_part(const fs::path& folder) {
  const std::string name = folder.string();
  if (!fs::is_directory(folder)) throw InputError(name, "the result folder of a --shard run", "no folder");
  const fs::path summary = folder / "summary.json";
  if (!fs::exists(summary))
    throw InputError(name, "a finished result folder",
                     fs::exists(folder / ".kvreplay/state.json")
                         ? "an unfinished one (the run's command with --resume finishes it)"
                         : "no summary.json");
  Part part{folder, {}, object_in(summary), object_in(folder / "run.json"), {}};
  if (part.summary.value("program", Json()) != "kvreplay")
    throw InputError(summary.string(), "kvreplay's summary", "another program's");
  if (const Json schema = part.summary.value("schema", Json()); schema != kResultSchema)
    throw InputError(name, fmt::format("results of schema {}", kResultSchema),
                     fmt::format("schema {}", schema.dump()));
  const Json name_of_shard = part.summary.value("shard", Json());
  const auto shard = name_of_shard.is_string() ? shard_named(name_of_shard) : std::nullopt;
  if (!shard)
    throw InputError(name, "a part of a --shard i/n run",
                     part.summary.contains("shard") ? part.summary["shard"].dump() : "a run of its own");
  part.shard = *shard;
  try {
    part.layers = part.summary.at("layers").get<std::vector<Index>>();
  } catch (const Json::exception&) {
    throw InputError(summary.string(), "a list of layers", "a damaged file");
  }
  return part;
}

/// Settings that all parts of a run must share.
Json common_settings(const Json& summary) {
  Json settings = Json::object();
  for (const char* key : {"dump", "precision", "options"})
    if (summary.contains(key)) settings[key] = summary[key];
  return settings;
}

void require_same_run(const Part& first, const Part& other) {
  if (other.shard.parts != first.shard.parts)
    throw InputError(fmt::format("{} and {}: expected parts of one run, found {} and {}",
                                 first.folder.string(), other.folder.string(), first.shard.name(),
                                 other.shard.name()));
  if (other.shard.part == first.shard.part)
    throw InputError(fmt::format("{} and {}: both are part {}", first.folder.string(), other.folder.string(),
                                 first.shard.name()));
  const std::string difference =
      settings_difference(common_settings(first.summary), common_settings(other.summary));
  if (!difference.empty())
    throw InputError(fmt::format("{} and {}: expected parts of one run, found that {}", first.folder.string(),
                                 other.folder.string(), difference));
}

}  // namespace

std::vector<Part> read_parts(const std::vector<std::string>& folders) {
  std::vector<Part> parts;
  for (const std::string& folder : folders) {
    Part part = read_part(folder);
    for (const Part& other : parts) require_same_run(other, part);
    parts.push_back(std::move(part));
  }
  std::ranges::sort(parts, [](const Part& a, const Part& b) { return a.shard.part < b.shard.part; });
  if (parts.empty()) return parts;
  const Index all = parts.front().shard.parts, missing = all - std::ssize(parts);
  if (missing == 0) return parts;
  constexpr Index kNamed = 8;
  std::vector<std::string> names;
  auto there = parts.begin();
  for (Index part = 1; part <= all && std::ssize(names) < kNamed; ++part)
    if (there != parts.end() && there->shard.part == part)
      ++there;
    else
      names.push_back(Shard{part, all}.name());
  throw InputError(fmt::format("{}: the other parts of its run are missing: {}{}",
                               parts.front().folder.string(), fmt::join(names, ", "),
                               missing > kNamed ? fmt::format(" and {} more", missing - kNamed) : ""));
}

void require_parts_of(const std::vector<Part>& parts, const Json& settings) {
  std::vector<Index> layers;
  for (const Part& part : parts) {
    layers.insert(layers.end(), part.layers.begin(), part.layers.end());
    const std::string difference =
        settings_difference(common_settings(part.summary), common_settings(settings));
    if (!difference.empty())
      throw InputError(
          fmt::format("{}: not a part of what is to be merged: {}", part.folder.string(), difference));
  }
  std::ranges::sort(layers);
  if (Json(layers) != settings.at("layers"))
    throw InputError("the parts' layers", settings.at("layers").dump(), Json(layers).dump());
}

void adopt_parts(const std::vector<Part>& parts, const ResultFolder& folder, const Workers& workers) {
  for (const Part& part : parts)
    for (const Index layer : folder.missing_layers(part.layers)) {
      folder.adopt_layer(layer, part.folder);
      if (workers.stopping()) throw Interrupted{};
    }
}

}  // namespace kvreplay
