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
  const Question question{
      .key = {run, "token_tint", own_.key(), subtracts, subtracts ? Key(pinned_.key(), by_rank) : Key()},
      .title = "Colours of the text",
      .urgency = Urgency::soon,
      .slot = {run, "token_tint", subtracts}};
  tint_ = subtracts ? context.desk.ask<TokenTint>(
                          question, [own = own_.make(), pinned = pinned_.make(), by_rank](
                                        JobControl&) { return difference_tint(own(), pinned(), by_rank); })
                    : context.desk.ask<TokenTint>(
                          question, [own = own_.make()](JobControl&) { return token_tint(own()); });
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
