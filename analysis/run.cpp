#include "analysis/run.hpp"

#include "analysis/fingerprint.hpp"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

namespace kvreplay {
namespace {

using Stages = std::vector<std::unique_ptr<Stage>>;

/// Head groups above this are in memory two at a time (one in use, one being read), whatever the number of
/// threads.
constexpr std::size_t kLargeHeadGroup = std::size_t{256} << 20;

std::size_t figures_per_head(const Stages& stages) {
  std::size_t count = 0;
  for (const auto& stage : stages) count += stage->figures_per_head();
  return count;
}

template <class T>
class LayerPass {
 public:
  LayerPass(const Dump& dump, const Stages& stages, Workers& workers, std::function<void()> head_done)
      : dump_(dump), stages_(stages), workers_(workers), head_done_(std::move(head_done)) {}

  /// All heads of one layer, [n_kv, figures].
  std::vector<double> run(Index layer) {
    const Index n_kv = dump_.shape().n_kv;
    const std::size_t width = figures_per_head(stages_);
    std::vector<double> figures(static_cast<std::size_t>(n_kv) * width,
                                std::numeric_limits<double>::quiet_NaN());
    const auto load = [&](Index g) { return load_head_group<T>(dump_, layer, g); };
    const auto compute = [&](const HeadGroup<T>& group) {
      std::span<double> mine =
          std::span(figures).subspan(static_cast<std::size_t>(group.kv_head) * width, width);
      for (const auto& stage : stages_) {
        stage->head(group, workers_, mine.first(stage->figures_per_head()));
        mine = mine.subspan(stage->figures_per_head());
      }
      head_done_();
    };

    const bool large = head_group_bytes(dump_.shape(), dump_.has(Tensor::wo), sizeof(T)) > kLargeHeadGroup;
    if (!large) {
      workers_.parallel_for(n_kv, [&](Index g) { compute(load(g)); });
      return figures;
    }
    HeadGroup<T> group = load(0), next;
    for (Index g = 0; g < n_kv; ++g) {
      workers_.parallel_for(g + 1 < n_kv ? 2 : 1, [&](Index job) {
        if (job == 0)
          compute(group);
        else
          next = load(g + 1);
      });
      group = std::exchange(next, HeadGroup<T>{});
    }
    return figures;
  }

 private:
  const Dump& dump_;
  const Stages& stages_;
  Workers& workers_;
  std::function<void()> head_done_;
};

/// Reads the figures of all layers back and splits them by stage.
std::vector<HeadFigures> gather_figures(const ResultFolder& folder, const Stages& stages,
                                        const std::vector<Index>& layers, Index n_kv, int pass) {
  const Index width = static_cast<Index>(figures_per_head(stages));
  std::vector<HeadFigures> all(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    all[s].layers = layers;
    all[s].n_kv = n_kv;
    all[s].values.resize(static_cast<Index>(layers.size()) * n_kv,
                         static_cast<Index>(stages[s]->figures_per_head()));
  }
  for (std::size_t at = 0; at < layers.size(); ++at) {
    const std::vector<double> layer =
        folder.layer_figures(layers[at], static_cast<std::size_t>(n_kv * width), pass);
    const Eigen::Map<const Matrix<double>> heads(layer.data(), n_kv, width);
    Index column = 0;
    for (HeadFigures& figures : all) {
      figures.values.middleRows(static_cast<Index>(at) * n_kv, n_kv) =
          heads.middleCols(column, figures.values.cols());
      column += figures.values.cols();
    }
  }
  return all;
}

struct LayersDone {
  Index computed = 0, resumed = 0;
};

/// One pass over those of `layers` that `folder` does not hold yet.
LayersDone pass_over_layers(const Dump& dump, const Stages& stages, const RunOptions& options,
                            const std::vector<Index>& layers, int pass, const ResultFolder& folder,
                            Workers& workers) {
  std::vector<Index> missing;
  for (const Index layer : layers)
    if (!folder.has_layer(layer, pass)) missing.push_back(layer);

  std::mutex progress_mutex;
  Index done = 0;
  const Index n_kv = dump.shape().n_kv, total = static_cast<Index>(missing.size()) * n_kv;
  const auto head_done = [&] {
    if (!options.on_progress) return;
    const std::lock_guard lock(progress_mutex);
    options.on_progress(++done, total);
  };
  if (options.on_progress) options.on_progress(0, total);
  for (const Index layer : missing) {
    if (pass == 1) folder.clear(layer_name(layer));
    for (const auto& stage : stages) stage->begin_layer(layer, workers);
    std::vector<double> figures = in_float32(options.precision)
                                      ? LayerPass<float>(dump, stages, workers, head_done).run(layer)
                                      : LayerPass<double>(dump, stages, workers, head_done).run(layer);
    Eigen::Map<Matrix<double>> heads(figures.data(), n_kv, static_cast<Index>(figures_per_head(stages)));
    Index column = 0;
    for (const auto& stage : stages) {
      const Index width = static_cast<Index>(stage->figures_per_head());
      Matrix<double> mine = heads.middleCols(column, width);
      stage->end_layer(folder, layer, workers, mine);
      heads.middleCols(column, width) = mine;
      column += width;
    }
    folder.keep_layer(layer, figures, pass);
    if (workers.stopping()) throw Interrupted{};
  }
  return {static_cast<Index>(missing.size()), static_cast<Index>(layers.size() - missing.size())};
}

Json summary_json(const Dump& dump, const Stages& stages, const std::vector<LeftOut>& left_out,
                  const Json& settings, const Json& totals) {
  Json summary = settings;
  summary["totals"] = totals;
  summary["left_out"] = Json::array();
  summary["notes"] = dump.notes();
  for (const LeftOut& left : left_out)
    summary["left_out"].push_back({{"what", left.what}, {"why", left.why}});
  for (const auto& stage : stages) {
    for (const LeftOut& left : stage->left_out())
      summary["left_out"].push_back({{"what", left.what}, {"why", left.why}});
    for (const std::string& note : stage->notes()) summary["notes"].push_back(note);
  }
  return summary;
}

}  // namespace

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

std::map<Index, std::string> layer_fingerprints(const Dump& dump, const RunOptions& options) {
  std::map<Index, std::string> fingerprints;
  for (const Index layer : layers_of_run(options)) fingerprints[layer] = layer_fingerprint(dump, layer);
  return fingerprints;
}

Json run_settings(const Dump& dump, const Stages& stages, const RunOptions& options) {
  const DumpShape& shape = dump.shape();
  Json settings;
  settings["dump"] = {{"model", dump.model()},
                      {"fingerprint", fingerprint(dump)},
                      {"layers", shape.layers},
                      {"n_q", shape.n_q},
                      {"n_kv", shape.n_kv},
                      {"d", shape.d},
                      {"d_v", shape.d_v},
                      {"d_model", shape.d_model},
                      {"T", shape.T},
                      {"T_q", shape.T_q},
                      {"l", shape.l}};
  settings["precision"] = name_of(options.precision);
  settings["layers"] = layers_of_run(options);
  if (options.shard)
    settings["shard"] = std::to_string(options.shard->part) + "/" + std::to_string(options.shard->parts);
  for (const auto& stage : stages) settings["options"][std::string(stage->name())] = stage->options();
  return settings;
}

RunResult run_stages(const Dump& dump, const Stages& stages, const RunOptions& options, ResultFolder& folder,
                     Workers& workers) {
  RunResult result;
  if (folder.finished()) return result;
  const std::vector<Index> layers = layers_of_run(options);
  const Index n_kv = dump.shape().n_kv;

  folder.clear("maps");
  Json totals = {{"layers", layers.size()}, {"heads", static_cast<Index>(layers.size()) * n_kv}};
  std::vector<Stages> follow_ups;  // kept until the summary is written
  for (int pass = 1; pass == 1 || !follow_ups.back().empty(); ++pass) {
    const Stages& now = pass == 1 ? stages : follow_ups.back();
    const LayersDone layers_done = pass_over_layers(dump, now, options, layers, pass, folder, workers);
    if (pass == 1) {
      result.layers_computed = layers_done.computed;
      result.layers_resumed = layers_done.resumed;
    }
    const std::vector<HeadFigures> figures = gather_figures(folder, now, layers, n_kv, pass);
    Stages next;
    for (std::size_t s = 0; s < now.size(); ++s) {
      const Json mine = now[s]->write_tables(folder, figures[s]);
      for (const auto& [key, value] : mine.items())
        if (!totals.contains(key)) totals[key] = value;
      const std::string report = now[s]->report(figures[s]);
      if (!report.empty()) result.report += (result.report.empty() ? "" : "\n") + report;
      if (auto follow_up = now[s]->follow_up(figures[s])) next.push_back(std::move(follow_up));
      if (workers.stopping()) throw Interrupted{};
    }
    follow_ups.push_back(std::move(next));
  }
  result.summary = summary_json(dump, stages, options.left_out, folder.settings(), totals);
  return result;
}

}  // namespace kvreplay
