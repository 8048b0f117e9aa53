#include "viewer/questions/figure_map.hpp"

#include "analysis/options/option.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/result_reader.hpp"
#include "data/error.hpp"
#include "viewer/model/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

namespace kvreplay::viewer {

namespace {

/// The reserve of maps that do not name one: the first that the run was asked for.
Index first_reserve(const ResultReader& results) {
  const nlohmann::ordered_json* at = &results.summary();
  for (const char* key : {"options", "tokens", "reserve"}) {
    if (!at->is_object() || !at->contains(key)) return 0;
    at = &(*at)[key];
  }
  return at->is_array() && !at->empty() && at->front().is_number_unsigned() ? at->front().get<Index>() : 0;
}

/// Metrics, then agreement by reference, score, window, reserve and figure.
std::vector<FigureInfo> token_figures(const ResultReader& results) {
  struct TokenMap {
    HeadFigure figure;
    std::optional<Index> window;  // but for the run's first
    Index reserve;
    std::string name;
  };
  std::vector<TokenMap> maps;
  const Index reserve = first_reserve(results);
  for (const std::string& name : results.map_names()) {
    const auto map = map_named(name);
    const auto figure = map ? head_figure_of(*map) : std::nullopt;
    if (figure)
      maps.push_back({*figure, map->window, figure->reference ? map->reserve.value_or(reserve) : 0, name});
  }
  std::sort(maps.begin(), maps.end(), [](const TokenMap& a, const TokenMap& b) {
    const auto key = [](const TokenMap& map) {
      return std::tuple(map.figure.reference, map.figure.metric, map.window, map.reserve, map.figure.figure);
    };
    return key(a) < key(b);
  });
  std::vector<FigureInfo> figures;
  for (const TokenMap& map : maps) {
    figures.push_back(figure_info(map.figure, map.reserve, map.window));
    figures.back().name = map.name;
  }
  return figures;
}

/// Names of the metrics of a table: the path in the menu and the title.
struct TableLayout {
  Table table;
  std::vector<std::string_view> path;  ///< keys of the menu's path, outermost first
  std::string (*title)(const std::vector<std::string>& path);
};

std::string behind(std::string_view rows) { return rows.empty() ? "" : fmt::format(", {} queries", rows); }

const std::vector<TableLayout>& layouts() {
  static const std::vector<TableLayout> all = {
      {Table::evictions,
       {"policy", "semantics", "phase", "budget", "rows", "metric"},
       [](const auto& p) {
         return fmt::format("{} of {} ({}, {}) at {}{}", p[5], p[0], p[1], p[2], p[3], behind(p[4]));
       }},
      {Table::decode,
       {"policy", "semantics", "budget", "metric"},
       [](const auto& p) {
         return fmt::format("{} output_error over the steps of {} ({}) at {}", p[3], p[0], p[1], p[2]);
       }},
      {Table::budgets,
       {"order", "method", "sigma", "metric"},
       [](const auto& p) { return fmt::format("{} of {} by {} at {}", p[3], p[1], p[0], p[2]); }},
      {Table::channels,
       {"method", "ratio", "rows", "metric"},
       [](const auto& p) {
         return p[0].empty() ? p[3] + behind(p[2])
                             : fmt::format("{} of {} at {}{}", p[3], p[0], p[1], behind(p[2]));
       }},
      {Table::compensation,
       {"policy", "semantics", "phase", "budget", "method", "rows", "metric"},
       [](const auto& p) {
         return fmt::format("{} of {} with {} ({}, {}) at {}{}", p[6], p[0], p[4], p[1], p[2], p[3],
                            behind(p[5]));
       }},
  };
  return all;
}

/// Adds the metrics of heads in a table, a map each.
void add_maps(const ResultReader& results, const TableLayout& layout, ResultFigures& all) {
  const MetricTable table(results, layout.table);
  for (const MetricEntry& entry : table.entries()) {
    if (!entry.any_heads()) continue;
    FigureInfo info{.name = std::string(name_of(layout.table)), .table = layout.table};
    for (const std::string_view key : layout.path) {
      info.path.push_back(table.key(entry, key));
      info.name.append("~").append(info.path.back());
    }
    const auto [found, is_new] = all.from_tables.try_emplace(
        info.name, Matrix<double>::Constant(std::ssize(results.layers()), results.shape().n_kv, kNone));
    for (std::size_t head = 0; head < entry.heads.size(); ++head)
      if (has_row(entry.heads[head])) found->second.data()[head] = entry.heads[head];
    if (!is_new) continue;  // entries of other keys than the path's
    info.title = layout.title(info.path);
    if (const FigureFacts* known = figure_named(layout.table, entry.metric())) info.facts = *known;
    if (info.path.front().empty()) info.path = {info.path.back()};  // of no method
    std::erase(info.path, std::string());
    all.figures.push_back(std::move(info));
  }
}

}  // namespace

std::vector<FigureInfo> dump_figures(const MetricSet& metrics, Index n) {
  std::vector<FigureInfo> figures;
  for (const HeadFigure& figure : head_figures(metrics, n)) figures.push_back(figure_info(figure));
  return figures;
}

FigureMap empty_map(FigureInfo figure, std::vector<Index> layers, Index n_kv) {
  FigureMap map;
  map.figure = std::move(figure);
  map.values = Matrix<double>::Constant(std::ssize(layers), n_kv, kNone);
  map.layers = std::move(layers);
  return map;
}

void add(FigureMap& map, const HeadSummary& head) {
  const auto row = std::find(map.layers.begin(), map.layers.end(), head.layer);
  if (row == map.layers.end() || head.kv_head < 0 || head.kv_head >= map.values.cols()) return;
  const auto figure = head_figure_named(map.figure.name);
  map.values(row - map.layers.begin(), head.kv_head) = figure ? head.value(*figure) : kNone;
  ++map.heads;
}

const FigureInfo* ResultFigures::find(std::string_view name) const {
  const auto found =
      std::find_if(figures.begin(), figures.end(), [&](const FigureInfo& info) { return info.name == name; });
  return found == figures.end() ? nullptr : &*found;
}

std::size_t bytes_of(const ResultFigures& figures) {
  constexpr std::size_t kInfoBytes = 512;  // names, path and title, roughly
  std::size_t bytes = sizeof(figures) + figures.figures.size() * kInfoBytes;
  for (const auto& [name, values] : figures.from_tables)
    bytes += static_cast<std::size_t>(values.size()) * sizeof(double);
  return bytes;
}

ResultFigures result_figures(const ResultReader& results) {
  ResultFigures all;
  all.figures = token_figures(results);
  for (const TableLayout& layout : layouts()) {
    if (!results.has(layout.table)) continue;
    try {
      add_maps(results, layout, all);
    } catch (const InputError& error) {
      all.problems.emplace_back(error.what());
    }
  }
  return all;
}

FigureMap figure_map(const ResultReader& results, const ResultFigures& figures, std::string_view name) {
  const FigureInfo* info = figures.find(name);
  if (info == nullptr)
    throw InputError(fmt::format("{}: no figure {} in these results", results.folder().string(), name));
  FigureMap map = empty_map(*info, results.layers(), results.shape().n_kv);
  const auto found = figures.from_tables.find(name);
  map.values = found != figures.from_tables.end() ? found->second : results.map(info->name);
  map.heads = map.values.size();
  return map;
}

std::vector<HeadPlace> worst_first(const FigureMap& map, bool larger_is_worse) {
  std::vector<HeadPlace> heads;
  for (Index row = 0; row < map.values.rows(); ++row)
    for (Index head = 0; head < map.values.cols(); ++head)
      heads.push_back({row, map.layers[row], head,
                       map.is_stale(row * map.values.cols() + head) ? kNone : map.values(row, head)});
  std::stable_sort(heads.begin(), heads.end(), [&](const HeadPlace& a, const HeadPlace& b) {
    if (std::isnan(a.value) || std::isnan(b.value)) return !std::isnan(a.value) && std::isnan(b.value);
    return larger_is_worse ? a.value > b.value : a.value < b.value;
  });
  return heads;
}

std::vector<HeadPlace> worst_first(const FigureMap& map) {
  return worst_first(map, map.figure.facts.better != Better::larger);
}

std::optional<FigureMap> difference_map(const FigureMap& map, const FigureMap& minus) {
  if (map.layers != minus.layers || map.values.cols() != minus.values.cols()) return std::nullopt;
  FigureMap difference = map;
  difference.values -= minus.values;
  difference.heads = difference.values.array().isFinite().count();
  return difference;
}

bool ValueFilter::takes(double value) const {
  return below ? equal ? value <= bound : value < bound : equal ? value >= bound : value > bound;
}

HeadBars head_bars(const FigureMap& map) {
  HeadBars bars;
  const std::span values(map.values.data(), static_cast<std::size_t>(map.values.size()));
  if (map.figure.facts.better == Better::larger) {
    const FigureScale scale = map.figure.facts.scale;
    bars.best = scale == FigureScale::share || scale == FigureScale::correlation ? 1 : -HUGE_VAL;
    for (const double value : values)
      if (std::isfinite(value)) bars.best = std::max(*bars.best, value);
  }
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    bars.low = std::min(bars.low, bars.amount(value));
    bars.high = std::max(bars.high, bars.amount(value));
  }
  return bars;
}

std::optional<ValueFilter> value_filter(std::string_view typed) {
  const auto skip = [&] { typed.remove_prefix(std::min(typed.find_first_not_of(' '), typed.size())); };
  skip();
  if (typed.empty() || (typed.front() != '<' && typed.front() != '>')) return std::nullopt;
  ValueFilter filter{.below = typed.front() == '<'};
  typed.remove_prefix(1);
  filter.equal = typed.starts_with('=');
  if (filter.equal) typed.remove_prefix(1);
  skip();
  const auto read = std::from_chars(typed.data(), typed.data() + typed.size(), filter.bound);
  std::string_view rest = typed.substr(static_cast<std::size_t>(read.ptr - typed.data()));
  if (rest.starts_with('%')) {
    filter.bound /= 100;
    rest.remove_prefix(1);
  }
  const bool whole = read.ec == std::errc() && rest.find_first_not_of(' ') == std::string_view::npos;
  return whole && std::isfinite(filter.bound) ? std::optional(filter) : std::nullopt;
}

namespace {

/// Heads asked for at the same time: enough to keep the cores busy, few enough to ask in every frame.
constexpr Index kHeadsAsked = 32;

FigureMap empty_live_map(const FigureInfo& figure, const DumpShape& shape) {
  std::vector<Index> layers(shape.layers);
  std::iota(layers.begin(), layers.end(), Index{0});
  return empty_map(figure, std::move(layers), shape.n_kv);
}

}  // namespace

const FigureInfo* HeadMapSource::find(const std::string& name) const {
  const auto found = std::find_if(figures_.begin(), figures_.end(),
                                  [&](const FigureInfo& info) { return info.name == name; });
  return found == figures_.end() ? nullptr : &*found;
}

void HeadMapSource::list_figures(const Run& run, const ResultFigures* results) {
  figures_.clear();
  list_problems_.clear();
  if (results != nullptr) {
    figures_ = results->figures;
    list_problems_ = results->problems;
  }
  if (run.dump() != nullptr) {
    for (FigureInfo& info : dump_figures(available_metrics(run), run.shape().l))
      if (results == nullptr || results->find(info.name) == nullptr) figures_.push_back(std::move(info));
    for (FigureInfo& info : setting_figures(*run.dump())) figures_.push_back(std::move(info));
  }
  std::stable_sort(figures_.begin(), figures_.end(),
                   [](const FigureInfo& a, const FigureInfo& b) { return a.table < b.table; });
  ++list_;
}

void HeadMapSource::look(PanelContext& context) {
  const Run& run = *context.run();
  if (run_key_ != run.key()) {
    run_key_ = run.key();
    results_.reset();
    map_.reset();
    key_ = {};
    figures_.clear();
    ++list_;
    if (run.results() == nullptr) list_figures(run, nullptr);
  }
  problems_ = list_problems_;
  pending_ = waits_ = false;
  if (run.results() == nullptr) return;
  const JobRequest request{.key = {run.key(), "figures"}, .title = "Figures of " + run.name()};
  const auto answer = context.queue.ask<ResultFigures>(
      request, [held = context.run()](JobControl&) { return result_figures(*held->results()); });
  pending_ = answer.pending;
  if (!answer.error.empty()) problems_.push_back(answer.error);
  if (answer && answer.value != results_) {
    results_ = answer.value;
    list_figures(run, results_.get());
    problems_ = list_problems_;
  }
}

void HeadMapSource::ask(PanelContext& context, const FigureInfo& figure) {
  from_results_ = results_ && results_->find(figure.name) != nullptr;
  if (from_results_)
    ask_results(context, figure);
  else if (const auto of = setting_figure_named(figure.name))
    ask_setting(context, figure, *of);
  else
    ask_dump(context, figure);
}

void HeadMapSource::ask_results(PanelContext& context, const FigureInfo& figure) {
  const std::shared_ptr<const Run>& run = context.run();
  const JobRequest request{.key = {run->key(), "figure", figure.name}, .title = figure.title};
  const auto answer =
      context.queue.ask<FigureMap>(request, [run, list = results_, name = figure.name](JobControl&) {
        return figure_map(*run->results(), *list, name);
      });
  if (!answer.error.empty()) problems_.push_back(answer.error);
  pending_ |= answer.pending;
  map_ = answer.value;
  key_ = request.key;
  heads_ = map_ ? map_->values.size() : 0;
}

void HeadMapSource::take_heads(PanelContext& context) {
  const DumpShape& shape = context.run()->shape();
  const Index count = shape.layers * shape.n_kv;
  const Key now(run_key_, "live", context.state.comparison.window);
  if (live_key_ != now) {
    live_key_ = now;
    live_.assign(count, {});
    live_known_ = 0;
  }
  if (live_known_ == count) return;
  const Selection& selection = context.state.selection();
  Index waiting = 0;
  const auto take = [&](Index layer, Index head, Urgency urgency) {
    Known& known = live_[layer * shape.n_kv + head];
    if (known.summary) return;
    const auto answer = ask_summary(context, layer, head, urgency);
    known.error = answer.error;
    if (answer.pending) ++waiting;
    if (!answer) return;
    // The tokens are the queue's to keep or drop.
    auto figures_only = std::make_shared<HeadSummary>(*answer);
    figures_only->tokens.reset();
    known.summary = std::move(figures_only);
    ++live_known_;
  };
  take(selection.layer, selection.kv_head, Urgency::soon);
  for (Index i = 0; i < count && waiting < kHeadsAsked; ++i) {
    const Index layer = i / shape.n_kv, head = i % shape.n_kv;
    if (layer != selection.layer || head != selection.kv_head) take(layer, head, Urgency::background);
  }
}

void HeadMapSource::ask_dump(PanelContext& context, const FigureInfo& figure) {
  take_heads(context);
  const DumpShape& shape = context.run()->shape();
  heads_ = shape.layers * shape.n_kv;
  std::size_t failed = 0;
  for (const Known& known : live_) {
    if (known.error.empty()) continue;
    if (failed++ == 0) problems_.push_back(known.error);
  }
  if (failed > 1)
    problems_.back() +=
        fmt::format(" (and {} more)", counted(static_cast<std::ptrdiff_t>(failed) - 1, "head"));
  pending_ |= live_known_ + static_cast<Index>(failed) < heads_;
  Key key(live_key_, figure.name, live_known_);
  if (key == key_ && map_) return;
  key_ = std::move(key);
  FigureMap map = empty_live_map(figure, shape);
  for (const Known& known : live_)
    if (known.summary) add(map, *known.summary);
  map_ = std::make_shared<const FigureMap>(std::move(map));
}

void HeadMapSource::ask_setting(PanelContext& context, const FigureInfo& figure, const SettingFigure& of) {
  const Run& run = *context.run();
  const std::array<WhatIfSettings, 2> now = context.state.settings();
  std::vector<WhatIfSettings> wanted{
      of.view == SettingView::b || of.view == SettingView::difference ? now[1] : now[0]};
  if (of.view == SettingView::difference) wanted.push_back(now[0]);
  if (of.view == SettingView::beyond_exact)
    wanted.push_back(exact_order(now[0], what_if_figures()[of.figure]));
  double work = 0;
  for (const WhatIfSettings& settings : wanted) work += setting_work(run.shape(), settings);
  heads_ = run.shape().layers * run.shape().n_kv;
  waits_ = begun_ != run_key_ && work > kUnaskedWork;
  Key key(run_key_, figure.name);
  for (std::size_t s = 0; s < wanted.size(); ++s) {
    WhatIfHeads& heads = settings_[s];
    heads.follow(run, wanted[s]);
    // One after the other: a map that is whole says more than two halves.
    if (!waits_ && (s == 0 || settings_[s - 1].answered() == heads_)) heads.ask(context);
    if (heads.failed() > 0) problems_.push_back(heads.error());
    pending_ |= !waits_ && heads.answered() < heads_;
    key = {key, heads.version()};
  }
  if (key == key_ && map_) return;
  key_ = std::move(key);
  FigureMap map = empty_live_map(figure, run.shape());
  map.stale.assign(static_cast<std::size_t>(heads_), 0);
  for (Index h = 0; h < heads_; ++h) {
    double value = 0;
    bool current = true;
    for (std::size_t s = 0; s < wanted.size(); ++s) {
      // While those of a new setting come in, the old ones' stand in.
      const WhatIfFigures* const found = settings_[s].at(h);
      const double of_setting = found != nullptr ? (*found)[of.figure] : kNone;
      value = s == 0 ? of_setting : difference_of(of_setting, value);
      current &= settings_[s].current(h) != nullptr;
    }
    map.values.data()[h] = value;
    map.heads += current ? 1 : 0;
    map.stale[static_cast<std::size_t>(h)] = !current && !std::isnan(value) ? 1 : 0;
  }
  map_ = std::make_shared<const FigureMap>(std::move(map));
}

}  // namespace kvreplay::viewer
