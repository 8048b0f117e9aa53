#include "viewer/panels/text/text_values.hpp"

#include "analysis/results/result_reader.hpp"
#include "viewer/panels/compared_head.hpp"
#include "viewer/work/token_tint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {
namespace {

Answer<TokenSums> ask_layer(PanelContext& context, Index layer, TokenMetric metric, Urgency urgency) {
  const std::shared_ptr<const Run>& run = context.run();
  const Index window = context.state.comparison.window;
  const Question question{
      .key = {run->key(), "token_sums", metric, run->dump() != nullptr ? window : 0, layer},
      .title = fmt::format("{} of every token, layer {}", name_of(metric), layer),
      .urgency = urgency};
  return context.desk.ask<TokenSums>(question, [run, layer, metric, window](JobControl& job) {
    return layer_token_sums(*run, layer, metric, window, job);
  });
}

/// Those that a run without its dump has results of.
std::vector<Index> summed_layers(const Run& run) {
  if (run.dump() == nullptr && run.results() != nullptr) return run.results()->layers();
  std::vector<Index> layers(run.shape().layers);
  std::iota(layers.begin(), layers.end(), Index{0});
  return layers;
}

}  // namespace

void TextValues::ask(PanelContext& context, TokenMetric metric, TextScope scope, bool in_use) {
  pending_ = unfinished_ = false;
  progress_ = 1;
  error_.clear();
  make_ = {};
  if (scope == TextScope::all) return ask_all(context, metric, in_use);
  const Key run = context.run()->key();
  if (scope == TextScope::layer) {
    const Index layer = context.state.selection().layer;
    const Answer<TokenSums> sums = ask_layer(context, layer, metric, Urgency::soon);
    pending_ = sums.pending;
    error_ = sums.error;
    if (!sums) return;
    key_ = {run, "layer", metric, context.state.comparison.window, layer};
    make_ = [sums = sums.value] { return sums->values; };
    return;
  }
  const ComparedHead head = ask_compared_head(context);
  pending_ = head.summary.pending;
  error_ = head.summary.error;
  if (!head.summary || head.summary->tokens == nullptr) return;
  key_ = {run, "head", metric, head.key};
  make_ = [tokens = head.summary->tokens, metric] {
    const Matrix<double>& values = (*tokens)[metric];
    return std::vector<double>(values.data(), values.data() + values.size());
  };
}

void TextValues::ask_all(PanelContext& context, TokenMetric metric, bool in_use) {
  const Run& run = *context.run();
  const DumpShape& shape = run.shape();
  const std::vector<Index> there = summed_layers(run);
  const Key now(run.key(), metric, context.state.comparison.window);
  if (std::exchange(sums_key_, now) != now) {
    sums_.assign(shape.l, 0.0);
    layers_.restart(std::ssize(there));
    given_.reset();
  }
  unfinished_ =
      layers_.go_on([&](Index i) { return ask_layer(context, there[i], metric, Urgency::background); },
                    [&](Index, const Answer<TokenSums>& sums) {
                      if (!sums) return;
                      for (Index p = 0; p < std::min(std::ssize(sums->values), shape.l); ++p)
                        sums_[p] += sums->values[p];
                    },
                    std::max<Index>(kAddedAFrame / std::max<Index>(shape.l, 1), 1));
  pending_ = layers_.done() < layers_.count();
  progress_ = static_cast<double>(layers_.done()) / static_cast<double>(std::max<Index>(layers_.count(), 1));
  if (layers_.failed() > 0) error_ = layers_.error();
  if (layers_.done() == layers_.failed()) return;
  // One state at a time: used to its end, though more has come in meanwhile.
  if (given_ == nullptr || (!in_use && given_layers_ < layers_.done())) {
    given_ = std::make_shared<const std::vector<double>>(sums_);
    given_layers_ = layers_.done();
  }
  key_ = {"all", now, given_layers_};
  make_ = [sums = given_] { return *sums; };
}

}  // namespace kvreplay::viewer
