#include "data/error.hpp"
#include "viewer/model/heatmap_image.hpp"
#include "viewer/panels/channels/channel_table.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/panels/policy_controls.hpp"
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
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <imgui.h>
#include <imgui_stdlib.h>
#include <string>
#include <string_view>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// The matrix that is shown of a head; null where it is not there.
const Matrix<double>* matrix_of(const ChannelAnswers& answers, bool outputs, std::size_t part) {
  if (!outputs) {
    if (answers.head == nullptr) return nullptr;
    return &answers.head->parts[std::min(part, answers.head->parts.size() - 1)].basis.scores.logits;
  }
  if (answers.outputs == nullptr) return nullptr;
  return &answers.outputs->outputs[std::min(part, answers.outputs->outputs.size() - 1)];
}

/// Whose setting, the recent keys that stay whole, and the channels that are never pruned: with the names and
/// defaults of `kvreplay channels`.
class ChannelControls {
 public:
  /// `l`: the prompt's length. Beside the last control where there is room.
  void draw(ChannelSettings& settings, Index l);

 private:
  void edit_protection(std::optional<Protection>& protect);

  std::string protect_text_;  // as it is typed
  std::string protect_error_;
};

constexpr const char* kOff = "off";

std::string changed_text(const ChannelSettings& settings) {
  std::string text;
  if (settings.recent) text = fmt::format("recent {}", *settings.recent);
  if (settings.protect)
    text += fmt::format("{}protect {}", text.empty() ? "" : ", ",
                        OptionValue<Protection>::text(*settings.protect));
  return text;
}

void ChannelControls::draw(ChannelSettings& settings, Index l) {
  flow(theme().px(92));
  choose("##semantics", kSemantics, settings.semantics, 92);
  tip(channel_option::semantics.meaning.data());
  if (!settings_button(changed_text(settings))) return;
  if (ImGui::IsWindowAppearing()) {
    protect_text_ = settings.protect ? OptionValue<Protection>::text(*settings.protect) : "";
    protect_error_.clear();
  }
  settings_row(channel_option::recent);
  edit_optional(channel_option::recent, settings.recent,
                fmt::format("own: {}", default_recent(settings.semantics)), l - 1);
  settings_row(channel_option::protect);
  edit_protection(settings.protect);
  end_settings();
}

/// What is typed counts as soon as it makes sense.
void ChannelControls::edit_protection(std::optional<Protection>& protect) {
  ImGui::SetNextItemWidth(-FLT_MIN);
  if (ImGui::InputTextWithHint("##protect", kOff, &protect_text_)) try {
      if (protect_text_.empty() || protect_text_ == kOff)
        protect.reset();
      else
        protect = OptionValue<Protection>::parse(channel_option::protect, protect_text_);
      protect_error_.clear();
    } catch (const InputError& error) {
      protect_error_ = error.what();
    }
  if (!protect_error_.empty()) error_line(protect_error_);
}

/// How the key channels of the selected head interact, and what pruning some of them costs.
class ChannelPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  HeatmapView* heatmap() override { return &map_; }
  std::string figure_title(PanelContext& context) const override;
  std::vector<std::string> figure_settings(PanelContext& context) const override;
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override;

 private:
  void draw_controls(AppState& state);
  void ask_pinned(PanelContext& context);
  void offer_recent_keys(Index l);
  HeatmapContent map_content(const Run* pinned, const Matrix<double>* matrix, const Matrix<double>* minus);
  void draw_map(AppState& state, ImVec2 size);
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
  bool outputs_ = false, normalised_ = false, dim_ = false, future_ = true, queries_ = false;

  ChannelQuestions questions_, pinned_questions_;
  ChannelAnswers now_, pinned_;  // of this frame
  std::size_t part_ = 0;
  ChannelMatrix matrix_;    // of the map: logits or outputs, normalised, less the pinned run's
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
  {
    const OutOfSight controls(context.figure);
    draw_controls(context.state);
  }
  for (const std::string& error : {now_.error, pinned_.error})
    if (!error.empty()) error_line(error);
  if (now_.head == nullptr && !now_.pending) return;

  const Veil veil(context.veiled);
  const Theme& t = theme();
  ImGui::Dummy({0, t.px(1)});
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float line = ImGui::GetTextLineHeight();
  // What the heatmap puts around its cells.
  const float around_x = t.px(114), around_y = 2 * line + t.px(14);
  const float gap = t.px(12), least_side = least_table_width();
  if (room.x >= t.px(480)) {
    const float wanted = room.y - around_y + around_x;
    const float width = std::clamp(wanted, std::min(t.px(260), room.x), room.x - least_side - gap);
    const ImVec2 at = ImGui::GetCursorPos();
    draw_map(context.state, {width, std::min(room.y, width - around_x + around_y)});
    ImGui::SetCursorPos({at.x + width + gap, at.y});
    ImGui::BeginChild("figures", {0, room.y});
    draw_side(context, room.y);
    ImGui::EndChild();
    return;
  }
  const float side = std::max(t.px(120), std::min(room.x - around_x, room.y * 0.75F - around_y));
  draw_map(context.state, {std::min(room.x, side + around_x), side + around_y});
  draw_side(context, std::max(ImGui::GetContentRegionAvail().y, t.px(250)));
}

void ChannelPanel::draw_controls(AppState& state) {
  const Run& run = *state.run();
  ImGui::BeginGroup();
  either("matrix", "Logits", "Outputs", outputs_);
  ImGui::EndGroup();
  tip("Logits: H_ce, pairs of channels in the squared change of the window's logits (IAP eq. 3). Outputs: "
      "M_ce, the same of the outputs, to first order.");
  flow(check_width("Normalised"));
  ImGui::Checkbox("Normalised", &normalised_);
  tip(outputs_ ? "M_ce / sqrt(M_cc M_ee)" : "H_ce / sqrt(H_cc H_ee)");
  flow(check_width("Dim pruned"));
  ImGui::Checkbox("Dim pruned", &dim_);
  tip("Veils the rows and columns of the channels that the chosen method prunes. Marked at the lower and "
      "left "
      "edge in any case.");
  if (run.dump() != nullptr) controls_.draw(settings_, run.shape().l);
  if (now_.head != nullptr && now_.head->parts.size() > 1) {
    const std::string text = fmt::format("query head {} of {}", part_ + 1, now_.head->parts.size());
    flow(ImGui::CalcTextSize(text.c_str()).x);
    text_beside(text);
    tip("Every query head has a set of its own; the map shows the selected one's, errors are of all");
  }
  choose_difference(state);
  if (now_.pending || pinned_.pending) busy_mark();
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
  const char* symbol = outputs_ ? "M" : "H";
  HeatmapContent c;
  c.key = {now_.key, symbol, part_, normalised_, minus != nullptr ? pinned_.key : Key()};
  if (matrix != nullptr) matrix_.show(c.key, *matrix, minus, normalised_);
  c.tile = [this, matrix](const TileKey& key) {
    Answer<Tile> answer;
    if (matrix != nullptr) answer.value = matrix_.tile(key);
    answer.pending = matrix == nullptr;
    return answer;
  };
  c.quantity =
      normalised_ ? fmt::format("{0}_ce / sqrt({0}_cc {0}_ee)", symbol) : fmt::format("{}_ce", symbol);
  if (minus != nullptr) c.quantity += ", less that of " + pinned->name();
  c.unit = normalised_ ? "" : outputs_ ? "squared output" : "squared logit";
  c.is_signed = true;
  c.square = true;
  c.scale = normalised_ ? ScaleKind::linear : ScaleKind::symlog;
  c.range.kind = RangeKind::fixed;
  // The diagonal is larger than all else: it is cut off.
  c.range.fixed_high = matrix == nullptr ? 1 : static_cast<float>(matrix_.largest_off_diagonal());
  if (c.range.fixed_high == 0) c.range.fixed_high = 1;  // two runs that are the same
  c.range.fixed_low = -c.range.fixed_high;
  c.row_name = "channel c";
  c.column_name = "channel e";
  if (const ChannelSet* set = pruned(); set != nullptr)
    for (std::size_t i = 0; i < set->size(); ++i)
      if ((*set)[i] != 0) c.column_marks.push_back(static_cast<Index>(i));
  c.row_marks = c.column_marks;
  c.outline_cell = true;
  return c;
}

void ChannelPanel::draw_map(AppState& state, ImVec2 size) {
  const Selection& selected = state.selection();
  const Run* pinned = pinned_.head != nullptr ? state.pinned.run().get() : nullptr;
  const Matrix<double>* matrix = matrix_of(now_, outputs_, part_);
  const Matrix<double>* minus = pinned != nullptr ? matrix_of(pinned_, outputs_, part_) : nullptr;
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
  if (selected.channels) {
    c.row = selected.channels->first;
    c.column = selected.channels->second;
  }
  const HeatmapHit hit = map_.draw("channels", size, c, state.links);
  if (c.size.rows == 0) return;
  if (dim_ && pruned() != nullptr) dim_channels(map_, *pruned());
  if (now_.head != nullptr) draw_rotation_pairs(map_, part().basis.scores.rope_partner);
  if (!hit.hovered || matrix == nullptr) return;
  draw_channel_tip(*state.run(), now_, part_, {hit.row, hit.column}, pruned(), method_);
  if (!hit.clicked) return;
  Selection next = selected;
  next.channels = ChannelPair{hit.row, hit.column};
  state.select(std::move(next), "channels");
}

void ChannelPanel::ask_pinned(PanelContext& context) {
  pinned_ = {};
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
    const OutOfSight controls(context.figure);
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
    const OutOfSight controls(context.figure);
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
  return fmt::format("{} of the {}{}, {}% of the channels pruned by {}",
                     normalised_ ? "Normalised interaction" : "Interaction", outputs_ ? "outputs" : "logits",
                     less.empty() ? "" : ", less " + less, shortest(std::round(1000 * ratio_) / 10), method_);
}

std::vector<std::string> ChannelPanel::figure_settings(PanelContext& context) const {
  ChannelSettings given = settings_, usual;
  given.methods = usual.methods;
  const std::string text = options_text(bound(given), bound(usual));
  return with_pinned(text.empty() ? std::vector<std::string>() : std::vector{"channels" + text},
                     context.state, subtracts_, "less");
}

std::string ChannelPanel::csv(PanelContext&) const {
  const ChannelMatrix& matrix = matrix_;
  if (now_.head == nullptr || matrix.d() == 0) return {};
  std::string name = outputs_ ? "output_interaction" : "interaction";
  if (normalised_) name += "_normalised";
  if (subtracts_) name += "_less_pinned";
  CsvTable table("channel,other_channel," + name);
  for (Index r = 0; r < matrix.d(); ++r)
    for (Index c = 0; c < matrix.d(); ++c) table.row(r, c, matrix.at(r, c));
  return table.text();
}

void ChannelPanel::keep(SessionFields& fields) {
  fields.settings("settings", settings_);
  fields.field("outputs", outputs_);
  fields.field("dim", dim_);
  fields.field("normalised", normalised_);
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
