#include "viewer/panels/what_if/what_if_controls.hpp"

#include "analysis/results/csv.hpp"
#include "analysis/results/kept_text.hpp"
#include "data/error.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/actions.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/panels/metric_controls.hpp"
#include "viewer/panels/policy_controls.hpp"
#include "viewer/questions/head_figures.hpp"
#include "viewer/questions/named_choices.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace kvreplay::viewer {

namespace {

bool searches(const std::string& base) {
  const auto known = kBases.named(base);
  return known && kBases[*known].searches.has_value();
}

bool base_is_score(const std::string& base) {
  const auto known = kBases.named(base);
  return known && kBases[*known].alone;
}

bool base_takes_score(const std::string& base) {
  const auto known = kBases.named(base);
  return known && (kBases[*known].takes_score || kBases[*known].alone);
}

/// The rows of a table of choices under the settings A and B, in an ImGui table of three columns: each draws
/// its label and a control for every setting. A run must be open.
class Rows {
 public:
  explicit Rows(AppState& state)
      : run_(*state.run()),
        scores_(state.scores),
        settings_{&state.setting_a, &state.setting_b},
        as_counted_(state.settings()),
        own_{own_rule(as_counted_[0], run_, scores_), own_rule(as_counted_[1], run_, scores_)} {}

  /// Their names; a click chooses the one that is `shown` elsewhere: B?
  void header(bool& shown) const {
    ImGui::TableNextRow();
    for (std::size_t s = 0; s < 2; ++s) {
      ImGui::TableSetColumnIndex(static_cast<int>(s) + 1);
      const float side = ImGui::GetTextLineHeight() * 0.7F;
      const ImVec2 at = ImGui::GetCursorScreenPos();
      const float top = at.y + (ImGui::GetTextLineHeight() - side) / 2;
      ImGui::GetWindowDrawList()->AddRectFilled({at.x, top}, {at.x + side, top + side}, setting_colors()[s],
                                                theme().px(2));
      ImGui::PushID(static_cast<int>(s));
      const float width = ImGui::GetContentRegionAvail().x;
      if (ImGui::InvisibleButton("shown", {width, ImGui::GetTextLineHeight()})) shown = s == 1;
      tip("Click: the token map shows what this setting keeps. Held, X flips to the other.");
      ImGui::PopID();
      ImDrawList* list = ImGui::GetWindowDrawList();
      const float x = at.x + side + theme().px(6);
      const char* name = s == 0 ? "A" : "B";
      ImGui::PushFont(bold_font());
      list->AddText({x, at.y}, theme().text, name);
      const float from = x + ImGui::CalcTextSize(name).x + theme().px(7);
      ImGui::PopFont();
      if (shown != (s == 1)) continue;
      const auto fits = [&](const char* text) { return from + ImGui::CalcTextSize(text).x <= at.x + width; };
      if (const char* text = fits("in token map") ? "in token map" : "shown"; fits(text))
        list->AddText({from, at.y}, theme().dim, text);
    }
  }

  void policy() {
    row(
        "Policy", "Gives window, pooling, pins and what ranks the tokens",
        [&](WhatIfSettings& s, std::size_t) {
          const std::vector<Choice> choices = base_choices();
          const auto chosen = combo("##policy", s.base, choices);
          if (!chosen) return;
          s.base = choices[*chosen].name;
          if (!base_takes_score(s.base) || kBases.named(s.score)) s.score.clear();
          if (base_is_score(s.base) && s.score.empty())
            s.score = scores_.empty() ? std::string(name_of(TokenMetric::attn)) : scores_.front().name;
        },
        [](const WhatIfSettings& s) {
          const auto base = kBases.named(s.base);
          return base ? about(choice_of(*base)) : std::string();
        });
  }

  void score() {
    const auto there = [&](TokenMetric metric) {
      return run_.dump() != nullptr && !why_unavailable(metric, *run_.dump());
    };
    row(
        "Score", "Replaces the policy's attention sum. A .npy file dropped on the window adds one of yours.",
        [&](WhatIfSettings& s, std::size_t) {
          std::vector<Choice> choices;
          if (!base_is_score(s.base))
            choices.push_back({.name = "default", .plain = "what the policy ranks by"});
          for (const TokenMetric metric : kTokenMetrics.all()) {
            Choice choice = choice_of(metric);
            choice.enabled = there(metric);
            if (!choice.enabled) choice.tip = "This dump lacks what it needs";
            choices.push_back(std::move(choice));
          }
          for (const UserScore& score : scores_)
            choices.push_back({.name = score.name, .tip = score.file.string(), .group = "Yours"});
          if (s.base == name_of(EvictionBase::exchange))
            for (const EvictionBase base : kBases.all())
              if (!kBases[base].searches && !kBases[base].alone && !kBases[base].reads) {
                Choice choice = choice_of(base);
                choice.group = "Starts from what a policy keeps";
                choices.push_back(std::move(choice));
              }
          ImGui::BeginDisabled(!base_takes_score(s.base));
          const auto chosen = combo("##score", s.score.empty() ? "default" : s.score, choices);
          ImGui::EndDisabled();
          if (!chosen) return;
          s.score = *chosen == 0 && !base_is_score(s.base) ? std::string() : choices[*chosen].name;
        },
        [](const WhatIfSettings& s) {
          const auto metric = kTokenMetrics.named(s.score);
          return metric ? about(choice_of(*metric)) : std::string();
        });
  }

  void semantics() {
    row(evict_option::semantics,
        [](WhatIfSettings& s, std::size_t) { combo("##semantics", kSemantics, s.semantics); });
  }

  void compensation() {
    row("Compensate", "How the tokens that are kept make up for the evicted ones (--compensate)",
        [](WhatIfSettings& s, std::size_t) { combo("##compensation", kCompensations, s.compensation); });
  }

  void bits() {
    std::vector<Choice> choices = {{.name = "as it is"}};
    for (const bool keys_only : {true, false})
      for (const NumberFormatFacts& format : kNumberFormats)
        if (format.id != NumberFormat::exact)
          choices.push_back(
              {.name = keys_only ? fmt::format("k{}v16", format.name) : std::string(format.name),
               .plain = std::string(format.meaning),
               .group = keys_only ? "Keys only" : "Keys and values"});
    row(evict_option::bits, [&](WhatIfSettings& s, std::size_t) {
      const auto chosen = combo("##bits", s.bits ? s.bits->name : choices.front().name, choices);
      if (!chosen) return;
      s.bits.reset();
      if (*chosen > 0) s.bits = OptionValue<CacheFormat>::parse(evict_option::bits, choices[*chosen].name);
    });
    if (!settings_[0]->bits && !settings_[1]->bits) return;
    stored_by(evict_option::rotate, &WhatIfSettings::rotate, {"none", "hadamard", "k", "v"});
    stored_by(evict_option::center, &WhatIfSettings::center, {"none", "k", "k:4"});
  }

  void budget() {
    const bool tokens = !settings_[0]->sigma_budget;
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    if (ImGui::Button(tokens ? "Kept" : "Kept %", {-FLT_MIN, 0}))
      for (WhatIfSettings* s : settings_)
        if (s->sigma_budget != tokens) count_otherwise(*s, run_.shape().l, s->semantics);
    tip(tokens ? "Tokens that a KV head keeps. Click to give a share of the prompt."
               : "Share of the prompt that a KV head keeps. Click to give tokens.");
    controls([&](WhatIfSettings& s, std::size_t) {
      ImGui::SetNextItemWidth(-link_width());
      ImGui::PushFont(mono_font());
      edit_kept(s, run_.shape().l);
      ImGui::PopFont();
      ImGui::SameLine(0, 0);
      link_toggle(s.linked);
    });
  }

  void painted() {
    if (settings_[0]->painted.empty() && settings_[1]->painted.empty()) return;
    row("By hand",
        "Tokens that are kept or evicted by hand, whatever the policy says. Click to leave all to it.",
        [](WhatIfSettings& s, std::size_t) {
          if (s.painted.empty()) return dim_text("nothing");
          std::string text;
          try {
            const KeptPaint paint = KeptPaint::of_text(s.painted);
            for (const PaintMarkFacts& mark : kPaintMarks)
              if (const Index count = paint.count(mark.id); count > 0)
                text += fmt::format("{}{} {}", text.empty() ? "" : ", ", mark.does, count);
          } catch (const InputError&) {
            text = "not understood";
          }
          const std::string shown =
              elided(text, ImGui::GetContentRegionAvail().x - 2 * ImGui::GetStyle().FramePadding.x);
          const std::string tip_text =
              fmt::format("{}\nClick to leave all to the policy.", visible_text(s.painted, 300));
          if (small_button((shown + "###painted").c_str())) s.painted.clear();
          tip(tip_text);
        });
  }

  void window() {
    row(evict_option::window, [&](WhatIfSettings& s, std::size_t i) {
      const bool from_menu = !s.window && as_counted_[i].window;
      const std::string own = own_[i] ? fmt::format("{}: {}", from_menu ? "menu bar" : "default",
                                                    from_menu ? *as_counted_[i].window : own_[i]->window)
                                      : "default";
      edit_optional(evict_option::window, s.window, own, run_.shape().l);
    });
  }

  void pooling() {
    row(evict_option::pool, [&](WhatIfSettings& s, std::size_t i) {
      edit_pooling(s.pool, own_[i] ? fmt::format("default: {}", OptionValue<Pooling>::text(own_[i]->pool))
                                   : "default");
    });
  }

  void sinks() { number(evict_option::sinks, &WhatIfSettings::sinks, &EvictionRule::sinks); }

  void recent() { number(evict_option::recent, &WhatIfSettings::recent, &EvictionRule::recent); }

  void blocks() {
    row("Blocks",
        "The prompt in blocks of so many tokens, the cache cut back after each (blockwise). Empty: one shot "
        "after the prompt (prefill).",
        [&](WhatIfSettings& s, std::size_t) {
          std::optional<Index> block = s.block > 0 ? std::optional<Index>(s.block) : std::nullopt;
          static constexpr OptionFacts blocks{.name = "blocks"};
          edit_optional(blocks, block, "at once", run_.shape().l);
          s.block = block.value_or(0);
        });
  }

  void search_rows() {
    row("Search on", evict_option::on.meaning.data(), [&](WhatIfSettings& s, std::size_t) {
      ImGui::BeginDisabled(!searches(s.base));
      if (const auto chosen =
              combo("##on", s.on_future ? "future" : "window", {{.name = "window"}, {.name = "future"}}))
        s.on_future = *chosen == 1;
      ImGui::EndDisabled();
    });
  }

 private:
  /// A way to store what is kept in fewer bits: one of `words`.
  template <class T>
  void stored_by(const OptionFacts& option, T WhatIfSettings::*value,
                 std::initializer_list<const char*> words) {
    std::vector<Choice> choices;
    for (const char* word : words) choices.push_back({.name = word});
    row(option, [&](WhatIfSettings& s, std::size_t) {
      ImGui::BeginDisabled(!s.bits);
      const auto chosen = combo("##stored", OptionValue<T>::text(s.*value), choices);
      ImGui::EndDisabled();
      if (chosen) s.*value = OptionValue<T>::parse(option, choices[*chosen].name);
    });
  }

  void number(const OptionFacts& option, std::optional<Index> PolicySettings::*value,
              Index EvictionRule::*choice) {
    row(option, [&](WhatIfSettings& s, std::size_t i) {
      const std::string own = own_[i] ? fmt::format("default: {}", (*own_[i]).*choice) : "default";
      edit_optional(option, s.*value, own, run_.shape().l);
    });
  }

  template <class Control>
  void row(const OptionFacts& option, Control control) {
    row(title_of(option).c_str(), option.meaning.data(), control);
  }

  /// With a tooltip on each control.
  template <class Control, class Tip>
  void row(const char* name, const char* about, Control control, Tip tip_of) {
    row(name, about, [&](WhatIfSettings& s, std::size_t i) {
      const std::string now = tip_of(s);
      control(s, i);
      tip(now);
    });
  }

  template <class Control>
  void row(const char* name, const char* about, Control control) {
    ImGui::TableNextRow();
    ImGui::TableNextColumn();
    text_beside(name);
    tip(about);
    controls(control);
  }

  template <class Control>
  void controls(Control control) {
    for (std::size_t s = 0; s < 2; ++s) {
      ImGui::TableNextColumn();
      ImGui::PushID(static_cast<int>(s));
      control(*settings_[s], s);
      ImGui::PopID();
    }
  }

  const Run& run_;
  const std::vector<UserScore>& scores_;
  std::array<WhatIfSettings*, 2> settings_;
  std::array<WhatIfSettings, 2> as_counted_;
  std::array<std::optional<EvictionRule>, 2> own_;
};

}  // namespace

std::array<ImU32, 2> setting_colors() { return {theme().series[0], theme().series[1]}; }

std::string summary_of(const WhatIfSettings& s) {
  std::string text = fmt::format("{}, {}", s.policy(),
                                 kept_text(s.sigma_budget ? shortest(s.sigma) : fmt::format("{}", s.budget)));
  if (s.compensation != Compensation::none) text += fmt::format(", {}", name_of(s.compensation));
  if (s.bits) text += ", " + s.bits->name;
  if (s.bits && s.rotate != Rotation()) text += ", rotate " + s.rotate.name;
  if (s.bits && s.center != Centering()) text += ", center " + s.center.name;
  if (s.semantics != Semantics::paper) text += fmt::format(", {}", name_of(s.semantics));
  if (s.window) text += fmt::format(", window {}", *s.window);
  if (s.pool) text += fmt::format(", pool {}", OptionValue<Pooling>::text(*s.pool));
  if (s.sinks) text += fmt::format(", sinks {}", *s.sinks);
  if (s.recent) text += fmt::format(", recent {}", *s.recent);
  if (!s.painted.empty()) text += ", by hand: " + s.painted;
  if (s.block > 0) text += fmt::format(", blockwise:{}", s.block);
  if (s.on_future && searches(s.base)) text += ", on future";
  return text;
}

void edit_settings(AppState& state, bool more) {
  const LinkedBudget a(state.budget, state.setting_a, state.setting_a.linked);
  const LinkedBudget b(state.budget, state.setting_b, state.setting_b.linked);
  const float spacing = theme().px(3);
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, {theme().px(3), spacing / 2});
  ImGui::PushStyleVar(ImGuiStyleVar_FramePadding, {theme().px(6), theme().px(2.5F)});
  if (ImGui::BeginTable("settings", 3)) {
    const float names = std::max(ImGui::CalcTextSize("Compensate").x, ImGui::CalcTextSize("Search on").x);
    ImGui::TableSetupColumn("choice", ImGuiTableColumnFlags_WidthFixed, std::max(names, theme().px(66)));
    ImGui::TableSetupColumn("A", ImGuiTableColumnFlags_WidthStretch, 1);
    ImGui::TableSetupColumn("B", ImGuiTableColumnFlags_WidthStretch, 1);
    Rows rows(state);
    rows.header(state.show_b);
    rows.policy();
    rows.score();
    rows.semantics();
    rows.budget();
    rows.compensation();
    rows.bits();
    rows.painted();
    if (more) {
      rows.window();
      rows.pooling();
      rows.sinks();
      rows.recent();
      rows.blocks();
      rows.search_rows();
    }
    ImGui::EndTable();
  }
  ImGui::PopStyleVar(2);
}

void draw_kept_brush(AppState& state) {
  const Selection& s = state.selection();
  const bool chosen = !s.tokens.empty() || s.token;
  const std::string which = !s.tokens.empty() ? fmt::format("{}:", counted(std::ssize(s.tokens), "token"))
                            : s.token         ? fmt::format("Token {}:", *s.token)
                                              : "Tokens:";
  // As wide with any token as with none, so that what is below stands still.
  const std::string longest = fmt::format("Token {}:", state.run()->shape().T);
  const float width = ImGui::CalcTextSize(which.c_str()).x, widest = ImGui::CalcTextSize(longest.c_str()).x;
  dim_text(which);
  ImGui::SameLine(0, 0);
  ImGui::Dummy({std::max(0.0F, widest - width), 0});
  ImGui::BeginDisabled(!chosen);
  const auto button = [&](ActionId id, const char* label, std::optional<PaintMark> mark) {
    flow(small_button_width(label));
    if (small_button(label)) state.paint(mark);
    tip(fmt::format("{} ({})", mark ? kPaintMarks[*mark].meaning : "The policy decides again",
                    action(id).shortcut.text()));
  };
  button(ActionId::keep_tokens, "Keep", PaintMark::keep);
  button(ActionId::pin_tokens, "Pin", PaintMark::pin);
  button(ActionId::evict_tokens, "Evict", PaintMark::evict);
  button(ActionId::leave_tokens, "Leave", std::nullopt);
  ImGui::EndDisabled();
  flow(check_width("this head only"));
  ImGui::PushStyleVar(ImGuiStyleVar_FramePadding, {theme().px(3), theme().px(0.5F)});
  ImGui::Checkbox("this head only", &state.paint_here);
  ImGui::PopStyleVar();
  if (state.setting_a.painted.empty() && state.setting_b.painted.empty()) return;
  flow(small_button_width("Save kept set"));
  if (small_button("Save kept set")) state.wanted = ActionId::save_kept_set;
  tip("Writes what the setting in view keeps of all heads as .npy, and copies the command that measures it");
}

}  // namespace kvreplay::viewer
