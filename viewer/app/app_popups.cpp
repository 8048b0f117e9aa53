// The command palette, jobs, the help and the prompt for a path.

#include "viewer/app/app.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <imgui_internal.h>
#include <imgui_stdlib.h>
#include <optional>
#include <string>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// Opens a popup in the upper middle of the window once `open` says so, and begins it.
bool begin_centred(const char* name, bool& open, float width_points) {
  if (open && !ImGui::IsPopupOpen(name)) ImGui::OpenPopup(name);
  const ImGuiViewport* view = ImGui::GetMainViewport();
  ImGui::SetNextWindowPos({view->Pos.x + view->Size.x / 2, view->Pos.y + view->Size.y * 0.12F},
                          ImGuiCond_Always, {0.5F, 0});
  ImGui::SetNextWindowSize({std::min(theme().px(width_points), view->Size.x * 0.92F), 0});
  if (ImGui::BeginPopup(name, ImGuiWindowFlags_NoMove)) return true;
  open = false;
  return false;
}

/// The path that was chosen.
std::optional<std::filesystem::path> ask_path(const char* name, bool& open, const char* what,
                                              const char* hint, PathPrompt& prompt, JobQueue& queue) {
  if (open && !ImGui::IsPopupOpen(name)) prompt.begin();
  if (!begin_centred(name, open, 560)) return std::nullopt;
  heading(what);
  const float most = std::min(theme().px(240), ImGui::GetMainViewport()->Size.y * 0.5F);
  const auto chosen = prompt.draw(queue, "its path; Tab completes", most, ImGui::IsWindowAppearing());
  wrapped_text(hint, theme().dim);
  if (chosen || ImGui::IsKeyPressed(ImGui::GetKeyIndex(ImGuiKey_Escape))) {
    open = false;
    ImGui::CloseCurrentPopup();
  }
  ImGui::EndPopup();
  return chosen;
}

/// One line of the palette.
struct PaletteRow {
  std::string title, hint, keys;
  const Action* action = nullptr;
  std::optional<FindEntry> found;
};

void draw_row(const PaletteRow& row) {
  ImGui::TextUnformatted(row.title.c_str());
  const float keys_at = ImGui::GetWindowWidth() - ImGui::CalcTextSize(row.keys.c_str()).x - theme().px(16);
  ImGui::SameLine(0, theme().px(10));
  if (ImGui::GetCursorPosX() + ImGui::CalcTextSize(row.hint.c_str()).x < keys_at - theme().px(8))
    dim_text(row.hint);
  ImGui::SameLine(keys_at);
  dim_text(row.keys);
}

constexpr std::size_t kWaitingShown = 12;
constexpr int kLeastCache = 16, kMostCache = 16384;  // MiB

void draw_memory(JobQueue& queue) {
  const auto limit = static_cast<int>(queue.cache_limit() >> 20);
  text_beside(fmt::format("Answers kept: {} of {}", bytes_text(static_cast<double>(queue.cached_bytes())),
                          bytes_text(static_cast<double>(queue.cache_limit()))));
  ImGui::SameLine();
  ImGui::SetNextItemWidth(-1);
  int chosen = limit;
  if (ImGui::SliderInt("##limit", &chosen, kLeastCache, kMostCache, "",
                       ImGuiSliderFlags_Logarithmic | ImGuiSliderFlags_AlwaysClamp) &&
      chosen != limit)
    queue.set_cache_limit(static_cast<std::size_t>(chosen) << 20);
  tip("Memory for answers. Beyond it, the answers unused for longest are dropped, and computed anew when "
      "needed.");
}

void draw_open_jobs(JobQueue& queue) {
  const std::vector<JobQueue::Job> jobs = queue.jobs();
  if (jobs.empty()) dim_text("Nothing to compute.");
  std::size_t waiting = 0;
  for (const JobQueue::Job& job : jobs) {
    if (!job.running && ++waiting > kWaitingShown) continue;
    ImGui::PushID(static_cast<int>(job.key.hash()));
    if (small_button("stop")) queue.cancel(job.key);
    ImGui::SameLine();
    const std::string state = !job.running ? "waits"
                              : job.progress > 0
                                  ? fmt::format("{:.0f} %, {:.1f} s", 100 * job.progress, job.seconds)
                                  : fmt::format("{:.1f} s", job.seconds);
    elided_text(job.title, job.running ? theme().text : theme().dim,
                ImGui::GetContentRegionAvail().x - ImGui::CalcTextSize(state.c_str()).x - theme().px(12));
    ImGui::SameLine();
    dim_text(state);
    ImGui::PopID();
  }
  if (waiting > kWaitingShown) dim_text(fmt::format("and {} more are waiting", waiting - kWaitingShown));
}

void draw_done_jobs(const JobQueue& queue, float height) {
  const std::vector<JobQueue::Done> log = queue.log();
  if (log.empty()) return;
  heading("Done");
  if (!ImGui::BeginTable("log", 2, ImGuiTableFlags_ScrollY | ImGuiTableFlags_RowBg, {0, height})) return;
  ImGui::TableSetupColumn("job", ImGuiTableColumnFlags_WidthStretch);
  ImGui::TableSetupColumn("time", ImGuiTableColumnFlags_WidthFixed, theme().px(74));
  for (const JobQueue::Done& done : log) {
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

}  // namespace

void App::draw_palette() {
  const bool first = palette_open_ && !ImGui::IsPopupOpen("palette");
  if (!begin_centred("palette", palette_open_, 560)) return;
  if (first) {
    palette_text_.clear();
    palette_choice_ = 0;
  }
  if (ImGui::IsWindowAppearing()) ImGui::SetKeyboardFocusHere();
  ImGui::SetNextItemWidth(-1);
  const bool enter = ImGui::InputTextWithHint("##what", "an action, L3 H1, token 379, a metric, a policy",
                                              &palette_text_, ImGuiInputTextFlags_EnterReturnsTrue);
  if (ImGui::IsItemEdited()) palette_choice_ = 0;
  FindAnswer answer;
  if (state_.run() && !palette_text_.empty())
    answer = find_answer(palette_text_, state_.run()->shape(), state_.run()->layers(),
                         available_metrics(*state_.run()));
  std::vector<PaletteRow> found;
  // Places first and what is typed as a whole, then actions, then names: their words are in many of them.
  const auto add = [&](bool names) {
    for (const FindEntry& entry : answer.entries) {
      const bool is_name =
          std::holds_alternative<TokenMetric>(entry.what) || std::holds_alternative<EvictionBase>(entry.what);
      if ((is_name && !entry.whole) == names) found.push_back({entry.title, entry.hint, {}, nullptr, entry});
    }
  };
  add(false);
  if (answer.error.empty() || palette_text_.find(' ') == std::string::npos)
    for (const Action* one : matching_actions(palette_text_))
      found.push_back({std::string(one->title), std::string(one->hint), one->shortcut.text(), one, {}});
  add(true);
  const bool down = ImGui::IsKeyPressed(ImGui::GetKeyIndex(ImGuiKey_DownArrow));
  const bool up = ImGui::IsKeyPressed(ImGui::GetKeyIndex(ImGuiKey_UpArrow));
  if (!found.empty()) {
    if (down) palette_choice_ = (palette_choice_ + 1) % found.size();
    if (up) palette_choice_ = (palette_choice_ + found.size() - 1) % found.size();
    palette_choice_ = std::min(palette_choice_, found.size() - 1);
  }
  const PaletteRow* chosen = enter && !found.empty() ? &found[palette_choice_] : nullptr;
  if (!answer.error.empty())
    wrapped_text(answer.error, theme().dim);
  else if (found.empty())
    wrapped_text("Nothing of that name.", theme().dim);
  const float row = ImGui::GetTextLineHeight() + theme().px(6);
  // As high as what was found, at most as the window allows.
  const float rows = static_cast<float>(found.size()) * (row + ImGui::GetStyle().ItemSpacing.y);
  ImGui::BeginChild("found",
                    {0, std::min({rows, theme().px(320), ImGui::GetMainViewport()->Size.y * 0.6F}) + 1});
  for (std::size_t i = 0; i < found.size(); ++i) {
    ImGui::PushID(static_cast<int>(i));
    const ImVec2 at = ImGui::GetCursorPos();
    if (ImGui::Selectable("##choose", i == palette_choice_, 0, {0, row})) chosen = &found[i];
    if (i == palette_choice_ && (down || up)) ImGui::SetScrollHereY();
    const ImVec2 next = ImGui::GetCursorPos();
    ImGui::SetCursorPos({at.x + theme().px(6), at.y + theme().px(3)});
    draw_row(found[i]);
    ImGui::SetCursorPos(next);
    ImGui::PopID();
  }
  ImGui::EndChild();
  if (chosen != nullptr || ImGui::IsKeyPressed(ImGui::GetKeyIndex(ImGuiKey_Escape))) {
    palette_open_ = false;
    ImGui::CloseCurrentPopup();
  }
  ImGui::EndPopup();
  if (chosen == nullptr) return;
  if (chosen->action != nullptr)
    perform(*chosen->action);
  else
    perform(*chosen->found);
}

void App::draw_jobs() {
  if (std::exchange(jobs_open_, false)) ImGui::OpenPopup("jobs");
  const Theme& t = theme();
  const ImGuiViewport* view = ImGui::GetMainViewport();
  const float foot = ImGui::GetTextLineHeight() + t.px(10);
  ImGui::SetNextWindowPos({view->Pos.x + view->Size.x - t.px(8), view->Pos.y + view->Size.y - foot},
                          ImGuiCond_Always, {1, 1});
  ImGui::SetNextWindowSize({std::min(t.px(480), view->Size.x * 0.92F), 0});
  if (!ImGui::BeginPopup("jobs", ImGuiWindowFlags_NoMove)) return;
  heading("Jobs");
  draw_memory(queue_);
  draw_open_jobs(queue_);
  draw_done_jobs(queue_, std::min(t.px(240), view->Size.y * 0.35F));
  ImGui::EndPopup();
}

void App::close_popup() {
  if (!std::exchange(close_popup_, false)) return;
  const int open = ImGui::GetCurrentContext()->OpenPopupStack.Size;
  if (open > 0) ImGui::ClosePopupToLevel(open - 1, true);
}

void App::draw_help() {
  if (!begin_centred("help", help_open_, 640)) return;
  heading("Keys");
  const bool with_hints = ImGui::GetContentRegionAvail().x >= theme().px(500);
  if (ImGui::BeginTable("keys", with_hints ? 3 : 2, ImGuiTableFlags_SizingFixedFit | ImGuiTableFlags_ScrollY,
                        {0, std::min(theme().px(330), ImGui::GetMainViewport()->Size.y * 0.45F)})) {
    for (const Action& one : actions()) {
      if (one.shortcut.empty()) continue;
      ImGui::TableNextRow();
      ImGui::TableNextColumn();
      mono_text(one.shortcut.text());
      ImGui::TableNextColumn();
      ImGui::TextUnformatted(one.title.data(), one.title.data() + one.title.size());
      if (!with_hints) continue;
      ImGui::TableNextColumn();
      dim_text(std::string(one.hint));
    }
    ImGui::EndTable();
  }
  heading("Mouse");
  wrapped_text(
      "Click selects a cell in all panels; Shift and drag selects a run of tokens.\n"
      "The wheel zooms at the cursor (with Shift or Ctrl along one axis), drag pans, double click shows "
      "all.\n"
      "The colour bar opens colours, scale and range. A tab's context menu moves its panel.",
      theme().text);
  if (ImGui::IsKeyPressed(ImGui::GetKeyIndex(ImGuiKey_Escape))) {
    help_open_ = false;
    ImGui::CloseCurrentPopup();
  }
  ImGui::EndPopup();
}

void App::draw_path_prompts() {
  if (const auto path = ask_path("open", path_open_, "Open a dump or a result folder",
                                 "A folder with manifest.json or .npy files, a .npz, or a folder with "
                                 "summary.json. Enter opens it.",
                                 open_prompt_, queue_))
    open(*path, &open_prompt_);
  if (const auto path =
          ask_path("locate", locate_open_, "Locate the dump of these results",
                   "Its folder or .npz. Enter looks whether it is the one that the results were "
                   "computed from.",
                   locate_prompt_, queue_))
    locate_dump(*path, &locate_prompt_);
}

}  // namespace kvreplay::viewer
