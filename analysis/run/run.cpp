#include "analysis/run/run.hpp"

#include "analysis/run/fingerprint.hpp"
#include "analysis/run/layer_pass.hpp"

#include <algorithm>
#include <utility>

namespace kvreplay {
namespace {

Json summary_json(const Dump& dump, const Stages& stages, const std::vector<LeftOut>& left_out,
                  const ResultFolder& folder, const Json& totals) {
  const Json& settings = folder.settings();
  Json summary = settings;
  summary["totals"] = totals;
  summary["left_out"] = Json::array();
  summary["notes"] = dump.notes();
  const auto leave_out = [&](const LeftOut& left) {  // what several stages lack is said once
    Json entry = {{"what", left.what}, {"why", left.why}};
    Json& all = summary["left_out"];
    if (std::find(all.begin(), all.end(), entry) == all.end()) all.push_back(std::move(entry));
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

Json run_settings(const Dump& dump, const Stages& stages, const RunOptions& options) {
  Json settings;
  settings["dump"] = {{"model", dump.model()}, {"fingerprint", fingerprint(dump)}};
  settings["dump"].update(shape_json(dump.shape()));
  settings["precision"] = name_of(options.precision);
  settings["layers"] = layers_of_run(options);
  if (options.shard)
    settings["shard"] = std::to_string(options.shard->part) + "/" + std::to_string(options.shard->parts);
  for (const auto& stage : stages) settings["options"][std::string(stage->name())] = stage->options();
  return settings;
}

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
    if (!writes && std::none_of(now.begin(), now.end(), [](const auto& s) { return s->joins_layers(); })) {
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

}  // namespace kvreplay
