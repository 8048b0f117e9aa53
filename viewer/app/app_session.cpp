// What is saved between two starts.

#include "viewer/app/app.hpp"
#include "viewer/model/session.hpp"

#include <cmath>

namespace kvreplay::viewer {
namespace {

constexpr const char* kComparison = "comparison";

nlohmann::json comparison_to_json(const Comparison& comparison) {
  return {{"score", name_of(comparison.score)},
          {"reference", name_of(comparison.reference)},
          {"window", comparison.window}};
}

void read_comparison(const nlohmann::json& json, Comparison& into) {
  if (!json.is_object()) return;
  const auto metric = [&](const char* key, TokenMetric& value) {
    const auto found = json.find(key);
    if (found != json.end() && found->is_string())
      if (const auto named = token_metric_named(found->get<std::string>())) value = *named;
  };
  metric("score", into.score);
  metric("reference", into.reference);
  const auto window = json.find("window");
  if (window != json.end() && window->is_number_integer() && *window > 0) into.window = window->get<Index>();
}

}  // namespace

Session App::save() const {
  Session session;
  for (const auto& run : state_.runs) session.runs.push_back(run->path().string());
  session.selection = state_.selection();
  session.layout = layout_;
  session.theme = dark_ ? ThemeChoice::dark : ThemeChoice::light;
  session.text_size = text_points_;
  session.ranges_locked = state_.links.locked;
  session.joint_zoom = state_.links.joined;
  for (const auto& [kind, camera] : state_.history().now().cameras)
    if (camera) session.cameras[kind] = *camera;
  for (const auto& panel : panels_) session.panels[std::string(name_of(panel->kind()))] = panel->save();
  session.panels[kComparison] = comparison_to_json(state_.comparison);
  return session;
}

void App::restore(const Session& session, bool with_runs) {
  layout_ = session.layout;
  if (session.theme != ThemeChoice::system) dark_ = session.theme == ThemeChoice::dark;
  text_points_ = session.text_size;
  state_.links.locked = session.ranges_locked;
  state_.links.joined = session.joint_zoom;
  for (const auto& panel : panels_) {
    const auto found = session.panels.find(std::string(name_of(panel->kind())));
    if (found != session.panels.end()) panel->load(*found);
  }
  if (const auto found = session.panels.find(kComparison); found != session.panels.end())
    read_comparison(*found, state_.comparison);
  if (!with_runs) return;
  for (const std::string& path : session.runs) open(path);
  for (const auto& [kind, camera] : session.cameras)
    if (HeatmapView* heatmap = panel(kind).heatmap()) heatmap->set_camera(camera);
  when_all_open_ = [selection = session.selection](AppState& state) { state.select(selection); };
}

}  // namespace kvreplay::viewer
