#include "viewer/panels/scatter_facts.hpp"

#include "viewer/panels/questions.hpp"

#include <fmt/format.h>

#include <limits>
#include <span>
#include <utility>

namespace kvreplay::viewer {
namespace {

ScatterFacts facts_of(std::shared_ptr<const HeadSummary> head, TokenMetric score, TokenMetric reference,
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
  options.most_points = std::numeric_limits<std::size_t>::max();  // counted on the screen's own cells instead
  if (!log) options.x = options.y = ScaleKind::linear;
  facts.scatter = scatter(values(score), values(reference), options);
  const Ranking of_score(values(score)), of_reference(values(reference));
  facts.agreement = agreement(of_score, of_reference, TokenPair{score, reference}.same_unit());
  facts.score_place = of_score.place();
  facts.reference_place = of_reference.place();
  return facts;
}

}  // namespace

std::size_t bytes_of(const ScatterFacts& facts) {
  return sizeof(facts) + bytes_of(facts.scatter) + 2 * facts.score_place.size() * sizeof(std::int32_t);
}

Answer<ScatterFacts> ask_scatter(PanelContext& context, bool log) {
  const AppState& state = context.state;
  const Comparison& c = state.comparison;
  const Selection& selected = state.selection();
  const Answer<HeadSummary> head = ask_summary(context, selected.layer, selected.kv_head, Urgency::soon);
  Answer<ScatterFacts> none;
  none.pending = head.pending;
  none.error = head.error;
  if (!head || head->tokens == nullptr) return none;
  Question question;
  question.key = fmt::format("{}scatter/{}/{}/{}/{}/{}/{}", state.run()->key(), c.window, selected.layer,
                             selected.kv_head, name_of(c.score), name_of(c.reference), log);
  question.title = fmt::format("{} against {}, layer {} head {}", name_of(c.score), name_of(c.reference),
                               selected.layer, selected.kv_head);
  return context.desk.ask<ScatterFacts>(
      question, [values = head.value, score = c.score, reference = c.reference, log](JobControl&) {
        return facts_of(values, score, reference, log);
      });
}

}  // namespace kvreplay::viewer
