#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {
namespace {

/// What runs, what waits and what was done, with a way to stop it.
class JobsPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string csv(PanelContext& context) const override;

 private:
  static void draw_cache(Desk& desk);
  static void draw_log(const Desk& desk);
};

constexpr std::size_t kWaitingShown = 12;
constexpr int kLeastCache = 16, kMostCache = 16384;  // MiB

void JobsPanel::draw(PanelContext& context) {
  Desk& desk = context.desk;
  draw_cache(desk);
  const std::vector<Desk::Job> jobs = desk.jobs();
  if (jobs.empty()) dim_text("Nothing to compute.");
  std::size_t waiting = 0;
  for (const Desk::Job& job : jobs) {
    if (!job.running && ++waiting > kWaitingShown) continue;
    ImGui::PushID(static_cast<int>(job.key.hash()));
    if (small_button("stop")) desk.cancel(job.key);
    ImGui::SameLine();
    if (!job.running) {
      elided_text(job.title, theme().dim);
    } else {
      const std::string state = job.progress > 0
                                    ? fmt::format("{:.0f} %, {:.1f} s", 100 * job.progress, job.seconds)
                                    : fmt::format("{:.1f} s", job.seconds);
      elided_text(job.title, theme().text,
                  ImGui::GetContentRegionAvail().x - ImGui::CalcTextSize(state.c_str()).x - theme().px(12));
      ImGui::SameLine();
      dim_text(state);
    }
    ImGui::PopID();
  }
  if (waiting > kWaitingShown) dim_text(fmt::format("and {} more are waiting", waiting - kWaitingShown));
  draw_log(desk);
}

void JobsPanel::draw_cache(Desk& desk) {
  const auto limit = static_cast<int>(desk.cache_limit() >> 20);
  const std::string kept =
      fmt::format("Answers kept: {} of {}", bytes_text(static_cast<double>(desk.cached_bytes())),
                  bytes_text(static_cast<double>(desk.cache_limit())));
  text_beside(kept);
  const float width =
      std::clamp(ImGui::GetContentRegionAvail().x - ImGui::GetItemRectSize().x - theme().px(12),
                 theme().px(60), theme().px(180));
  flow(width);
  ImGui::SetNextItemWidth(width);
  int chosen = limit;
  if (ImGui::SliderInt("##limit", &chosen, kLeastCache, kMostCache, "",
                       ImGuiSliderFlags_Logarithmic | ImGuiSliderFlags_AlwaysClamp) &&
      chosen != limit)
    desk.set_cache_limit(static_cast<std::size_t>(chosen) << 20);
  tip("How much memory answers may take. Beyond it, those that were not looked at for longest are dropped, "
      "and "
      "computed anew when needed.");
}

void JobsPanel::draw_log(const Desk& desk) {
  const std::vector<Desk::Done> log = desk.log();
  if (log.empty()) return;
  ImGui::Dummy({0, theme().px(4)});
  heading("Done");
  if (!ImGui::BeginTable("log", 2, ImGuiTableFlags_ScrollY | ImGuiTableFlags_RowBg)) return;
  ImGui::TableSetupColumn("job", ImGuiTableColumnFlags_WidthStretch);
  ImGui::TableSetupColumn("time", ImGuiTableColumnFlags_WidthFixed, theme().px(74));
  for (const Desk::Done& done : log) {
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    if (done.error.empty())
      elided_text(done.title + (done.cancelled ? " (cancelled)" : ""), theme().dim);
    else
      error_line(done.title + ": " + done.error);
    ImGui::TableNextColumn();
    ImGui::PushFont(mono_font());
    dim_text(done.seconds < 1 ? fmt::format("{:6.1f} ms", 1000 * done.seconds)
                              : fmt::format("{:6.2f} s", done.seconds));
    ImGui::PopFont();
  }
  ImGui::EndTable();
}

std::string JobsPanel::csv(PanelContext& context) const {
  CsvTable table("job,seconds,state,error");
  for (const Desk::Done& done : context.desk.log()) {
    const char* state = done.cancelled ? "cancelled" : done.error.empty() ? "done" : "failed";
    table.row(done.title, done.seconds, state, done.error);
  }
  return table.text();
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::jobs>() {
  return std::make_unique<JobsPanel>();
}

}  // namespace kvreplay::viewer
