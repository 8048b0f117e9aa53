#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/eviction/head_ranking.hpp"
#include "analysis/python/calls.hpp"
#include "analysis/python/keywords.hpp"
#include "analysis/python/layer.hpp"
#include "analysis/python/policy_keywords.hpp"
#include "analysis/python/texts.hpp"
#include "sim/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nanobind/stl/string.h>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::python {
namespace {

BoundOptions options_of(Asked<EvictionOptions>& asked) {
  return policy_options(asked, [](const OptionFacts*) { return false; });
}
Keywords<Asked<EvictionOptions>> g_evict_keywords(options_of);

/// The user's scores, [n_kv, l] each.
std::vector<GivenArray<double>> scores_of(const nb::dict& scores, const DumpShape& shape) {
  std::vector<GivenArray<double>> given;
  for (const auto& [key, array] : scores) {
    const std::string name = nb::cast<std::string>(key);
    require_own_name(evict_option::score, name);
    std::vector<Index> extents = {shape.n_kv, shape.l};
    given.push_back({name, numbers_of(("score " + name).c_str(), array, extents)});
  }
  return given;
}

/// The plan of the only case that there is to be.
EvictionPlan plan_of(const Dump& dump, EvictionOptions& options, std::vector<GivenArray<double>> scores) {
  require_one_case(options);
  if (options.phases.front().decodes())
    throw OptionError(evict_option::phase, "prefill or blockwise:N", options.phases.front().name());
  for (std::size_t s = 0; s < scores.size(); ++s)
    if (options.policies.front()->given != s)
      throw OptionError(option_text("{} {}: no policy uses it: {} {}, or {}", evict_option::score,
                                    scores[s].name, evict_option::policy,
                                    policy_name(name_of(EvictionBase::score), scores[s].name),
                                    policy_name(name_of(EvictionBase::snapkv), scores[s].name)));
  options.scores.clear();  // they are files
  EvictionPlan plan = eviction_plan(dump, options);
  plan.scores = std::move(scores);
  return plan;
}

/// What the plan's only case keeps, [rows, l].
template <class T>
std::vector<std::uint8_t> layer_kept(const Dump& dump, const EvictionPlan& plan, const Compute& compute) {
  const DumpShape& shape = dump.shape();
  const Index rows = plan.per_query_head ? shape.group() : 1;
  const bool in_blocks = plan.cases.front().phase.kind == Phase::Kind::blockwise;
  const EvictionRule& rule = plan.runs.front().rules.front();
  const HeadParts parts = compute.backend.reads_stored() ? HeadParts{} : parts_of(rule, shape, in_blocks);
  // Those that a layer's ranking reads are not read again.
  std::vector<std::shared_ptr<const HeadGroup<T>>> groups(extent(shape.n_kv));
  const auto load = [&](Index g) -> std::shared_ptr<const HeadGroup<T>>& {
    auto& group = groups[extent(g)];
    if (!group) group = std::make_shared<const HeadGroup<T>>(loaded_head<T>(dump, g, parts, compute.workers));
    return group;
  };
  const auto given = [&](Index g) { return scores_of_head(plan.scores, g, shape.l); };
  LayerScores layer;
  std::vector<std::uint8_t> all(extent(shape.n_kv * rows * shape.l));
  const auto of_head = [&](Index g) {
    const std::shared_ptr<const HeadGroup<T>> group = std::exchange(load(g), nullptr);
    for (Index part = 0; part < rows; ++part) {
      const HeadGroup<T> one = plan.per_query_head ? query_head_group(*group, part) : HeadGroup<T>{};
      const HeadGroup<T>& mine = plan.per_query_head ? one : *group;
      const HeadRanking ranking = head_ranking(mine, plan, layer, given(g), std::nullopt, compute);
      const KeptSet kept = prompt_kept(mine, plan, plan.cases.front(), ranking, compute);
      std::copy(kept.begin(), kept.end(), all.begin() + (g * rows + part) * shape.l);
    }
  };
  on_parts<T>(dump, parts, [&] {
    layer = layer_scores<T>(plan, shape, load, given, compute);
    for_each_head(dump, compute.workers, of_head);
  });
  return all;
}

nb::tuple evict(const Layer& layer, const nb::dict& scores, const nb::dict& keywords) {
  const Dump& dump = layer.dump();
  std::vector<GivenArray<double>> given = scores_of(scores, dump.shape());
  auto [options, call] = g_evict_keywords.read(keywords, [&](Asked<EvictionOptions>& asked) {
    for (const GivenArray<double>& score : given) asked.of.scores.push_back({score.name, ""});
  });
  const EvictionPlan plan = plan_of(dump, options, std::move(given));
  std::vector<std::uint8_t> kept = computed(call, [&](const Compute& compute) {
    return in_float32(call.precision) ? layer_kept<float>(dump, plan, compute)
                                      : layer_kept<double>(dump, plan, compute);
  });
  const DumpShape& shape = dump.shape();
  const EvictionCase& which = plan.cases.front();
  return nb::make_tuple(
      numpy_of<bool>(std::move(kept),
                     {extent(plan.per_query_head ? shape.n_q : shape.n_kv), extent(shape.l)}),
      which.policy, which.semantics, which.phase.name(), which.kept.value_or(0), texts_of(plan.notes));
}

}  // namespace

void bind_evictions(nb::module_& module) {
  module.def("evict", evict, nb::arg("layer"), nb::arg("scores"), nb::arg("options"),
             "(kept [rows, l], policy, semantics, phase, tokens, notes).");
  module.def("evict_options", [] { return g_evict_keywords.described(); });
}

}  // namespace kvreplay::python
