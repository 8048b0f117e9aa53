#include "viewer/questions/what_if_figures.hpp"

#include "analysis/results/figures.hpp"
#include "viewer/model/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvreplay::viewer {

namespace {

std::string whole(double value) {
  return std::isnan(value) ? number_text(value) : fmt::format("{:.0f}", value);
}

/// The words of a figure that is taken on either rows say which.
WhatIfFigure on_rows(const FigureFacts& facts, RowSet rows, double (*of)(const WhatIf&),
                     std::string (*text)(double)) {
  WhatIfFigure figure{std::string(facts.name),
                      std::string(facts.title),
                      std::string(facts.unit),
                      std::string(facts.what),
                      facts.better,
                      of,
                      text,
                      facts.scale};
  figure.rows = rows;
  if (!facts.rows.window || !facts.rows.future) return figure;
  figure.name += fmt::format("_{}", name_of(rows));
  figure.title += fmt::format(", {}", name_of(rows));
  figure.about += rows == RowSet::window ? ", on the window's queries" : ", on the decoding steps";
  return figure;
}

template <RowSet rows>
const PredictedLoss& loss_on(const WhatIf& answer) {
  return (rows == RowSet::window ? answer.window : answer.future).loss;
}

/// In nats, by the name that tables have for it; `about` says of what.
template <RowSet rows>
WhatIfFigure of_loss(const FigureFacts& facts, double (*of)(const WhatIf&)) {
  WhatIfFigure figure = on_rows(facts, rows, of, number_text);
  figure.title = fmt::format("{}, {}", facts.name, name_of(rows));
  figure.about += fmt::format(" ({}, {})", facts.name, facts.unit);
  figure.loss_on = rows;
  return figure;
}
template <RowSet rows>
WhatIfFigure of_loss_row() {
  return of_loss<rows>(kLossRow, [](const WhatIf& w) { return loss_on<rows>(w).row; });
}
template <RowSet rows>
WhatIfFigure of_loss_head() {
  return of_loss<rows>(kLossHead, [](const WhatIf& w) { return loss_on<rows>(w).head; });
}

template <RowSet rows, double ErrorSplit::*sum>
WhatIfFigure of_split(std::string_view name, std::string_view about) {
  WhatIfFigure figure{
      std::string(name),  std::string(name), std::string(facts_of(EvictionFigure::output_error).unit),
      std::string(about), Better::smaller,   [](const WhatIf& w) { return split_figure(w, rows, sum); },
      number_text};
  figure.name += fmt::format("_{}", name_of(rows));
  return figure;
}

template <RowSet rows>
std::array<WhatIfFigure, 6> of_splits() {
  using C = CompensationFigure;
  const auto name = [](C figure) { return facts_of(figure).name; };
  const auto what = [](C figure) { return facts_of(figure).what; };
  return {of_split<rows, &ErrorSplit::selection>(name(C::selection), what(C::selection)),
          of_split<rows, &ErrorSplit::mass>(name(C::mass), what(C::mass)),
          of_split<rows, &ErrorSplit::values>(name(C::values), what(C::values)),
          of_split<rows, &ErrorSplit::bound>(name(C::bound), what(C::bound)),
          of_split<rows, &ErrorSplit::weighted>("weighted", "selection and mass together"),
          of_split<rows, &ErrorSplit::plain>("plain", "output_error of the kept tokens as they were")};
}

std::array<WhatIfFigure, kShownFigures> first_figures() {
  using E = EvictionFigure;
  return {{
      {"tokens", "Kept tokens", "tokens", "Tokens of the prompt that stay in the cache", Better::neither,
       [](const WhatIf& w) { return static_cast<double>(w.tokens); }, whole},
      on_rows(
          facts_of(E::output_error), RowSet::window, [](const WhatIf& w) { return w.window.error; },
          number_text),
      on_rows(
          facts_of(E::output_error), RowSet::future, [](const WhatIf& w) { return w.future.error; },
          number_text),
      of_loss_row<RowSet::window>(),
      of_loss_row<RowSet::future>(),
      on_rows(
          facts_of(E::eviction_loss), RowSet::future, [](const WhatIf& w) { return w.eviction_loss; },
          number_text),
      on_rows(
          facts_of(E::optimality_gap), RowSet::future, [](const WhatIf& w) { return w.optimality_gap; },
          number_text),
      on_rows(
          facts_of(E::oracle_recall), RowSet::future, [](const WhatIf& w) { return w.oracle_recall; },
          percent_text),
      on_rows(
          facts_of(E::bytes), RowSet::none, [](const WhatIf& w) { return w.bytes; }, bytes_text),
      {"bytes_saved", "Saved", "", "Share of the whole prompt's bytes that is saved", Better::larger,
       [](const WhatIf& w) { return w.prompt_bytes > 0 ? 1 - w.bytes / w.prompt_bytes : kNone; },
       percent_text},
  }};
}

/// True if the view is meaningful for the metric.
bool has_view(const WhatIfFigure& figure, SettingView view) {
  return view != SettingView::beyond_exact || figure.is_cost();
}

}  // namespace

bool WhatIfFigure::is_cost() const {
  return loss_on || name.starts_with(facts_of(EvictionFigure::output_error).name);
}
bool WhatIfFigure::is_plain() const { return text == static_cast<std::string (*)(double)>(number_text); }
bool WhatIfFigure::is_share() const { return text == percent_text; }

const std::array<WhatIfFigure, kWhatIfFigures>& what_if_figures() {
  static const std::array<WhatIfFigure, kWhatIfFigures> figures = [] {
    std::array<WhatIfFigure, kWhatIfFigures> all;
    auto next = all.begin();
    const auto add = [&](const auto& some) { next = std::copy(some.begin(), some.end(), next); };
    add(first_figures());
    add(std::array{of_loss_head<RowSet::window>(), of_loss_head<RowSet::future>()});
    add(of_splits<RowSet::window>());
    add(of_splits<RowSet::future>());
    add(of_splits<RowSet::reference>());
    const FigureFacts& error = facts_of(CompensationFigure::output_error);
    *next = of_split<RowSet::reference, &ErrorSplit::change_sq>(error.name, error.what);
    return all;
  }();
  return figures;
}

WhatIfFigures figures_of(const WhatIf& answer) {
  WhatIfFigures figures{};
  for (std::size_t i = 0; i < kWhatIfFigures; ++i) figures[i] = what_if_figures()[i].of(answer);
  return figures;
}

std::vector<std::size_t> shown_figures(const Dump& dump) {
  std::vector<std::size_t> there;
  for (std::size_t i = 0; i < kShownFigures; ++i) {
    const auto loss_on = what_if_figures()[i].loss_on;
    if (!loss_on || why_no_nats(dump, *loss_on).empty()) there.push_back(i);
  }
  return there;
}

std::size_t main_cost(const Dump& dump) {
  const auto nats = [&](RowSet rows) { return why_no_nats(dump, rows).empty(); };
  const bool future = dump.shape().T > dump.shape().l;
  const bool in_nats = nats(RowSet::future) || nats(RowSet::window);
  const RowSet rows = in_nats ? (nats(RowSet::future) ? RowSet::future : RowSet::window)
                              : (future ? RowSet::future : RowSet::window);
  const auto& all = what_if_figures();
  const auto found = std::find_if(all.begin(), all.end(), [&](const WhatIfFigure& figure) {
    return figure.is_cost() && figure.rows == rows && figure.loss_on.has_value() == in_nats;
  });
  return static_cast<std::size_t>(found - all.begin());
}

WhatIfSettings exact_order(const WhatIfSettings& settings, const WhatIfFigure& figure) {
  WhatIfSettings exact = settings.without_compensation();
  exact.painted.clear();
  exact.pool.reset();
  exact.score.clear();
  if (figure.rows == RowSet::future) {
    exact.base = name_of(figure.loss_on ? EvictionBase::oracle_loss : EvictionBase::oracle_exact);
  } else {
    exact.base = name_of(EvictionBase::score);
    exact.score = name_of(TokenMetric::exact_remove);
  }
  return exact;
}

std::string name_of(const SettingFigure& of) {
  return fmt::format("{}~{}", kSettingViews[of.view].name, what_if_figures()[of.figure].name);
}

std::vector<FigureInfo> setting_figures(const Dump& dump) {
  std::vector<FigureInfo> infos;
  for (const SettingViewFacts& view : kSettingViews)
    for (const std::size_t i : shown_figures(dump)) {
      const WhatIfFigure& figure = what_if_figures()[i];
      if (!has_view(figure, view.id)) continue;
      FigureInfo info{
          name_of(SettingFigure{view.id, i}),
          Table::evictions,
          {"What if",
           view.id == SettingView::a ? figure.title : fmt::format("{} ({})", figure.title, view.label)},
          fmt::format("{}, {}", figure.title, view.title)};
      info.facts.unit = figure.unit;
      info.facts.what = figure.about;
      info.facts.better = view.id == SettingView::difference ? Better::neither : figure.better;
      info.facts.scale = figure.scale;
      infos.push_back(std::move(info));
    }
  return infos;
}

std::optional<SettingFigure> setting_figure_named(std::string_view name) {
  for (const SettingViewFacts& view : kSettingViews)
    for (std::size_t i = 0; i < kShownFigures; ++i)
      if (has_view(what_if_figures()[i], view.id) && name == name_of(SettingFigure{view.id, i}))
        return SettingFigure{view.id, i};
  return std::nullopt;
}

double setting_work(const DumpShape& shape, const WhatIfSettings& settings) {
  const auto l = static_cast<double>(shape.l);
  const auto base = kBases.named(settings.base);
  double rows = static_cast<double>(std::min(kMeasuredRows, shape.l) + shape.T - shape.l) + kUsualWindow;
  if (base == EvictionBase::h2o || settings.block > 0) rows += l / 2;
  // A search looks at every row once for each token that goes.
  if (base && kBases[*base].searches) rows *= l;
  return rows * l * static_cast<double>(shape.layers * shape.n_q);
}

void WhatIfHeads::follow(const Run& run, const WhatIfSettings& settings) {
  const auto count = static_cast<std::size_t>(run.shape().layers * run.shape().n_kv);
  if (run_key_ != run.key() || heads_.size() != count) {
    run_key_ = run.key();
    n_kv_ = run.shape().n_kv;
    heads_.assign(count, {});
  } else if (settings_ == settings) {
    return;
  }
  settings_ = settings;
  round_.restart(std::ssize(heads_));
  ++version_;
}

void WhatIfHeads::ask(PanelContext& context) {
  round_.go_on(
      [&](Index h) { return ask_what_if(context, settings_, h / n_kv_, h % n_kv_, Urgency::background, {}); },
      [&](Index h, const Answer<WhatIf>& answer) {
        ++version_;
        heads_[h].reset();
        if (answer) heads_[h] = Known{figures_of(*answer), answer->window.loss, answer->future.loss};
      });
}

const WhatIfFigures* WhatIfHeads::at(Index head) const {
  const auto h = static_cast<std::size_t>(head);
  return h < heads_.size() && heads_[h] ? &heads_[h]->figures : nullptr;
}

const WhatIfFigures* WhatIfHeads::current(Index head) const {
  return head < round_.count() && round_.answered(head) ? at(head) : nullptr;
}

std::optional<ModelLoss> WhatIfHeads::loss(RowSet rows) const {
  if (answered() < heads() || failed() > 0) return std::nullopt;
  ModelLoss loss;
  for (Index h = 0; h < heads(); ++h)
    loss.add(h / n_kv_, rows == RowSet::window ? heads_[h]->window : heads_[h]->future);
  return loss;
}

std::array<std::vector<double>, 2> common_values(const std::array<WhatIfHeads, 2>& settings,
                                                 std::size_t figure) {
  std::array<std::vector<double>, 2> values;
  for (Index h = 0; h < settings[0].heads(); ++h) {
    const WhatIfFigures *const a = settings[0].current(h), *const b = settings[1].current(h);
    if (a == nullptr || b == nullptr || std::isnan((*a)[figure]) || std::isnan((*b)[figure])) continue;
    values[0].push_back((*a)[figure]);
    values[1].push_back((*b)[figure]);
  }
  return values;
}

}  // namespace kvreplay::viewer
