// What is saved between two starts, and the scores of the user's.

#include "viewer/app/app.hpp"
#include "viewer/model/session.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {

Session App::save() const {
  Session session;
  for (const auto& run : state_.runs) session.runs.push_back(run->path().string());
  if (window_width_ > 0) {
    session.window_width = static_cast<int>(std::lround(window_width_ / scale_));
    session.window_height = static_cast<int>(std::lround(window_height_ / scale_));
  }
  session.selection = state_.selection();
  if (const auto pinned = std::find(state_.runs.begin(), state_.runs.end(), state_.pinned.run());
      pinned != state_.runs.end())
    session.pinned = pinned - state_.runs.begin();
  session.layout = layout_;
  session.theme = dark_ ? ThemeChoice::dark : ThemeChoice::light;
  session.text_size = text_points_;
  session.ranges_locked = state_.links.locked;
  session.joint_zoom = state_.links.joined;
  for (const auto& [kind, camera] : state_.history().now().cameras)
    if (camera) session.cameras[kind] = *camera;
  for (const PanelFacts& each : kPanels) session.panels[std::string(each.name)] = panel(each.id).save();
  session.panels["findings"] = findings_.save();
  session.settings = to_json(static_cast<const SharedSettings&>(state_));
  session.recent = recent_;
  session.tour_seen = tour_seen_;
  for (const UserScore& score : state_.scores) session.scores.push_back(score.item());
  return session;
}

void App::restore(const Session& session, bool with_runs) {
  layout_ = session.layout;
  recent_ = session.recent;
  tour_seen_ = session.tour_seen;
  if (session.theme != ThemeChoice::system) dark_ = session.theme == ThemeChoice::dark;
  text_points_ = session.text_size;
  state_.links.locked = session.ranges_locked;
  state_.links.joined = session.joint_zoom;
  for (const PanelFacts& each : kPanels) {
    const auto found = session.panels.find(std::string(each.name));
    if (found != session.panels.end()) panel(each.id).load(*found);
  }
  if (const auto found = session.panels.find("findings"); found != session.panels.end())
    findings_.load(*found);
  read_settings(session.settings, state_);
  if (!with_runs) return state_.begin_with(cameras());
  for (const std::string& path : session.runs) open(path);
  for (const std::string& item : session.scores) try {
      add_score(user_score(item));
    } catch (const InputError& error) {
      state_.say(error.what(), true);
    }
  for (const auto& [kind, camera] : session.cameras)
    if (HeatmapView* heatmap = panel(kind).heatmap()) heatmap->set_camera(camera);
  state_.begin_with(cameras());
  keep_head();
  when_all_open_ = [selection = session.selection, pinned = session.pinned](AppState& state) {
    state.select(selection);
    if (pinned && *pinned < std::ssize(state.runs))
      state.pinned.pin(state.runs[static_cast<std::size_t>(*pinned)]);
  };
}

/// Scores of the user's: each is offered once it was read against an open dump.
void App::take_scores() {
  if (adding_.empty() || !opening_.empty()) return;
  std::erase_if(adding_, [&](const UserScore& score) {
    bool pending = false, fits = false;
    std::string error = score.file.string() + ": open the dump first that this score is of";
    for (std::size_t i = 0; i < state_.runs.size(); ++i) {
      const std::shared_ptr<const Run>& run = state_.runs[i];
      if (run->dump() == nullptr) continue;
      const Answer<UserScoreValues> read = ask_user_score(desk_, run, score, Urgency::now);
      pending = pending || read.pending;
      fits = fits || read;
      // Of several dumps, the selected one says why.
      if (i == 0 || i == state_.selection().run) error = read.error;
    }
    if (pending && !fits) return false;
    if (!fits) {
      const bool names_file = error.find(score.file.string()) != std::string::npos;
      open_error_ = (names_file ? std::string() : score.file.string() + ": ") + error;
      state_.say(open_error_, true);
      return true;
    }
    std::erase_if(state_.scores, [&](const UserScore& other) { return other.name == score.name; });
    state_.scores.push_back(score);
    state_.say("What if offers the score " + score.name + ": " + score.file.string());
    return true;
  });
}

}  // namespace kvreplay::viewer
