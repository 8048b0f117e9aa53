#pragma once

#include "analysis/results/view_link.hpp"
#include "viewer/gl/frame_buffer.hpp"
#include "viewer/gl/host.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/debounce.hpp"
#include "viewer/model/layout.hpp"
#include "viewer/model/panel_kind.hpp"
#include "viewer/model/session.hpp"
#include "viewer/model/tour.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/find.hpp"
#include "viewer/questions/folder_listing.hpp"
#include "viewer/questions/job_queue.hpp"
#include "viewer/questions/live_findings.hpp"
#include "viewer/questions/run.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/questions/worst_head.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <imgui.h>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

/// A picture beside the window's, with a toolkit and a size of its own. Lives and dies with the window's
/// OpenGL context current.
class Canvas {
 public:
  /// `width` x `height` points, `scale` pixels each. Throws InputError for sizes that OpenGL cannot have.
  Canvas(float width, float height, float scale);

  float scale() const { return scale_; }
  int width() const { return buffer_.width(); }
  int height() const { return buffer_.height(); }

  /// From the next frame on.
  void set_height(int pixels) { buffer_.resize(buffer_.width(), pixels); }

  /// Draws one frame: `draw` between the toolkit's NewFrame() and Render(). It is painted where `draw` says
  /// so. The window's toolkit and framebuffer are the current ones again afterwards.
  void frame(float text_points, const std::function<bool()>& draw);
  /// Latest painted picture: [height, width], top row first.
  std::vector<Rgb> pixels() const { return buffer_.pixels(FirstRow::last); }

 private:
  float scale_;
  ImGuiContext* window_ = ImGui::GetCurrentContext();
  FrameBuffer buffer_;
  UiContext ui_;
};

/// The findings above the panels, in up to two lines each, where the window is lower a line each; where it is
/// low, or on request, one line with those that follow behind arrows. A click leads to where a finding is
/// seen.
class FindingStrip {
 public:
  /// Takes what is known by now; once a frame, before height().
  void look(PanelContext& context);
  /// Height that the strip takes of `room`, which it shares with the panels, with the gap below it. 0 if
  /// there is nothing to show.
  float height(ImVec2 room) const;
  /// Draws at the cursor, as wide as the room, in height(room). The panel that a click leads to.
  std::optional<PanelKind> draw(PanelContext& context, ImVec2 room);

  const FindingSource& source() const { return source_; }
  bool folded(ImVec2 room) const;
  nlohmann::json save() const;
  void load(const nlohmann::json& json);

 private:
  bool shows_list() const { return !source_.list().empty(); }
  static float line();       ///< the height of a finding in one line
  static float more_line();  ///< of each further line
  /// Width of the text beside the label, in a strip of this width.
  float text_width(float width) const;
  float label_width() const;
  float finding_height(std::size_t which, float width, std::size_t most_lines) const;
  /// Height of all findings, including those still being computed: panels do not move when they arrive.
  float list_height(float width, std::size_t most_lines) const;
  /// The lines that a finding may take.
  std::size_t lines_each(ImVec2 room) const;
  void draw_label(bool is_folded);
  std::optional<PanelKind> draw_list(PanelContext& context, ImVec2 room, float height);
  std::optional<PanelKind> draw_finding(PanelContext& context, std::size_t which, float width,
                                        std::size_t most_lines);
  void draw_state(float width);

  FindingSource source_;
  bool of_dump_ = false;        ///< of which more may come; results say all at once
  std::optional<bool> folded_;  ///< as chosen; empty: by the room there is
  std::size_t shown_ = 0;       ///< of the folded ones
};

/// A panel's figure on its way into a file: drawn beside the window's frames until all of it is computed.
class Figure {
 public:
  /// Frames without anything new, after which a picture is taken.
  static constexpr int kQuietFrames = 3;

  /// `width` x `height` points, `scale` pixels each. Throws InputError for sizes that OpenGL cannot have.
  Figure(PanelKind panel, std::filesystem::path path, float width, float height, float scale);

  PanelKind panel() const { return panel_; }
  /// Path of the file to be written; empty: none.
  const std::filesystem::path& path() const { return path_; }
  float scale() const { return canvas_.scale(); }

  /// Makes it higher by what some list in it has no room for, up to so many times its first height.
  void grow(float pixels);
  /// Draws one frame; `draw` says whether all of it is there.
  void frame(float text_points, const std::function<bool()>& draw);
  /// True if another frame is due at once, that is, if no computation has to be waited for.
  bool settling() const { return quiet_ > 0 || !drawn_; }
  /// True if the last frames were complete; the last one has been painted.
  bool done() const;
  /// Writes path() when done(), as a PNG. Throws InputError where it cannot.
  void write() const;

 private:
  static constexpr int kMostGrowth = 2;

  PanelKind panel_;
  std::filesystem::path path_;
  Canvas canvas_;
  int first_height_, quiet_ = 0;
  bool drawn_ = false;
};

/// A field for a path with what lies there below it: Tab completes, a click on a folder goes into it, on a
/// dump or results opens it.
class PathPrompt {
 public:
  /// Empty again, unless what was typed last has failed; what lies in folders is looked up anew.
  void begin();
  /// Reports that the chosen path cannot be opened. The next begin() shows the path and the reason again.
  void failed(const std::filesystem::path& path, const std::string& reason);
  /// Text of the field, and the reason why it failed, shown below; the reason is empty if it did not fail.
  const std::string& typed() const { return typed_; }
  const std::string& reason() const { return reason_; }
  /// Draws as wide as there is room; the list takes at most `height` pixels. The path that was chosen.
  std::optional<std::filesystem::path> draw(JobQueue& queue, const char* hint, float height,
                                            bool take_keyboard);

 private:
  std::string typed_, reason_;
  int begun_ = 0;
  bool to_end_ = false;  ///< the cursor goes behind what a click put there
};

/// Looks at the files of the open runs once a second, from a thread of its own that otherwise sleeps, and
/// tells once they have changed and then stayed as they are for a second.
class Watcher {
 public:
  explicit Watcher(std::function<void()> wake);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  void watch(std::vector<std::shared_ptr<const Run>> runs);
  bool something_changed() const { return changed_; }
  /// True once after a change.
  bool take_change() { return changed_.exchange(false); }

 private:
  void look();

  std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable ending_;
  std::vector<std::shared_ptr<const Run>> runs_;
  std::atomic<bool> changed_ = false;
  bool end_ = false;
  std::thread thread_;
};

/// Default path of the session file: $XDG_STATE_HOME/kvreplay/session.json, without that variable
/// ~/.local/state/kvreplay/session.json; empty if there is no home.
std::filesystem::path default_session_file();

/// The session in a file; nothing where there is none, or an empty one. Throws InputError where it is no
/// regular file or larger than any session; what cannot be understood gives remarks.
std::optional<ReadSession> read_session_file(const std::filesystem::path& path);

/// Whole or not at all. Throws InputError where it cannot be written.
void write_session_file(const std::filesystem::path& path, const Session& session);

struct AppOptions {
  std::vector<std::filesystem::path> open;
  std::vector<std::string> scores;  ///< NAME=FILE.npy each, as `evict --score` takes them
  std::filesystem::path sample;     ///< that the start page offers; empty: none
  bool dark = true;
  bool dark_figures = false;  ///< else figures are light, whatever the window is
  float text_points = 13;
  int threads = 0;                                 ///< 0: one a core
  std::size_t cache_bytes = std::size_t{1} << 30;  ///< of answers; heads of dumps get half as much again
  std::string date;                                ///< that figures bear; empty: today's
  std::function<void()> wake;                      ///< called from any thread when there is something new
  /// Called with what a hand had written, a figure or a table, once it is whole.
  std::function<void(const std::filesystem::path&)> wrote;
  ComingBackend backend = {};
};

/// The dashboard: panels, what they share, and everything around them. Shown by a host (viewer/gl/host.hpp).
class App final : public Client {
 public:
  explicit App(AppOptions options);
  ~App() override;

  void frame() override;
  void drawn(int width, int height) override;
  void key(const Shortcut& shortcut, bool down) override;
  void dropped(const std::vector<std::filesystem::path>& paths) override;
  void closing() override;
  bool quit() const override { return quit_; }
  bool needs_frame() const override;
  double changes_in() const override;
  std::string title() const override;
  float text_points() const override { return text_points_; }
  void scale(float pixels_per_point) override;

  AppState& state() { return state_; }
  JobQueue& queue() { return queue_; }
  Layout& layout() { return layout_; }
  Panel& panel(PanelKind kind) const { return *panels_[static_cast<std::size_t>(kind)]; }
  /// Area of the panel in the last frame, in pixels; empty if it was not drawn.
  const Area& area(PanelKind kind) const { return areas_[static_cast<std::size_t>(kind)]; }
  PanelKind focused() const { return focused_; }
  const FindingStrip& findings() const { return findings_; }
  const Tour& tour() const { return tour_; }
  /// Area of the findings in the last frame, in pixels; empty if they were not drawn.
  const Area& finding_area() const { return finding_area_; }
  void focus(PanelKind kind) { focused_ = kind; }

  /// Opens a dump or a result folder in the background. A prompt that asked for it has it again, with the
  /// reason, where that fails.
  void open(const std::filesystem::path& path, PathPrompt* asked = nullptr);
  /// Opens the selected results anew with their dump, where it is the one in this folder; else says why not.
  void locate_dump(const std::filesystem::path& dump, PathPrompt* asked = nullptr);
  const PathPrompt& open_prompt() const { return open_prompt_; }
  /// True if every path that was to be opened is open or has failed.
  bool opened() const { return opening_.empty() && adding_.empty(); }
  /// Offers a score of the user's in What if, once an open dump is found that it fits; else a message says
  /// why not.
  void add_score(UserScore score) { adding_.push_back(std::move(score)); }
  /// Stays at the head that is selected; else the one at which most is at stake is (WorstHead), or where that
  /// cannot be said the worst of the Head map, once all are known and nothing was selected meanwhile.
  void keep_head() { worst_wanted_ = false; }
  /// Called with the state once, as soon as a run is open.
  void when_open(std::function<void(AppState&)> then) { when_open_ = std::move(then); }
  /// True if everything in view is computed and drawn.
  bool settled() const {
    return queue_.open_jobs() == 0 && opened() && !needs_frame() && !exporting() && !saving_;
  }
  /// Reason why a path or a score could not be opened, the latest one; empty if all were opened.
  const std::string& open_error() const { return open_error_; }
  void perform(const Action& action);
  void perform(ActionId id) { perform(action(id)); }
  /// True if the option that the action toggles is on; menus show a tick.
  bool is_on(const Action& action) const;
  /// Draws what the panel shows, without its controls, with a title and where it comes from, and writes it as
  /// a PNG, or its plot as SVG, once all of it is computed; a message says so, or why not. As large as the
  /// panel was drawn last, so many pixels a point.
  void export_figure(PanelKind kind, const std::filesystem::path& path, float scale = 2);
  bool exporting() const { return figure_ != nullptr; }
  /// Brings a panel to the front and gives it the keyboard.
  void show(PanelKind kind);
  /// Opens every run anew whose files have changed; views, selection and ranges stay.
  void reload(bool only_changed);

  /// State to be kept for the next start, with the window's size when it was drawn last.
  Session save() const;
  /// With `with_runs`, also the runs that were open, with views and selection.
  void restore(const Session& session, bool with_runs);
  /// True once after the user has requested that the session be saved.
  bool take_save_request() { return std::exchange(session_wanted_, false); }

 private:
  struct Opening {
    std::filesystem::path path;
    int id = 0;
    std::optional<std::size_t> replaces;  ///< number of the run that is reloaded
    std::filesystem::path dump = {};      ///< where that of a result folder lies; empty: as it says itself
    PathPrompt* prompt = nullptr;         ///< that asked for it
    StatusLine::Clock::time_point asked = {};
  };
  /// A kept set of all heads that is being collected.
  struct KeptToSave {
    std::shared_ptr<const Run> run;
    WhatIfSettings settings;
    std::filesystem::path path;
    std::vector<std::uint8_t> kept;  // [layers, n_kv, l]
    BackgroundRound round;
  };

  void open_in_background(const std::filesystem::path& path, std::optional<std::size_t> replaces = {},
                          const std::filesystem::path& dump = {}, PathPrompt* prompt = nullptr);
  void take_opened();
  void take_scores();
  void take_worst_head();
  void draw_menu_bar();
  void draw_head_controls();
  void draw_status_bar(float height);
  /// The GPU that computes; empty where none does. Says once where one has failed.
  std::string hardware();
  float draw_findings(const Area& area);
  void draw_panels(const Area& area);
  /// False for Validation and Recipes where the run has none: only the palette leads there.
  bool has_data(PanelKind kind) const;
  void draw_slot(const Layout::Slot& slot);
  void draw_panel(PanelKind kind);
  void draw_tabs(const Layout::Slot& slot, float height);
  void draw_tab(const Layout::Slot& slot, std::size_t which, float x, float width, float height);
  void draw_hidden_tabs(const std::vector<PanelKind>& hidden, ImVec2 at, ImVec2 size);
  void draw_maximise(const Layout::Slot& slot, float free_from, float height);
  void draw_start(const Area& area);
  void draw_tour();
  void arrange(Preset preset);
  void draw_palette();
  /// Does what was found in the palette.
  void perform(const FindEntry& entry);
  /// Computations and the memory for their answers, above the right end of the status line.
  void draw_jobs();
  void draw_help();
  void draw_path_prompts();
  void close_popup();
  struct Handlers;
  void close_run();
  void next_run();
  void pin_run();
  void copy_csv();
  void clear_selection();
  void pin_selection();
  void toggle_joint_zoom();
  void lock_ranges();
  void begin_tour();
  void step_layer(int step);
  void step_head(int step, bool worst);
  Cameras cameras() const;
  void remember_views();
  void restore_views();
  void export_csv();
  /// Begins to collect what the setting in view keeps of all heads; go_on_saving() writes it once it is
  /// there.
  void save_kept_set();
  void go_on_saving();
  void copy_drawing_command();
  void copy_measuring_command();
  void copy_link();
  void copy(const std::string& text, const std::string& said);
  ViewLink link() const;
  /// The commands that measure A and, where it is another, B. Throws InputError.
  std::vector<std::pair<std::string, std::string>> measuring_commands() const;
  bool draw_figure();
  /// Goes on with the figure; an error is said, and ends it.
  void go_on_with_figure();
  /// Writes the figure: the panel's svg() where its path ends in .svg, else a PNG. Throws InputError.
  void write_figure();
  std::string figure_title(PanelContext& context) const;
  std::vector<std::string> figure_foot(PanelContext& context) const;
  std::string figure_date() const;
  /// "RUN-WHAT-layer3-head1".
  std::string export_stem(std::string_view what) const;
  /// A name of that kind that is still free, in the result folder or the working folder.
  std::filesystem::path export_path(std::string_view what, std::string_view extension) const;
  /// As above, for the panel in use.
  std::filesystem::path export_path(std::string_view extension) const {
    return export_path(name_of(focused_), extension);
  }

  AppOptions options_;
  bool failure_said_ = false;  ///< of the GPU
  AppState state_;
  JobQueue queue_;
  Layout layout_ = Layout::standard();
  std::array<std::unique_ptr<Panel>, kPanels.size()> panels_;  ///< in the order of kPanels
  std::vector<Opening> opening_;
  std::vector<UserScore> adding_;
  std::string open_error_;
  std::function<void(AppState&)> when_open_, when_all_open_;
  int next_run_ = 1;
  bool worst_wanted_ = true;  ///< the worst head is to be selected
  WorstHead worst_head_;
  Selection opened_with_;  ///< while it is: what was selected when the last run was opened
  bool quit_ = false, dark_ = true;
  float text_points_ = 13, scale_ = 1;
  float window_width_ = 0, window_height_ = 0;  ///< of the last frame, pixels
  PanelKind focused_ = PanelKind::heads;
  FindingStrip findings_;
  PathPrompt start_prompt_, open_prompt_, locate_prompt_;
  std::vector<std::string> recent_;
  Tour tour_;
  bool tour_seen_ = false;
  Area finding_area_;
  std::array<Debounce, kPanels.size()> debounce_;  ///< with the answers that a panel shows
  std::array<Area, kPanels.size()> areas_{};       ///< of the panels drawn in the last frame
  std::uint64_t seen_version_ = 0, seen_answers_ = 0;
  bool palette_open_ = false, help_open_ = false, jobs_open_ = false, path_open_ = false,
       locate_open_ = false;
  std::string palette_text_;
  std::size_t palette_choice_ = 0;
  std::unique_ptr<Figure> figure_;  ///< being drawn
  bool session_wanted_ = false;
  std::optional<KeptToSave> saving_;
  bool close_popup_ = false;  ///< the innermost one: a combo, a menu, the colours
  unsigned presses_ = 0;      ///< of the mouse: changes under one are one step of undo
  bool view_step_ = false;    ///< the view changes by an action: a step of undo of its own
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace kvreplay::viewer
