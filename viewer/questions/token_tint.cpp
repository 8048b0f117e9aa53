#include "viewer/questions/token_tint.hpp"

#include "analysis/results/agreement.hpp"
#include "analysis/results/result_reader.hpp"
#include "data/error.hpp"
#include "sim/backend.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/model/value_scale.hpp"
#include "viewer/questions/head_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace kvreplay::viewer {

TokenSums layer_token_sums(const Run& run, Index layer, TokenMetric metric, Index window, JobControl& job) {
  TokenSums sums;
  const Index heads = run.shape().n_kv;
  for (Index g = 0; g < heads; ++g) {
    TokenMetrics found;
    if (run.dump() != nullptr) {
      TokenOptions options;
      options.window = window;
      options.metrics = {metric};
      found = job.compute().backend.token_metrics(*run.head(layer, g), options, job.workers());
    } else {
      found = read_token_metrics(*run.results(), layer, g);
    }
    const Matrix<double>& values = found[metric];
    if (values.size() == 0)
      throw InputError(fmt::format("{}: no {} of layer {}", run.path().string(), name_of(metric),
                                   run.layer_number(layer)));
    sums.values.resize(values.cols(), 0.0);
    for (Index p = 0; p < values.cols(); ++p) sums.values[p] += values(0, p);
    job.progress(static_cast<double>(g + 1) / static_cast<double>(heads));
    job.check();
  }
  return sums;
}

std::uint8_t TokenTint::rank_level(Index token) const {
  const auto last = std::max<std::ptrdiff_t>(std::ssize(place) - 1, 1);
  return static_cast<std::uint8_t>(255 - 255 * static_cast<std::ptrdiff_t>(place[token]) / last);
}

TokenTint token_tint(std::vector<double> values) {
  TokenTint tint;
  tint.values = std::move(values);
  std::vector<float> finite, positive;
  for (const double value : tint.values) {
    const auto v = static_cast<float>(value);
    if (std::isfinite(v)) finite.push_back(v);
    if (std::isfinite(v) && v > 0) positive.push_back(v);
  }
  const auto [least, most] = std::minmax_element(finite.begin(), finite.end());
  if (!positive.empty() && *least >= 0) {
    tint.scale.kind = ScaleKind::log;
    tint.scale.high = *most;
    tint.scale.low = percentile(positive, 50);
    if (tint.scale.low == tint.scale.high) tint.scale.low /= 10;
  } else if (!finite.empty()) {
    tint.scale.low = *least;
    tint.scale.high = *most;
  }
  tint.scale = usable(tint.scale);
  tint.level.reserve(tint.values.size());
  for (const double value : tint.values) {
    const float place = tint.scale.place(static_cast<float>(value));
    tint.level.push_back(
        std::isnan(place) ? 0 : static_cast<std::int16_t>(std::lround(255 * std::clamp(place, 0.0F, 1.0F))));
  }
  tint.place = Ranking(tint.values).place();
  return tint;
}

TokenTint difference_tint(const std::vector<double>& own, const std::vector<double>& pinned, bool by_rank) {
  std::vector<double> less(own.size(), kNone), magnitudes;
  const std::size_t both = std::min(own.size(), pinned.size());
  if (by_rank) {
    const std::vector<std::int32_t> mine = Ranking(own).place(), theirs = Ranking(pinned).place();
    for (std::size_t p = 0; p < both; ++p) less[p] = theirs[p] - mine[p];
  } else {
    for (std::size_t p = 0; p < both; ++p) less[p] = difference_of(pinned[p], own[p]);
  }
  for (const double value : less) magnitudes.push_back(std::abs(value));
  TokenTint tint = token_tint(std::move(magnitudes));
  for (std::size_t p = 0; p < less.size(); ++p)
    if (less[p] < 0) tint.level[p] = static_cast<std::int16_t>(-tint.level[p]);
  tint.values = std::move(less);
  tint.is_difference = true;
  return tint;
}

void KeptCounts::reset(Index heads, Index l) {
  kept_.assign(heads, {});
  counts_.assign(l, 0);
  known_ = 0;
}

void KeptCounts::take(Index head, const KeptSet& kept) {
  std::vector<bool>& last = kept_[head];
  if (last.empty()) {
    last.resize(counts_.size(), false);
    ++known_;
  }
  const std::size_t l = std::min(counts_.size(), kept.size());
  for (std::size_t p = 0; p < l; ++p) {
    const bool now = kept[p] != 0;
    counts_[p] += static_cast<int>(now) - static_cast<int>(last[p]);
    last[p] = now;
  }
}

Answer<TokenSums> ask_layer_sums(PanelContext& context, Index layer, TokenMetric metric, Urgency urgency) {
  const std::shared_ptr<const Run>& run = context.run();
  const Index window = context.state.comparison.window;
  const JobRequest request{
      .key = {run->key(), "token_sums", metric, run->dump() != nullptr ? window : 0, layer},
      .title = fmt::format("{} of every token, layer {}", name_of(metric), run->layer_number(layer)),
      .urgency = urgency};
  return context.queue.ask<TokenSums>(request, [run, layer, metric, window](JobControl& job) {
    return layer_token_sums(*run, layer, metric, window, job);
  });
}

namespace {

/// Layers that can be summed: of a run without its dump those that it has results of.
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
    const Answer<TokenSums> sums = ask_layer_sums(context, layer, metric, Urgency::soon);
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
      layers_.go_on([&](Index i) { return ask_layer_sums(context, there[i], metric, Urgency::background); },
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

void TextSource::ask(PanelContext& context, std::optional<TokenMetric> metric, TextScope scope,
                     bool by_rank) {
  pending_ = unfinished_ = false;
  progress_ = 1;
  error_.clear();
  if (metric)
    ask_tint(context, *metric, scope, by_rank);
  else
    tint_ = {};
  ask_kept(context, scope);
}

void TextSource::ask_tint(PanelContext& context, TokenMetric metric, TextScope scope, bool by_rank) {
  own_.ask(context, metric, scope, tint_.pending);
  take(own_);
  const std::shared_ptr<const Run> less = context.state.subtracted();
  if (less == nullptr) less_.clear();
  const bool known = less != nullptr && available_metrics(*less).contains(metric);
  if (known) {
    PanelContext of_pinned = context.of(less);
    pinned_.ask(of_pinned, metric, scope, tint_.pending);
    take(pinned_);
  } else if (less != nullptr) {
    error_ = fmt::format("{} has no {} to subtract.", less->name(), name_of(metric));
  }
  // Sums over other heads cannot be subtracted.
  const bool subtracts = known && pinned_.make() && own_.whole() && pinned_.whole();
  if (!own_.make() || (known && !subtracts)) return;
  if (subtracts) less_ = less->name();
  const Key run = context.state.run()->key();
  const JobRequest request{
      .key = {run, "token_tint", own_.key(), subtracts, subtracts ? Key(pinned_.key(), by_rank) : Key()},
      .title = "Colours of the text",
      .urgency = Urgency::soon,
      .slot = {run, "token_tint", subtracts}};
  tint_ = subtracts ? context.queue.ask<TokenTint>(
                          request, [own = own_.make(), pinned = pinned_.make(), by_rank](
                                       JobControl&) { return difference_tint(own(), pinned(), by_rank); })
                    : context.queue.ask<TokenTint>(
                          request, [own = own_.make()](JobControl&) { return token_tint(own()); });
  pending_ |= tint_.pending;
}

void TextSource::take(const TextValues& values) {
  pending_ |= values.pending();
  unfinished_ |= values.unfinished();
  progress_ = std::min(progress_, values.progress());
  if (!values.error().empty()) error_ = values.error();
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
