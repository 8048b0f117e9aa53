#include "viewer/panels/findings/finding_source.hpp"

#include "analysis/results/result_reader.hpp"
#include "viewer/panels/questions.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {

const std::vector<Finding>& FindingSource::list() const {
  static const std::vector<Finding> none;
  return found_ ? found_->list : none;
}

void FindingSource::look(PanelContext& context) {
  pending_ = waits_ = false;
  progress_.clear();
  error_.clear();
  const std::shared_ptr<const Run>& run = context.state.run();
  const Key now = run ? run->key() : Key();
  if (now != run_key_) {
    run_key_ = now;
    heads_key_ = {};
    found_.reset();
    layers_.assign(run ? static_cast<std::size_t>(run->shape().layers) : 0, nullptr);
    layer_round_.restart(std::ssize(layers_));
    most_ = run && run->results() != nullptr ? kMostFindings : kLiveFindings;
  }
  if (run == nullptr) return;
  if (run->results() != nullptr)
    look_at_results(context);
  else
    look_at_dump(context);
}

void FindingSource::look_at_results(PanelContext& context) {
  if (found_) return;
  const Question question{.key = {run_key_, "findings"},
                          .title = "What is worth knowing of the results",
                          .urgency = Urgency::background};
  const auto answer = context.desk.ask<Findings>(
      question, [run = context.state.run()](JobControl&) { return Findings{findings_of(*run->results())}; });
  pending_ = answer.pending;
  progress_ = "reading the results";
  error_ = answer.error;
  found_ = answer.value;
  if (found_) most_ = found_->list.size();
}

void FindingSource::look_at_dump(PanelContext& context) {
  const std::shared_ptr<const Run>& run = context.state.run();
  const DumpShape& shape = run->shape();
  const Index window = context.state.comparison.window;
  if (const Key now(run_key_, window); now != heads_key_) {
    heads_key_ = now;
    heads_.assign(static_cast<std::size_t>(shape.layers * shape.n_kv), nullptr);
    head_round_.restart(std::ssize(heads_));
    complete_ = false;
  }
  if (complete_) return;
  waits_ = begun_ != run_key_ && finding_work(shape, window) > kFindingWork;
  // Where the Head map has ranked them all, asking again costs nothing.
  if (waits_ && !context.state.all_ranked) return;
  if (!take_heads(context)) return;
  const bool all = !waits_ && take_layers(context);
  find(context, all);
}

bool FindingSource::take_heads(PanelContext& context) {
  const Index n_kv = context.state.run()->shape().n_kv;
  head_round_.go_on([&](Index h) { return ask_summary(context, h / n_kv, h % n_kv, Urgency::background); },
                    [&](Index h, const Answer<HeadSummary>& answer) { heads_[h] = answer.value; });
  return all_taken(head_round_, "ranking heads");
}

bool FindingSource::take_layers(PanelContext& context) {
  constexpr int kAtOnce = 4;  // each takes seconds and holds a layer's heads
  const auto ask = [&](Index layer) {
    const Question question{.key = {run_key_, "finding_evictions", layer},
                            .title = fmt::format("Evictions to compare, layer {}", layer),
                            .urgency = Urgency::background};
    return context.desk.ask<LayerEvictions>(question, [run = context.state.run(), layer](JobControl& job) {
      return live_evictions(*run, layer, job);
    });
  };
  layer_round_.go_on(
      ask, [&](Index layer, const Answer<LayerEvictions>& answer) { layers_[layer] = answer.value; },
      layer_round_.count(), kAtOnce);
  return all_taken(layer_round_, "comparing policies, layers");
}

bool FindingSource::all_taken(const BackgroundRound& round, std::string_view what) {
  pending_ = round.done() < round.count();
  progress_ = fmt::format("{}: {} of {}", what, round.done(), round.count());
  if (round.failed() > 0) error_ = round.error();
  return !pending_ && round.failed() == 0;
}

void FindingSource::find(PanelContext& context, bool with_layers) {
  const Index window = context.state.comparison.window;
  const Question question{.key = {run_key_, "findings", window, with_layers},
                          .title = "What is worth knowing of the dump",
                          .urgency = Urgency::background};
  const auto answer = context.desk.ask<Findings>(
      question, [run = context.state.run(), heads = heads_,
                 layers = with_layers ? layers_ : std::vector<std::shared_ptr<const LayerEvictions>>(),
                 window](JobControl& job) { return live_findings(run, heads, layers, window, job); });
  pending_ = pending_ || answer.pending;
  if (!answer.error.empty()) error_ = answer.error;
  if (answer) found_ = answer.value;
  complete_ = with_layers && answer;
}

}  // namespace kvreplay::viewer
