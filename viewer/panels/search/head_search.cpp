#include "viewer/panels/search/head_search.hpp"

#include "analysis/options/option_text.hpp"
#include "analysis/results/result_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvreplay::viewer {
namespace {

Key key_of(const PanelContext& context) {
  return {context.state.run()->key(), context.state.comparison.window};
}

/// Those that the run can tell of: of a dump all.
std::vector<Index> layers_of(const Run& run) {
  if (run.dump() == nullptr) return run.results()->layers();
  std::vector<Index> all;
  for (Index layer = 0; layer < run.shape().layers; ++layer) all.push_back(layer);
  return all;
}

}  // namespace

void HeadSearch::begin(const FindEntry& entry, const PanelContext& context) {
  stop();
  if (!context.state.run()) return;
  asked_ = key_of(context);
  if (const auto* heads = std::get_if<HeadCondition>(&entry.what)) heads_where_ = *heads;
  if (const auto* tokens = std::get_if<TokenCondition>(&entry.what)) tokens_where_ = *tokens;
}

void HeadSearch::stop() {
  heads_where_.reset();
  tokens_where_.reset();
  heads_.clear();
}

void HeadSearch::look(PanelContext& context) {
  const Key run = context.state.run() ? context.state.run()->key() : Key();
  if (std::exchange(run_, run) != run) context.state.found_heads.clear();
  if (!searching()) return;
  if (!context.state.run() || key_of(context) != asked_) return stop();
  if (heads_where_)
    look_at_heads(context);
  else
    look_at_tokens(context);
}

void HeadSearch::look_at_heads(PanelContext& context) {
  const std::vector<Index> layers = layers_of(*context.state.run());
  const Index n_kv = context.state.run()->shape().n_kv;
  if (heads_.empty()) {
    heads_.resize(layers.size() * static_cast<std::size_t>(n_kv));
    round_.restart(std::ssize(heads_));
  }
  round_.go_on(
      [&](Index h) {
        return ask_summary(context, layers[static_cast<std::size_t>(h / n_kv)], h % n_kv,
                           Urgency::background);
      },
      [&](Index h, const Answer<HeadSummary>& answer) { heads_[h] = answer.value; });
  if (round_.failed() > 0) {
    context.state.say(round_.error(), true);
    return stop();
  }
  const std::string text = heads_where_->query.text();
  if (round_.done() < round_.count())
    return context.state.say(
        fmt::format("Looking for {}: {} of {} heads", text, round_.done(), round_.count()));
  context.state.found_heads = heads_where(*heads_where_, heads_);
  context.state.found_by = text.substr(text.find(' ') + 1);
  if (const auto& found = context.state.found_heads; found.empty()) {
    context.state.say(fmt::format("No head {}.", context.state.found_by));
  } else {
    context.state.select_head(found.front().first, found.front().second);
    context.state.say(fmt::format("{} of {} {}: n and p step through them, Escape lets them go.",
                                  counted(std::ssize(found), "head"), heads_.size(), context.state.found_by));
  }
  stop();
}

void HeadSearch::look_at_tokens(PanelContext& context) {
  const Selection& selection = context.state.selection();
  const auto answer = ask_summary(context, selection.layer, selection.kv_head, Urgency::now);
  if (answer.pending) return;
  if (!answer || !answer->tokens) {
    context.state.say(answer.error.empty() ? "No metrics of single tokens here." : answer.error, true);
    return stop();
  }
  std::vector<Index> found = tokens_where(*tokens_where_, *answer->tokens);
  const std::string text = tokens_where_->query.text();
  const std::string where = fmt::format("{} in layer {} head {}", text.substr(text.find(' ') + 1),
                                        selection.layer, selection.kv_head);
  const auto count = std::ssize(found);
  context.state.select_tokens(std::move(found));
  context.state.say(count == 0 ? fmt::format("No token {}.", where)
                               : fmt::format("{} {}.", counted(count, "token"), where));
  stop();
}

}  // namespace kvreplay::viewer
