#include "viewer/panels/channels/channel_question.hpp"

#include "analysis/measure/case_outputs.hpp"
#include "data/error.hpp"
#include "viewer/work/channel_results.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvreplay::viewer {
namespace {

std::vector<ChannelRule> methods_of(const Dump& dump) {
  const bool rope = !why_no_rope_pairs(dump);
  return channel_rules_named(kChannelMethods.names_where(
      [&](const ChannelMethodFacts& facts) { return rope || !facts.needs_rope; }));
}

/// Takes an answer over as far as it goes.
template <class T>
void take(ChannelAnswers& all, std::shared_ptr<const T>& into, const Answer<T>& answer) {
  into = answer.value;
  all.pending = all.pending || answer.pending;
  if (all.error.empty()) all.error = answer.error;
}

ChannelAnswers ask_results(PanelContext& context, double ratio) {
  const std::shared_ptr<const Run>& run = context.run();
  const Selection& selected = context.state.selection();
  ChannelAnswers all;
  all.layer = selected.layer;
  all.key = {run->key(), "channel_results", selected.layer, selected.kv_head};
  const Answer<ChannelRecord> record = context.desk.ask<ChannelRecord>(
      {.key = all.key, .title = fmt::format("Channels, layer {} head {}", selected.layer, selected.kv_head)},
      [run, layer = selected.layer, kv_head = selected.kv_head](JobControl&) {
        return read_channels(*run->results(), layer, kv_head);
      });
  all.pending = record.pending;
  all.error = record.error;
  if (!record) return all;
  all.head = {record.value, &record->head};
  if (!record->outputs.outputs.empty()) all.outputs = {record.value, &record->outputs};
  for (const ChannelPrunings& prunings : record->prunings) {
    all.ratios.push_back(prunings.ratio);
    if (all.prunings == nullptr || std::abs(prunings.ratio - ratio) < std::abs(all.prunings->ratio - ratio))
      all.prunings = {record.value, &prunings};
  }
  return all;
}

}  // namespace

std::optional<std::string> why_no_channels(const Run& run, Index layer) {
  if (run.dump() != nullptr) return std::nullopt;
  if (run.results() == nullptr) return "there are no results";
  return why_no_channel_results(*run.results(), layer);
}

void ChannelQuestions::settle(const Run& run, const ChannelSettings& settings) {
  if (settled_.run == run.key() && settled_.settings == settings) return;
  settled_ = {run.key(), settings, nullptr, {}, {}};
  ChannelSettings all = settings;
  all.methods = methods_of(*run.dump());
  try {
    settled_.plan = std::make_shared<const ChannelPlan>(channel_view_plan(all, *run.dump()));
    settled_.basis = basis_key(*settled_.plan);
  } catch (const InputError& error) {
    settled_.error = error.what();
  }
}

ChannelAnswers ChannelQuestions::ask_dump(PanelContext& context, double ratio) const {
  const std::shared_ptr<const Run>& run = context.run();
  const Selection& selected = context.state.selection();
  const Index layer = selected.layer, kv_head = selected.kv_head;
  const std::shared_ptr<const ChannelPlan>& plan = settled_.plan;
  const Key place(layer, kv_head, settled_.basis);
  const std::string where = fmt::format("layer {} head {}", layer, kv_head);
  ChannelAnswers all;
  all.layer = layer;
  all.key = {run->key(), "channels", place};
  take(all, all.head,
       context.desk.ask<ChannelHead>(
           {.key = all.key, .title = "Channel interaction, " + where, .all_cores = true},
           [run, plan, layer, kv_head](JobControl& job) {
             return channel_head(*run->head(layer, kv_head), *plan, job);
           }));
  if (all.head == nullptr) return all;
  take(all, all.outputs,
       context.desk.ask<ChannelOutputs>({.key = {run->key(), "channel_outputs", place},
                                         .title = "Channels in the output space, " + where,
                                         .all_cores = true},
                                        [run, plan, layer, kv_head, head = all.head](JobControl& job) {
                                          return channel_outputs(*run->head(layer, kv_head), *plan, *head,
                                                                 job);
                                        }));
  // Without the outputs most methods are known already.
  const Key slot(run->key(), "prunings", place);
  const Question question{.key = {slot, ratio, all.outputs != nullptr},
                          .title = fmt::format("Pruning {:.0f} % of channels, {}", 100 * ratio, where),
                          .urgency = Urgency::now,
                          .slot = slot,
                          .all_cores = true};
  const Answer<ChannelPrunings> prunings = context.desk.ask<ChannelPrunings>(
      question, [run, plan, layer, kv_head, ratio, head = all.head, outputs = all.outputs](JobControl& job) {
        return channel_prunings(*run->head(layer, kv_head), *plan, *head, outputs.get(), ratio,
                                cache_elements(*run->dump()), job);
      });
  take(all, all.prunings, prunings);
  all.stale = prunings && prunings->ratio != ratio;
  return all;
}

ChannelAnswers ChannelQuestions::ask(PanelContext& context, const ChannelSettings& settings, double ratio) {
  const Run& run = *context.run();
  if (run.dump() == nullptr) return ask_results(context, ratio);
  settle(run, settings);
  if (settled_.plan != nullptr) return ask_dump(context, ratio);
  ChannelAnswers none;
  none.error = settled_.error;
  return none;
}

}  // namespace kvreplay::viewer
