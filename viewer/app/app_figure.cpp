#include "analysis/drawing/picture.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/text.hpp"
#include "data/atomic_file.hpp"
#include "data/error.hpp"
#include "viewer/app/app.hpp"
#include "viewer/gl/frame_buffer.hpp"
#include "viewer/gl/gl_object.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <imgui_internal.h>
#include <utility>

// A panel's figure as a picture in a file.

namespace kvreplay::viewer {
namespace {

constexpr float kLeastWidth = 480, kLeastHeight = 320;  // points

/// Pixels of rows that the lists of the figure's panel have no room for. What flows on and on (the text) is
/// but a part in any case.
float rows_missing(PanelKind kind) {
  float most = 0;
  if (kind == PanelKind::text) return most;
  for (const ImGuiWindow* window : ImGui::GetCurrentContext()->Windows)
    if (window->WasActive || window->Active) most = std::max(most, window->ScrollMax.y);
  return most;
}

/// True if the panel shows the selected head only, false if it shows all heads.
bool shows_head(PanelKind kind) { return kind != PanelKind::heads && kind != PanelKind::validation; }

}  // namespace

Figure::Figure(PanelKind panel, std::filesystem::path path, float width, float height, float scale)
    : panel_(panel), path_(std::move(path)), canvas_(width, height, scale), first_height_(canvas_.height()) {}

void Figure::grow(float pixels) {
  const int height =
      std::min(canvas_.height() + static_cast<int>(std::ceil(pixels)), kMostGrowth * first_height_);
  canvas_.set_height(height);
}

void Figure::frame(float text_points, const std::function<bool()>& draw) {
  canvas_.frame(text_points, [&] {
    const int height = canvas_.height();
    const bool whole = draw() && canvas_.height() == height;
    quiet_ = whole ? quiet_ + 1 : 0;
    drawn_ = true;
    return done();
  });
}

bool Figure::done() const { return quiet_ >= kQuietFrames; }

void Figure::write() const {
  write_output(path_, png_bytes(canvas_.pixels(), canvas_.width(), canvas_.height()));
}

void App::export_figure(PanelKind kind, const std::filesystem::path& path, float scale) {
  if (!state_.run()) return state_.say("There is nothing to draw: open a dump or a result folder.");
  const Area& shown = areas_[static_cast<std::size_t>(kind)];
  if (shown.width <= 0) return state_.say(fmt::format("{} is not in view.", title_of(kind)));
  try {
    figure_ = std::make_unique<Figure>(kind, std::filesystem::absolute(path),
                                       std::max(kLeastWidth, shown.width / scale_),
                                       std::max(kLeastHeight, shown.height / scale_), scale);
  } catch (const InputError& error) {
    state_.say(error.what(), true);
  }
}

std::string App::figure_title(PanelContext& context) const {
  const Selection& s = state_.selection();
  std::string title = panel(figure_->panel()).figure_title(context);
  if (title.empty()) title = title_of(figure_->panel());
  title += " \xC2\xB7 " + state_.run()->name();
  if (!shows_head(figure_->panel()) || panel(figure_->panel()).shows_all_heads()) return title;
  title += fmt::format(" \xC2\xB7 layer {}, KV head {}", state_.run()->layer_number(s.layer), s.kv_head);
  return s.query_head ? fmt::format("{}, query head {}", title, *s.query_head) : title;
}

std::string App::figure_date() const {
  if (!options_.date.empty()) return options_.date;
  const std::time_t now = std::time(nullptr);
  return fmt::format("{:%Y-%m-%d}", fmt::localtime(now));
}

/// Where the figure comes from: what one needs to draw it again.
std::vector<std::string> App::figure_foot(PanelContext& context) const {
  const Run& run = *state_.run();
  std::vector<std::string> lines = {
      fmt::format("{}{}", run.model().empty() ? "" : run.model() + " \xC2\xB7 ", run.path().string())};
  if (run.results() != nullptr && run.dump() != nullptr)
    lines.back() += fmt::format(" of {}", run.dump()->folder().string());
  for (const std::string& line : panel(figure_->panel()).figure_settings(context)) lines.push_back(line);
  lines.push_back(fmt::format("{}kvreplay {} \xC2\xB7 {}",
                              run.dump() != nullptr
                                  ? fmt::format("window w = {} \xC2\xB7 ", state_.comparison.window)
                                  : std::string(),
                              KVREPLAY_VERSION, figure_date()));
  return lines;
}

/// True where all of it is there.
bool App::draw_figure() {
  use_theme(options_.dark_figures, figure_->scale(), text_points_);
  const Theme& t = theme();
  const JobQueue::Unanswered before = queue_.unanswered();
  const bool unfinished = std::exchange(state_.links.unfinished, false);
  const Hover hover = std::exchange(state_.hover, {}), next_hover = state_.next_hover;
  HeatmapView* heatmap = panel(figure_->panel()).heatmap();
  const HeatmapView::View view = heatmap != nullptr ? heatmap->view() : HeatmapView::View();
  const ImGuiViewport* frame = ImGui::GetMainViewport();
  ImGui::SetNextWindowPos(frame->Pos);
  ImGui::SetNextWindowSize(frame->Size);
  ImGui::PushStyleVar(ImGuiStyleVar_WindowPadding, {t.px(14), t.px(11)});
  ImGui::PushStyleVar(ImGuiStyleVar_WindowRounding, 0);
  ImGui::PushStyleColor(ImGuiCol_WindowBg, t.panel);
  ImGui::Begin("figure", nullptr, ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoInputs);
  ImGui::PopStyleColor();
  ImGui::PopStyleVar(2);

  PanelContext context{state_, queue_, true};
  const float width = ImGui::GetContentRegionAvail().x;
  ImGui::PushFont(bold_font());
  wrapped_text(figure_title(context), t.text);
  ImGui::PopFont();
  ImGui::Dummy({0, t.px(3)});
  const std::vector<std::string> foot = figure_foot(context);
  float foot_height = t.px(6);
  for (const std::string& line : foot)
    foot_height += ImGui::CalcTextSize(line.c_str(), nullptr, false, width).y + t.px(2);
  ImGui::BeginChild("panel", {0, std::max(t.px(120), ImGui::GetContentRegionAvail().y - foot_height)}, false,
                    ImGuiWindowFlags_NoScrollbar);
  // A picture cannot be scrolled.
  ImGui::PushStyleVar(ImGuiStyleVar_ScrollbarSize, 1);
  for (const ImGuiCol part : {ImGuiCol_ScrollbarBg, ImGuiCol_ScrollbarGrab})
    ImGui::PushStyleColor(part, IM_COL32_BLACK_TRANS);
  ImGui::PushID(static_cast<int>(figure_->panel()));
  panel(figure_->panel()).draw(context);
  ImGui::PopID();
  ImGui::PopStyleColor(2);
  ImGui::PopStyleVar();
  ImGui::EndChild();
  const float missing = rows_missing(figure_->panel());
  ImGui::PushStyleVar(ImGuiStyleVar_ItemSpacing, {0, t.px(2)});
  for (const std::string& line : foot) wrapped_text(line, t.dim);
  ImGui::PopStyleVar();
  ImGui::End();

  if (heatmap != nullptr) heatmap->set_view(view);
  state_.hover = hover;
  state_.next_hover = next_hover;
  const bool drawn = !std::exchange(state_.links.unfinished, unfinished);
  if (missing > 0) figure_->grow(missing);
  const JobQueue::Unanswered after = queue_.unanswered();
  if (after.failed != before.failed) throw InputError(after.error);
  return drawn && after.pending == before.pending;
}

void App::drawn(int, int) {
  if (figure_) go_on_with_figure();
}

void App::write_figure() {
  if (figure_->path().extension() != ".svg") return figure_->write();
  PanelContext context{state_, queue_, true};
  const std::string svg = panel(figure_->panel()).svg(context);
  if (svg.empty())
    throw InputError(figure_->path().string(), "a plot to draw as SVG",
                     fmt::format("none in {}, which is exported as PNG", title_of(figure_->panel())));
  std::string source = figure_title(context);
  for (const std::string& line : figure_foot(context)) source += '\n' + line;
  std::string bytes = report::svg_file("", svg).bytes;
  bytes.insert(bytes.find('>') + 1, "<desc>" + report::escaped(source) + "</desc>");
  write_output(figure_->path(), bytes);
}

void App::go_on_with_figure() {
  std::string error;
  try {
    figure_->frame(text_points_, [&] {
      try {
        return draw_figure();
      } catch (const InputError& failed) {
        error = failed.what();
        return false;
      }
    });
    use_theme(dark_, scale_, text_points_);
    if (error.empty() && !figure_->done()) return;
    if (error.empty()) write_figure();
  } catch (const InputError& failed) {
    error = failed.what();
  }
  state_.say(error.empty() ? "Saved " + figure_->path().string() : error, !error.empty());
  if (error.empty() && options_.wrote) options_.wrote(figure_->path());
  figure_.reset();
}

namespace {

int pixels_of(float points, float scale) { return static_cast<int>(std::lround(points * scale)); }

}  // namespace

Canvas::Canvas(float width, float height, float scale)
    : scale_(scale), buffer_(pixels_of(width, scale), pixels_of(height, scale)) {
  ImGui::SetCurrentContext(window_);  // a new toolkit is the current one
}

void Canvas::frame(float text_points, const std::function<bool()>& draw) {
  GLint drawn_to = 0, read_from = 0;
  glGetIntegerv(GL_DRAW_FRAMEBUFFER_BINDING, &drawn_to);
  glGetIntegerv(GL_READ_FRAMEBUFFER_BINDING, &read_from);
  ui_.make_current();
  ui_.set_text(text_points, scale_);
  ImGuiIO& io = ImGui::GetIO();
  io.DisplaySize = {static_cast<float>(width()), static_cast<float>(height())};
  io.DeltaTime = 1.0F / 60;
  ui_.new_frame();
  const bool wanted = draw();
  ui_.end_frame();
  if (wanted) {
    buffer_.bind();
    ui_.paint(width(), height());
  }
  glBindFramebuffer(GL_DRAW_FRAMEBUFFER, static_cast<GLuint>(drawn_to));
  glBindFramebuffer(GL_READ_FRAMEBUFFER, static_cast<GLuint>(read_from));
  ImGui::SetCurrentContext(window_);
}

}  // namespace kvreplay::viewer
