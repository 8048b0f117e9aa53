#include "data/utf8.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/inspector/inspector_parts.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <imgui.h>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr std::size_t kWordLength = 40;

/// One line of the card over the panel's whole width, drawn part by part.
class CardLine {
 public:
  /// `selects`: it is under a hand that may click.
  CardLine(const std::string& id, bool selects) : list_(ImGui::GetWindowDrawList()) {
    const Theme& t = theme();
    low_ = ImGui::GetCursorScreenPos();
    const float width = std::max(ImGui::GetContentRegionAvail().x, t.px(40));
    const float height = ImGui::GetTextLineHeight() + t.px(3);
    clicked_ = ImGui::InvisibleButton(id.c_str(), {width, height}) && selects;
    hovered_ = ImGui::IsItemHovered();
    high_ = {low_.x + width, low_.y + height};
    if (hovered_ && selects) list_->AddRectFilled(low_, high_, t.raised, t.px(3));
  }
  bool clicked() const { return clicked_; }
  bool hovered() const { return hovered_; }
  float left() const { return low_.x; }
  float right() const { return high_.x; }
  float width() const { return high_.x - low_.x; }

  /// As much of a text as `width` takes; returns what it took.
  float text(float x, const std::string& text, ImU32 color, float width, bool mono = false) const {
    if (mono) ImGui::PushFont(mono_font());
    const std::string shown = elided(text, width);
    const float taken = ImGui::CalcTextSize(shown.c_str()).x;
    list_->AddText({std::floor(x), low_.y + theme().px(1)}, color, shown.c_str());
    if (mono) ImGui::PopFont();
    return taken;
  }
  /// A number whose right end is at x.
  void number(float x, const std::string& text, ImU32 color) const {
    ImGui::PushFont(mono_font());
    list_->AddText({std::floor(x - ImGui::CalcTextSize(text.c_str()).x), low_.y + theme().px(1)}, color,
                   text.c_str());
    ImGui::PopFont();
  }
  /// A trough with a bar in it, from one share of its width to another.
  void bar(float x, float width, double from, double to, ImU32 color) const {
    const float inset = std::floor(theme().px(5));
    const auto at = [&](double share) { return x + width * static_cast<float>(std::clamp(share, 0.0, 1.0)); };
    list_->AddRectFilled({x, low_.y + inset}, {x + width, high_.y - inset}, faded(theme().faint, 0.3F));
    if (from < to)
      list_->AddRectFilled({at(from), low_.y + inset},
                           {std::max(at(to), at(from) + theme().px(1)), high_.y - inset}, color);
  }
  /// A line across at a share of that width.
  void tick(float x, float width, double share, ImU32 color, float thickness = 1) const {
    const float at = std::floor(x + width * static_cast<float>(std::clamp(share, 0.0, 1.0))) + 0.5F;
    list_->AddLine({at, low_.y}, {at, high_.y}, color, theme().px(thickness));
  }

 private:
  ImDrawList* list_;
  ImVec2 low_, high_;
  bool clicked_ = false, hovered_ = false;
};

class CardView {
 public:
  CardView(AppState& state, const TokenCard& card, const std::optional<TokenLabels>& labels)
      : state_(state), card_(card), labels_(labels), number_(mono_width("100.0 %")) {}

  void draw() {
    cost();
    if (!card_.why_no_dump.empty()) {
      gap();
      wrapped_text(fmt::format("Who reads it and what would keep it needs the dump: {}.", card_.why_no_dump),
                   theme().dim);
    }
    if (card_.readings) {
      readers();
      why();
      substitute();
    }
    budgets();
  }

 private:
  static void gap() { ImGui::Dummy({0, theme().px(2)}); }
  /// A heading with a quiet word behind it.
  void section(const char* title, const std::string& aside, std::string_view about) const {
    gap();
    heading(title);
    tip(about);
    if (aside.empty()) return;
    const float room = ImGui::GetWindowPos().x + ImGui::GetWindowContentRegionMax().x -
                       ImGui::GetItemRectMax().x - theme().px(8);
    if (room < theme().px(40)) return;
    ImGui::SameLine(0, theme().px(8));
    elided_text(aside, theme().dim, room);
  }
  std::string word(Index token, std::size_t most = kWordLength) const {
    return token_text(labels_, token, most);
  }
  /// A position with what stands there, and what stands before it as far as there is room.
  void words(const CardLine& line, Index position, float x, float width) const {
    const Theme& t = theme();
    const float digits = mono_width(std::to_string(std::max<Index>(state_.run()->shape().T - 1, 0)));
    line.number(x + digits, std::to_string(position), t.dim);
    const std::string itself = word(position);
    x += digits + t.px(8);
    width -= digits + t.px(8);
    if (itself.empty() || width <= t.px(10)) return;
    std::string before;
    for (Index p = std::max<Index>(position - 3, 0); p < position; ++p) before += word(p, 12);
    ImGui::PushFont(mono_font());
    const float own = ImGui::CalcTextSize(itself.c_str()).x;
    while (!before.empty() && ImGui::CalcTextSize(before.c_str()).x + own > width) {
      std::size_t first = 1;
      while (first < before.size() && continues_character(before[first])) ++first;
      before.erase(0, first);
    }
    ImGui::PopFont();
    const float taken = before.empty() ? 0 : line.text(x, before, t.dim, width, true);
    line.text(x + taken, itself, t.text, width - taken, true);
  }

  void one_cost(const TokenCost& one, const char* id, const char* unit) const {
    const Theme& t = theme();
    const CardLine line(id, false);
    const std::string dearest = word(one.dearest);
    tip(fmt::format("{}: {}\nThe bar is its share of the dearest, token {}{}: {} of {}", name_of(one.metric),
                    kTokenMetrics[one.metric].meaning, one.dearest, dearest.empty() ? "" : " " + dearest,
                    percent_text(one.share()), number_text(one.largest)));
    const std::string rank = fmt::format("rank {} of {}", one.rank, one.of);
    const float rank_width = ImGui::CalcTextSize(rank.c_str()).x;
    const float x =
        line.left() + line.text(line.left(), number_text(one.value), t.text, line.width(), true) + t.px(6);
    line.text(x, unit, t.dim, line.right() - rank_width - t.px(8) - x);
    line.text(line.right() - rank_width, rank, t.dim, rank_width + 1);
    CardLine(std::string(id) + "bar", false).bar(line.left(), line.width(), 0, one.share(), t.series[1]);
  }

  void cost() const {
    section("Removing it alone costs", card_.whose,
            "Exactly: the rest is renormalised. Rank 1 is the dearest.");
    if (card_.cost)
      one_cost(*card_.cost, "cost", "squared output");
    else if (card_.pending)
      dim_text("being computed");
    else
      dim_text("not known: no exact_remove here");
    if (card_.nats) one_cost(*card_.nats, "nats", "nats, predicted");
  }

  void readers() const {
    const Theme& t = theme();
    const TokenReadings& readings = *card_.readings;
    const Index seeing = std::ssize(readings.rows);
    section("Read most by",
            seeing < readings.window ? fmt::format("{} of {} queries see it", seeing, readings.window)
                                     : std::string(),
            "The queries of the window that give it the largest weight, the mean over the query heads; bars "
            "beside the "
            "first. A click "
            "selects one.");
    if (seeing == 0) return dim_text("No query of the window sees it.");
    const std::vector<TokenReading> largest = readings.largest(&TokenReading::weight, TokenCard::kReaders);
    for (const TokenReading& reading : largest) {
      const CardLine line(fmt::format("reader{}", reading.row), true);
      if (state_.selection().row == reading.row) line.tick(line.left(), line.width(), 0, t.accent, 2);
      const float bar = std::clamp(line.width() * 0.22F, t.px(36), t.px(160));
      const float bar_at = line.right() - number_ - t.px(6) - bar;
      words(line, reading.row, line.left() + t.px(4), bar_at - line.left() - t.px(10));
      line.bar(bar_at, bar, 0, reading.weight / largest.front().weight, t.series[0]);
      line.number(line.right(), number_text(reading.weight), t.text);
      tip(fmt::format("Query {}: weight {}, and {} of its cost", reading.row, number_text(reading.weight),
                      number_text(reading.cost)));
      if (line.clicked()) state_.select_cell(reading.row, card_.token);
    }
    const double share = readings.share_of_dearest(TokenCard::kDearest);
    if (!std::isnan(share) && seeing > static_cast<Index>(TokenCard::kDearest))
      wrapped_text(fmt::format("{:.0f} % of its cost is in {} of {} queries", 100 * share,
                               TokenCard::kDearest, seeing),
                   t.dim);
  }

  /// Ratio of a value to the median, as a bar from the middle on a log scale of `decades` to either side.
  void factor(const char* id, const char* name, double value, double median, double decades,
              std::string_view about) const {
    const Theme& t = theme();
    const CardLine line(id, false);
    const double ratio = median > 0 ? value / median : kNone;
    const float names = std::max(ImGui::CalcTextSize("read ").x, ImGui::CalcTextSize("unlike ").x);
    line.text(line.left(), name, t.dim, names);
    const float value_end = line.left() + names + mono_width("8.88e-88");
    line.number(value_end, std::isinf(value) ? "all" : number_text(value), t.text);
    const std::string times = std::isfinite(ratio) ? number_text(ratio) + " x median" : "no median";
    const float times_at = line.right() - mono_width("8.88e88 x median");
    const float bar_at = value_end + t.px(8), bar = times_at - t.px(6) - bar_at;
    line.number(line.right(), times, t.dim);
    if (bar > t.px(20)) {
      const double half = std::isnan(ratio) || ratio <= 0
                              ? (ratio == 0 ? -0.5 : 0)
                              : std::clamp(std::log10(ratio) / decades, -1.0, 1.0) / 2;
      line.bar(bar_at, bar, 0.5 + std::min(half, 0.0), 0.5 + std::max(half, 0.0), t.series[0]);
      line.tick(bar_at, bar, 0.5, t.dim);
    }
    tip(about);
  }

  void why() const {
    if (!card_.factors) return;
    const Theme& t = theme();
    const ReadingFactors& f = *card_.factors;
    const bool one_head = state_.run()->shape().group() == 1;
    std::string aside = fmt::format("{}query {}", card_.of_selected_row ? "" : "dearest, ", f.row);
    if (!one_head) aside += fmt::format(", query head {}", f.query_head);
    section(
        "Why", aside,
        "Removing it costs this query (a/(1-a) \xE2\x80\x96v - o\xE2\x80\x96)\xC2\xB2: how much it is read, "
        "times how unlike all that is read its value is. Beside each how many times the median of the "
        "tokens that the query sees that is, as bars on one logarithmic scale.");
    const auto decade = [](double value, double median) {
      const double log = std::log10(value / median);
      return std::isfinite(log) ? log : 0.0;
    };
    const double read = decade(f.odds, f.median_odds), unlike = decade(f.distance, f.median_distance);
    const double decades = std::max({1.0, std::abs(read), std::abs(unlike)});
    factor("read", "read", f.odds, f.median_odds, decades,
           fmt::format("a/(1-a) = {}, of its weight a = {}", number_text(f.odds), number_text(f.weight)));
    factor("unlike", "unlike", f.distance, f.median_distance, decades,
           fmt::format("\xE2\x80\x96v - o\xE2\x80\x96 = {}: its value less the output",
                       number_text(f.distance)));
    if (std::isinf(f.odds)) return wrapped_text("The query reads nothing else.", t.dim);
    wrapped_text(fmt::format("{}costs this query {}{}", verdict(read, unlike), number_text(f.cost),
                             card_.row_is_blind ? "; the selected one does not see it" : ""),
                 t.dim);
  }
  /// The factor that is further from its median, in decades, in words; none where neither is far.
  static std::string_view verdict(double read, double unlike) {
    if (std::max(std::abs(read), std::abs(unlike)) < 0.3) return "It ";
    if (std::abs(read) >= std::abs(unlike)) return read > 0 ? "Much read: " : "Hardly read: ";
    return unlike > 0 ? "Unlike the rest: " : "Like the rest: ";
  }

  void substitute() const {
    const TokenReadings& readings = *card_.readings;
    if (readings.rows.empty()) return;
    const Theme& t = theme();
    section(
        "Nearest substitute", "",
        "The token whose key and value in the place of this one's would change the outputs of these queries "
        "least, exactly, of all prompt tokens that they all see; and that change as a share of what "
        "removing costs. A click selects it.");
    if (!readings.substitute) return dim_text("There is no other token.");
    const Substitute& other = *readings.substitute;
    const CardLine line("substitute", true);
    const double cost = readings.cost();
    const std::string leaves = cost > 0 ? fmt::format("{} of the cost stays", percent_text(other.cost / cost))
                                        : fmt::format("changes {}", number_text(other.cost));
    const float width = ImGui::CalcTextSize(leaves.c_str()).x;
    words(line, other.token, line.left() + t.px(4), line.width() - width - t.px(12));
    line.text(line.right() - width, leaves, t.dim, width + 1);
    tip(fmt::format("With token {} in its place the outputs change by {}, without it by {}", other.token,
                    number_text(other.cost), number_text(cost)));
    if (line.clicked()) state_.select_cell(state_.selection().row, other.token);
  }

  void budgets() const {
    if (card_.policies.empty() && card_.scores.empty()) return;
    const Theme& t = theme();
    const auto l = static_cast<double>(std::max<Index>(card_.prompt, 1));
    const double queue = static_cast<double>(compared_budget(state_, card_.prompt)) / l;
    section(
        "Kept down to a budget of", fmt::format("line: {} now", percent_text(queue)),
        "The least share of the prompt at which it is still kept, by each policy and by each score alone. "
        "Bright: kept at the budget of all panels.");
    float names = ImGui::CalcTextSize("scores alone").x;
    for (const KeptDownTo& one : card_.policies)
      names = std::max(names, ImGui::CalcTextSize(one.name.c_str()).x);
    const KeptDownTo* exact = !card_.policies.empty() && card_.policies.front().name == "exact order"
                                  ? &card_.policies.front()
                                  : nullptr;
    const auto marks = [&](const CardLine& line, float x, float width) {
      if (exact != nullptr && exact->least)
        line.tick(x, width, static_cast<double>(*exact->least) / l, t.text);
      line.tick(x, width, queue, t.accent, 1.5F);
    };
    const auto bar_of = [&](const CardLine& line) {
      const float name_width = std::min(names, line.width() * 0.42F);
      const float x = line.left() + name_width + t.px(8);
      return std::pair(x, std::max(line.right() - number_ - t.px(8) - x, t.px(20)));
    };
    for (const KeptDownTo& one : card_.policies) {
      const CardLine line("policy " + one.name, false);
      const auto [x, width] = bar_of(line);
      line.text(line.left(), one.name, &one == exact ? t.text : t.dim, x - t.px(8) - line.left() + 1);
      const double least = one.least ? static_cast<double>(*one.least) / l : 1;
      line.bar(x, width, least, 1, faded(t.series[2], queue >= least ? 1 : 0.35F));
      marks(line, x, width);
      line.number(line.right(), one.pending ? "\xE2\x80\xA6" : one.least ? percent_text(least) : "-", t.text);
      tip(fmt::format("{}\n{}", one.about,
                      one.least
                          ? fmt::format("Kept down to {} of {} tokens, gone below", *one.least, card_.prompt)
                      : one.pending     ? "being computed"
                      : one.why.empty() ? "Not kept at any budget"
                                        : one.why));
    }
    if (card_.scores.empty()) return;
    const CardLine line("scores", false);
    const auto [x, width] = bar_of(line);
    line.text(line.left(), "scores alone", t.dim, x - t.px(8) - line.left() + 1);
    line.bar(x, width, 0, 0, t.text);
    std::string list = "Each score alone keeps it down to";
    for (const KeptDownTo& one : card_.scores) {
      const double least = static_cast<double>(*one.least) / l;
      line.tick(x, width, least, t.series[2], 1.5F);
      list += fmt::format("\n{}: {}", one.name, percent_text(least));
    }
    marks(line, x, width);
    tip(list);
  }

  AppState& state_;
  const TokenCard& card_;
  const std::optional<TokenLabels>& labels_;
  float number_;
};

}  // namespace

void draw_token_card(AppState& state, const TokenCard& card, const std::optional<TokenLabels>& labels) {
  if (card.token) CardView(state, card, labels).draw();
}

}  // namespace kvreplay::viewer
