#pragma once

#include "analysis/options/option.hpp"
#include "sim/eviction/policy.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/work/named_choices.hpp"
#include "viewer/work/state.hpp"

#include <array>
#include <cstddef>
#include <imgui.h>
#include <optional>
#include <vector>

namespace kvreplay::viewer {

/// The rows of a table of choices under the settings A and B, in an ImGui table of three columns: each draws
/// its label and a control for every setting. A run must be open.
class SettingRows {
 public:
  explicit SettingRows(AppState& state);
  /// Their names; a click chooses the one that is `shown` elsewhere: B?
  void header(bool& shown) const;

 protected:
  template <class Control>
  void row(const OptionFacts& option, Control control) {
    row(title_of(option).c_str(), option.meaning.data(), control);
  }

  /// With a tooltip on each control.
  template <class Control, class Tip>
  void row(const char* name, const char* about, Control control, Tip tip_of) {
    row(name, about, [&](WhatIfSettings& s, std::size_t i) {
      const std::string now = tip_of(s);
      control(s, i);
      tip(now);
    });
  }

  template <class Control>
  void row(const char* name, const char* about, Control control) {
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    ImGui::AlignTextToFramePadding();
    dim_text(name);
    tip(about);
    controls(control);
  }

  template <class Control>
  void controls(Control control) {
    for (std::size_t s = 0; s < 2; ++s) {
      ImGui::TableNextColumn();
      ImGui::PushID(static_cast<int>(s));
      control(*settings_[s], s);
      ImGui::PopID();
    }
  }

  const Run& run_;
  const std::vector<UserScore>& scores_;
  std::array<WhatIfSettings*, 2> settings_;
  std::array<WhatIfSettings, 2> as_counted_;
  std::array<std::optional<EvictionRule>, 2> own_;
};

}  // namespace kvreplay::viewer
