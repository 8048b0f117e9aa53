#include "viewer/panels/heads/head_map_source.hpp"

#include "analysis/options/option.hpp"
#include "analysis/results/result_reader.hpp"
#include "viewer/panels/questions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace kvreplay::viewer {
namespace {

/// Heads asked for at the same time: enough to keep the cores busy, few enough to ask in every frame.
constexpr Index kHeadsAsked = 32;

FigureMap empty_live_map(const FigureInfo& figure, const DumpShape& shape) {
  std::vector<Index> layers(shape.layers);
  std::iota(layers.begin(), layers.end(), Index{0});
  return empty_map(figure, std::move(layers), shape.n_kv);
}

}  // namespace

const FigureInfo* HeadMapSource::find(const std::string& name) const {
  const auto found = std::find_if(figures_.begin(), figures_.end(),
                                  [&](const FigureInfo& info) { return info.name == name; });
  return found == figures_.end() ? nullptr : &*found;
}

void HeadMapSource::list_figures(const Run& run, const ResultFigures* results) {
  figures_.clear();
  list_problems_.clear();
  if (results != nullptr) {
    figures_ = results->figures;
    list_problems_ = results->problems;
  }
  if (run.dump() != nullptr) {
    for (FigureInfo& info : dump_figures(available_metrics(run), run.shape().l))
      if (results == nullptr || results->find(info.name) == nullptr) figures_.push_back(std::move(info));
    for (FigureInfo& info : setting_figures(*run.dump())) figures_.push_back(std::move(info));
  }
  std::stable_sort(figures_.begin(), figures_.end(),
                   [](const FigureInfo& a, const FigureInfo& b) { return a.table < b.table; });
  ++list_;
}

void HeadMapSource::look(PanelContext& context) {
  const Run& run = *context.run();
  if (run_key_ != run.key()) {
    run_key_ = run.key();
    results_.reset();
    map_.reset();
    key_ = {};
    figures_.clear();
    ++list_;
    if (run.results() == nullptr) list_figures(run, nullptr);
  }
  problems_ = list_problems_;
  pending_ = false;
  if (run.results() == nullptr) return;
  const Question question{.key = {run.key(), "figures"}, .title = "Figures of " + run.name()};
  const auto answer = context.desk.ask<ResultFigures>(
      question, [held = context.run()](JobControl&) { return result_figures(*held->results()); });
  pending_ = answer.pending;
  if (!answer.error.empty()) problems_.push_back(answer.error);
  if (answer && answer.value != results_) {
    results_ = answer.value;
    list_figures(run, results_.get());
    problems_ = list_problems_;
  }
}

void HeadMapSource::ask(PanelContext& context, const FigureInfo& figure) {
  from_results_ = results_ && results_->find(figure.name) != nullptr;
  if (from_results_)
    ask_results(context, figure);
  else if (const auto of = setting_figure_named(figure.name))
    ask_setting(context, figure, *of);
  else
    ask_dump(context, figure);
}

void HeadMapSource::ask_results(PanelContext& context, const FigureInfo& figure) {
  const std::shared_ptr<const Run>& run = context.run();
  const Question question{.key = {run->key(), "figure", figure.name}, .title = figure.title};
  const auto answer =
      context.desk.ask<FigureMap>(question, [run, list = results_, name = figure.name](JobControl&) {
        return figure_map(*run->results(), *list, name);
      });
  if (!answer.error.empty()) problems_.push_back(answer.error);
  pending_ |= answer.pending;
  map_ = answer.value;
  key_ = question.key;
  heads_ = map_ ? map_->values.size() : 0;
}

void HeadMapSource::take_heads(PanelContext& context) {
  const DumpShape& shape = context.run()->shape();
  const Index count = shape.layers * shape.n_kv;
  const Key now(run_key_, "live", context.state.comparison.window);
  if (live_key_ != now) {
    live_key_ = now;
    live_.assign(count, {});
    live_known_ = 0;
  }
  if (live_known_ == count) return;
  const Selection& selection = context.state.selection();
  Index waiting = 0;
  const auto take = [&](Index layer, Index head, Urgency urgency) {
    Known& known = live_[layer * shape.n_kv + head];
    if (known.summary) return;
    const auto answer = ask_summary(context, layer, head, urgency);
    known.error = answer.error;
    if (answer.pending) ++waiting;
    if (!answer) return;
    // The tokens are the desk's to keep or drop.
    auto figures_only = std::make_shared<HeadSummary>(*answer);
    figures_only->tokens.reset();
    known.summary = std::move(figures_only);
    ++live_known_;
  };
  take(selection.layer, selection.kv_head, Urgency::soon);
  for (Index i = 0; i < count && waiting < kHeadsAsked; ++i) {
    const Index layer = i / shape.n_kv, head = i % shape.n_kv;
    if (layer != selection.layer || head != selection.kv_head) take(layer, head, Urgency::background);
  }
}

void HeadMapSource::ask_dump(PanelContext& context, const FigureInfo& figure) {
  take_heads(context);
  const DumpShape& shape = context.run()->shape();
  heads_ = shape.layers * shape.n_kv;
  std::size_t failed = 0;
  for (const Known& known : live_) {
    if (known.error.empty()) continue;
    if (failed++ == 0) problems_.push_back(known.error);
  }
  if (failed > 1)
    problems_.back() +=
        fmt::format(" (and {} more)", counted(static_cast<std::ptrdiff_t>(failed) - 1, "head"));
  pending_ |= live_known_ + static_cast<Index>(failed) < heads_;
  Key key(live_key_, figure.name, live_known_);
  if (key == key_ && map_) return;
  key_ = std::move(key);
  FigureMap map = empty_live_map(figure, shape);
  for (const Known& known : live_)
    if (known.summary) add(map, *known.summary);
  map_ = std::make_shared<const FigureMap>(std::move(map));
}

void HeadMapSource::ask_setting(PanelContext& context, const FigureInfo& figure, const SettingFigure& of) {
  WhatIfHeads& heads = settings_[of.setting];
  heads.follow(*context.run(), context.state.settings()[of.setting]);
  heads.ask(context);
  heads_ = heads.heads();
  if (heads.failed() > 0) problems_.push_back(heads.error());
  pending_ |= heads.answered() < heads_;
  Key key(run_key_, figure.name, heads.version());
  if (key == key_ && map_) return;
  key_ = std::move(key);
  FigureMap map = empty_live_map(figure, context.run()->shape());
  for (Index h = 0; h < heads_; ++h) {
    if (heads.current(h) != nullptr) ++map.heads;
    // While those of a new setting come in, the old ones' stand in.
    if (const WhatIfFigures* const found = heads.at(h)) map.values.data()[h] = (*found)[of.figure];
  }
  map_ = std::make_shared<const FigureMap>(std::move(map));
}

}  // namespace kvreplay::viewer
