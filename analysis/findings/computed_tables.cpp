#include "analysis/findings/computed_tables.hpp"

#include <cassert>
#include <map>
#include <string>

namespace kvreplay {
FigureTable agreement_figures(const AgreementTable& table, const std::vector<Index>& layers, Index n_kv,
                              Index l, Index window) {
  assert(std::ssize(table.heads) == std::ssize(layers) * n_kv);
  FigureTable figures(Table::agreement);
  for (std::size_t pair = 0; pair < table.pairs.size(); ++pair)
    for (const AgreementFigure figure : kAgreementFigures.all()) {
      const TokenPair& of = table.pairs[pair];
      if (!figure_applies(figure, static_cast<std::size_t>(l), of.same_unit())) continue;
      FigureEntry entry =
          FigureEntry::empty({of.score.name, std::string(name_of(of.reference)), std::string(of.rows()),
                              std::to_string(window), "0", std::string(name_of(figure))},
                             layers.size(), n_kv);
      for (std::size_t head = 0; head < table.heads.size(); ++head)
        entry.heads[head] = table.heads[head].agreements[pair][figure];
      figures.add(std::move(entry));
    }
  return figures;
}

FigureTable eviction_figures(const EvictStage& stage, const HeadFigures& figures) {
  const EvictionTable table = stage.table(figures);
  std::map<std::vector<std::string>, std::size_t> by_key;
  std::vector<FigureEntry> entries;
  table.each_value(
      [](Scope, std::size_t) {},
      [&](Scope scope, std::size_t c, EvictionFigure figure, RowSet rows, double value) {
        const EvictionCase& of = stage.plan().cases[c];
        std::vector<std::string> key = {of.policy,
                                        of.semantics,
                                        of.phase.name(),
                                        of.budget_label,
                                        std::string(name_of(rows)),
                                        std::string(name_of(figure))};
        const auto [found, fresh] = by_key.emplace(std::move(key), entries.size());
        if (fresh) entries.push_back(FigureEntry::empty(found->first, figures.layers.size(), figures.n_kv));
        entries[found->second].value_of(scope.layer, scope.head) = value;
      });
  FigureTable all(Table::evictions);
  for (FigureEntry& entry : entries) all.add(std::move(entry));
  return all;
}

LayerEvictions layer_evictions(
    EvictStage& stage, Index layer, Index n_kv,
    const std::function<std::shared_ptr<const HeadGroup<float>>(Index kv_head)>& group) {
  LayerEvictions found;
  found.heads.setZero(n_kv, static_cast<Index>(stage.figures_per_head()));
  found.whole.assign(stage.figures_per_layer(), 0.0);
  stage.begin_layer(layer);
  for (Index g = 0; g < n_kv; ++g)
    stage.head(*group(g), {found.heads.row(g).data(), stage.figures_per_head()});
  stage.finish_layer(layer, {found.heads, found.whole});
  return found;
}

HeadFigures joined(const std::vector<Index>& layers, std::span<const LayerEvictions* const> parts) {
  assert(parts.size() == layers.size());
  HeadFigures figures;
  figures.layers = layers;
  if (parts.empty()) return figures;
  figures.n_kv = parts.front()->heads.rows();
  figures.values.resize(std::ssize(layers) * figures.n_kv, parts.front()->heads.cols());
  figures.of_layers.assign(parts.front()->whole.size(), 0.0);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    figures.values.middleRows(static_cast<Index>(i) * figures.n_kv, figures.n_kv) = parts[i]->heads;
    for (std::size_t at = 0; at < figures.of_layers.size(); ++at)
      figures.of_layers[at] += parts[i]->whole[at];
  }
  return figures;
}

}  // namespace kvreplay
