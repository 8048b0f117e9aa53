#include "viewer/panels/text/text_source.hpp"

#include "analysis/results/result_reader.hpp"
#include "data/utf8.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/compared_head.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// Numbers that a frame may add up.
constexpr Index kAddedAFrame = 2'000'000;

Answer<TokenSums> ask_layer(PanelContext& context, Index layer, TokenMetric metric, Urgency urgency) {
  const std::shared_ptr<const Run>& run = context.state.run();
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
std::vector<Index> layers_of(const Run& run) {
  if (run.dump() == nullptr && run.results() != nullptr) return run.results()->layers();
  std::vector<Index> layers(run.shape().layers);
  std::iota(layers.begin(), layers.end(), Index{0});
  return layers;
}

}  // namespace

Answer<TextLayout> TextLines::ask(PanelContext& context, float width) {
  const ImFont* font = ui_font();
  if (advances_ == nullptr || advances_->em != font->FontSize) {
    Advances now{font->FontSize, {}, font->FallbackAdvanceX};
    now.of.assign(font->IndexAdvanceX.begin(), font->IndexAdvanceX.end());
    advances_ = std::make_shared<const Advances>(std::move(now));
  }
  const std::shared_ptr<const Run>& run = context.state.run();
  const Question question{.key = {run->key(), "text_layout", width, advances_->em},
                          .title = "Lines of the text",
                          .urgency = Urgency::now,
                          .slot = {run->key(), "text_layout"}};
  return context.desk.ask<TextLayout>(question, [run, width, advances = advances_](JobControl&) {
    return TextLayout(reading_texts(run->labels(), run->shape().T), width, [&](std::string_view text) {
      float sum = 0;
      while (!text.empty()) {
        const Character next = first_character(text);
        sum += next.code < advances->of.size() ? advances->of[next.code] : advances->others;
        text.remove_prefix(next.bytes.size());
      }
      return sum;
    });
  });
}

void TextSource::ask(PanelContext& context, std::optional<TokenMetric> metric, TextScope scope) {
  pending_ = unfinished_ = false;
  progress_ = 1;
  error_.clear();
  if (metric)
    ask_values(context, *metric, scope);
  else
    tint_ = {};
  ask_kept(context, scope);
}

void TextSource::ask_values(PanelContext& context, TokenMetric metric, TextScope scope) {
  if (scope == TextScope::all) return ask_all_values(context, metric);
  if (scope == TextScope::layer) {
    const Index layer = context.state.selection().layer;
    const Answer<TokenSums> sums = ask_layer(context, layer, metric, Urgency::soon);
    pending_ |= sums.pending;
    if (!sums.error.empty()) error_ = sums.error;
    if (sums)
      ask_tint(context, {"layer", metric, context.state.comparison.window, layer},
               [sums = sums.value] { return sums->values; });
    return;
  }
  const ComparedHead head = ask_compared_head(context);
  pending_ |= head.summary.pending;
  if (!head.summary.error.empty()) error_ = head.summary.error;
  if (!head.summary || head.summary->tokens == nullptr) return;
  ask_tint(context, {"head", metric, head.key}, [tokens = head.summary->tokens, metric] {
    const Matrix<double>& values = (*tokens)[metric];
    return std::vector<double>(values.data(), values.data() + values.size());
  });
}

void TextSource::ask_all_values(PanelContext& context, TokenMetric metric) {
  const Run& run = *context.state.run();
  const DumpShape& shape = run.shape();
  const std::vector<Index> there = layers_of(run);
  const Key now(run.key(), metric, context.state.comparison.window);
  if (std::exchange(sums_key_, now) != now) {
    sums_.assign(shape.l, 0.0);
    layers_.restart(std::ssize(there));
    asked_.reset();
  }
  unfinished_ |=
      layers_.go_on([&](Index i) { return ask_layer(context, there[i], metric, Urgency::background); },
                    [&](Index, const Answer<TokenSums>& sums) {
                      if (!sums) return;
                      for (Index p = 0; p < std::min(std::ssize(sums->values), shape.l); ++p)
                        sums_[p] += sums->values[p];
                    },
                    std::max<Index>(kAddedAFrame / std::max<Index>(shape.l, 1), 1));
  pending_ |= layers_.done() < layers_.count();
  progress_ = static_cast<double>(layers_.done()) / static_cast<double>(std::max<Index>(layers_.count(), 1));
  if (layers_.failed() > 0) error_ = layers_.error();
  if (layers_.done() == layers_.failed()) return;
  // One state at a time: asked to its end, though more has come in meanwhile.
  if (asked_ == nullptr || (!tint_.pending && asked_layers_ < layers_.done())) {
    asked_ = std::make_shared<const std::vector<double>>(sums_);
    asked_layers_ = layers_.done();
  }
  ask_tint(context, {"all", now, asked_layers_}, [sums = asked_] { return *sums; });
}

void TextSource::ask_tint(PanelContext& context, const Key& key,
                          std::function<std::vector<double>()> values) {
  const Key run = context.state.run()->key();
  tint_ =
      context.desk.ask<TokenTint>({.key = {run, "token_tint", key},
                                   .title = "Colours of the text",
                                   .urgency = Urgency::soon,
                                   .slot = {run, "token_tint"}},
                                  [values = std::move(values)](JobControl&) { return token_tint(values()); });
  pending_ |= tint_.pending;
}

void TextSource::ask_kept(PanelContext& context, TextScope scope) {
  AppState& state = context.state;
  const Run& run = *state.run();
  one_.reset();
  if (run.dump() == nullptr) {
    kept_key_ = {};
    return;
  }
  const Selection& selection = state.selection();
  if (scope == TextScope::head) {
    kept_key_ = {};
    const bool is_b = state.shows_b();
    const Answer<WhatIf> answer =
        ask_kept_set(context, state.setting(), selection.layer, selection.kv_head, Urgency::now,
                     {"text", is_b, selection.layer, selection.kv_head});
    one_ = answer.value;
    pending_ |= answer.pending;
    if (!answer.error.empty()) error_ = answer.error;
    return;
  }
  const Index n_kv = run.shape().n_kv, first = scope == TextScope::layer ? selection.layer * n_kv : 0;
  const Index count = scope == TextScope::layer ? n_kv : run.shape().layers * n_kv;
  const Key now(run.key(), scope, first);
  const WhatIfSettings settings = state.setting().without_compensation();
  const bool anew = std::exchange(kept_key_, now) != now;
  if (anew) counts_.reset(count, run.shape().l);
  if (anew || kept_settings_ != settings) kept_heads_.restart(count);
  kept_settings_ = settings;
  unfinished_ |= kept_heads_.go_on(
      [&](Index i) {
        return ask_kept_set(context, settings, (first + i) / n_kv, (first + i) % n_kv, Urgency::background,
                            {});
      },
      [&](Index i, const Answer<WhatIf>& answer) {
        if (answer) counts_.take(i, answer->kept);
      },
      std::max<Index>(kAddedAFrame / std::max<Index>(run.shape().l, 1), 1));
  pending_ |= kept_heads_.done() < count;
  progress_ = std::min(progress_, static_cast<double>(kept_heads_.done()) / static_cast<double>(count));
  if (kept_heads_.failed() > 0 && error_.empty()) error_ = kept_heads_.error();
}

Index TextSource::heads() const {
  if (one_ != nullptr) return 1;
  return kept_key_.empty() ? 0 : counts_.heads();
}

Index TextSource::kept(Index token) const {
  if (one_ != nullptr) return token < std::ssize(one_->kept) && one_->kept[token] != 0 ? 1 : 0;
  return token < counts_.tokens() ? counts_.count(token) : 0;
}

float TextSource::evicted(Index token) const {
  const Index all = heads();
  return all == 0 ? 0 : 1 - static_cast<float>(kept(token)) / static_cast<float>(all);
}

}  // namespace kvreplay::viewer
