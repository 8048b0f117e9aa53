#include "analysis/results/validation.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/plot.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

using Cases = std::vector<const ValidatedCase*>;

/// Where names stand in a picture: one that would cover another is left to the tooltip.
class TakenRoom {
 public:
  bool claim(ImVec2 at, const std::string& text) {
    const ImVec2 size = ImGui::CalcTextSize(text.c_str());
    const ImVec4 room{at.x, at.y, at.x + size.x, at.y + size.y * 0.8F};
    for (const ImVec4& other : taken_)
      if (room.x < other.z && other.x < room.z && room.y < other.w && other.y < room.w) return false;
    taken_.push_back(room);
    return true;
  }

 private:
  std::vector<ImVec4> taken_;
};

/// Measured cost of a result folder's cases in the model, against the prediction by the folder's metrics.
class ValidationPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  std::string figure_title(PanelContext&) const override {
    return fmt::format("{} measured against {}: {}", measured_, figure_, setting_);
  }
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override {
    fields.field("figure", figure_);
    fields.field("setting", setting_);
    fields.field("measured", measured_);
  }

 private:
  void choose_setting();
  void choose_figure();
  void choose_measured();
  void draw_order() const;
  void draw_case(Plot& plot, const ValidatedCase& one, ImVec2 at) const;
  void draw_plot();
  PlotAxis axis_of(const std::string& title, bool of_both, bool predicted) const;

  std::string figure_{"loss_step"}, setting_, measured_{"kl"};
  std::shared_ptr<const Validation> validation_;
  Key run_;
  std::vector<const FigureFacts*> figures_;
  const FigureFacts* by_ = nullptr;
  ValidationFigure against_ = ValidationFigure::kl;
  Cases cases_;  // of the setting, within validation_
  Key axes_;
  PlotView view_;
};

void ValidationPanel::draw(PanelContext& context) {
  const std::shared_ptr<const Run> run = context.state.run();
  validation_ = nullptr;
  cases_.clear();
  if (run->results() == nullptr)
    return hint("A dump alone was not measured: open a result folder that kvvalidate.py ran the model over.");
  const auto answer = context.queue.ask<Validation>(
      {.key = {run->key(), "validation"}, .title = "What the model loses, of " + run->name()},
      [run](JobControl&) { return read_validation(*run->results()); });
  if (!answer.error.empty()) return hint(answer.error);
  if (!answer) return hint("Being read.");
  if (answer->cases.empty()) return hint(answer->missing);
  run_ = run->key();
  validation_ = answer.value;
  {
    const HiddenDraw controls(context.figure);
    choose_setting();
    if (!cases_.empty()) {
      choose_figure();
      choose_measured();
    }
  }
  if (cases_.empty()) return hint("No two cases were measured in one setting.");
  draw_order();
  draw_plot();
}

void ValidationPanel::choose_setting() {
  std::vector<Cases> settings;
  for (const Table table : kValidatedTables)
    for (Cases& setting : settings_of(*validation_, table)) settings.push_back(std::move(setting));
  if (settings.empty()) return;
  std::vector<std::string> texts;
  for (const Cases& setting : settings)
    texts.push_back(
        fmt::format("{}, {}", facts_of(setting.front()->table).title, setting_text(*setting.front())));
  std::size_t chosen = std::find(texts.begin(), texts.end(), setting_) - texts.begin();
  if (chosen == texts.size()) chosen = 0;
  choose("##setting", std::vector<std::string_view>(texts.begin(), texts.end()), chosen, 190);
  tip("Cases that keep as much of the cache, so that only what is kept differs.");
  setting_ = texts[chosen];
  cases_ = settings[chosen];
}

void ValidationPanel::choose_figure() {
  figures_ = validation_->predictors(cases_.front()->table);
  by_ = nullptr;
  if (figures_.empty()) return;
  std::vector<Choice> names;
  for (const FigureFacts* const facts : figures_)
    names.push_back({std::string(facts->name), std::string(facts->title), std::string(facts->what)});
  const auto named = [&](const Choice& one) { return one.name == figure_; };
  auto chosen = static_cast<std::size_t>(std::find_if(names.begin(), names.end(), named) - names.begin());
  const bool there = chosen < names.size();
  if (!there) chosen = 0;
  flow(theme().px(160));
  if (choose("##figure", names, chosen, 150) || there) figure_ = names[chosen].name;
  by_ = figures_[chosen];
  tip(meaning_of(*by_, "", ": "));
}

/// Nats of all steps; of a question's dump those of its answer's rows, too.
void ValidationPanel::choose_measured() {
  against_ = ValidationFigure::kl;
  constexpr ValidationFigure kAnswer = ValidationFigure::kl_answer;
  if (!std::ranges::count(validation_->measured(), kAnswer)) return;
  constexpr std::array<std::string_view, 2> kNames = {"all steps", "the answer"};
  auto which = static_cast<std::size_t>(measured_ == facts_of(kAnswer).name);
  flow(theme().px(150));
  if (segments("measured", kNames, which)) measured_ = which == 1 ? facts_of(kAnswer).name : "kl";
  if (which == 1) against_ = kAnswer;
}

/// A ring where it knows what nobody can; of a question a cross where the answer is no longer right.
void ValidationPanel::draw_case(Plot& plot, const ValidatedCase& one, ImVec2 at) const {
  const Theme& t = theme();
  const double right = one.measured_as(ValidationFigure::right);
  const ImU32 color = one.is_oracle ? t.dim : right == 1 ? t.series[2] : right == 0 ? t.error : t.series[0];
  plot.list()->AddCircleFilled(at, t.px(5), t.window);
  if (right == 0) {
    const float arm = t.px(3.4F);
    plot.list()->AddLine({at.x - arm, at.y - arm}, {at.x + arm, at.y + arm}, color, t.px(1.8F));
    plot.list()->AddLine({at.x - arm, at.y + arm}, {at.x + arm, at.y - arm}, color, t.px(1.8F));
  } else if (one.is_oracle) {
    plot.list()->AddCircle(at, t.px(3.4F), color, 0, t.px(1.4F));
  } else {
    plot.list()->AddCircleFilled(at, t.px(3.6F), color);
  }
}

/// Rank agreement of the metric with the measured cost of the cases, and the number of cases that still
/// answer.
void ValidationPanel::draw_order() const {
  if (by_ == nullptr) return;
  const OrderByFigure found = order_by(by_->name, cases_, against_);
  const auto item = [](const char* name, const std::string& value, const std::string& about) {
    told_figure(name, value, about);
    ImGui::SameLine(0, theme().px(12));
  };
  item("Spearman", fmt::format("{:.3f}", found.spearman),
       "Rank correlation of the figure with the KL measured");
  item("in order", fmt::format("{} of {}", found.in_order, found.pairs),
       fmt::format("Of the pairs whose KL differs {} times or more, those that the figure puts in that order",
                   kApart));
  if (by_->unit == kLossKind.unit)
    item("predicted / measured", number_text(found.ratio), "Its median over the cases");
  item("cases", std::to_string(found.cases), "That have both");
  const auto says = [&](double right) {
    return std::ranges::count(
        cases_, right, [](const ValidatedCase* one) { return one->measured_as(ValidationFigure::right); });
  };
  if (const auto right = says(1), wrong = says(0); right + wrong > 0)
    item("answer", fmt::format("{} of {}", right, right + wrong),
         "Cases over which the model still answers rightly; crosses are those over which it does not");
  if (!validation_->finished) dim_text("interrupted");
  ImGui::NewLine();
}

/// Logarithmic around all values, with room at the ends.
PlotAxis ValidationPanel::axis_of(const std::string& title, bool of_both, bool predicted) const {
  double low = INFINITY, high = 0;
  for (const ValidatedCase* const one : cases_)
    for (const bool side : {false, true}) {
      const double value = side ? one->predicted_by(by_->name) : one->measured_as(against_);
      if ((!of_both && side != predicted) || !(value > 0) || !std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  if (!(low <= high)) return {title, true, 0.1, 1};
  return {title, true, low / 1.25, high * 1.25};
}

void ValidationPanel::draw_plot() {
  if (by_ == nullptr) return hint("These results have no figure that predicts it.");
  const Theme& t = theme();
  if (const Key axes(run_, setting_, by_->name, facts_of(against_).name); axes_ != axes) {
    axes_ = axes;
    view_ = {};
  }
  const bool nats = by_->unit == kLossKind.unit;
  const PlotAxis x = axis_of(fmt::format("{}, predicted", by_->name), nats, true),
                 y = axis_of(against_ == ValidationFigure::kl ? "KL measured, nats a step"
                                                              : "KL measured on the answer, nats a step",
                             nats, false);
  Plot plot("plot", ImGui::GetContentRegionAvail(), x, y, view_);
  if (nats) {
    plot.list()->AddLine(plot.at(x.low, x.low), plot.at(x.high, x.high), t.faint, t.px(1));
    const ImVec2 begin = plot.at(x.low, x.low);
    plot.label({begin.x + t.px(60), begin.y - t.px(17)}, "as predicted", t.dim);
  }
  TakenRoom names;
  const ValidatedCase* near = nullptr;
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  float nearest = t.px(9);
  for (const ValidatedCase* const one : cases_) {
    const double predicted = one->predicted_by(by_->name), kl = one->measured_as(against_);
    if (std::isnan(predicted) || std::isnan(kl)) continue;
    const ImVec2 at = plot.at(predicted, kl);
    draw_case(plot, *one, at);
    if (const ImVec2 text = {at.x + t.px(7), at.y - ImGui::GetTextLineHeight() / 2};
        names.claim(text, one->policy))
      plot.label(text, one->policy.c_str(), t.dim);
    const float distance = std::hypot(mouse.x - at.x, mouse.y - at.y);
    if (plot.hovered() && distance < nearest) {
      nearest = distance;
      near = one;
    }
  }
  if (near == nullptr) return;
  ImGui::BeginTooltip();
  ImGui::TextUnformatted(shown_policy(*near).c_str());
  for (const FigureFacts* const facts : figures_)
    figure(std::string(facts->name).c_str(), number_text(near->predicted_by(facts->name)));
  ImGui::Separator();
  for (const ValidationFigure which : validation_->measured())
    figure(std::string(facts_of(which).title).c_str(), number_text(near->measured_as(which)));
  ImGui::EndTooltip();
}

std::string ValidationPanel::csv(PanelContext& context) const {
  if (context.state.run() == nullptr || validation_ == nullptr || run_ != context.state.run()->key())
    return {};
  CsvTable table("policy,semantics,phase,budget,metric,predicted,kl,kl_answer,right");
  for (const ValidatedCase* const one : cases_)
    for (const FigureFacts* const facts : figures_)
      table.row(one->policy, one->semantics, one->phase, one->budget, facts->name,
                if_any(one->predicted_by(facts->name)), if_any(one->measured_as(ValidationFigure::kl)),
                if_any(one->measured_as(ValidationFigure::kl_answer)),
                if_any(one->measured_as(ValidationFigure::right)));
  return table.rows() > 0 ? table.text() : std::string();
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::validation>() {
  return std::make_unique<ValidationPanel>();
}

}  // namespace kvreplay::viewer
