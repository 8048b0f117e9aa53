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

Answer<SharedMap> ask_map(PanelContext& context, const std::shared_ptr<const Run>& run,
                          const EntryView& view) {
  const Question question{.key = {run->key(), "entry_map", view.layer, view.kv_head},
                          .title = fmt::format("Reading layer {} head {}", view.layer, view.kv_head),
                          .urgency = Urgency::now};
  return context.desk.ask<SharedMap>(question, [run, view](JobControl& job) {
    return SharedMap{
        std::make_shared<const EntryMap<float>>(run->head(view.layer, view.kv_head), job.workers())};
  });
}

/// The maps of the selected run and of the one that is subtracted from it, where there is one.
struct AskedMaps {
  std::shared_ptr<const EntryMap<float>> shown, minus;
  bool there = false, pending = false;
  std::string error;
};
AskedMaps ask_maps(PanelContext& context, const EntryView& view) {
  AskedMaps maps;
  const Answer<SharedMap> shown = ask_map(context, context.state.run(), view);
  maps.there = static_cast<bool>(shown);
  maps.pending = shown.pending;
  maps.error = shown.error;
  if (shown) maps.shown = shown->map;
  const std::shared_ptr<const Run> subtracted = context.state.subtracted();
  if (!subtracted || subtracted->dump() == nullptr) return maps;
  const Answer<SharedMap> minus = ask_map(context, subtracted, view);
  maps.there &= static_cast<bool>(minus);
  maps.pending |= minus.pending;
  if (maps.error.empty()) maps.error = minus.error;
  if (minus) maps.minus = minus->map;
  return maps;
}

}  // namespace

EntryQuestions::EntryQuestions() : rows_(std::make_shared<RowCache>(kRowBytes)) {}

Key EntryQuestions::key_of(PanelContext& context, const EntryView& view) {
  Key key(context.state.run()->key(), "entries", view.layer, view.kv_head, view.query_head, view.shown,
          view.against);
  if (view.against != EntryView::Against::nothing) key = {key, view.other};
  const std::shared_ptr<const Run> subtracted = context.state.subtracted();
  return subtracted && subtracted->dump() != nullptr ? Key(key, "minus", subtracted->key()) : key;
}

Answer<Tile> EntryQuestions::tile(PanelContext& context, const EntryView& view, const TileKey& key) const {
  const std::shared_ptr<const Run>& run = context.state.run();
  const AskedMaps maps = ask_maps(context, view);
  if (!maps.there) return {nullptr, maps.pending, false, maps.error};

  const DumpShape& shape = run->shape();
  const double side = static_cast<double>(kTileSize) * static_cast<double>(Index{1} << key.level);
  const double cells = std::min(side, static_cast<double>(shape.T_q)) *
                       std::min(side, static_cast<double>(shape.T)) *
                       static_cast<double>(view.query_head ? 1 : shape.group());
  const bool takes_long = cells > kQuickCells;
  Question question;
  question.key = {key_of(context, view), "tile", key.level, key.row, key.column};
  question.title = fmt::format("{} of layer {} head {}, {} x {} cells", name_of(view.shown), view.layer,
                               view.kv_head, static_cast<Index>(side), static_cast<Index>(side));
  question.urgency = takes_long ? Urgency::background : Urgency::soon;
  Answer<Tile> exact = context.desk.ask<Tile>(question, [maps, view, key, rows = rows_](JobControl& job) {
    return entry_tile(*maps.shown, view, key, *rows, job, maps.minus.get());
  });
  if (exact || !exact.pending || !takes_long) return exact;
  question.key = {question.key, "preview"};
  question.title += ", a first look";
  question.urgency = Urgency::now;  // short by its making: not to wait behind sums over the whole head
  Answer<Tile> preview = context.desk.ask<Tile>(question, [maps, view, key](JobControl& job) {
    return entry_preview(*maps.shown, view, key, job, maps.minus.get());
  });
  preview.pending = true;
  return preview;
}

Answer<RowValues> EntryQuestions::rows(PanelContext& context, const EntryView& view, Index block,
                                       Index step) const {
  const std::shared_ptr<const Run>& run = context.state.run();
  const AskedMaps maps = ask_maps(context, view);
  if (!maps.there) return {nullptr, maps.pending, false, maps.error};
  const DumpShape& shape = run->shape();
  const double cells = static_cast<double>(kRowValues) * static_cast<double>(shape.T) *
                       static_cast<double>(view.query_head ? 1 : shape.group());
  const Question question{
      .key = {key_of(context, view), "rows", block, step},
      .title = fmt::format("Rows of {}, layer {} head {}", name_of(view.shown), view.layer, view.kv_head),
      .urgency = cells > kQuickCells ? Urgency::background : Urgency::soon};
  return context.desk.ask<RowValues>(question, [maps, view, block, step, cache = rows_](JobControl& job) {
    return row_values(*maps.shown, view, block, step, *cache, job, maps.minus.get());
  });
}

}  // namespace kvreplay::viewer
