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

}  // namespace kvreplay
