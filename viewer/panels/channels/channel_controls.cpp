#include "viewer/panels/channels/channel_controls.hpp"

#include "analysis/channels/channel_names.hpp"
#include "data/error.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/policy_controls.hpp"
#include "viewer/panels/settings_popup.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"
#include "viewer/work/policy_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cfloat>
#include <imgui_stdlib.h>
#include <string_view>

namespace kvreplay::viewer {
namespace {

constexpr const char* kOff = "off";

std::string changed_text(const ChannelSettings& settings) {
  std::string text;
  if (settings.recent) text = fmt::format("recent {}", *settings.recent);
  if (settings.protect != kOff)
    text += fmt::format("{}protect {}", text.empty() ? "" : ", ", settings.protect);
  return text;
}

}  // namespace

void ChannelControls::draw(ChannelSettings& settings, Index l) {
  flow(theme().px(92));
  choose("##semantics", kSemantics, settings.semantics, 92);
  tip("paper: scores from the keys that lose channels, all but the last 32. official (ThinK's code): from "
      "all keys, a set for every query head. kvpress: every key loses channels.");
  if (!settings_button(changed_text(settings))) return;
  if (ImGui::IsWindowAppearing()) {
    protect_text_ = settings.protect == kOff ? "" : settings.protect;
    protect_error_.clear();
  }
  settings_row("Recent", "The last so many keys of the prompt stay whole");
  edit_optional("##recent", settings.recent, fmt::format("own: {}", default_recent(settings.semantics)), 0,
                std::max<Index>(l - 1, 0));
  settings_row(
      "Protect",
      "A:B in percent: channels of outstanding key norm are never pruned, between A and B percent of "
      "them");
  edit_protection(settings.protect);
  end_settings();
}

/// What is typed counts as soon as it makes sense.
void ChannelControls::edit_protection(std::string& protect) {
  ImGui::SetNextItemWidth(-FLT_MIN);
  if (ImGui::InputTextWithHint("##protect", kOff, &protect_text_)) try {
      const std::string typed = protect_text_.empty() ? kOff : protect_text_;
      parse_protection(typed);
      protect = typed;
      protect_error_.clear();
    } catch (const InputError& error) {
      protect_error_ = without_dashes(error.what());
    }
  if (!protect_error_.empty()) error_line(protect_error_);
}

}  // namespace kvreplay::viewer
