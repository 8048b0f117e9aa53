#include "analysis/channels/channel_stage.hpp"

#include "analysis/channels/channel_tables.hpp"
#include "analysis/channels/layer_channels.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/head_group.hpp"

#include <algorithm>
#include <optional>
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

}  // namespace

ChannelStage::ChannelStage(const Dump& dump, const ChannelOptions& options, const Compute& compute)
    : Stage(dump, compute),
      plan_(channel_plan(dump, options)),
      columns_(0, plan_.cases.size(), plan_.losses),
      measured_(dump, compute.precision, columns_of(columns_, plan_)) {}

Json ChannelStage::options() const {
  const ChannelSetting& setting = plan_.setting;
  ChannelOptions settled{plan_.rules,    plan_.ratios,       setting.semantics, setting.recent,
                         setting.window, setting.protection, plan_.png};
  return to_json(bound(settled));
}

void ChannelStage::begin_layer(Index layer) {
  const DumpShape& shape = dump_.shape();
  layer_.begin(plan_, shape);
  if (const auto rope = dump_.rope(layer)) layer_.rope_partner = rope_partners(*rope, shape.d);
  measured_.begin();
}

template <class T>
void ChannelStage::compute(const HeadGroup<T>& group, std::span<double> figures) {
  const Index G = group.G();
  std::fill(figures.begin(), figures.end(), 0.0);
  if (plan_.per_query_head())
    for (Index g = 0; g < G; ++g)
      compute_part(query_head_group(group, g), group.kv_head * G + g, group.kv_head * G + g, figures);
  else
    compute_part(group, group.kv_head, group.kv_head * G, figures);
  // Shares and counts are means over the selections of the head.
  const auto parts = static_cast<double>(plan_.per_query_head() ? G : 1);
  const auto divide = [&](Index column) { figures[column] /= parts; };
  divide(columns_.of(ChannelColumns::off_diagonal_share));
  divide(columns_.of(ChannelColumns::rope_pair_share));
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) divide(columns_.of(c, ChannelColumns::pruned));
}

template <class T>
void ChannelStage::compute_part(const HeadGroup<T>& group, Index row, Index first_query_head,
                                std::span<double> figures) {
  using C = ChannelColumns;
  const auto at = static_cast<std::size_t>(row);
  const auto add = [&](Index column, double value) { figures[column] += value; };
  const KeptSet all(static_cast<std::size_t>(group.l), 1);

  ChannelBasis basis = channel_basis(group, all, plan_.setting, plan_.needs_outputs(), compute_);
  add(columns_.of(C::off_diagonal_share), off_diagonal_share(basis.scores.logits));
  if (!layer_.rope_partner.empty())
    add(columns_.of(C::rope_pair_share), rope_pair_share(basis.scores.logits, layer_.rope_partner));
  layer_.spectrum[at] = spectrum(basis.scores.logits);
  for (Index g = 0; g < group.G(); ++g) {
    const auto head = static_cast<std::size_t>(first_query_head + g);
    layer_.window[head] = query_moments(group, g, plan_.window);
    if (plan_.future.count() > 0) layer_.future[head] = query_moments(group, g, plan_.future);
  }

  // What rules choose themselves gives bases of their own.
  std::vector<std::pair<ChannelSetting, ChannelBasis>> others;
  std::vector<std::size_t> other_of;  // rules; 0 is the run's
  for (const ChannelRule& rule : plan_.rules) {
    const ChannelSetting setting = plan_.setting.of(rule);
    const auto known =
        std::find_if(others.begin(), others.end(), [&](const auto& other) { return other.first == setting; });
    other_of.push_back(setting == plan_.setting ? 0 : static_cast<std::size_t>(known - others.begin()) + 1);
    if (other_of.back() > others.size())
      others.emplace_back(setting, channel_basis(group, all, setting, plan_.needs_outputs(), compute_));
  }
  const auto basis_of = [&](std::size_t rule) -> const ChannelBasis& {
    return other_of[rule] == 0 ? basis : others[other_of[rule] - 1].second;
  };
  std::vector<std::vector<Index>> orders;
  for (std::size_t r = 0; r < plan_.rules.size(); ++r) {
    orders.push_back(channel_order(plan_.rules[r], basis_of(r).scores));
    if (plan_.rules[r].has_order()) layer_.order[r][at] = orders.back();
  }
  const CacheElements elements = cache_elements(dump_);
  std::vector<CacheCase> caches;
  for (const ChannelCase& which : plan_.cases)
    caches.push_back({all, {}, basis_of(which.rule).keys.prunable});
  compute_.workers.parallel_for(std::ssize(plan_.cases), [&](std::ptrdiff_t n) {
    const auto c = static_cast<std::size_t>(n);
    const ChannelCase& which = plan_.cases[c];
    const ChannelBasis& its = basis_of(which.rule);
    ChannelSelection selection =
        select_channels(plan_.rules[which.rule], its.scores, orders[which.rule], which.pruned);
    add(columns_.of(c, C::pruned),
        static_cast<double>(std::count(selection.pruned.begin(), selection.pruned.end(), 1)));
    add(columns_.of(c, C::window_reconstruction), subset_error(its.window, selection.pruned));
    add(columns_.of(c, C::future_reconstruction), subset_error(its.future, selection.pruned));
    add(columns_.of(c, C::window_logits_sq), its.window.sum());
    add(columns_.of(c, C::future_logits_sq), its.future.sum());
    add(columns_.of(c, C::lower_bound), selection.lower_bound.value_or(0));
    add(columns_.of(c, C::proven), selection.proven ? 1 : 0);
    add(columns_.of(c, C::bytes), cache_bytes(all, selection.pruned, its.keys.prunable, group.d(),
                                              group.d_v(), std::nullopt, elements));
    caches[c].pruned = selection.pruned;
    layer_.pruned[c][at] = std::move(selection.pruned);
  });
  measured_.add(case_outputs(group, plan_.window, plan_.future, caches, measured_.with_vectors(), compute_),
                group, plan_.window, plan_.future, first_query_head, figures, compute_.workers);
  layer_.interaction[at] = std::move(basis.scores.logits);
  if (plan_.needs_outputs()) layer_.outputs[at] = std::move(basis.scores.outputs);
}

void ChannelStage::head(const HeadGroup<float>& group, std::span<double> figures) { compute(group, figures); }
void ChannelStage::head(const HeadGroup<double>& group, std::span<double> figures) {
  compute(group, figures);
}

void ChannelStage::end_layer(const ResultFolder& folder, Index layer, LayerFigures figures) {
  measured_.end(layer, compute_.workers, figures);
  layer_.write(folder, layer, plan_);
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
