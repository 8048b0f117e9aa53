#include "analysis/channels/channel_plan.hpp"
#include "analysis/eviction/compensated_cases.hpp"
#include "analysis/eviction/head_evictions.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/python/query.hpp"
#include "analysis/tokens/token_stage.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nanobind/stl/pair.h>
#include <optional>
#include <span>
#include <string>
#include <utility>

// Queries on one layer: each resolves the plan of its command, and runs it over the layer's heads.

namespace kvreplay::python {
namespace {

/// Named results of the only layer of a run: (of the layer [cases], of its heads [cases, n_kv] or None).
template <class ValueOf>
nb::tuple scoped(std::size_t cases, Index n_kv, bool with_heads, const ValueOf& value_of) {
  std::vector<double> layers, heads;
  for (std::size_t c = 0; c < cases; ++c) {
    layers.push_back(value_of(c, Scope{}));
    for (Index g = 0; with_heads && g < n_kv; ++g) heads.push_back(value_of(c, Scope{0, g}));
  }
  return nb::make_tuple(numpy_of(std::move(layers), {cases}),
                        with_heads ? numpy_of(std::move(heads), {cases, extent(n_kv)}) : nb::none());
}

HeadFigures zero_figures(Index n_kv, Index per_head, std::size_t per_layer) {
  return {{0}, n_kv, Matrix<double>::Zero(n_kv, per_head), std::vector<double>(per_layer)};
}
std::span<double> row_of(HeadFigures& figures, Index g) {
  return std::span(figures.values.row(g).data(), extent(figures.values.cols()));
}

// Token metrics.

using TokenArgs = CallArgs<TokenStageOptions>;

Keywords<TokenStageOptions> g_token_keywords;

nb::dict token_metrics(const Request& request, const TokenArgs& args) {
  const Dump& dump = request.dump();
  require_one(token_option::window, args.of.window.size());
  const TokenPlan plan = token_plan(dump, args.of);
  std::vector<TokenStage::Array> arrays;
  compute_call(args.call, [&]<class T>(const Compute& compute) {
    TokenStage stage(dump, plan, compute);
    HeadParts parts = stage.parts_read();
    // A device finds overflow, not the key that caused it.
    if (compute.backend.reads_stored() && sizeof(T) == 4) parts.checked_keys = true;
    stage.begin_layer(0);
    on_heads<T>(dump, parts, compute.workers, [&](const HeadGroup<T>& group) { stage.fill_arrays(group); });
    arrays = stage.take_arrays();
  });
  const DumpShape& shape = dump.shape();
  const std::size_t rows = extent(plan.options.per_query_head ? shape.n_q : shape.n_kv);
  nb::dict metrics, left_out, answer;
  for (std::size_t m = 0; m < plan.metrics.size(); ++m)
    metrics[std::string(name_of(plan.metrics[m])).c_str()] = std::visit(
        [&](auto& values) {
          return numpy_of(std::move(values), {rows, extent(shape.l)});
        },
        arrays[m]);
  for (const LeftOut& one : plan.left_out) left_out[one.what.c_str()] = one.why;
  answer["metrics"] = metrics;
  answer["left_out"] = left_out;
  answer["notes"] = texts_of(plan.notes);
  return answer;
}

// Evictions.

using EvictionArgs = CallArgs<EvictionOptions>;

Keywords<EvictionOptions> g_evict_keywords(options_of_one_case);

/// Arguments of a call with scores of these names. Throws if no layer could be evicted with them.
EvictionArgs read_evict(Keywords<EvictionOptions>& keywords, const nb::dict& inputs,
                        const nb::dict& options) {
  std::vector<std::string> scores;
  for (const auto& [name, array] : nb::cast<nb::dict>(inputs["scores"]))
    scores.push_back(nb::cast<std::string>(name));
  EvictionArgs args = keywords.read(options, [&](EvictionOptions& first) {
    for (const std::string& name : scores) {
      require_own_name(evict_option::score, name);
      first.scores.push_back({name, ""});
    }
  });
  require_one_case(args.of);
  if (const Budget& budget = args.of.budgets.front(); !budget.tokens)
    check_sigma(evict_option::sigma, budget.sigma);
  const Policy& policy = *args.of.policies.front();
  if (args.of.phases.front().decodes())
    throw OptionError(evict_option::phase, "prefill or blockwise:N", args.of.phases.front().name());
  for (std::size_t s = 0; s < scores.size(); ++s)
    if (policy.given != s)
      throw OptionError(option_text("{} {}: no policy uses it: {} {}, or {}", evict_option::score, scores[s],
                                    evict_option::policy,
                                    policy_name(name_of(EvictionBase::score), scores[s]),
                                    policy_name(name_of(EvictionBase::snapkv), scores[s])));
  if (evicts_nothing(policy.name))
    throw OptionError(
        evict_option::policy, "a policy that evicts",
        fmt::format("'{}', which keeps the whole prompt and reads less (kvreplay evict measures it)",
                    policy.name));
  args.of.scores.clear();  // scores are arrays here, not files
  return args;
}

/// The user's scores, [n_kv, l] each, or [n_q, l] if query heads are distinguished.
std::vector<GivenArray<double>> scores_of(const nb::dict& scores, const DumpShape& shape) {
  std::vector<GivenArray<double>> given;
  for (const auto& [key, array] : scores) {
    const std::string name = nb::cast<std::string>(key);
    const auto numbers = nb::cast<Numbers>(array);
    given.push_back({name, {numbers.data(), numbers.data() + numbers.size()}});
    if (static_cast<Index>(numbers.shape(0)) == shape.n_q) given.back().parts = shape.group();
    take_infinities(given.back().values, std::ssize(given.back().values) / shape.l, shape.l, "score " + name);
  }
  return given;
}

/// Kept set of the plan's only case, [rows, l].
template <class T>
std::vector<std::uint8_t> layer_kept(const Dump& dump, const EvictionPlan& plan, const Compute& compute) {
  const DumpShape& shape = dump.shape();
  const Index rows = plan.per_query_head ? shape.group() : 1;
  const bool in_blocks = plan.cases.front().phase.kind == Phase::Kind::blockwise;
  const EvictionRule& rule = plan.runs.front().rules.front();
  const HeadParts parts = compute.backend.reads_stored() ? HeadParts{} : parts_of(rule, shape, in_blocks);
  // Groups that a layer's ranking reads are not read again.
  std::vector<std::shared_ptr<const HeadGroup<T>>> groups(extent(shape.n_kv));
  const auto load = [&](Index g) -> std::shared_ptr<const HeadGroup<T>>& {
    auto& group = groups[extent(g)];
    if (!group) group = std::make_shared<const HeadGroup<T>>(loaded_head<T>(dump, g, parts, compute.workers));
    return group;
  };
  std::vector<std::uint8_t> all(extent(shape.n_kv * rows * shape.l));
  on_parts<T>(dump, parts, [&] {
    const auto of_scores = [&](Index g) { return scores_of_head(plan.scores, g, shape.l); };
    const LayerScores layer = layer_scores<T>(plan, shape, load, of_scores, compute);
    for_each_head(dump, compute.workers, [&](Index g) {
      const std::shared_ptr<const HeadGroup<T>> group = std::exchange(load(g), nullptr);
      each_part(*group, plan.per_query_head, [&](Index part, const HeadGroup<T>& mine) {
        const HeadRanking ranking = head_ranking(
            mine, plan, layer, scores_of_head(plan.scores, g, shape.l, part), std::nullopt, compute);
        const KeptSet kept = prompt_kept(mine, plan, plan.cases.front(), ranking, compute);
        std::copy(kept.begin(), kept.end(), all.begin() + (g * rows + part) * shape.l);
      });
    });
  });
  return all;
}

nb::dict evict(const Request& request, const EvictionArgs& args) {
  const Dump& dump = request.dump();
  const DumpShape& shape = dump.shape();
  auto scores = scores_of(nb::cast<nb::dict>(request.inputs["scores"]), shape);
  EvictionPlan plan = eviction_plan(dump, args.of);
  plan.scores = std::move(scores);
  std::vector<std::uint8_t> kept;
  compute_call(args.call,
               [&]<class T>(const Compute& compute) { kept = layer_kept<T>(dump, plan, compute); });
  const EvictionCase& which = plan.cases.front();
  nb::dict answer;
  answer["tokens"] = std::count(kept.begin(), kept.begin() + shape.l, std::uint8_t{1});  // as in any head
  answer["kept"] = numpy_of<bool>(std::move(kept),
                                  {extent(plan.per_query_head ? shape.n_q : shape.n_kv), extent(shape.l)});
  answer["policy"] = which.policy;
  answer["semantics"] = which.semantics;
  answer["phase"] = which.phase.name();
  answer["notes"] = texts_of(plan.notes);
  return answer;
}

// Output errors.

struct OutputOptions {
  std::optional<Index> window;
  CacheFormatOptions stored;  ///< no format: unchanged
};
using OutputArgs = CallArgs<OutputOptions>;

Keywords<OutputOptions> g_output_keywords([](OutputArgs& args) {
  return joined(joined({bind_option(evict_option::window, args.of.window)}, bound(args.of.stored)),
                bound(args.call));
});

/// Storage format of a layer's caches; empty: unchanged.
std::optional<Quantization> stored_of(const CacheFormatOptions& stored, const DumpShape& shape) {
  if (stored.formats.empty()) return std::nullopt;
  require_one(evict_option::rotate, stored.rotations.size());
  require_one(evict_option::center, stored.centerings.size());
  const auto runs = cache_format_runs(stored, shape, evict_option::bits, evict_option::rotate);
  require_one(evict_option::bits, runs.size());
  return runs.front().of_layers.front();
}

/// The rows that a kept set is measured on.
struct MeasuredRows {
  RowSet set = RowSet::none;  ///< none: rows of the user's own, which no loss is taken on
  RowRange window, future;    ///< one of them is empty
  RowRange rows() const { return set == RowSet::window ? window : future; }
};

/// `rows`: None, "window", "future", or positions (first, end).
MeasuredRows measured_rows(const DumpShape& shape, nb::handle rows, Index window) {
  if (std::pair<Index, Index> own; nb::try_cast(rows, own))
    return {RowSet::none, {}, {own.first, own.second}};
  const RowRange last = window_rows(shape.l, shape.first_query(), window),
                 future = future_rows(shape.l, shape.T, shape.first_query());
  const bool on_future =
      rows.is_none() ? future.count() > 0 : nb::cast<std::string>(rows) == name_of(RowSet::future);
  if (!rows.is_none() && (on_future ? future : last).count() == 0)
    throw InputError(on_future ? "rows future: they need decoding steps with queries, and there are none"
                               : "rows window: there is no query of the prompt");
  return on_future ? MeasuredRows{RowSet::future, {}, future} : MeasuredRows{RowSet::window, last, {}};
}

Matrix<double> matrix_of(const Numbers& numbers) {
  return Eigen::Map<const Matrix<double>>(numbers.data(), static_cast<Index>(numbers.shape(0)),
                                          static_cast<Index>(numbers.shape(1)));
}

/// Compensated caches of the KV heads, from (tokens, bias, values, keys or None) each.
std::vector<Compensated> held_of(const nb::list& heads) {
  std::vector<Compensated> all;
  for (const nb::handle head : heads) {
    const auto tokens = nb::cast<Numbers>(head[0]), bias = nb::cast<Numbers>(head[1]);
    Compensated& held = all.emplace_back();
    held.tokens.assign(tokens.data(), tokens.data() + tokens.size());
    held.values = matrix_of(nb::cast<Numbers>(head[2]));
    if (!head[3].is_none()) held.keys = matrix_of(nb::cast<Numbers>(head[3]));
    if (std::any_of(bias.data(), bias.data() + bias.size(), [](double one) { return one != 0; }))
      held.bias = Eigen::Map<const Vector<double>>(bias.data(), std::ssize(held.tokens));
  }
  return all;
}

/// Caches of a layer's heads: kept sets, or compensated prompts.
struct CallCaches {
  std::size_t cases = 1;
  std::vector<std::uint8_t> kept;  ///< [cases, n_kv, l]
  std::optional<Quantization> stored;
  std::vector<Compensated> held;  ///< [n_kv], or empty

  template <class T>
  CaseOutputs<T> outputs(const HeadGroup<T>& group, const MeasuredRows& on, const DumpShape& shape,
                         bool with_vectors, const Compute& compute) const {
    if (!held.empty()) {
      const auto cache = [&](std::size_t) { return compensated_cache(group, held[extent(group.kv_head)]); };
      return cache_outputs<T>(group, on.window, on.future, 1, cache, with_vectors, compute);
    }
    std::vector<CacheCase> caches;
    for (std::size_t c = 0; c < cases; ++c) {
      const auto begin = kept.begin() + (static_cast<Index>(c) * shape.n_kv + group.kv_head) * shape.l;
      caches.push_back({KeptSet(begin, begin + shape.l), {}, {}, stored});
    }
    return case_outputs(group, on.window, on.future, caches, with_vectors, compute);
  }
};

CallCaches caches_of(const nb::dict& inputs, const OutputOptions& options, const DumpShape& shape) {
  if (const nb::object held = inputs["held"]; !held.is_none()) {
    if (!options.stored.formats.empty())
      throw OptionError(option_text("{}", evict_option::bits), "kept sets", "what a compensation holds");
    return {1, {}, {}, held_of(nb::cast<nb::list>(held))};
  }
  const auto kept = nb::cast<Booleans>(inputs["keep"]);
  return {kept.shape(0), {kept.data(), kept.data() + kept.size()}, stored_of(options.stored, shape), {}};
}

nb::dict output_error(const Request& request, const OutputArgs& args) {
  const Dump& dump = request.dump();
  const DumpShape& shape = dump.shape();
  const CallCaches caches = caches_of(request.inputs, args.of, shape);
  const MeasuredRows on =
      measured_rows(shape, request.inputs["rows"], args.of.window.value_or(kMeasuredRows));
  const MeasureColumns columns = MeasureColumns::alone(
      caches.cases, on.set, on.set == RowSet::none ? LossRows{} : LossRows::of(dump, on.window, on.future));
  HeadFigures figures = zero_figures(shape.n_kv, columns.end(), columns.losses.per_layer());
  compute_call(args.call, [&]<class T>(const Compute& compute) {
    MeasuredLayer layer(dump, compute.precision, columns);
    layer.begin();
    on_heads<T>(dump, {.first_row = on.rows().begin}, compute.workers, [&](const HeadGroup<T>& group) {
      layer.add(caches.outputs(group, on, shape, layer.with_vectors(), compute), group, on.window, on.future,
                group.kv_head * shape.group(), row_of(figures, group.kv_head), compute.workers);
    });
    layer.end(0, compute.workers, {figures.values, figures.of_layers});
  });

  const MeasuredFigures read(columns, figures, dump.has(Tensor::wo));
  const MeasureColumns::OnRows& at = columns.on(on.set);
  nb::dict answer;
  const auto put = [&](std::string_view name, bool with_heads, const auto& value_of) {
    answer[std::string(name).c_str()] = scoped(caches.cases, shape.n_kv, with_heads, value_of);
  };
  put("change_sq", true, [&](std::size_t c, Scope scope) { return read.sum(scope, at.change[c]); });
  put("full_sq", true, [&](std::size_t, Scope scope) { return read.sum(scope, at.full); });
  put("output_error", true, [&](std::size_t c, Scope scope) { return read.output_error(c, scope, on.set); });
  if (dump.has(Tensor::wo))
    put("layer_output_error", false,
        [&](std::size_t c, Scope scope) { return *read.layer_output_error(c, scope, on.set); });
  for (const auto& name : {kLossRow.name, kLossHead.name, kLossStep.name, kLossJoint.name, kDnll.name}) {
    const auto loss = [&](std::size_t c, Scope scope) { return read.loss(c, scope, name, on.set); };
    if (caches.cases > 0 && loss(0, {}))
      put(name, loss(0, {0, 0}).has_value(), [&](std::size_t c, Scope scope) { return *loss(c, scope); });
  }
  answer["rows"] = nb::make_tuple(on.rows().begin, on.rows().end);
  return answer;
}

// Compensations.

constexpr OptionFacts kMethod{"method", "NAME", "What kept tokens make up for evicted ones by", "fit"},
    kWindow{
        "window", "N",
        "The prompt's last N queries: the reference window, the rows that weigh tokens for mergers, window "
        "rows measured",
        "32", 1};

Keywords<EvictionOptions> g_compensate_keywords([](EvictionArgs& args) {
  args.of.compensate = {Compensation::fit};
  BoundOptions all = {bind_option(kMethod, args.of.compensate)
                          .saying(fmt::format(": {}", fmt::join(kCompensations.names(), ", ")))};
  all = joined(std::move(all), without(all_options(args), evict_option::keep));  // keep is an array here
  for (BoundOption& one : all) {
    one.needs = nullptr;  // there is a method, by default
    if (one.facts == &evict_option::window) one.facts = &kWindow;
  }
  return all;
});

EvictionArgs read_compensate(Keywords<EvictionOptions>& keywords, const nb::dict&, const nb::dict& options) {
  EvictionArgs args = keywords.read(options);
  require_one(kMethod, args.of.compensate.size());
  return args;
}

/// (tokens, bias, values, keys or None) of one head, in T.
template <class T>
nb::tuple tuple_of(const Compensated& held) {
  const std::size_t m = held.tokens.size();
  const auto array = [](const auto& numbers, const std::vector<std::size_t>& shape) {
    const Matrix<T> cast = numbers.template cast<T>();
    return numpy_of(std::vector<T>(cast.data(), cast.data() + cast.size()), shape);
  };
  const auto matrix = [&](const Matrix<double>& numbers) {
    return array(numbers, {m, extent(numbers.cols())});
  };
  const Vector<double> none = Vector<double>::Zero(std::ssize(held.tokens));
  return nb::make_tuple(numpy_of(std::vector<std::int32_t>(held.tokens.begin(), held.tokens.end()), {m}),
                        array(held.bias.size() > 0 ? held.bias : none, {m}), matrix(held.values),
                        held.keys.size() > 0 ? matrix(held.keys) : nb::none());
}

/// {(rows, metric): (of the layer, of its heads [n_kv])} of a table with one case.
nb::dict metrics_of(const MetricTable& table) {
  nb::dict metrics;
  for (const MetricEntry& entry : table.entries())
    metrics[nb::make_tuple(table.key(entry, "rows"), entry.metric())] =
        nb::make_tuple(entry.layers[0], numpy_of(std::vector(entry.heads), {entry.heads.size()}));
  return metrics;
}

nb::dict compensate(const Request& request, const EvictionArgs& args) {
  const Dump& dump = request.dump();
  const DumpShape& shape = dump.shape();
  const auto keep = nb::cast<Booleans>(request.inputs["keep"]);
  const EvictionPlan evictions =
      plan_of_kept(dump, args.of, {{"keep", {keep.data(), keep.data() + keep.size()}}});
  CompensationPlan plan;
  std::vector<Compensated> held(extent(shape.n_kv));
  MetricTable table(Table::compensation);
  compute_call(args.call, [&]<class T>(const Compute& compute) {
    CompensatedCases cases(dump, args.of, evictions, 0, compute);
    plan = cases.plan();
    if (!cases.any()) return;
    HeadFigures figures = zero_figures(shape.n_kv, cases.figures_per_head(), cases.figures_per_layer());
    cases.begin_layer();
    on_heads<T>(dump, {}, compute.workers, [&](const HeadGroup<T>& group) {
      const auto begin = evictions.kept.front().values.begin() + group.kv_head * shape.l;
      const KeptSet kept(begin, begin + shape.l);
      const KeptSet* const one[] = {&kept};
      held[extent(group.kv_head)] =
          std::move(cases.template head<T>(group, one, row_of(figures, group.kv_head)).front());
    });
    cases.end_layer(0, {figures.values, figures.of_layers});
    table = cases.table(figures);
  });
  if (!plan.left_out.empty())
    throw InputError(fmt::format("keep: {}: {}", evictions.cases.front().kept.value_or(shape.l),
                                 plan.left_out.front().why));

  nb::list heads;
  for (const Compensated& head : held)
    heads.append(in_float32(args.call.precision) ? tuple_of<float>(head) : tuple_of<double>(head));
  const auto of_heads = [&](const auto& value_of) {
    std::vector<double> values;
    std::ranges::transform(held, std::back_inserter(values), value_of);
    return numpy_of(std::move(values), {held.size()});
  };
  nb::dict answer;
  answer["held"] = heads;
  answer["method"] = std::string(name_of(args.of.compensate.front()));
  answer["reference"] =
      plan.fits() ? nb::cast(std::string(name_of(plan.reference.kind))) : nb::object(nb::none());
  answer["lambda_"] = of_heads(&Compensated::lambda);
  answer["mu"] = of_heads(&Compensated::mu);
  answer["bytes"] = of_heads([&](const Compensated& head) { return compensated_bytes(head, shape.d); });
  answer["split"] = metrics_of(table);
  answer["notes"] = texts_of(plan.notes);
  return answer;
}

// Interactions of key channels.

using ChannelArgs = CallArgs<ChannelOptions>;

Keywords<ChannelOptions> g_interaction_keywords;

nb::dict channel_interaction(const Request& request, const ChannelArgs& args) {
  const Dump& dump = request.dump();
  const DumpShape& shape = dump.shape();
  const bool with_outputs = nb::cast<bool>(request.inputs["outputs"]),
             diagonal = nb::cast<bool>(request.inputs["diagonal"]);
  if (with_outputs && diagonal)
    throw OptionError(option_text("diagonal: expected no outputs, which have no part in it"));
  const ChannelPlan plan = channel_plan(dump, args.of);
  const Index rows = plan.per_query_head() ? shape.group() : 1;
  std::vector<ChannelBasis> bases(extent(shape.n_kv * rows));
  compute_call(args.call, [&]<class T>(const Compute& compute) {
    const KeptSet all(extent(shape.l), 1);
    const HeadParts parts{.first_row = window_rows(shape.l, shape.first_query(), plan.setting.window).begin,
                          .values = with_outputs,
                          .others = false,
                          .checked_keys = !diagonal};
    on_heads<T>(dump, parts, compute.workers, [&](const HeadGroup<T>& group) {
      each_part(group, plan.per_query_head(), [&](Index row, const HeadGroup<T>& mine) {
        bases[extent(group.kv_head * rows + row)] =
            diagonal ? channel_diagonal(mine, all, plan.setting, compute.workers)
                     : channel_basis(mine, all, plan.setting, with_outputs, compute);
      });
    });
  });
  const std::size_t n = bases.size(), d = extent(shape.d);
  nb::dict answer;
  const auto put = [&](const char* name, const std::vector<std::size_t>& extents,
                       const auto& numbers_of_basis) {
    std::vector<double> values;
    for (const ChannelBasis& basis : bases) {
      const auto& numbers = numbers_of_basis(basis);
      values.insert(values.end(), numbers.data(), numbers.data() + numbers.size());
    }
    answer[name] = numpy_of(std::move(values), extents);
  };
  using Basis = const ChannelBasis&;
  put(
      "diagonal", {n, d}, [](Basis basis) -> const auto& { return basis.scores.diagonal; });
  put(
      "key_sq", {n, d}, [](Basis basis) -> const auto& { return basis.scores.key_sq; });
  if (!diagonal) {
    put(
        "logits", {n, d, d}, [](Basis basis) -> const auto& { return basis.scores.logits; });
    put(
        "window", {n, d, d}, [](Basis basis) -> const auto& { return basis.window; });
    put(
        "future", {n, d, d}, [](Basis basis) -> const auto& { return basis.future; });
  }
  if (with_outputs)
    put(
        "outputs", {n, d, d}, [](Basis basis) -> const auto& { return basis.scores.outputs; });
  const ChannelScores& first = bases.front().scores;
  if (!first.rope_partner.empty())
    answer["rope_pair"] =
        numpy_of(std::vector<std::int32_t>(first.rope_partner.begin(), first.rope_partner.end()), {d});
  if (!first.fixed.empty()) {
    std::vector<std::uint8_t> fixed;
    for (const ChannelBasis& basis : bases)
      fixed.insert(fixed.end(), basis.scores.fixed.begin(), basis.scores.fixed.end());
    answer["protected"] = numpy_of<bool>(std::move(fixed), {n, d});
  }
  answer["semantics"] = std::string(name_of(plan.setting.semantics));
  answer["notes"] = texts_of(plan.notes);
  return answer;
}

}  // namespace

BoundOptions options_of_one_case(EvictionArgs& args) {
  args.of.policies.clear();
  args.of.budgets.clear();
  return without(all_options(args), evict_option::score);  // scores are arrays here
}

void require_one_case(const EvictionOptions& options) {
  require_one(evict_option::policy, options.policies.size());
  require_one_budget(evict_option::keep, options.budgets);
  require_one(evict_option::phase, options.phases.size());
  if (!options.policies.front()) throw OptionError(evict_option::policy, "a policy", "'none'");
}

void add_layer_queries(Queries& queries) {
  const auto read = [](auto& keywords, const nb::dict&, const nb::dict& options) {
    return keywords.read(options);
  };
  add_query(queries, "token_metrics", g_token_keywords, read, token_metrics);
  add_query(queries, "evict", g_evict_keywords, read_evict, evict);
  add_query(queries, "output_error", g_output_keywords, read, output_error);
  add_query(queries, "compensate", g_compensate_keywords, read_compensate, compensate);
  add_query(queries, "channel_interaction", g_interaction_keywords, read, channel_interaction);
}

}  // namespace kvreplay::python
