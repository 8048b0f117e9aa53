#include "analysis/channels/channel_stage.hpp"

#include "analysis/drawing/picture.hpp"
#include "analysis/results/map_name.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace kvreplay {
namespace {

MeasureColumns columns_of(const ChannelColumns& columns, const ChannelPlan& plan) {
  MeasureColumns all = measure_columns(columns, plan.cases.size());
  if (plan.future.count() > 0) return all;
  all.future.full = -1;
  all.future.change.assign(plan.cases.size(), -1);
  return all;
}

/// [items, shape] of what part_of() has of each; -1 where that is less than the shape.
template <class T, class Items, class PartOf>
void write_rows(AtomicFile file, const Items& items, std::vector<std::size_t> shape, const PartOf& part_of) {
  std::size_t width = 1, end = 0;
  for (const std::size_t extent : shape) width *= extent;
  std::vector<T> all;
  for (const auto& item : items) {
    const auto& part = part_of(item);
    all.insert(all.end(), part.data(), part.data() + part.size());
    all.resize(end += width, static_cast<T>(-1));
  }
  shape.insert(shape.begin(), items.size());
  if constexpr (sizeof(T) == 1)
    write_npy_bool(std::move(file), shape, all);
  else
    write_npy(std::move(file), shape, std::span<const T>(all));
}

}  // namespace

ChannelStage::ChannelStage(const Dump& dump, const ChannelOptions& options, const Compute& compute)
    : Stage(dump, compute),
      plan_(channel_plan(dump, options)),
      columns_(0, plan_.cases.size(), plan_.losses),
      measured_(dump, compute.precision, columns_of(columns_, plan_)),
      of_caches_(dump) {}

Json ChannelStage::options() const {
  const ChannelSetting& setting = plan_.setting;
  ChannelOptions settled{plan_.rules,    plan_.ratios,       setting.semantics, setting.recent,
                         setting.window, setting.protection, plan_.png};
  return to_json(bound(settled));
}

void ChannelStage::begin_layer(Index) {
  const DumpShape& shape = dump_.shape();
  rows_.assign(static_cast<std::size_t>(plan_.per_query_head() ? shape.n_q : shape.n_kv), {});
  window_.assign(shape.n_q, {});
  future_.assign(plan_.future.count() > 0 ? shape.n_q : 0, {});
  measured_.begin();
}

template <class T>
void ChannelStage::compute(const HeadGroup<T>& group, std::span<double> figures) {
  using C = ChannelColumns;
  using M = ChannelFigure;
  std::fill(figures.begin(), figures.end(), 0.0);
  const auto add = [&](Index column, double value) { figures[column] += value; };
  const bool with_outputs = plan_.needs_outputs();
  std::vector<ChannelPart> parts;
  if (dump_.readers(group.layer).size() > 1 && !plan_.per_query_head())
    parts.push_back(*of_caches_.of(group.layer, group.kv_head, [&] {
      return channel_part(load_readers<T>(dump_, group.layer, group.kv_head), plan_, with_outputs, compute_);
    }));
  else
    each_part(group, plan_.per_query_head(), [&](Index, const HeadGroup<T>& mine) {
      parts.push_back(channel_part(mine, plan_, with_outputs, compute_));
    });
  HeadChannels<T> found = head_channels(group, plan_, parts, measured_.with_vectors(), compute_);
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    const PrunedChannels& pruned = found.cases[c];
    add(columns_.of(c, C::pruned), pruned.channels);
    add(columns_.of(c, C::window_logits_sq), pruned.window_logits_sq);
    add(columns_.of(c, C::future_logits_sq), pruned.future_logits_sq);
    const auto keep = [&](M metric, RowSet rows, double value) { add(columns_.of(c, metric, rows), value); };
    keep(M::reconstruction_error, RowSet::window, pruned.window_reconstruction);
    keep(M::reconstruction_error, RowSet::future, pruned.future_reconstruction);
    keep(M::lower_bound, RowSet::window, pruned.lower_bound.value_or(0));
    keep(M::proven, RowSet::window, pruned.proven ? 1 : 0);
    keep(M::bytes, RowSet::none, dump_.cache_of(group.layer) == group.layer ? pruned.bytes : 0);
  }
  each_part(group, plan_.per_query_head(), [&](Index p, const HeadGroup<T>& mine) {
    ChannelPart& part = parts[p];
    add(columns_.of(C::off_diagonal_share), part.off_diagonal_share);
    if (mine.rope) add(columns_.of(C::rope_pair_share), part.rope_pair_share);
    const Index first_query_head = group.kv_head * group.G() + p;
    measured_.add(std::move(found.outputs[p]), mine, plan_.window, plan_.future, first_query_head, figures,
                  compute_.workers);
    for (Index g = 0; g < mine.G(); ++g) {
      window_[first_query_head + g] = query_moments(mine, g, plan_.window);
      if (!future_.empty()) future_[first_query_head + g] = query_moments(mine, g, plan_.future);
    }
    Row& row = rows_[group.kv_head * std::ssize(parts) + p];
    for (PrunedChannels& pruned : found.cases) row.pruned.push_back(std::move(pruned.pruned[p]));
    row.interaction = std::move(part.basis.scores.logits);
    row.outputs = std::move(part.basis.scores.outputs);
    row.spectrum = std::move(part.spectrum);
    row.order = std::move(found.order[p]);
  });
  // Shares are means over the selections of the head.
  for (const Index share : {columns_.of(C::off_diagonal_share), columns_.of(C::rope_pair_share)})
    figures[share] /= static_cast<double>(parts.size());
}

void ChannelStage::head(const HeadGroup<float>& group, std::span<double> figures) { compute(group, figures); }
void ChannelStage::head(const HeadGroup<double>& group, std::span<double> figures) {
  compute(group, figures);
}

void ChannelStage::end_layer(const ResultFolder& folder, Index layer, LayerFigures figures) {
  measured_.end(layer, compute_.workers, figures);
  write_layer(folder, layer);
}

void ChannelStage::write_layer(const ResultFolder& folder, Index layer) const {
  const auto file = [&](const std::string& name) {
    return folder.layer_file(layer, "channels/" + name + ".npy");
  };
  const auto d = static_cast<std::size_t>(dump_.shape().d);
  write_rows<double>(
      file("interaction"), rows_, {d, d}, [](const Row& row) -> auto& { return row.interaction; });
  if (plan_.needs_outputs())
    write_rows<double>(
        file("output_interaction"), rows_, {d, d}, [](const Row& row) -> auto& { return row.outputs; });
  write_rows<double>(
      file("spectrum"), rows_, {d}, [](const Row& row) -> auto& { return row.spectrum; });
  for (const auto& [name, moments] : {std::pair{"window", &window_}, std::pair{"future", &future_}}) {
    if (moments->empty()) continue;
    write_rows<double>(
        file(fmt::format("query_{}_mean", name)), *moments, {d},
        [](const ChannelMoments& head) -> auto& { return head.mean; });
    write_rows<double>(
        file(fmt::format("query_{}_std", name)), *moments, {d},
        [](const ChannelMoments& head) -> auto& { return head.deviation; });
  }
  if (const auto rope = dump_.rope(layer)) {
    const std::vector<Index> partners = rope_partners(*rope, dump_.shape().d);
    const std::size_t shape[] = {d};
    write_npy(file("rope_pair"), shape,
              std::span<const std::int32_t>(std::vector<std::int32_t>(partners.begin(), partners.end())));
  }
  for (std::size_t rule = 0; rule < plan_.rules.size(); ++rule)
    if (plan_.rules[rule].has_order())
      write_rows<std::int32_t>(
          file(file_word(plan_.rules[rule].name) + "_order"), rows_,
          {d}, [&](const Row& row) -> auto& { return row.order[rule]; });
  for (std::size_t c = 0; c < plan_.cases.size(); ++c)
    write_rows<std::uint8_t>(
        file(plan_.cases[c].file_name), rows_, {d}, [&](const Row& row) -> auto& { return row.pruned[c]; });
  if (plan_.png) write_pictures(folder, layer);
}

void ChannelStage::write_pictures(const ResultFolder& folder, Index layer) const {
  constexpr Index kSide = 640;
  const auto draw = [&](const Matrix<double>& H, const char* name, std::size_t row) {
    if (H.size() == 0) return;
    Matrix<double> off = H;  // whose largest entry is what a picture of interactions is about
    off.diagonal().setZero();
    write_file(folder.layer_file(layer, fmt::format("channels/{}-{}.png", name, row)),
               heatmap_png(H, off.cwiseAbs().maxCoeff(), std::max<Index>(kSide / H.rows(), 1)));
  };
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    draw(rows_[row].interaction, "interaction", row);
    draw(rows_[row].outputs, "output_interaction", row);
  }
}

Json ChannelStage::write_tables(const ResultFolder& folder, const HeadFigures& figures) {
  const MetricTable table = channel_table(plan_, columns_, figures, dump_.has(Tensor::wo));
  const std::size_t rows = table.write(folder);
  return {{"channel_window_rows", plan_.window.count()},
          {"future_rows", plan_.future.count()},
          {"prunings", plan_.cases.size()},
          {"channel_rows", rows},
          {"channel_errors", table.of_model(name_of(ChannelFigure::output_error), plan_.best_rows())}};
}

std::string ChannelStage::report(const HeadFigures& figures) const {
  if (figures.layers.empty()) return "";
  return channel_report(plan_, channel_table(plan_, columns_, figures, dump_.has(Tensor::wo)));
}

}  // namespace kvreplay
