#include "analysis/channels/channel_stage.hpp"

#include "analysis/channels/channel_report.hpp"
#include "analysis/channels/channel_tables.hpp"
#include "analysis/channels/rope_pair_share.hpp"
#include "analysis/eviction/cache_elements.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/compression/compressed_outputs.hpp"
#include "sim/eviction/cache_group.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace kvreplay {

ChannelStage::ChannelStage(const Dump& dump, const ChannelOptions& options, const Compute& compute)
    : dump_(dump),
      plan_(channel_plan(dump, options)),
      columns_(plan_.cases.size()),
      precision_(compute.precision),
      backend_(compute.backend) {}

Json ChannelStage::options() const {
  const ChannelSetting& setting = plan_.setting;
  ChannelOptions settled{plan_.rules,    plan_.ratios,       setting.semantics, setting.recent,
                         setting.window, setting.protection, plan_.png};
  return to_json(bound(settled));
}

void ChannelStage::begin_layer(Index layer, Workers&) {
  const DumpShape& shape = dump_.shape();
  layer_.begin(plan_, shape);
  if (const auto rope = dump_.rope(layer)) layer_.rope_partner = rope_partners(*rope, shape.d);
  store_.begin(shape.n_q, plan_.cases.size());
}

template <class T>
void ChannelStage::compute(const HeadGroup<T>& group, Workers& workers, std::span<double> figures) {
  const Index G = group.G();
  std::fill(figures.begin(), figures.end(), 0.0);
  if (plan_.per_query_head())
    for (Index g = 0; g < G; ++g)
      compute_part(query_head_group(group, g), group.kv_head * G + g, group.kv_head * G + g, workers,
                   figures);
  else
    compute_part(group, group.kv_head, group.kv_head * G, workers, figures);
  // Shares and counts are means over the selections of the head.
  const auto parts = static_cast<double>(plan_.per_query_head() ? G : 1);
  const auto divide = [&](Index column) { figures[static_cast<std::size_t>(column)] /= parts; };
  divide(columns_.of(ChannelColumns::off_diagonal_share));
  divide(columns_.of(ChannelColumns::rope_pair_share));
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) divide(columns_.of(c, ChannelColumns::pruned));
}

template <class T>
void ChannelStage::compute_part(const HeadGroup<T>& group, Index row, Index first_query_head,
                                Workers& workers, std::span<double> figures) {
  using C = ChannelColumns;
  const auto at = static_cast<std::size_t>(row);
  const auto add = [&](Index column, double value) { figures[static_cast<std::size_t>(column)] += value; };
  const KeptSet all(static_cast<std::size_t>(group.l), 1);
  const bool has_future = plan_.future.count() > 0;

  ChannelBasis basis = channel_basis(group, all, plan_.setting, plan_.needs_outputs(), workers, *backend_);
  add(columns_.of(C::off_diagonal_share), off_diagonal_share(basis.scores.logits));
  if (!layer_.rope_partner.empty())
    add(columns_.of(C::rope_pair_share), rope_pair_share(basis.scores.logits, layer_.rope_partner));
  add(columns_.of(C::window_logits_sq), basis.window.sum());
  add(columns_.of(C::future_logits_sq), basis.future.sum());
  layer_.spectrum[at] = spectrum(basis.scores.logits);
  for (Index g = 0; g < group.G(); ++g) {
    const auto head = static_cast<std::size_t>(first_query_head + g);
    layer_.window[head] = query_moments(group, g, plan_.window);
    if (has_future) layer_.future[head] = query_moments(group, g, plan_.future);
  }

  const CompressedOutputs<T> window(group, plan_.window, workers);
  std::optional<CompressedOutputs<T>> future;
  if (has_future) future.emplace(group, plan_.future, workers);
  add(columns_.of(C::window_full_sq), window.full_sq());
  if (future) add(columns_.of(C::future_full_sq), future->full_sq());
  const bool vectors = dump_.has(Tensor::wo);
  if (vectors) {
    store_.in<T>().window.set_full(first_query_head, PanelRows<T>(window.full()));
    if (future) store_.in<T>().future.set_full(first_query_head, PanelRows<T>(future->full()));
  }

  std::vector<std::vector<Index>> orders;
  for (std::size_t r = 0; r < plan_.rules.size(); ++r) {
    orders.push_back(channel_order(plan_.rules[r], basis.scores));
    if (plan_.rules[r].has_order()) layer_.order[r][at] = orders.back();
  }
  const CacheElements elements = cache_elements(dump_);
  workers.parallel_for(static_cast<std::ptrdiff_t>(plan_.cases.size()), [&](std::ptrdiff_t n) {
    const auto c = static_cast<std::size_t>(n);
    const ChannelCase& which = plan_.cases[c];
    ChannelSelection selection =
        select_channels(plan_.rules[which.rule], basis.scores, orders[which.rule], which.pruned);
    add(columns_.of(c, C::pruned),
        static_cast<double>(std::count(selection.pruned.begin(), selection.pruned.end(), 1)));
    add(columns_.of(c, C::window_reconstruction), subset_error(basis.window, selection.pruned));
    add(columns_.of(c, C::future_reconstruction), subset_error(basis.future, selection.pruned));
    add(columns_.of(c, C::lower_bound), selection.lower_bound.value_or(0));
    add(columns_.of(c, C::proven), selection.proven ? 1 : 0);
    add(columns_.of(c, C::bytes), cache_bytes(all, selection.pruned, basis.keys.prunable, group.d(),
                                              group.d_v(), std::nullopt, elements));
    auto changed = window.change(all, selection.pruned, basis.keys.prunable, vectors);
    add(columns_.of(c, C::window_change_sq), changed.change_sq);
    if (vectors) store_.in<T>().window.set_change(c, first_query_head, std::move(changed.vectors));
    if (future) {
      changed = future->change(all, selection.pruned, basis.keys.prunable, vectors);
      add(columns_.of(c, C::future_change_sq), changed.change_sq);
      if (vectors) store_.in<T>().future.set_change(c, first_query_head, std::move(changed.vectors));
    }
    layer_.pruned[c][at] = std::move(selection.pruned);
  });
  layer_.interaction[at] = std::move(basis.scores.logits);
  if (plan_.needs_outputs()) layer_.outputs[at] = std::move(basis.scores.outputs);
}

void ChannelStage::head(const HeadGroup<float>& group, Workers& workers, std::span<double> figures) {
  compute(group, workers, figures);
}
void ChannelStage::head(const HeadGroup<double>& group, Workers& workers, std::span<double> figures) {
  compute(group, workers, figures);
}

void ChannelStage::end_layer(const ResultFolder& folder, Index layer, Workers& workers,
                             Eigen::Ref<Matrix<double>> figures) {
  if (dump_.has(Tensor::wo)) {
    using C = ChannelColumns;
    LayerStore::Columns columns{
        columns_.of(C::window_layer_full_sq), columns_.of(C::future_layer_full_sq), {}, {}};
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      columns.window_change.push_back(columns_.of(c, C::window_layer_change_sq));
      columns.future_change.push_back(columns_.of(c, C::future_layer_change_sq));
    }
    if (in_float32(precision_))
      store_.project<float>(dump_, layer, columns, workers, figures);
    else
      store_.project<double>(dump_, layer, columns, workers, figures);
  }
  layer_.write(folder, layer, plan_, dump_.model());
}

void ChannelStage::save_head(Index kv_head, ByteWriter& out) const {
  const Index G = dump_.shape().group();
  layer_.save(kv_head, G, out);
  store_.save(kv_head * G, G, out);
}

void ChannelStage::load_head(Index kv_head, ByteReader& in) {
  const Index G = dump_.shape().group();
  layer_.load(kv_head, G, in);
  store_.load(kv_head * G, G, in);
}

Json ChannelStage::write_tables(const ResultFolder& folder, const HeadFigures& figures) {
  const ChannelTable table(plan_, columns_, figures, dump_.has(Tensor::wo));
  const std::size_t rows = table.write(folder);
  return {{"channel_window_rows", plan_.window.count()},
          {"future_rows", plan_.future.count()},
          {"prunings", plan_.cases.size()},
          {"channel_rows", rows},
          {"channel_errors", table.totals()}};
}

std::string ChannelStage::report(const HeadFigures& figures) const {
  if (figures.layers.empty()) return "";
  return channel_report(plan_, ChannelTable(plan_, columns_, figures, dump_.has(Tensor::wo)));
}

}  // namespace kvreplay
