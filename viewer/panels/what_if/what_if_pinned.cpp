#include "viewer/panels/what_if/what_if_pinned.hpp"

#include "viewer/panels/pinned_run.hpp"
#include "viewer/widgets/controls.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

void PinnedWhatIf::ask(PanelContext& context, const std::array<WhatIfSettings, 2>& settings) {
  *this = {};
  const std::shared_ptr<const Run> run = context.state.subtracted();
  if (run == nullptr) return;
  name_ = run->name();
  if (run->dump() == nullptr) {
    problem_ =
        fmt::format("What {} loses needs its dump, which is not at hand: {}", name_, run->why_no_dump());
    return;
  }
  PanelContext of_pinned = context.of(run);
  const Selection& selection = context.state.selection();
  for (std::size_t s = 0; s < now_.size(); ++s) {
    now_[s] = ask_what_if(of_pinned, settings[s], selection.layer, selection.kv_head, Urgency::soon,
                          {"pinned", s, selection.layer, selection.kv_head});
    if (problem_.empty() && !now_[s].error.empty()) problem_ = fmt::format("{}: {}", name_, now_[s].error);
  }
}

void PinnedWhatIf::draw(const std::array<Answer<WhatIf>, 2>& own) const {
  if (name_.empty()) return;
  if (!problem_.empty()) return error_line(problem_);
  constexpr std::array<std::string_view, 2> kSettings = {"A", "B"};
  std::vector<std::string> errors;
  bool future = false;
  for (std::size_t s = 0; s < now_.size(); ++s) {
    if (!own[s] || !now_[s] || own[s].stale || now_[s].stale) continue;
    future = !std::isnan(now_[s]->future.error);
    const auto error = [&](const WhatIf& of) { return future ? of.future.error : of.window.error; };
    errors.push_back(fmt::format("{} {}", kSettings[s], pinned_text(error(*own[s]), error(*now_[s]))));
  }
  ImGui::PushTextWrapPos(0);
  dim_text(errors.empty() ? fmt::format("{}: ...", name_)
                          : fmt::format("{}: {}", name_, fmt::join(errors, ", ")));
  ImGui::PopTextWrapPos();
  tip(fmt::format("The pinned run's output_error on the {}, and how much larger this run's is",
                  future ? "decoding steps" : "window's rows"));
}

}  // namespace kvreplay::viewer
