#include "viewer/panels/pinned_run.hpp"

#include "viewer/panels/metric_controls.hpp"
#include "viewer/widgets/controls.hpp"

#include <fmt/format.h>

namespace kvreplay::viewer {

std::string less_than_pinned(const std::string& quantity, const Run& pinned) {
  return fmt::format("{} \xE2\x88\x92 that of {}", quantity, pinned.name());
}

void choose_difference(AppState& state) {
  if (!state.run() || !state.pinned.run() || state.run() == state.pinned.run()) return;
  if (const std::string& why = state.pinned.why_not(*state.run()); !why.empty()) return error_line(why);
  flow(check_width("Less pinned"));
  ImGui::Checkbox("Less pinned", &state.show_difference);
  tip(fmt::format("This run less the pinned one, {}", state.pinned.run()->name()));
}

}  // namespace kvreplay::viewer
