#include "viewer/model/heatmap_image.hpp"
#include "viewer/panels/channels/channel_parts.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/questions/channels.hpp"
#include "viewer/questions/command_text.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/questions/policy_settings.hpp"
#include "viewer/questions/state.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/heatmap_view.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <imgui.h>
#include <string>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// Interactions between the key channels of the selected head, and the cost of pruning some of them.
class ChannelPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  HeatmapView* heatmap() override { return sheet_shown_ ? &sheet_.heatmap() : &map_; }
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override;

 private:
  void draw_controls(AppState& state);
  void ask_pinned(PanelContext& context);
  void offer_recent_keys(Index l);
  HeatmapContent map_content(const Run* pinned, const Matrix<double>* matrix, const Matrix<double>* minus);
  void draw_matrices(PanelContext& context, ImVec2 size);
  void draw_map(AppState& state, ImVec2 size);
  void draw_edges();
  void place_channels(const Run& run);
  EdgeLegend legend() const;
  void draw_figures(const AppState& state);
  void draw_side(PanelContext& context, float height);
  void choose_part(const Selection& selected);
  const ChannelPart& part() const { return now_.head->parts[part_]; }
  /// The set of the chosen method; null where it is not known.
  const ChannelSet* pruned() const;

  // chosen by the user
  ChannelSettings settings_;
  ChannelControls controls_;
  double ratio_ = 0.5;
  std::string method_ = "exchange";
  ChannelView view_;
  bool dim_ = false, future_ = true, queries_ = false, sheet_shown_ = false;

  ChannelQuestions questions_, pinned_questions_;
  ChannelAnswers now_, pinned_;  // of this frame
  std::size_t part_ = 0;
  ChannelMatrix matrix_;  // of the map: logits or outputs, normalised, less the pinned run's
  ChannelPlaces places_;  // of places_key_
  Key places_key_;
  ChannelSheet sheet_;
  bool subtracts_ = false;  // the pinned run's is subtracted
  HeatmapView map_;
  PlotView spectrum_view_, query_view_;
};

const ChannelSet* ChannelPanel::pruned() const {
  if (now_.prunings == nullptr) return nullptr;
  for (const ChannelPruning& one : now_.prunings->methods)
    if (one.method == method_ && !one.pruned.empty())
      return &one.pruned[std::min(part_, one.pruned.size() - 1)];
  return nullptr;
}

void ChannelPanel::choose_part(const Selection& selected) {
  part_ = 0;
  if (now_.head != nullptr && now_.head->parts.size() > 1 && selected.query_head)
    part_ = std::min(static_cast<std::size_t>(*selected.query_head), now_.head->parts.size() - 1);
}

/// As stored while the head is not known.
void ChannelPanel::place_channels(const Run& run) {
  Key key(now_.key, part_, view_.arrangement, now_.head != nullptr);
  if (key == places_key_) return;
  places_key_ = std::move(key);
  places_ = now_.head != nullptr ? arranged(run, now_, part_, view_.arrangement) : ChannelPlaces();
}

/// Legend of the strips at the map's edges.
EdgeLegend ChannelPanel::legend() const {
  return {.method = pruned() != nullptr ? method_ : std::string(),
          .rotation = now_.head != nullptr && !part().basis.scores.rope_partner.empty()};
}

void ChannelPanel::draw(PanelContext& context) {
  now_ = {};
  const std::shared_ptr<const Run>& run = context.state.run();
  if (run == nullptr) return hint("Open a dump or a result folder.");
  const Selection& selected = context.state.selection();
  if (const auto why = why_no_channels(*run, selected.layer))
    return hint_no_dump(
        context.state,
        fmt::format("How channels interact is computed from the dump, which is not at hand: {}. "
                    "Nor do these results say: {}.",
                    run->why_no_dump(), *why));
  settings_.window = context.state.comparison.window;
  if (run->dump() != nullptr && all_keys_recent(settings_, run->shape().l)) {
    draw_controls(context.state);
    return offer_recent_keys(run->shape().l);
  }
  now_ = questions_.ask(context, settings_, ratio_);
  ask_pinned(context);
  choose_part(selected);
  place_channels(*run);
  {
    const HiddenDraw controls(context.figure);
    draw_controls(context.state);
  }
  for (const std::string& error : {now_.error, pinned_.error, sheet_shown_ ? sheet_.error() : ""})
    if (!error.empty()) error_line(error);
  if (now_.head == nullptr && !now_.pending) return;

  const StaleOverlay veil(context.veiled);
  const Theme& t = theme();
  ImGui::Dummy({0, t.px(1)});
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float line = ImGui::GetTextLineHeight();
  // Room that the heatmap takes around its cells.
  const float around_x = t.px(114), around_y = 2 * line + t.px(14);
  const float gap = t.px(12), least_side = least_table_width();
  if (room.x >= t.px(480)) {
    const float most = room.x - least_side - gap;
    // A sheet of many heads takes what there is, a map is as wide as it is high.
    const float legend_height = sheet_shown_ ? 0 : legend().height(most);
    const float wanted = sheet_shown_ ? most : room.y - legend_height - around_y + around_x;
    const float width = std::clamp(wanted, std::min(t.px(260), room.x), most);
    const ImVec2 at = ImGui::GetCursorPos();
    draw_matrices(context, {width, sheet_shown_ ? room.y
                                                : std::min(room.y - legend().height(width),
                                                           width - around_x + around_y)});
    ImGui::SetCursorPos({at.x + width + gap, at.y});
    ImGui::BeginChild("figures", {0, room.y});
    draw_side(context, room.y);
    ImGui::EndChild();
    return;
  }
  const float side = std::max(t.px(120), std::min(room.x - around_x, room.y * 0.75F - around_y));
  draw_matrices(context, {sheet_shown_ ? room.x : std::min(room.x, side + around_x), side + around_y});
  draw_side(context, std::max(ImGui::GetContentRegionAvail().y, t.px(250)));
}

/// The head's matrix with its legend below, or all heads' in that room.
void ChannelPanel::draw_matrices(PanelContext& context, ImVec2 size) {
  if (sheet_shown_) return sheet_.draw(context, questions_, settings_, view_, size);
  const ImVec2 at = ImGui::GetCursorPos();
  draw_map(context.state, size);
  ImGui::SetCursorPos({at.x, at.y + size.y});
  legend().draw(ImGui::GetContentRegionAvail().x < size.x ? ImGui::GetContentRegionAvail().x : size.x);
}

void ChannelPanel::draw_controls(AppState& state) {
  const Run& run = *state.run();
  ImGui::BeginGroup();
  either("mode", "Map", "Sheet", sheet_shown_);
  ImGui::EndGroup();
  tip("The selected head's matrix, or those of all heads of its layer on one scale");
  edit_channel_view(run, now_, view_);
  if (!sheet_shown_) {
    flow(check_width("Dim pruned"));
    ImGui::Checkbox("Dim pruned", &dim_);
    tip("Veils the rows and columns of the channels that the chosen method prunes. Marked at the lower and "
        "left edge in any case.");
  }
  if (run.dump() != nullptr) controls_.draw(settings_, run.shape().l);
  if (now_.head != nullptr && now_.head->parts.size() > 1) {
    const std::string text = fmt::format("query head {} of {}", part_ + 1, now_.head->parts.size());
    flow(ImGui::CalcTextSize(text.c_str()).x);
    text_beside(text);
    tip("Every query head has a set of its own; the map shows the selected one's, errors are of all");
  }
  if (!sheet_shown_) choose_difference(state);
  if (now_.pending || pinned_.pending || (sheet_shown_ && sheet_.pending())) busy_mark();
}

void ChannelPanel::offer_recent_keys(Index l) {
  const Index recent = settings_.recent.value_or(default_recent(settings_.semantics));
  hint(fmt::format(
      "The last {} keys of a prompt stay whole, and this one has {}: none is left to lose channels.", recent,
      l));
  const char* offer = "Prune recent keys, too";
  const float width = ImGui::CalcTextSize(offer).x + 2 * ImGui::GetStyle().FramePadding.x;
  ImGui::Dummy({0, theme().px(4)});
  ImGui::SetCursorPosX(ImGui::GetCursorPosX() +
                       std::max(0.0F, (ImGui::GetContentRegionAvail().x - width) / 2));
  if (ImGui::Button(offer)) settings_.recent = 0;
  tip("Sets recent to 0");
}

HeatmapContent ChannelPanel::map_content(const Run* pinned, const Matrix<double>* matrix,
                                         const Matrix<double>* minus) {
  HeatmapContent c;
  c.key = {now_.key,         part_,       view_.outputs,
           view_.normalised, places_key_, minus != nullptr ? pinned_.key : Key()};
  if (matrix != nullptr) matrix_.show(c.key, *matrix, minus, view_.normalised, places_);
  c.tile = [this, matrix](const TileKey& key) {
    Answer<Tile> answer;
    if (matrix != nullptr) answer.value = matrix_.tile(key);
    answer.pending = matrix == nullptr;
    return answer;
  };
  view_.describe(c, matrix == nullptr ? 1 : matrix_.largest());
  if (minus != nullptr) c.quantity += ", less that of " + pinned->name();
  if (matrix == nullptr) return c;
  c.row_number = c.column_number = [this](Index place) { return std::to_string(places_.channel(place)); };
  if (const ChannelSet* set = pruned(); set != nullptr)
    for (std::size_t i = 0; i < set->size(); ++i)
      if ((*set)[i] != 0) c.column_marks.push_back(places_.place(static_cast<Index>(i)));
  c.row_marks = c.column_marks;
  c.outline_cell = true;
  return c;
}

void ChannelPanel::draw_map(AppState& state, ImVec2 size) {
  const Selection& selected = state.selection();
  const Run* pinned = pinned_.head != nullptr ? state.pinned.run().get() : nullptr;
  const Matrix<double>* matrix = matrix_of(now_, view_.outputs, part_);
  const Matrix<double>* minus = pinned != nullptr ? matrix_of(pinned_, view_.outputs, part_) : nullptr;
  const bool waits = pinned != nullptr && minus == nullptr && pinned_.pending;
  if (waits) matrix = nullptr;
  if (matrix == nullptr) minus = nullptr;
  subtracts_ = minus != nullptr;
  HeatmapContent c = map_content(pinned, matrix, minus);
  const Index d = state.run()->shape().d;
  c.size = {d, d};
  if (matrix == nullptr && !now_.pending && !waits) {
    c.size = {0, 0};
    c.hint = "The run's results have no output-space matrix: no method needed it.";
  }
  if (selected.channels && matrix != nullptr) {
    c.row = places_.place(selected.channels->first);
    c.column = places_.place(selected.channels->second);
  }
  const HeatmapHit hit = map_.draw("channels", size, c, state.links);
  if (c.size.rows == 0) return;
  draw_edges();
  if (!hit.hovered || matrix == nullptr) return;
  const ChannelPair pair{places_.channel(hit.row), places_.channel(hit.column)};
  draw_channel_tip(*state.run(), now_, part_, pair, pruned(), method_);
  if (!hit.clicked) return;
  Selection next = selected;
  next.channels = pair;
  state.select(std::move(next), "channels");
}

/// The strips around the map and the veil over it.
void ChannelPanel::draw_edges() {
  if (now_.head == nullptr) return;
  const std::vector<Index>& partner = part().basis.scores.rope_partner;
  if (dim_ && pruned() != nullptr) dim_channels(map_, *pruned(), places_);
  draw_rotation_pairs(map_, partner, places_);
  draw_strip_tip(map_, partner, pruned(), method_, places_);
}

void ChannelPanel::ask_pinned(PanelContext& context) {
  pinned_ = {};
  subtracts_ = false;
  if (sheet_shown_) return;
  const std::shared_ptr<const Run> run = context.state.subtracted();
  if (run == nullptr) return;
  if (const auto why = why_no_channels(*run, context.state.selection().layer)) {
    pinned_.error = fmt::format("{} does not say how its channels interact: {}.", run->name(), *why);
    return;
  }
  PanelContext of_pinned = context.of(run);
  pinned_ = pinned_questions_.ask(of_pinned, settings_, ratio_);
}

void ChannelPanel::draw_figures(const AppState& state) {
  figure("off the diagonal", number_text(now_.head->off_diagonal_share));
  tip("off_diagonal_share: sum of |H_ce| over c != e, as a share of the sum over all");
  if (!std::isnan(now_.head->rope_pair_share)) {
    flow(theme().px(190));
    figure("within rotation pairs", number_text(now_.head->rope_pair_share));
    tip("rope_pair_share: of what lies off the diagonal, the part between the two channels that RoPE rotates "
        "together. At the map's upper and right edge both channels of a pair have one colour.");
  }
  const auto& pair = state.selection().channels;
  if (pair && std::max(pair->first, pair->second) < part().basis.scores.logits.rows())
    figure(fmt::format("H at {}, {}", pair->first, pair->second).c_str(),
           number_text(part().basis.scores.logits(pair->first, pair->second)));
}

void ChannelPanel::draw_side(PanelContext& context, float height) {
  if (now_.head == nullptr) return;
  const Theme& t = theme();
  const float top = ImGui::GetCursorPosY();
  if (now_.ratios.empty() || now_.prunings != nullptr) {
    const HiddenDraw controls(context.figure);
    edit_ratio(now_, settings_.semantics, ratio_);
  }
  if (now_.prunings != nullptr)
    draw_channel_table(now_, method_, future_,
                       now_.ratios.empty()
                           ? fmt::format("{} of {}", now_.prunings->asked, context.state.run()->shape().d)
                           : std::string(),
                       context.figure);
  ImGui::Dummy({0, t.px(1)});
  draw_figures(context.state);
  if (!now_.head->window.empty()) {
    const HiddenDraw controls(context.figure);
    either("plot", "Spectrum", "Queries", queries_);
    tip("Spectrum: the eigenvalues of H. Queries: mean and spread of every channel of a query head, over the "
        "window that channels are chosen by and over the decoding steps (IAP fig. 2).");
  }
  const float rest = height - (ImGui::GetCursorPosY() - top) - t.px(2);
  const ImVec2 size = {ImGui::GetContentRegionAvail().x, std::clamp(rest, t.px(104), t.px(420))};
  if (queries_ && !now_.head->window.empty())
    draw_queries(*now_.head, context.state.selection().query_head.value_or(0), size, query_view_);
  else
    draw_spectrum(part().spectrum, size, spectrum_view_);
}

std::string ChannelPanel::figure_title(PanelContext& context) const {
  const std::string less = subtracts_ ? context.state.pinned.run()->name() : std::string();
  std::string title =
      fmt::format("{} of the {}{}{}", view_.normalised ? "Normalised interaction" : "Interaction",
                  view_.outputs ? "outputs" : "logits", sheet_shown_ ? " of every head" : "",
                  less.empty() ? "" : ", less " + less);
  if (view_.arrangement != ChannelArrangement::stored)
    title += fmt::format(", channels by {}", name_of(view_.arrangement));
  if (sheet_shown_) return title;
  return title +
         fmt::format(", {}% of the channels pruned by {}", shortest(std::round(1000 * ratio_) / 10), method_);
}

std::vector<std::string> ChannelPanel::figure_settings(PanelContext& context) const {
  ChannelSettings given = settings_, usual;
  given.methods = usual.methods;
  const std::string text = options_text(bound(given), bound(usual));
  return with_pinned(text.empty() ? std::vector<std::string>() : std::vector{"channels" + text},
                     context.state, subtracts_, "less");
}

std::string ChannelPanel::csv(PanelContext&) const {
  if (sheet_shown_) return sheet_.csv();
  const ChannelMatrix& matrix = matrix_;
  if (now_.head == nullptr || matrix.d() == 0) return {};
  CsvTable table("channel,other_channel," + view_.column() + (subtracts_ ? "_less_pinned" : ""));
  for (Index r = 0; r < matrix.d(); ++r)
    for (Index c = 0; c < matrix.d(); ++c) table.row(r, c, matrix.at(r, c));
  return table.text();
}

void ChannelPanel::keep(SessionFields& fields) {
  fields.settings("settings", settings_);
  fields.field("outputs", view_.outputs);
  fields.field("dim", dim_);
  fields.field("normalised", view_.normalised);
  fields.name("order", view_.arrangement, in_table(kChannelArrangements));
  fields.field("sheet_shown", sheet_shown_);
  fields.part("sheet", sheet_);
  fields.field("future", future_);
  fields.field("queries", queries_);
  fields.number("ratio", ratio_, 0.0, kMostChannelRatio);
  std::string method = method_;
  fields.field("method", method);
  if (channel_rule_named(method)) method_ = method;
  fields.part("map", map_);
  if (fields.reads()) return;
  fields.written["settings"].erase("methods");
  fields.written["settings"].erase("window");
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::channels>() {
  return std::make_unique<ChannelPanel>();
}

}  // namespace kvreplay::viewer
