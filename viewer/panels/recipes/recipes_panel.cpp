#include "analysis/recommend/recommend.hpp"
#include "analysis/results/kept_text.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/plot.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

using recommend::Candidate;
using recommend::Recommendation;
using recommend::Use;
using recommend::Where;

struct FoundRecipes {
  recommend::MeasuredLevers measured;
  recommend::Recommended found;
};
std::size_t bytes_of(const FoundRecipes& recipes) {
  std::size_t bytes = sizeof(recipes);
  for (const recommend::MeasuredPrompt& prompt : recipes.measured.prompts)
    bytes += bytes_in(prompt.bytes) + bytes_in(prompt.nats);
  return bytes;
}

/// Recipes for the results. If the results lie in a folder over several dumps, that whole folder is used.
FoundRecipes find_recipes(const std::filesystem::path& results, Engine engine) {
  const std::filesystem::path above = std::filesystem::absolute(results).lexically_normal().parent_path();
  const bool several = OverDumpsReader::is_over_dumps(above);
  const std::filesystem::path folders[] = {several ? above : results};
  FoundRecipes recipes{recommend::read_levers(folders), {}};
  recommend::RecommendOptions options;
  options.engine = engine;
  for (const double share : recommend::kShownShares) options.bytes.push_back({share, 0, percent(share)});
  recipes.found = recommend::recommend(recipes.measured, options);
  return recipes;
}

/// Costs of recipes against their bytes. Each point is a recipe, described in full below the plot.
class RecipesPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string figure_title(PanelContext&) const override { return "What a recipe costs, by its bytes"; }
  std::string csv(PanelContext&) const override;
  void keep(SessionFields& fields) override {
    fields.field("engine", engine_);
    fields.field("way", way_);
    fields.field("within", within_);
  }

 private:
  struct Point {
    const Recommendation* of;
    const Candidate* candidate;
    ImVec2 at;
    std::string way;
  };
  void draw_plot(const FoundRecipes& recipes, ImVec2 size);
  void draw_lines(Plot& plot, const FoundRecipes& recipes);
  void point_out(const Plot& plot, const FoundRecipes& recipes);
  void draw_chosen(const FoundRecipes& recipes);

  std::string engine_{"any"}, way_{"both-each"}, within_{"20 %"};
  std::shared_ptr<const FoundRecipes> shown_;
  std::vector<Point> points_;
  Key axes_;
  PlotView view_;
};

void RecipesPanel::draw(PanelContext& context) {
  const std::shared_ptr<const Run> run = context.state.run();
  shown_ = nullptr;
  if (run->results() == nullptr)
    return hint(
        "Recipes are found in results: open a folder that evict wrote, of several prompts if there are.");
  {
    const HiddenDraw controls(context.figure);
    const std::vector<Choice> engines = choices_of(kEngines);
    ImGui::SetNextItemWidth(theme().px(120));
    if (const auto chosen = choice_combo("##engine", engine_, engines)) engine_ = engines[*chosen].name;
    tip("What is to run it: what it cannot do is not recommended.");
  }
  const Engine engine = kEngines.named(engine_).value_or(Engine::any);
  const auto answer = context.queue.ask<FoundRecipes>(
      {.key = {run->key(), "recipes", engine_}, .title = "Recipes, of " + run->name()},
      [run, engine](JobControl&) { return find_recipes(run->results()->folder(), engine); });
  if (!answer.error.empty()) return hint(answer.error);
  if (!answer) return hint("Being chosen.");
  shown_ = answer.value;
  if (const Key axes(run->key(), engine_); axes_ != axes) {
    axes_ = axes;
    view_ = {};
  }
  const ImVec2 room = ImGui::GetContentRegionAvail();
  draw_plot(*shown_,
            {room.x, std::max(room.y - 5.2F * ImGui::GetTextLineHeightWithSpacing(), room.y * 0.5F)});
  draw_chosen(*shown_);
}

void RecipesPanel::draw_plot(const FoundRecipes& recipes, ImVec2 size) {
  const char* const unit =
      recipes.measured.in_nats ? "predicted nats a token" : "output error, mean over heads";
  double low = INFINITY, high = 0;
  for (const Recommendation& one : recipes.found.recommendations)
    for (const Candidate& candidate : one.candidates)
      if (const double nats = candidate.nats.center(); nats > 0) {
        low = std::min(low, nats);
        high = std::max(high, nats);
      }
  if (!(low <= high)) return hint("Nothing that was measured is as small as half of the bytes.");
  Plot plot("plot", size, {"bytes, of those in 16 bits", true, 0.045, 0.55},
            {unit, true, low / 1.5, high * 1.5}, view_);
  draw_lines(plot, recipes);
  point_out(plot, recipes);
}

void RecipesPanel::draw_lines(Plot& plot, const FoundRecipes& recipes) {
  const Theme& t = theme();
  for (const recommend::CaseOver& one : recipes.found.front)
    if (one.nats.center() > 0)
      plot.list()->AddCircleFilled(plot.at(one.bytes.mean, one.nats.center()), t.px(2), t.faint);
  points_.clear();
  float label = 0;
  for (const Where where : {Where::each, Where::everywhere})
    for (const Use use : recommend::kUses.all()) {
      const ImU32 ink = t.series[static_cast<std::size_t>(use)];
      const ImU32 color = where == Where::each ? ink : faded(ink, 0.45F);
      std::vector<double> x, y;
      for (const Recommendation& one : recipes.found.recommendations) {
        const Candidate* const candidate = recommend::candidate_of(one, use, where);
        if (candidate == nullptr || !(candidate->nats.center() > 0)) continue;
        x.push_back(one.share);
        y.push_back(candidate->nats.center());
        points_.push_back({&one, candidate, plot.at(x.back(), y.back()), recommend::way_of(use, where)});
        plot.list()->AddCircleFilled(points_.back().at, t.px(3.2F), color);
      }
      plot.line(x, y, color, where == Where::each ? 2.0F : 1.2F);
      if (x.empty()) continue;
      plot.label({plot.low_corner().x + t.px(8), plot.high_corner().y - t.px(14) - label},
                 recommend::way_text(use, where).c_str(), readable(color, t.plot));
      label += ImGui::GetTextLineHeight();
    }
}

void RecipesPanel::point_out(const Plot& plot, const FoundRecipes& recipes) {
  const Theme& t = theme();
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  const Point* near = nullptr;
  float nearest = t.px(10);
  for (const Point& point : points_) {
    if (point.way == way_ && point.of->memory.text == within_)
      plot.list()->AddCircle(point.at, t.px(7), t.text, 0, t.px(1.6F));
    const float distance = std::hypot(mouse.x - point.at.x, mouse.y - point.at.y);
    if (plot.hovered() && distance < nearest) {
      nearest = distance;
      near = &point;
    }
  }
  if (near == nullptr) return;
  if (ImGui::IsMouseClicked(ImGuiMouseButton_Left)) {
    way_ = near->way;
    within_ = near->of->memory.text;
  }
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(recommend::way_text(near->candidate->use, near->candidate->where).c_str());
  dim_text(fmt::format("{} of the bytes, {}",
                       percent(std::round(1000 * near->candidate->chosen.bytes) / 1000),
                       mean_text(near->candidate->nats)));
  wrapped_text(recommend::chosen_text(recipes.measured, *near->candidate), t.text, t.px(320));
  ImGui::EndTooltip();
}

/// The recipe of the point that was clicked, and how sure it is.
void RecipesPanel::draw_chosen(const FoundRecipes& recipes) {
  const auto at = std::ranges::find_if(
      points_, [&](const Point& point) { return point.way == way_ && point.of->memory.text == within_; });
  if (at == points_.end()) return dim_text("Click a point: its recipe.");
  const Candidate& candidate = *at->candidate;
  mono_text(fmt::format("{}  {}", within_, mean_text(candidate.nats)));
  ImGui::SameLine();
  dim_text(recommend::way_text(candidate.use, candidate.where));
  flow(small_button_width("Copy recipe"));
  if (small_button("Copy recipe"))
    ImGui::SetClipboardText(
        recommend::recipe_json(recipes.measured, recipes.found, *at->of, candidate).dump(1).c_str());
  tip("As JSON, for kvreplay evict --recipe and kvreplay.press().");
  wrapped_text(recommend::chosen_text(recipes.measured, candidate), theme().text);
  if (const std::string flags = recommend::engine_flags(
          recipes.measured, recipes.found.engine, recommend::recipe_of(recipes.measured, candidate.chosen));
      !flags.empty())
    elided_text(flags, theme().dim);
}

std::string RecipesPanel::csv(PanelContext&) const {
  if (shown_ == nullptr) return {};
  CsvTable table("within,way,bytes,nats,low,high,recipe");
  for (const Recommendation& one : shown_->found.recommendations)
    for (const Candidate& candidate : one.candidates)
      table.row(one.share, recommend::way_of(candidate.use, candidate.where), candidate.chosen.bytes,
                if_any(candidate.nats.center()), if_any(candidate.nats.low), if_any(candidate.nats.high),
                recommend::chosen_text(shown_->measured, candidate));
  return table.rows() > 0 ? table.text() : std::string();
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::recipes>() {
  return std::make_unique<RecipesPanel>();
}

}  // namespace kvreplay::viewer
