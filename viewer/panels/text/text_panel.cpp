#include "data/console.hpp"
#include "data/utf8.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/model/value_scale.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/panel.hpp"
#include "viewer/panels/pinned_run.hpp"
#include "viewer/panels/text/text_view.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/command_text.hpp"
#include "viewer/questions/csv_table.hpp"
#include "viewer/questions/token_tint.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <imgui_stdlib.h>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// Matches of a text in the run's tokens; the answer of a job.
struct TextMatches {
  std::vector<TextMatch> all;
};

/// Finds tokens by what they say: what is typed is looked for in the background, and the match that is gone
/// to becomes the tokens chosen and, its first one, the token selected.
class FindBar {
 public:
  /// Opens it, or gives it the keyboard again.
  void open();
  /// False where it was closed already.
  bool close();
  bool is_open() const { return open_; }
  /// One line high, on the current line. Nothing while closed.
  void draw(PanelContext& context);
  std::span<const TextMatch> matches() const;

 private:
  void go(AppState& state, bool forward, bool from_here);
  std::string place(const AppState& state) const;

  bool open_ = false, focus_ = false;
  bool wanted_ = false;  // the first match behind `from_` is to be gone to once it is known
  Index from_ = 0;       // where the search began
  std::string typed_;
  Answer<TextMatches> found_;
};

std::size_t bytes_of(const TextMatches& matches) { return bytes_with(matches, matches.all); }

void FindBar::open() { open_ = focus_ = true; }

bool FindBar::close() {
  found_ = {};
  wanted_ = false;
  return std::exchange(open_, false);
}

std::span<const TextMatch> FindBar::matches() const {
  return found_ ? std::span<const TextMatch>(found_->all) : std::span<const TextMatch>();
}

/// To the next match, or the one before; from the token that is selected, or, while one types, from where
/// one was.
void FindBar::go(AppState& state, bool forward, bool from_here) {
  if (matches().empty()) return;
  const Index from = from_here ? state.selection().token.value_or(-1) : from_ - 1;
  const TextMatch& match = matches()[next_match(matches(), from, forward)];
  Selection next = state.selection();
  next.token = match.first;
  next.tokens.resize(static_cast<std::size_t>(match.last - match.first + 1));
  std::iota(next.tokens.begin(), next.tokens.end(), match.first);
  state.select(std::move(next), from_here ? "" : "find");
}

std::string FindBar::place(const AppState& state) const {
  if (typed_.empty()) return "";
  if (!found_ || found_.stale) return "...";
  if (matches().empty()) return "not found";
  const std::optional<Index> token = state.selection().token;
  const auto at = std::find_if(matches().begin(), matches().end(),
                               [&](const TextMatch& match) { return match.first == token; });
  if (at == matches().end()) return fmt::format("{} found", matches().size());
  return fmt::format("{} of {}", at - matches().begin() + 1, matches().size());
}

void FindBar::draw(PanelContext& context) {
  if (!open_) return;
  AppState& state = context.state;
  const Theme& t = theme();
  if (std::exchange(focus_, false)) {
    ImGui::SetKeyboardFocusHere();
    from_ = state.selection().token.value_or(0);
  }
  const float rest = ImGui::CalcTextSize("8888 of 8888").x + 3 * ImGui::GetFrameHeight() + t.px(34);
  ImGui::SetNextItemWidth(std::clamp(ImGui::GetContentRegionAvail().x - rest, t.px(60), t.px(260)));
  const bool enter =
      ImGui::InputTextWithHint("##find", "Find in the text", &typed_, ImGuiInputTextFlags_EnterReturnsTrue);
  const bool escape = ImGui::IsKeyPressed(ImGui::GetKeyIndex(ImGuiKey_Escape)) &&
                      (ImGui::IsItemActive() || ImGui::IsItemDeactivated());
  if (ImGui::IsItemEdited()) wanted_ = !typed_.empty();
  if (enter) focus_ = true;
  if (escape) {
    close();
    return;
  }
  found_ = {};
  if (!typed_.empty()) {
    const std::shared_ptr<const Run>& run = state.run();
    found_ = context.queue.ask<TextMatches>(
        {.key = {run->key(), "find", typed_},
         .title = "Finding " + typed_,
         .urgency = Urgency::now,
         .slot = {run->key(), "find"},
         .fills = true},
        [run, typed = typed_](JobControl&) {
          return TextMatches{find_in_tokens(reading_texts(run->labels(), run->shape().T), typed)};
        });
  }
  if (wanted_ && found_ && !found_.stale) {
    wanted_ = false;
    go(state, true, false);
  }
  ImGui::SameLine();
  if (ImGui::ArrowButton("previous", ImGuiDir_Up)) go(state, false, true);
  tip("The match before (Shift+Enter)");
  ImGui::SameLine(0, t.px(2));
  if (ImGui::ArrowButton("next", ImGuiDir_Down)) go(state, true, true);
  tip("The next match (Enter)");
  if (enter) go(state, !ImGui::GetIO().KeyShift, true);
  ImGui::SameLine();
  text_beside(place(state));
  ImGui::SameLine(ImGui::GetContentRegionMax().x - ImGui::GetFrameHeight());
  if (ImGui::Button("x", {ImGui::GetFrameHeight(), 0})) close();
  tip("Closes the search (Escape)");
}

/// Legend of the text's colours and marks.
struct TextLegend {
  TokenMetric metric = TokenMetric::exact_remove;
  const ValueScale* scale = nullptr;  ///< of the tint; null: not known
  bool by_rank = false;
  std::string less;  ///< name of the run that is subtracted; empty: none
  Index l = 0;
  Index heads = 0;            ///< whose kept sets are shown; 0: none is known
  std::optional<Index> kept;  ///< tokens of the prompt, where it is one head's set
  char setting = 'A';
  bool marked = false;  ///< whether it is of a question
};

/// The question of a run's dump; null where it is of none, or gone.
const QuestionFacts* question_of(const Run& run) {
  return run.dump() != nullptr && run.dump()->question() ? &*run.dump()->question() : nullptr;
}

/// The bar's ends and what it means.
struct BarText {
  std::string low, high, meaning;
  bool log = false;
};

BarText bar_text(const TextLegend& legend) {
  const std::string title = title_with_unit(legend.metric);
  const auto number = [](float value) { return number_text(static_cast<double>(value)); };
  const bool log = legend.scale->kind == ScaleKind::log;
  if (!legend.less.empty()) {
    const float most = legend.scale->high;
    const std::string how = log ? "; a logarithmic scale, which begins at the median magnitude" : "";
    if (!legend.by_rank)
      return {number(-most), fmt::format("+{}", number(most)),
              fmt::format("{} less that of {}: the one colour where it is larger here, the other where it "
                          "is smaller{}",
                          title, legend.less, how),
              log};
    return {fmt::format("down {:.0f}", most), fmt::format("up {:.0f}", most),
            fmt::format("Places by {} among the prompt's tokens that a token is further up, or down, than in "
                        "{}{}",
                        name_of(legend.metric), legend.less, how),
            log};
  }
  if (legend.by_rank)
    return {fmt::format("rank {}", legend.l), "1",
            fmt::format("{}: by rank among the prompt's tokens", title)};
  return {number(legend.scale->low), number(legend.scale->high),
          fmt::format("{}: the stronger the colour, the larger{}", title,
                      log ? "; a logarithmic scale, which begins at the median of the tokens" : ""),
          log};
}

void draw_bar(const TextLegend& legend) {
  const Theme& t = theme();
  const BarText text = bar_text(legend);
  mono_text(text.low);
  ImGui::SameLine(0, t.px(5));
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float width = std::floor(t.px(90)), height = ImGui::GetTextLineHeight();
  constexpr int kCells = 32, kLast = kCells - 1;
  for (int i = 0; i < kCells; ++i)
    ImGui::GetWindowDrawList()->AddRectFilled(
        {at.x + width * static_cast<float>(i) / kCells, at.y + 1},
        {at.x + width * static_cast<float>(i + 1) / kCells, at.y + height - 1},
        tint_color(legend.less.empty() ? i * 255 / kLast : (2 * i - kLast) * 255 / kLast));
  ImGui::GetWindowDrawList()->AddRect({at.x, at.y + 1}, {at.x + width, at.y + height - 1}, t.border);
  ImGui::Dummy({width, height});
  tip(text.meaning);
  ImGui::SameLine(0, t.px(5));
  mono_text(text.high);
  if (text.log) {
    ImGui::SameLine(0, t.px(5));
    dim_text("log");
  }
}

/// A line across or over words.
struct Stroke {
  float top, thick;  ///< pixels
  ImU32 color;
};

/// A word as such tokens look, and what that means.
void draw_sign(const char* word, ImU32 ink, const Stroke& stroke, const std::string& meaning) {
  const Theme& t = theme();
  flow(ImGui::CalcTextSize(word).x + ImGui::CalcTextSize(meaning.c_str()).x + t.px(20));
  const ImVec2 at = ImGui::GetCursorScreenPos();
  ImGui::PushStyleColor(ImGuiCol_Text, ink);
  ImGui::TextUnformatted(word);
  ImGui::PopStyleColor();
  const float top = at.y + stroke.top;
  ImGui::GetWindowDrawList()->AddRectFilled({at.x, top}, {ImGui::GetItemRectMax().x, top + stroke.thick},
                                            stroke.color);
  ImGui::SameLine(0, t.px(5));
  dim_text(elided(meaning, ImGui::GetContentRegionAvail().x));
}

void draw_evicted(const TextLegend& legend) {
  const Theme& t = theme();
  const std::string meaning =
      legend.heads > 1 ? fmt::format("by {}, the fainter the more of {} heads", legend.setting, legend.heads)
      : legend.kept    ? fmt::format("by {}: {} of {} stay", legend.setting, *legend.kept, legend.l)
                       : fmt::format("by {}", legend.setting);
  const float middle = std::floor(ImGui::GetTextLineHeight() * 0.56F);
  draw_sign("evicted", t.dim, {middle, std::max(t.px(1), 1.0F), t.dim}, meaning);
}

void draw_marked() {
  const Theme& t = theme();
  draw_sign("needle", t.text, {0, t.px(2.4F), mark_color()}, "what is asked for, and the answer");
}

/// A line of it, or more where it is narrow.
void draw_legend(const TextLegend& legend) {
  if (legend.scale == nullptr)
    ImGui::Dummy({0, ImGui::GetTextLineHeight()});
  else
    draw_bar(legend);
  if (legend.marked) draw_marked();
  if (legend.heads > 0) draw_evicted(legend);
}

constexpr std::array<std::string_view, 2> kBy = {"value", "rank"};

/// The prompt as it is read: what each token costs, and which are lost.
class TextPanel final : public Panel {
 public:
  void draw(PanelContext& context) override;
  void find() override { find_.open(); }
  bool take_escape() override { return find_.close(); }
  bool shows_all_heads() const override { return scope_ == TextScope::all; }
  std::string figure_title(PanelContext&) const override {
    const std::string title = fmt::format("Text, {} by {}, {}", name_of(metric_), kBy[by_],
                                          scope_ == TextScope::head    ? "one head"
                                          : scope_ == TextScope::layer ? "one layer"
                                                                       : "all heads");
    return source_.less().empty() ? title : fmt::format("{}, less {}", title, source_.less());
  }
  std::vector<std::string> figure_settings(PanelContext& context) const override {
    return with_pinned(settings_lines(context.state), context.state, !source_.less().empty(), "less");
  }
  std::string csv(PanelContext& context) const override;
  void keep(SessionFields& fields) override;

 private:
  void draw_controls(AppState& state, const MetricSet& available);
  void go_to_needle(AppState& state, const QuestionFacts& question);
  void follow(const Selection& selected);
  void react(AppState& state, const TextHit& hit);
  void tooltip(const AppState& state, Index token) const;
  /// The tint where it is of this prompt.
  const TokenTint* tint(const Run& run) const {
    const TokenTint* tint = source_.tint();
    return tint != nullptr && std::ssize(tint->values) == run.shape().l ? tint : nullptr;
  }

  TokenMetric metric_ = TokenMetric::exact_remove;
  std::size_t by_ = 0;  // of kBy
  TextScope scope_ = TextScope::head;
  TextLines lines_;
  TextSource source_;
  TextView view_, figure_view_;
  std::optional<Index> figure_top_;  // of view_, as the figure began
  FindBar find_;
  std::optional<Index> followed_token_, followed_row_;
  std::vector<Index> followed_tokens_;
  std::vector<QuestionFacts::Span> marked_;
  Key followed_run_;
};

void TextPanel::draw(PanelContext& context) {
  AppState& state = context.state;
  const std::shared_ptr<const Run>& run = state.run();
  const MetricSet available = available_metrics(*run);
  if (!available.empty() && !available.contains(metric_))
    for (const TokenMetric metric : kTokenMetrics.all())
      if (available.contains(metric)) metric_ = metric;
  {
    const HiddenDraw controls(context.figure);
    draw_controls(state, available);
  }
  source_.ask(context, available.contains(metric_) ? std::optional(metric_) : std::nullopt, scope_, by_ == 1);
  state.links.unfinished |= source_.unfinished();
  if (source_.pending()) {
    if (source_.progress() < 1) {
      ImGui::SameLine();
      text_beside(fmt::format("{:.0f} %", 100 * source_.progress()));
      tip("Heads that have come in");
    }
    busy_mark();
  }
  if (!source_.error().empty()) error_line(source_.error());
  if (!context.figure) find_.draw(context);
  const StaleOverlay veil(context.veiled);
  const TokenTint* tint = this->tint(*run);
  TextLegend legend;
  legend.metric = metric_;
  legend.scale = tint != nullptr ? &tint->scale : nullptr;
  legend.by_rank = by_ == 1;
  if (tint != nullptr && tint->is_difference) legend.less = source_.less();
  legend.l = run->shape().l;
  legend.heads = source_.heads();
  legend.kept = source_.kept_tokens();
  legend.setting = state.shows_b() ? 'B' : 'A';
  marked_.clear();
  if (const QuestionFacts* question = question_of(*run)) {
    marked_ = question->needles;
    marked_.push_back(question->answered);
  }
  legend.marked = !marked_.empty();
  draw_legend(legend);

  ImGui::Dummy({0, theme().px(1)});
  const ImVec2 room = ImGui::GetContentRegionAvail();
  // A figure has lines of its own, which begin with the same token.
  if (context.figure &&
      (figure_view_.top() == std::nullopt || std::exchange(figure_top_, view_.top()) != view_.top()))
    figure_view_.begin_at(figure_top_ = view_.top());
  TextView& view = context.figure ? figure_view_ : view_;
  const Answer<TextLayout> layout = lines_.ask(context, TextView::line_width(room, !context.figure));
  if (!layout)
    return layout.error.empty() ? hint("Breaking the text into lines ...") : error_line(layout.error);
  const Selection& selected = state.selection();
  if (std::exchange(followed_run_, run->key()) != run->key()) followed_token_ = followed_row_ = std::nullopt;
  if (!context.figure) follow(selected);
  TextViewContent content;
  content.layout = layout.value;
  content.l = run->shape().l;
  content.tint = tint;
  content.by_rank = by_ == 1;
  if (source_.heads() > 0) content.evicted = [this](Index token) { return source_.evicted(token); };
  content.selected = selected.token;
  content.row = selected.row;
  content.hovered = state.hover.token;
  content.chosen = selected.tokens;
  content.matches = find_.matches();
  content.marked = marked_;
  content.scrolls = !context.figure;
  const TextHit hit = view.draw("text", room, content);
  state.links.unfinished |= view.moves();
  if (!context.figure) react(state, hit);
}

void TextPanel::draw_controls(AppState& state, const MetricSet& available) {
  const auto room_for = [](std::span<const std::string_view> names) {
    float width = 0;
    for (const std::string_view name : names)
      width += ImGui::CalcTextSize(name.data(), name.data() + name.size()).x +
               2 * ImGui::GetStyle().FramePadding.x + theme().px(1);
    flow(width);
  };
  choose_metric("##metric", *state.run(), available, metric_, combo_width("expected_attention"));
  room_for(kBy);
  segments("by", kBy, by_);
  std::array<std::string_view, kTextScopes.size()> scopes;
  for (const TextScopeFacts& one : kTextScopes) scopes[static_cast<std::size_t>(one.id)] = one.name;
  room_for(scopes);
  auto scope = static_cast<std::size_t>(scope_);
  if (segments("scope", scopes, scope)) scope_ = kTextScopes.all()[scope];
  if (state.run()->dump() != nullptr) {
    flow(settings_width());
    choose_setting(state);
  }
  choose_difference(state);
  flow(ImGui::CalcTextSize("Find").x + 2 * ImGui::GetStyle().FramePadding.x);
  if (ImGui::Button("Find")) find();
  tip("Finds tokens by what they say (Ctrl+F)");
  const QuestionFacts* question = question_of(*state.run());
  if (question == nullptr || question->needles.empty()) return;
  flow(ImGui::CalcTextSize("Needle").x + 2 * ImGui::GetStyle().FramePadding.x);
  if (ImGui::Button("Needle")) go_to_needle(state, *question);
  tip(fmt::format("To the next of what is asked for: {}", displayable(question->text, 200)));
}

/// The first one behind the tokens chosen, or the first of all.
void TextPanel::go_to_needle(AppState& state, const QuestionFacts& question) {
  const std::vector<Index>& chosen = state.selection().tokens;
  const Index from = chosen.empty() ? 0 : chosen.front() + 1;
  const auto next =
      std::ranges::find_if(question.needles, [&](const auto& span) { return span.begin >= from; });
  const QuestionFacts::Span& needle = next == question.needles.end() ? question.needles.front() : *next;
  std::vector<Index> tokens(needle.end - needle.begin);
  std::iota(tokens.begin(), tokens.end(), needle.begin);
  state.select_tokens(std::move(tokens));
}

/// Where another panel selects a token, a row or tokens of which none is in view, the text goes there.
void TextPanel::follow(const Selection& selected) {
  const bool row = std::exchange(followed_row_, selected.row) != selected.row;
  const bool token = std::exchange(followed_token_, selected.token) != selected.token;
  const bool tokens = std::exchange(followed_tokens_, selected.tokens) != selected.tokens;
  if (token && selected.token)
    view_.show(*selected.token);
  else if (row && selected.row)
    view_.show(*selected.row);
  else if (tokens &&
           std::none_of(selected.tokens.begin(), selected.tokens.end(),
                        [this](Index each) { return view_.in_view(each); }) &&
           !selected.tokens.empty())
    view_.show(selected.tokens.front());
}

void TextPanel::react(AppState& state, const TextHit& hit) {
  if (hit.dragged) {
    std::vector<Index> tokens(hit.dragged->second - hit.dragged->first + 1);
    std::iota(tokens.begin(), tokens.end(), hit.dragged->first);
    state.select_tokens(std::move(tokens));
  }
  if (!hit.token) return;
  const bool is_row = *hit.token >= state.run()->shape().l;
  (is_row ? state.next_hover.row : state.next_hover.token) = hit.token;
  tooltip(state, *hit.token);
  if (!hit.clicked) return;
  const Selection& selected = state.selection();
  state.select_cell(is_row ? hit.token : selected.row, is_row ? selected.token : hit.token);
  followed_row_ = state.selection().row;
  followed_token_ = state.selection().token;
}

void TextPanel::tooltip(const AppState& state, Index token) const {
  const Run& run = *state.run();
  ImGui::BeginTooltip();
  figure(token < run.shape().l ? "token" : "decoding step",
         fmt::format("{}  {}", token, token_text(run.labels(), token, 40)));
  if (const TokenTint* tint = this->tint(run); tint != nullptr && token < run.shape().l) {
    const bool places = tint->is_difference && by_ == 1;
    figure(fmt::format("{}{}{}", name_of(metric_), places ? ", places up" : "",
                       tint->is_difference ? ", less pinned" : "")
               .c_str(),
           number_text(tint->values[token]));
    ImGui::SameLine();
    dim_text(fmt::format("rank {} of {}{}", tint->place[token] + 1, tint->place.size(),
                         tint->is_difference ? " by magnitude" : ""));
  }
  if (token < run.shape().l && source_.heads() > 0) {
    const char setting = state.shows_b() ? 'B' : 'A';
    dim_text(source_.heads() > 1
                 ? fmt::format("{} keeps it in {} of {} heads", setting, source_.kept(token), source_.heads())
                 : fmt::format("{} {} it", setting, source_.kept(token) > 0 ? "keeps" : "evicts"));
  }
  ImGui::EndTooltip();
}

std::string TextPanel::csv(PanelContext& context) const {
  const std::shared_ptr<const Run>& run = context.state.run();
  if (run == nullptr) return {};
  const TokenTint* tint = this->tint(*run);
  if (tint == nullptr && source_.heads() == 0 && !run->labels()) return {};
  const std::vector<std::string> texts = reading_texts(run->labels(), run->shape().T);
  const char* less = tint == nullptr || !tint->is_difference ? "" : by_ == 1 ? "_places_up" : "_less_pinned";
  CsvTable table(fmt::format("token,text,{}{},rank,kept,heads", name_of(metric_), less));
  for (Index p = 0; p < run->shape().l; ++p)
    table.row(p, token_text(run->labels(), p, texts[p].size() * 6),
              tint ? if_any(tint->values[p]) : std::nullopt,
              tint ? std::optional(tint->place[p] + 1) : std::nullopt,
              source_.heads() > 0 ? std::optional(source_.kept(p)) : std::nullopt, source_.heads());
  return table.text();
}

void TextPanel::keep(SessionFields& fields) {
  fields.name("metric", metric_, in_table(kTokenMetrics));
  fields.name("scope", scope_, in_table(kTextScopes));
  std::string by(kBy[by_]);
  fields.field("by", by);
  by_ = by == kBy[1] ? 1 : by == kBy[0] ? 0 : by_;
}

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::text>() {
  return std::make_unique<TextPanel>();
}

}  // namespace kvreplay::viewer
