#include "analysis/results/text_file.hpp"
#include "data/atomic_file.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "data/npy_write.hpp"
#include "viewer/app/app.hpp"
#include "viewer/model/session.hpp"
#include "viewer/questions/command_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <system_error>
#include <utility>

// Session files, the user's scores, and exports to the clipboard or to files: commands, links, kept sets.

namespace kvreplay::viewer {

std::filesystem::path default_session_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (state != nullptr && *state != 0)
    folder = state;
  else if (home != nullptr && *home != 0)
    folder = std::filesystem::path(home) / ".local" / "state";
  else
    return {};
  return folder / "kvreplay" / "session.json";
}

std::optional<ReadSession> read_session_file(const std::filesystem::path& path) {
  constexpr std::uintmax_t kMost = std::uintmax_t{1} << 24;
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return {};
  const std::string text = file_text(path, kMost);
  if (text.empty()) return {};
  return session_of_text(text);
}

void write_session_file(const std::filesystem::path& path, const Session& session) {
  write_output(path, text_of(session));
}

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
      const Answer<UserScoreValues> read = ask_user_score(queue_, run, score, Urgency::now);
      pending = pending || read.pending;
      fits = fits || read;
      // Where several dumps cannot be read, the selected one says why.
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

void App::copy(const std::string& text, const std::string& said) {
  ImGui::SetClipboardText(text.c_str());
  state_.say(said);
}

/// A session says all that the picture depends on; it lies beside where the picture would.
void App::copy_drawing_command() {
  if (!state_.run()) return state_.say("There is nothing to draw: open a dump or a result folder.");
  if (areas_[static_cast<std::size_t>(focused_)].width <= 0)
    return state_.say(fmt::format("{} is not in view.", title_of(focused_)));
  const std::filesystem::path session = std::filesystem::absolute(export_path(".session.json"));
  try {
    write_session_file(session, save());
  } catch (const InputError& error) {
    return state_.say(error.what(), true);
  }
  std::filesystem::path picture = session;
  picture.replace_extension().replace_extension(".png");
  copy(shell_line({"kvreplay-viewer", "--session", session.string(), "--screenshot", picture.string(),
                   "--panel", std::string(name_of(focused_)), "--figure"}),
       "Copied the command; what it draws is in " + session.string());
}

std::vector<std::pair<std::string, std::string>> App::measuring_commands() const {
  const Run& run = *state_.run();
  const auto [a, b] = state_.settings();
  std::vector<std::pair<std::string, std::string>> commands;
  for (const auto& [name, settings] : {std::pair("A", &a), std::pair("B", &b)}) {
    if (run.dump() == nullptr || (settings == &b && a == b)) continue;
    const UserScore* score = find_score(state_.scores, settings->score);
    commands.emplace_back(
        name, evict_command(*run.dump(), *settings, score, fmt::format("results/{}-{}", run.name(), name)));
  }
  return commands;
}

void App::copy_measuring_command() {
  const std::shared_ptr<const Run>& run = state_.run();
  if (!run || run->dump() == nullptr)
    return state_.say("What is measured is a dump, and there is none here.");
  std::string lines;
  try {
    for (const auto& [name, command] : measuring_commands()) lines += command + '\n';
  } catch (const InputError& error) {
    return state_.say(error.what(), true);
  }
  copy(lines, "Copied the commands that measure A and B over all heads.");
}

void App::copy_link() {
  if (!state_.run()) return state_.say("There is nothing to link to: open a dump or a result folder.");
  copy(text_of(link()), "Copied the link: kvreplay view '...' opens it.");
}

void App::save_kept_set() {
  const std::shared_ptr<const Run>& run = state_.run();
  if (!run || run->dump() == nullptr)
    return state_.say("What is kept is computed from the dump, and there is none here.");
  const DumpShape& shape = run->shape();
  KeptToSave saving;
  saving.run = run;
  saving.settings = state_.setting().without_compensation();
  saving.path = std::filesystem::absolute(export_path(".kept.npy"));
  saving.kept.resize(static_cast<std::size_t>(shape.layers * shape.n_kv * shape.l));
  saving.round.restart(shape.layers * shape.n_kv);
  saving_ = std::move(saving);
}

void App::go_on_saving() {
  if (!saving_) return;
  KeptToSave& saving = *saving_;
  if (saving.run != state_.run()) {
    saving_.reset();
    return state_.say("The kept set was not saved: another run is in view.", true);
  }
  const DumpShape& shape = saving.run->shape();
  PanelContext context{state_, queue_};
  saving.round.go_on(
      [&](Index i) {
        return ask_kept_set(context, saving.settings, i / shape.n_kv, i % shape.n_kv, Urgency::background,
                            {});
      },
      [&](Index i, const Answer<WhatIf>& answer) {
        if (answer) std::copy(answer->kept.begin(), answer->kept.end(), saving.kept.begin() + i * shape.l);
      });
  if (saving.round.done() < saving.round.count()) {
    state_.say(fmt::format("Kept set: {} of {} heads", saving.round.done(), saving.round.count()));
    return;
  }
  const KeptToSave done = *std::exchange(saving_, {});
  if (done.round.failed() > 0) return state_.say(done.round.error(), true);
  const std::size_t dimensions[] = {static_cast<std::size_t>(shape.layers),
                                    static_cast<std::size_t>(shape.n_kv), static_cast<std::size_t>(shape.l)};
  try {
    write_npy_bool(AtomicFile(done.path), dimensions, done.kept);
  } catch (const InputError& error) {
    return state_.say(error.what(), true);
  }
  copy(shell_line({"kvreplay", "evict", done.run->dump()->folder().string(), "--out",
                   fmt::format("results/{}-by-hand", done.run->name()), "--policy", "none", "--kept",
                   "by_hand=" + done.path.string()}),
       fmt::format("Saved {}, and copied the command that measures it", done.path.string()));
}

ViewLink App::link() const {
  const Selection& s = state_.selection();
  const Comparison& c = state_.comparison;
  ViewLink link;
  link.run = state_.run()->path().string();
  link.panel = name_of(focused_);
  link.layer = s.layer;
  link.kv_head = s.kv_head;
  link.query_head = s.query_head;
  link.row = s.row;
  link.token = s.token;
  link.score = name_of(c.score);
  link.reference = name_of(c.reference);
  link.window = c.window;
  return link;
}

}  // namespace kvreplay::viewer
