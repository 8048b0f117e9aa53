#include "viewer/panels/scatter/scatter_facts.hpp"

#include <span>
#include <utility>

namespace kvreplay::viewer {

ScatterFacts scatter_facts(std::shared_ptr<const HeadSummary> head, TokenMetric score, TokenMetric reference,
                           bool log) {
  ScatterFacts facts;
  facts.head = std::move(head);
  facts.score = score;
  facts.reference = reference;
  const auto values = [&](TokenMetric metric) {
    const Matrix<double>& m = (*facts.head->tokens)[metric];
    return std::span(m.data(), static_cast<std::size_t>(m.size()));
  };
  ScatterOptions options;
  if (!log) options.x = options.y = ScaleKind::linear;
  facts.scatter = scatter(values(score), values(reference), options);
  const Ranking of_score(values(score)), of_reference(values(reference));
  facts.agreement = agreement(of_score, of_reference, TokenPair{score, reference}.same_unit());
  facts.score_place = of_score.place();
  facts.reference_place = of_reference.place();
  return facts;
}

std::size_t bytes_of(const ScatterFacts& facts) {
  return sizeof(facts) + bytes_of(facts.scatter) + 2 * facts.score_place.size() * sizeof(std::int32_t);
}

}  // namespace kvreplay::viewer
