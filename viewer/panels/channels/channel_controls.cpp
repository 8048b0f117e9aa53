#include "viewer/panels/channels/channel_controls.hpp"

#include "data/error.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/policy_controls.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

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
                fmt::format("own: {}", default_recent(settings.semantics)), l - 1);
  settings_row(channel_option::protect);
  edit_protection(settings.protect);
  end_settings();
}

/// What is typed counts as soon as it makes sense.
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

}  // namespace kvreplay::viewer
