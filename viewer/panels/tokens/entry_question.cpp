#include "viewer/panels/tokens/entry_question.hpp"

#include <fmt/format.h>

namespace kvreplay::viewer {
namespace {

/// A head group with its values centred: what all its tiles are made from.
struct SharedMap {
  std::shared_ptr<const EntryMap<float>> map;
};
std::size_t bytes_of(const SharedMap& shared) {
  const HeadGroup<float>& group = shared.map->group();
  return static_cast<std::size_t>(group.T_all() * group.d_v()) * sizeof(float);
}

constexpr std::size_t kRowBytes = std::size_t{128} << 20;
/// Cells of a tile beyond which a hand does not want to wait for all of them.
constexpr double kQuickCells = 6e6;

Answer<SharedMap> ask_map(PanelContext& context, const EntryView& view) {
  const std::shared_ptr<const Run>& run = context.state.run();
  const Question question{.key = {run->key(), "entry_map", view.layer, view.kv_head},
                          .title = fmt::format("Reading layer {} head {}", view.layer, view.kv_head),
                          .urgency = Urgency::now};
  return context.desk.ask<SharedMap>(question, [run, view](JobControl& job) {
    return SharedMap{
        std::make_shared<const EntryMap<float>>(run->head(view.layer, view.kv_head), job.workers())};
  });
}

}  // namespace

EntryQuestions::EntryQuestions() : rows_(std::make_shared<RowCache>(kRowBytes)) {}

Key EntryQuestions::key_of(const Run& run, const EntryView& view) {
  const Key key(run.key(), "entries", view.layer, view.kv_head, view.query_head, view.shown, view.against);
  return view.against == EntryView::Against::nothing ? key : Key(key, view.other);
}

Answer<Tile> EntryQuestions::tile(PanelContext& context, const EntryView& view, const TileKey& key) const {
  const std::shared_ptr<const Run>& run = context.state.run();
  const Answer<SharedMap> shared = ask_map(context, view);
  if (!shared) return {nullptr, shared.pending, false, shared.error};
  const std::shared_ptr<const EntryMap<float>> map = shared->map;

  const DumpShape& shape = run->shape();
  const double side = static_cast<double>(kTileSize) * static_cast<double>(Index{1} << key.level);
  const double cells = std::min(side, static_cast<double>(shape.T_q)) *
                       std::min(side, static_cast<double>(shape.T)) *
                       static_cast<double>(view.query_head ? 1 : shape.group());
  const bool takes_long = cells > kQuickCells;
  Question question;
  question.key = {key_of(*run, view), "tile", key.level, key.row, key.column};
  question.title = fmt::format("{} of layer {} head {}, {} x {} cells", name_of(view.shown), view.layer,
                               view.kv_head, static_cast<Index>(side), static_cast<Index>(side));
  question.urgency = takes_long ? Urgency::background : Urgency::soon;
  Answer<Tile> exact = context.desk.ask<Tile>(question, [map, view, key, rows = rows_](JobControl& job) {
    return entry_tile(*map, view, key, *rows, job);
  });
  if (exact || !exact.pending || !takes_long) return exact;
  question.key = {question.key, "preview"};
  question.title += ", a first look";
  question.urgency = Urgency::now;  // short by its making: not to wait behind sums over the whole head
  Answer<Tile> preview = context.desk.ask<Tile>(
      question, [map, view, key](JobControl& job) { return entry_preview(*map, view, key, job); });
  preview.pending = true;
  return preview;
}

Answer<RowValues> EntryQuestions::rows(PanelContext& context, const EntryView& view, Index block,
                                       Index step) const {
  const std::shared_ptr<const Run>& run = context.state.run();
  const Answer<SharedMap> shared = ask_map(context, view);
  if (!shared) return {nullptr, shared.pending, false, shared.error};
  const DumpShape& shape = run->shape();
  const double cells = static_cast<double>(kRowValues) * static_cast<double>(shape.T) *
                       static_cast<double>(view.query_head ? 1 : shape.group());
  const Question question{
      .key = {key_of(*run, view), "rows", block, step},
      .title = fmt::format("Rows of {}, layer {} head {}", name_of(view.shown), view.layer, view.kv_head),
      .urgency = cells > kQuickCells ? Urgency::background : Urgency::soon};
  return context.desk.ask<RowValues>(question,
                                     [map = shared->map, view, block, step, cache = rows_](JobControl& job) {
                                       return row_values(*map, view, block, step, *cache, job);
                                     });
}

}  // namespace kvreplay::viewer
