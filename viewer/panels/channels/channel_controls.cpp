#include "data/error.hpp"
#include "viewer/panels/channels/channel_parts.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/policy_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <cfloat>
#include <imgui.h>
#include <imgui_stdlib.h>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr const char* kOff = "off";

std::string changed_text(const ChannelSettings& settings) {
  std::string text;
  if (settings.recent) text = fmt::format("recent {}", *settings.recent);
  if (settings.protect)
    text += fmt::format("{}protect {}", text.empty() ? "" : ", ",
                        OptionValue<Protection>::text(*settings.protect));
  return text;
}

}  // namespace

void ChannelControls::draw(ChannelSettings& settings, Index l) {
  flow(theme().px(92));
  choose("##semantics", kSemantics, settings.semantics, 92);
  tip(channel_option::semantics.meaning.data());
  if (!settings_button(changed_text(settings))) return;
  if (ImGui::IsWindowAppearing()) {
    protect_text_ = settings.protect ? OptionValue<Protection>::text(*settings.protect) : "";
    protect_error_.clear();
  }
  settings_row(channel_option::recent);
  edit_optional(channel_option::recent, settings.recent,
                fmt::format("default: {}", default_recent(settings.semantics)), l - 1);
  settings_row(channel_option::protect);
  edit_protection(settings.protect);
  end_settings();
}

/// Typed text takes effect as soon as it is valid.
void ChannelControls::edit_protection(std::optional<Protection>& protect) {
  ImGui::SetNextItemWidth(-FLT_MIN);
  if (ImGui::InputTextWithHint("##protect", kOff, &protect_text_)) try {
      if (protect_text_.empty() || protect_text_ == kOff)
        protect.reset();
      else
        protect = OptionValue<Protection>::parse(channel_option::protect, protect_text_);
      protect_error_.clear();
    } catch (const InputError& error) {
      protect_error_ = error.what();
    }
  if (!protect_error_.empty()) error_line(protect_error_);
}

void edit_channel_view(const Run& run, const ChannelAnswers& answers, ChannelView& view) {
  flow(theme().px(132));
  ImGui::BeginGroup();
  either("matrix", "Logits", "Outputs", view.outputs);
  ImGui::EndGroup();
  tip("Logits: H_ce, pairs of channels in the squared change of the window's logits, before they are scaled "
      "(IAP eq. 3). Outputs: M_ce, the same of the outputs, to first order.");
  flow(check_width("Normalised"));
  ImGui::Checkbox("Normalised", &view.normalised);
  tip(fmt::format("{0}_ce / sqrt({0}_cc {0}_ee)", view.symbol()));
  std::vector<Choice> choices;
  for (const ChannelArrangementFacts& facts : kChannelArrangements) {
    Choice& choice = choices.emplace_back(Choice{.name = std::string(facts.name),
                                                 .plain = std::string(facts.plain),
                                                 .tip = std::string(facts.meaning)});
    if (answers.head == nullptr) continue;
    if (const auto why = why_not_arranged(run, answers, facts.id)) {
      choice.enabled = false;
      choice.tip = "Not known: " + *why;
    }
  }
  auto chosen = static_cast<std::size_t>(view.arrangement);
  const bool known = choices[chosen].enabled;
  constexpr float kWidth = 96;
  flow(ImGui::CalcTextSize("order").x + theme().px(6 + kWidth));
  text_beside("order");
  ImGui::SameLine(0, theme().px(6));
  std::size_t now = known ? chosen : 0;
  if (choose("##order", choices, now, kWidth)) view.arrangement = kChannelArrangements.all()[now];
  tip(known ? "The order of the channels: " + std::string(kChannelArrangements[view.arrangement].meaning)
            : fmt::format("As stored. By {} it cannot be: {}", choices[chosen].name, choices[chosen].tip));
}

}  // namespace kvreplay::viewer
