#include "viewer/panels/decode/decode_question.hpp"

#include "data/error.hpp"
#include "viewer/work/decode_results.hpp"

#include <fmt/format.h>

#include <utility>

namespace kvreplay::viewer {

std::optional<std::string> why_no_decoding(const Run& run, Index layer) {
  if (run.dump() != nullptr) return std::nullopt;
  if (run.results() == nullptr) return "there are no results";
  return why_no_decode_results(*run.results(), layer);
}

void DecodeQuestions::settle(const Run& run, const DecodeSettings& settings) {
  if (settled_.run == run.key() && settled_.settings == settings) return;
  settled_ = {run.key(), settings, nullptr, to_json(settings).dump(), {}, {}};
  try {
    settled_.plan = std::make_shared<const DecodePlan>(decode_plan(settings, *run.dump()));
    settled_.starts_key = starts_key(*settled_.plan);
  } catch (const InputError& error) {
    settled_.error = error.what();
  }
}

Answer<DecodeView> DecodeQuestions::ask_dump(PanelContext& context) const {
  const std::shared_ptr<const Run>& run = context.run();
  const Index layer = context.state.selection().layer, kv_head = context.state.selection().kv_head;
  const std::shared_ptr<const DecodePlan>& plan = settled_.plan;
  const std::string where = fmt::format("layer {} head {}", layer, kv_head);
  Answer<DecodeView> found;
  const auto outputs = context.desk.ask<DecodeOutputs>(
      {.key = {run->key(), "decode_outputs", layer, kv_head},
       .title = "Outputs of the decoding steps, " + where,
       .all_cores = true},
      [run, layer, kv_head](JobControl& job) { return decode_outputs(*run->head(layer, kv_head), job); });
  const auto starts = context.desk.ask<DecodeStarts>(
      {.key = {run->key(), "decode_starts", layer, kv_head, settled_.starts_key},
       .title = "What decoding starts from, " + where,
       .all_cores = true},
      [run, plan, layer, kv_head](JobControl& job) {
        return decode_starts(*run->head(layer, kv_head), *plan, job);
      });
  if (!outputs || !starts) {
    found.pending = outputs.pending || starts.pending;
    found.error = outputs.error.empty() ? starts.error : outputs.error;
    return found;
  }
  const Question question{.key = {run->key(), "decode", layer, kv_head, settled_.key},
                          .title = "Decoding, " + where,
                          .urgency = Urgency::now,
                          .all_cores = true};
  return context.desk.ask<DecodeView>(
      question, [run, plan, layer, kv_head, outputs = outputs.value, starts = starts.value](JobControl& job) {
        return decode_view(*run->head(layer, kv_head), *plan, *outputs, *starts, job);
      });
}

Answer<DecodeView> DecodeQuestions::ask_results(PanelContext& context) {
  const std::shared_ptr<const Run>& run = context.run();
  const Index layer = context.state.selection().layer, kv_head = context.state.selection().kv_head;
  return context.desk.ask<DecodeView>(
      {.key = {run->key(), "decode_results", layer, kv_head},
       .title = fmt::format("Decoding, layer {} head {}", layer, kv_head)},
      [run, layer, kv_head](JobControl&) { return read_decode(*run->results(), layer, kv_head); });
}

const DecodeAnswers& DecodeQuestions::ask(PanelContext& context, const DecodeSettings& settings) {
  const Run& run = *context.run();
  const Selection& selected = context.state.selection();
  const Key place(run.key(), selected.layer, selected.kv_head);
  if (std::exchange(place_, place) != place) answers_ = {};
  Answer<DecodeView> found;
  answers_.left_out.clear();
  if (run.dump() == nullptr) {
    found = ask_results(context);
  } else {
    settle(run, settings);
    found.error = settled_.error;
    if (settled_.plan != nullptr) {
      answers_.left_out = settled_.plan->left_out;
      found = ask_dump(context);
    }
  }
  answers_.pending = found.pending;
  answers_.error = found.error;
  answers_.stale = !found;
  if (!found || found.value == answers_.view) return answers_;
  answers_.view = found.value;
  answers_.fates.clear();
  if (run.dump() != nullptr)
    for (const DecodeRun& one : answers_.view->runs) answers_.fates.push_back(cache_fates(one));
  return answers_;
}

}  // namespace kvreplay::viewer
