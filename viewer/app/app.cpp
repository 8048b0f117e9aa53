#include "viewer/app/app.hpp"

#include "analysis/results/dump_set.hpp"
#include "data/error.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/session.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvreplay::viewer {
namespace {

template <std::size_t... kind>
std::array<std::unique_ptr<Panel>, kPanels.size()> make_panels(std::index_sequence<kind...>) {
  return {make_panel<static_cast<PanelKind>(kind)>()...};
}

}  // namespace

App::App(AppOptions options)
    : options_(std::move(options)),
      queue_({options_.threads, options_.cache_bytes, options_.wake, options_.backend}),
      panels_(make_panels(std::make_index_sequence<kPanels.size()>())),
      dark_(options_.dark),
      text_points_(options_.text_points) {
  state_.begin_with(cameras());
  for (const std::filesystem::path& path : options_.open) open(path);
  for (const std::string& item : options_.scores) add_score(user_score(item));
  watcher_ = std::make_unique<Watcher>(options_.wake);
}

App::~App() = default;

void App::scale(float pixels_per_point) { scale_ = pixels_per_point; }

std::string App::title() const {
  const auto& run = state_.run();
  return run ? run->name() + " \xE2\x80\x94 kvreplay" : "kvreplay";
}

bool App::needs_frame() const {
  return state_.links.unfinished || queue_.version() != seen_version_ || (figure_ && figure_->settling()) ||
         (worst_wanted_ && state_.all_ranked && !worst_head_.pending()) || watcher_->something_changed();
}

double App::changes_in() const {
  const StatusLine::Clock::time_point now = state_.clock();
  double seconds = Client::changes_in();
  const auto at_most = [&](StatusLine::Clock::duration left) {
    seconds = std::min(seconds, std::max(std::chrono::duration<double>(left).count(), 0.0));
  };
  if (const auto left = state_.status_line().left(now)) at_most(*left);
  if (state_.wakes_at) at_most(*state_.wakes_at - now);
  return seconds;
}

void App::open_in_background(const std::filesystem::path& path, std::optional<std::size_t> replaces,
                             const std::filesystem::path& dump, PathPrompt* prompt) {
  opening_.push_back({path, next_run_++, replaces, dump, prompt, state_.clock()});
}

void App::open(const std::filesystem::path& path, PathPrompt* asked) {
  const std::vector<std::string> dumps = DumpSet::folders_in(path);
  for (const std::string& dump : dumps) open_in_background(path / dump);
  if (dumps.empty()) open_in_background(path, {}, {}, asked);
}

void App::dropped(const std::vector<std::filesystem::path>& paths) {
  for (const std::filesystem::path& path : paths)
    if (path.extension() == ".npy")
      add_score(user_score_of(path));
    else
      open(path);
}

/// Panels hold textures.
void App::closing() {
  figure_.reset();
  for (std::unique_ptr<Panel>& panel : panels_) panel.reset();
}

void App::reload(bool only_changed) {
  for (std::size_t i = 0; i < state_.runs.size(); ++i)
    if (!only_changed || state_.runs[i]->changed())
      open_in_background(state_.runs[i]->path(), i, state_.runs[i]->located_dump());
}

void App::locate_dump(const std::filesystem::path& dump, PathPrompt* asked) {
  if (state_.run()) open_in_background(state_.run()->path(), state_.selection().run, dump, asked);
}

/// Runs are opened by jobs: checking the files of a large dump takes a moment.
void App::take_opened() {
  bool waiting = false;  // runs stand in the order in which they were asked for
  std::erase_if(opening_, [&](const Opening& opening) {
    const JobRequest request{.key = {"open", opening.id},
                             .title = "Opening " + opening.path.string(),
                             .urgency = Urgency::now,
                             .lasting = true};
    const auto answer = queue_.ask<std::shared_ptr<const Run>>(
        request, [opening](JobControl&) { return Run::open(opening.path, opening.id, opening.dump); });
    waiting = waiting || answer.pending;
    if (waiting) return false;
    if (!answer) {
      open_error_ = answer.error;
      state_.say(answer.error, true);
      if (opening.prompt != nullptr) {
        opening.prompt->failed(opening.dump.empty() ? opening.path : opening.dump, answer.error);
        (opening.prompt == &locate_prompt_ ? locate_open_ : path_open_) = true;
      }
      return true;
    }
    state_.status_line().went_well_since(opening.asked);
    const std::shared_ptr<const Run> run = *answer;
    run->set_head_cache(options_.cache_bytes / 2);
    if (opening.replaces && *opening.replaces < state_.runs.size()) {
      queue_.forget(state_.runs[*opening.replaces]->key());
      if (state_.pinned.run() == state_.runs[*opening.replaces]) state_.pinned.pin(run);
      state_.runs[*opening.replaces] = run;
      state_.select(state_.selection(), "reload");
      state_.say("Read again: " + run->path().string());
    } else {
      if (!(state_.selection() == opened_with_)) keep_head();
      state_.runs.push_back(run);
      add_recent(recent_, run->path().string());
      state_.select(state_.in_run(state_.runs.size() - 1));
      if (worst_wanted_) opened_with_ = state_.selection();
    }
    queue_.forget(request.key);
    watcher_->watch(state_.runs);
    return true;
  });
}

/// The selection moves once, when all heads are known, and never away from what was chosen by hand.
void App::take_worst_head() {
  if (!worst_wanted_ || !state_.run()) return;
  if (!(state_.selection() == opened_with_)) return keep_head();
  if (!opening_.empty()) return;
  PanelContext context{state_, queue_};
  auto worst = worst_head_.look(context);
  if (worst_head_.pending()) return;
  const bool said = worst.has_value();
  if (!worst && state_.all_ranked && !state_.worst_first.empty()) worst = state_.worst_first.front();
  if (!worst) return;
  state_.begin_with_head(worst->first, worst->second);
  if (said && state_.message().empty())
    state_.say(fmt::format("Opened on {}: there setting A loses most beyond the exact order.",
                           state_.run()->head_text(worst->first, worst->second)));
  keep_head();
}

void App::frame() {
  seen_version_ = queue_.version();
  use_theme(dark_, scale_, text_points_);
  close_popup();
  queue_.next_frame();
  state_.links.unfinished = false;
  state_.wakes_at.reset();
  take_opened();
  take_scores();
  go_on_saving();
  if (when_all_open_ && opening_.empty() && state_.run()) std::exchange(when_all_open_, {})(state_);
  if (when_open_ && state_.run()) {
    std::exchange(when_open_, {})(state_);
    opened_with_ = state_.selection();
  }
  take_worst_head();
  if (watcher_->take_change()) reload(true);

  state_.hover = std::exchange(state_.next_hover, {});
  const ImGuiViewport* view = ImGui::GetMainViewport();
  window_width_ = view->Size.x;
  window_height_ = view->Size.y;
  ImGui::SetNextWindowPos(view->Pos);
  ImGui::SetNextWindowSize(view->Size);
  ImGui::PushStyleVar(ImGuiStyleVar_WindowPadding, {0, 0});
  ImGui::PushStyleVar(ImGuiStyleVar_WindowRounding, 0);
  ImGui::Begin("dashboard", nullptr,
               ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoMove | ImGuiWindowFlags_NoSavedSettings |
                   ImGuiWindowFlags_NoBringToFrontOnFocus | ImGuiWindowFlags_MenuBar |
                   ImGuiWindowFlags_NoScrollWithMouse | ImGuiWindowFlags_NoNavInputs);
  ImGui::PopStyleVar(2);
  draw_menu_bar();
  const float gap = theme().px(6), foot = ImGui::GetTextLineHeight() + theme().px(10);
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const Area area{at.x + gap, at.y + gap, view->Size.x - 2 * gap,
                  view->Pos.y + view->Size.y - at.y - foot - gap};
  areas_ = {};
  PanelContext context{state_, queue_};
  const float above = state_.run() ? draw_findings(area) : 0;
  state_.all_ranked = false;  // until the Head map says so
  if (state_.run())
    draw_panels({area.x, area.y + above, area.width, area.height - above});
  else
    draw_start(area);
  draw_status_bar(foot);
  draw_palette();
  draw_jobs();
  draw_help();
  draw_path_prompts();
  draw_tour();
  if (const auto id = std::exchange(state_.wanted, {})) perform(*id);
  ImGui::End();
  remember_views();
}

Cameras App::cameras() const {
  Cameras cameras;
  for (const PanelFacts& each : kPanels)
    if (const HeatmapView* heatmap = panel(each.id).heatmap()) cameras[each.id] = heatmap->camera();
  return cameras;
}

void App::remember_views() {
  if (ImGui::IsMouseClicked(ImGuiMouseButton_Left)) ++presses_;
  const bool own_step = std::exchange(view_step_, false);
  state_.remember(cameras(), own_step ? std::string() : std::to_string(presses_),
                  ImGui::IsMouseDown(ImGuiMouseButton_Left));
}

void App::restore_views() {
  state_.take_settings_back();
  for (const auto& [kind, camera] : state_.history().now().cameras)
    if (HeatmapView* heatmap = panel(kind).heatmap()) heatmap->set_camera(camera);
}

Watcher::Watcher(std::function<void()> wake) : wake_(std::move(wake)), thread_([this] { look(); }) {}

Watcher::~Watcher() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ending_.notify_all();
  thread_.join();
}

void Watcher::watch(std::vector<std::shared_ptr<const Run>> runs) {
  const std::lock_guard lock(mutex_);
  runs_ = std::move(runs);
}

void Watcher::look() {
  // State of each run's files one second ago, or 0 if they are as when the run was opened; and the state that
  // was last reported. Every changed state is reported once.
  std::vector<std::uint64_t> before, told;
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, std::chrono::seconds(1), [this] { return end_; })) {
    const auto runs = runs_;
    lock.unlock();
    before.resize(runs.size());
    told.resize(runs.size());
    bool settled = false;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::uint64_t now = runs[i]->changed() ? runs[i]->files_now() : 0;
      if (now != 0 && now == before[i] && now != told[i]) {
        told[i] = now;
        settled = true;
      }
      before[i] = now;
    }
    lock.lock();
    if (settled && !end_) {
      changed_ = true;
      if (wake_) wake_();
    }
  }
}

}  // namespace kvreplay::viewer
