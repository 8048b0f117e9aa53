#include "viewer/panels/what_if/what_if_settled.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {
namespace {

SettledWhatIf settled(const WhatIfSettings& settings, const Dump& dump, const UserScore* score) {
  SettledWhatIf made;
  made.settings = settings;
  if (score != nullptr) made.score = *score;
  const Key given = score != nullptr ? score->key() : Key();
  made.key = {to_json(settings).dump(), given};
  made.plain_key = {to_json(settings.without_compensation()).dump(), given};
  try {
    made.paint = KeptPaint::of_text(settings.painted);
    const auto plan = std::make_shared<const EvictionPlan>(what_if_plan(settings, dump, score));
    made.compensation =
        std::make_shared<const CompensationPlan>(what_if_compensation(settings, dump, *plan, score));
    made.plan = plan;
    made.ranking_key = {score_key(*made.plan), given};
  } catch (const InputError& error) {
    made.error = error.what();
  }
  return made;
}

}  // namespace

std::shared_ptr<const SettledWhatIf> WhatIfMemo::settle(const WhatIfSettings& settings, const Dump& dump) {
  const auto known =
      std::find_if(settled_.begin(), settled_.end(), [&](const auto& s) { return s->settings == settings; });
  if (known != settled_.end()) {
    std::rotate(settled_.begin(), known, known + 1);
    return settled_.front();
  }
  settled_.insert(settled_.begin(), std::make_shared<const SettledWhatIf>(settled(settings, dump, nullptr)));
  if (settled_.size() > kSettled) settled_.pop_back();
  return settled_.front();
}

void WhatIfMemo::remember(const Key& slot, const std::shared_ptr<const WhatIf>& answer) {
  if (slot.empty()) return;
  std::erase_if(last_, [&](const auto& item) { return item.first == slot; });
  last_.insert(last_.begin(), {slot, answer});
  if (last_.size() > kLast) last_.pop_back();
}

std::shared_ptr<const WhatIf> WhatIfMemo::last_of(const Key& slot) const {
  for (const auto& [name, answer] : last_)
    if (name == slot) return answer;
  return nullptr;
}

std::shared_ptr<WhatIfMemo> what_if_memo(PanelContext& context, const Run& run) {
  const Question question{
      .key = {run.key(), "what_if_memo"}, .title = "Settings of What if", .urgency = Urgency::now};
  const auto answer = context.desk.ask<std::shared_ptr<WhatIfMemo>>(
      question, [](JobControl&) { return std::make_shared<WhatIfMemo>(); });
  return answer ? *answer : nullptr;
}

Answer<SettledWhatIf> ask_settled(PanelContext& context, const std::shared_ptr<const Run>& run,
                                  const WhatIfSettings& settings, const UserScore& score, Urgency urgency) {
  const Question question{.key = {run->key(), "what_if_settings", to_json(settings).dump(), score.key()},
                          .title = fmt::format("Settings with the score {}", score.name),
                          .urgency = urgency};
  return context.desk.ask<SettledWhatIf>(
      question, [run, settings, score](JobControl&) { return settled(settings, *run->dump(), &score); });
}

}  // namespace kvreplay::viewer
