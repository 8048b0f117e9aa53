#include "viewer/panels/decode/decode_plot.hpp"

#include "viewer/model/token_text.hpp"
#include "viewer/panels/decode/decode_list.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvreplay::viewer {
namespace {

/// Decades that are worth an axis.
constexpr double kErrorSpan = 1e8;
/// Runs that a tooltip lists.
constexpr std::size_t kRunsListed = 10;

PlotAxis error_axis(const DecodeShown& shown) {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  const auto take = [&](const DecodeRun& run) {
    for (const double error : run.error)
      if (std::isfinite(error) && error > 0) {
        least = std::min(least, error);
        most = std::max(most, error);
      }
  };
  for (std::size_t r = 0; r < shown.runs().size(); ++r) {
    take(shown.runs()[r]);
    if (const DecodeRun* pinned = shown.pinned_run(r)) take(*pinned);
  }
  if (most == 0) least = most = 1;  // nothing is ever lost
  least = std::max(least, most / kErrorSpan);
  const double pad = std::pow(most / least, 0.05) * 1.05;
  return {"output error", true, least / pad, most * pad};
}

void draw_tip(AppState& state, const DecodeShown& shown, const Plot& plot) {
  const std::vector<DecodeRun>& runs = shown.runs();
  const auto step = std::clamp<Index>(std::lround(plot.x_of(ImGui::GetMousePos().x)), 0, shown.steps() - 1);
  const Index position = shown.first_step() + step;
  state.next_hover.row = position;
  ImGui::BeginTooltip();
  figure("step", fmt::format("{}", step));
  figure("query", fmt::format("{}  {}", position, token_text(state.run()->labels(), position, 32)));
  for (std::size_t r = 0; r < std::min(runs.size(), kRunsListed); ++r) {
    figure(title_of(runs[r]).c_str(), number_text(runs[r].error[step]));
    if (const DecodeRun* pinned = shown.pinned_run(r); pinned != nullptr && step < pinned->steps()) {
      ImGui::SameLine();
      dim_text("pinned " + pinned_text(runs[r].error[step], pinned->error[step]));
    }
  }
  if (runs.size() > kRunsListed) dim_text(fmt::format("and {} more", runs.size() - kRunsListed));
  ImGui::EndTooltip();
}

/// A ring where each run diverges.
void draw_divergences(Plot& plot, const DecodeShown& shown) {
  const Theme& t = theme();
  for (const Divergence& one : shown.divergences) {
    const DecodeRun& run = shown.runs()[one.run];
    plot.list()->AddCircle(plot.at(static_cast<double>(one.step), run.error[one.step]), t.px(4.5F),
                           shown.color_of(run), 0, t.px(1.6F));
  }
}

}  // namespace

std::optional<Index> DecodePlot::draw(AppState& state, const DecodeShown& shown, ImVec2 size,
                                      std::optional<std::size_t> pointed) {
  const std::vector<DecodeRun>& runs = shown.runs();
  const Index steps = shown.steps();
  const auto last = static_cast<double>(std::max<Index>(steps - 1, 1));
  Plot plot("errors", size, {"decoding step", false, -0.015 * last, 1.015 * last}, error_axis(shown), view_,
            true);
  const bool held = ImGui::IsItemActive() && ImGui::IsMouseDown(ImGuiMouseButton_Left);
  std::vector<double> x(steps);
  std::iota(x.begin(), x.end(), 0.0);
  const float fade = shown.now.stale ? 0.45F : 1;
  const auto line = [&](std::size_t r) {
    const bool stands_out = r == pointed;
    const float opacity = stands_out || !pointed ? fade : fade * 0.35F;
    const ImU32 color = shown.color_of(runs[r]);
    if (const DecodeRun* pinned = shown.pinned_run(r))
      draw_curve(plot, x, pinned->error, faded(color, opacity * kPinnedOpacity),
                 pinned_stroke(stroke_of(runs[r])), kPinnedThickness);
    draw_curve(plot, x, runs[r].error, faded(color, opacity), stroke_of(runs[r]), stands_out ? 2.4F : 1.5F);
  };
  for (std::size_t r = 0; r < runs.size(); ++r)
    if (r != pointed) line(r);
  if (pointed && *pointed < runs.size()) line(*pointed);
  draw_divergences(plot, shown);

  std::optional<Index> gone_to;
  auto at = static_cast<double>(shown.step);
  const bool moved = plot.drag_vertical("step", at, theme().accent);
  if (held) at = plot.x_of(std::clamp(ImGui::GetMousePos().x, plot.low_corner().x, plot.high_corner().x));
  if (moved || held)
    if (const auto to = std::clamp<Index>(std::lround(at), 0, steps - 1); to != shown.step) gone_to = to;
  if (plot.hovered()) draw_tip(state, shown, plot);
  return gone_to;
}

}  // namespace kvreplay::viewer
