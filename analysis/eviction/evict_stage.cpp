#include "analysis/eviction/evict_stage.hpp"

#include "analysis/eviction/eviction_tables.hpp"
#include "analysis/given/given_arrays.hpp"
#include "analysis/results/map_name.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/head_group.hpp"
#include "sim/simd/panel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <functional>
#include <memory>
#include <utility>

namespace kvreplay {
namespace {

std::vector<std::string> file_names(const EvictionPlan& plan) {
  std::vector<std::string> names;
  for (const EvictionCase& which : plan.cases) names.push_back(which.file_name());
  return names;
}

/// Cases that decode: by what they were asked for, since heads may hold other numbers of tokens at the end.
std::vector<std::string> decode_file_names(const EvictionPlan& plan) {
  std::vector<std::string> names;
  for (const EvictionCase& which : plan.cases)
    names.push_back(fmt::format("{}-{}-{}-{}", file_word(which.policy), which.semantics,
                                which.phase.file_name(), which.budget_label));
  return names;
}

/// The number of tokens that tie at a case's cut; nan if the case does not rank its tokens one by one in a
/// single pass.
double ties_of(const EvictionPlan& plan, std::size_t which, const HeadRanking& ranking, const KeptSet& kept,
               Dtype numbers) {
  const EvictionCase& one = plan.cases[which];
  if (!one.run || one.phase.kind != Phase::Kind::prefill) return kNan;
  const EvictionRule& rule = plan.runs[*one.run].rules[one.budget];
  if (rule.by || rule.threshold || rule.block > 0 || rule.two_stages || rule.page > 1 ||
      !rule.chunk_ends.empty() || (!rule.metric && !rule.given))
    return kNan;
  const Index begin = std::ssize(kept) - plan.l;
  return static_cast<double>(
      tied_at_cut(rule, ranking.scores[*one.run].tail(plan.l), {kept.begin() + begin, kept.end()}, numbers));
}

}  // namespace

EvictStage::EvictStage(const Dump& dump, const EvictionOptions& options, const Compute& compute)
    : EvictStage(dump, options, eviction_plan(dump, with_worst_layers(dump, options, compute)), compute) {}

EvictStage::EvictStage(const Dump& dump, const EvictionOptions& options, EvictionPlan plan,
                       const Compute& compute)
    : Stage(dump, compute),
      options_(options),
      plan_(std::move(plan)),
      columns_(plan_),
      kept_("kept", cache_rows(), dump.shape().l, file_names(plan_)),
      pruned_("pruned", cache_rows(), dump.shape().d, file_names(plan_)),
      key_costs_("key_costs", cache_rows(), dump.shape().d, file_names(plan_)),
      last_rows_("last_rows", cache_rows(), dump.shape().T, decode_file_names(plan_)),
      read_("read", cache_rows(), plan_.future.count() * div_up(dump.shape().l, 8), file_names(plan_),
            div_up(dump.shape().l, 8)),
      measured_(dump, compute.precision, measure_columns(columns_, plan_.cases.size())),
      compensations_(dump, options, plan_, columns_.count(), compute),
      chosen_(dump, dump) {
  options_.budgets = plan_.budgets;
  plan_.notes.push_back(
      "errors do not feed back: queries, keys and values are those of the uncompressed model");
  const CompensationPlan& compensations = compensations_.plan();
  plan_.left_out.insert(plan_.left_out.end(), compensations.left_out.begin(), compensations.left_out.end());
  plan_.notes.insert(plan_.notes.end(), compensations.notes.begin(), compensations.notes.end());
}

std::vector<std::string> EvictStage::on_cpu() const {
  std::vector<std::string> parts = {"rankings"};
  if (plan_.compression || !plan_.probes.empty()) parts.emplace_back("pruning and formats");
  if (plan_.any_reads()) parts.emplace_back("what rows read, and outputs over it");
  if (std::ranges::any_of(plan_.cases, [](const EvictionCase& which) {
        return which.phase.kind == Phase::Kind::decode && which.phase.block > 0;
      }))
    parts.emplace_back("decoding with cuts at intervals");
  if (std::ranges::any_of(plan_.cases, [&](const EvictionCase& which) {
        return which.run && which.phase.decodes() && which.phase.block == 0 &&
               !decodes_on_device(plan_.runs[*which.run].rules.front(), {});
      }))
    parts.emplace_back("decoding by policies with state");
  if (plan_.losses.any()) parts.emplace_back("predicted losses");
  if (std::ranges::any_of(plan_.runs, [](const PolicyRun& run) {
        const EvictionRule& rule = run.rules.front();
        return rule.by == SearchBy::loss || rule.greedy_by() == SearchBy::loss;
      }))
    parts.emplace_back("searches by loss");
  if (compensations_.any()) parts.emplace_back("compensation");
  return parts;
}

namespace {

/// A run's formats, with a mark where the channels of keys are stored in llama.cpp's order.
Json json_of(const CacheFormatRun& run, const Dump& dump) {
  Json layers = to_json(run);
  for (std::size_t layer = 0; layer < run.of_layers.size(); ++layer)
    if (const auto rope = dump.rope(static_cast<Index>(layer));
        rope && rope->interleaved_in_ggml && of_ggml(run.of_layers[layer].k.format))
      layers[layer]["interleaved"] = true;
  return layers;
}

}  // namespace

Json EvictStage::options() const {
  EvictionOptions settled = options_;
  settled.reference = compensations_.plan().reference.kind;
  if (plan_.compression && !options_.stored.formats.empty()) {
    const auto& formats = plan_.compression->formats;
    const Index residual = formats.front().of_layers.front().residual;
    const auto has_it = [&](const CacheFormatRun& run) { return run.of_layers.front().residual == residual; };
    if (std::ranges::all_of(formats, has_it)) settled.stored.residual = residual;
  }
  Json json = to_json(bound(settled));
  if (plan_.compression)
    for (const CacheFormatRun& run : plan_.compression->formats)
      json["stored"][run.name] = json_of(run, dump_);
  if (plan_.compression)
    for (const CacheFormatRun& run : plan_.compression->formats)
      for (const Quantization& stored : run.of_layers)
        if (const GivenCenters& centers = stored.k.centers; centers.vectors)
          json["centers"][centers.file] = contents_fingerprint(std::as_bytes(std::span(*centers.vectors)));
  if (!plan_.probes.empty()) {  // the format of all cases that name none
    Quantization exact;
    exact.residual = 0;
    json["stored"]["16"] = Json(static_cast<std::size_t>(dump_.shape().layers), to_json(exact));
  }
  for (const CacheFormatRun& run : plan_.probes) json["stored"][run.name] = json_of(run, dump_);
  if (compensations_.plan().fits()) json["ridges"] = kRidges;
  add_fingerprints(json, "scores", plan_.scores);
  add_fingerprints(json, "kept", plan_.kept);
  for (const PlannedRecipe& recipe : plan_.recipes) json["recipes"][recipe.name] = recipe.fingerprint;
  return json;
}

void EvictStage::begin_layer(Index layer) {
  kept_.begin();
  pruned_.begin();
  key_costs_.begin();
  last_rows_.begin();
  read_.begin();
  measured_.begin();
  compensations_.begin_layer();
  if (in_float32(compute_.precision))
    rank_layer<float>(layer);
  else
    rank_layer<double>(layer);
}

template <class T>
void EvictStage::rank_layer(Index layer) {
  const DumpShape& shape = dump_.shape();
  layer_scores_ = layer_scores<T>(
      plan_, shape,
      [&](Index g) { return std::make_shared<const HeadGroup<T>>(load_readers<T>(dump_, layer, g)); },
      [&](Index g) { return scores_of_head(plan_.scores, layer * shape.n_kv + g, shape.l); }, compute_);
}

/// `group` is a part of its head, or all that read its cache.
template <class T>
EvictStage::Chosen<T> EvictStage::choose(const HeadGroup<T>& group, Index part) const {
  const Index l = group.l, row = group.layer * dump_.shape().n_kv + group.kv_head;
  const GivenScores given = scores_of_head(plan_.scores, row, l, part);
  std::vector<KeptSet> given_kept;
  for (const GivenArray<std::uint8_t>& kept : plan_.kept) {
    const auto set = kept.of(row, part, l);
    given_kept.emplace_back(set.begin(), set.end());
  }
  const HeadRanking ranking = head_ranking(group, plan_, layer_scores_, given, std::nullopt, compute_);
  Chosen<T> chosen{
      head_caches(group, plan_, ranking, given_kept, compute_), future_importance(group, compute_), {}};
  for (std::size_t c = 0; plan_.ties && c < plan_.cases.size(); ++c)
    for (const Dtype numbers : kTiesIn)
      chosen.ties.push_back(ties_of(plan_.of(group), c, ranking, chosen.caches.cases[c].kept, numbers));
  return chosen;
}

template <class T>
void EvictStage::compute(const HeadGroup<T>& group, std::span<double> figures) {
  const Index held = group.held(), G = group.G();
  // A cache that several layers read is chosen by them all, and is there once.
  const std::vector<Index> readers = dump_.readers(group.layer);
  const Index before = std::ranges::find(readers, group.layer) - readers.begin();
  const bool shared = readers.size() > 1 && !plan_.per_query_head;
  const double caches = before == 0 ? 1 : 0;
  std::fill(figures.begin(), figures.end(), 0.0);
  const auto add = [&](Index column, double value) { figures[column] += value; };
  std::vector<double> step_full_sq(columns_.steps());
  const Index parts = plan_.per_query_head ? G : 1;
  each_part(group, plan_.per_query_head, [&](Index part, const HeadGroup<T>& mine) {
    const std::shared_ptr<const Chosen<T>> chosen =
        shared ? std::get<OncePerCache<Chosen<T>>>(chosen_).of(
                     group.layer, group.kv_head,
                     [&] { return choose(load_readers<T>(dump_, group.layer, group.kv_head), 0); })
               : std::make_shared<const Chosen<T>>(choose(mine, part));
    const Vector<double> own = shared ? future_importance(mine, compute_) : Vector<double>();
    const CacheReaders all{chosen->importance, shared ? &own : nullptr, before * G};
    HeadEvictions<T> head =
        head_evictions(mine, plan_, chosen->caches, all, measured_.with_vectors(), compute_);
    measured_.add(std::move(head.outputs), mine, plan_.window, plan_.future, group.kv_head * G + part,
                  figures, compute_.workers);
    using C = EvictionColumns;
    add(columns_.of(C::prompt_bytes),
        caches * static_cast<double>((plan_.reserves ? group.l : held) * kElementBytes *
                                     (group.d() + group.d_v())));
    for (std::size_t s = 0; s < head.step_full_sq.size(); ++s) step_full_sq[s] += head.step_full_sq[s];
    for (std::size_t pair = 0; pair < plan_.pairs.size(); ++pair) {
      const KeptSet& first = head.cases[plan_.pairs[pair].first].kept;
      const KeptSet& second = head.cases[plan_.pairs[pair].second].kept;
      Index common = 0;
      for (std::size_t p = 0; p < first.size(); ++p) common += first[p] & second[p];
      add(columns_.common_of(pair), static_cast<double>(common) / static_cast<double>(parts));
    }
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      CaseFigures& found = head.cases[c];
      for (int at = 0; at < C::kCaseFigures; ++at) {
        const auto column = static_cast<C::Case>(at);
        add(columns_.of(c, column), (column == C::bytes ? caches : 1) * found[column] /
                                        static_cast<double>(C::averages(column) ? parts : 1));
      }
      for (Index n = 0; plan_.ties && n < kTieNumbers; ++n)
        add(columns_.ties_of(c) + n, chosen->ties[c * kTieNumbers + n] / static_cast<double>(parts));
      if (const auto column = columns_.bytes_read_of(c)) add(*column, caches * found.bytes_read);
      for (std::size_t s = 0; s < found.step_change_sq.size(); ++s)
        add(columns_.steps_of(c) + static_cast<Index>(s), found.step_change_sq[s]);
      for (std::size_t s = 0; s < found.step_tokens.size(); ++s)
        add(columns_.cached_of(c) + static_cast<Index>(s), found.step_tokens[s] / static_cast<double>(parts));
      const Index kept_row = plan_.per_query_head ? group.kv_head * G + part : group.kv_head;
      // A recipe may keep the whole prompt of one head of a layer and evict from another, so channel costs
      // are not stored for recipes.
      if (const CacheCase& cache = chosen->caches.cases[c];
          !plan_.cases[c].recipe && cache.quantization &&
          cache.quantization->k.format != NumberFormat::exact && count(cache.kept) == held) {
        const Vector<double> costs =
            channel_costs(mine, cache, plan_.future.count() > 0 ? plan_.future : plan_.window);
        key_costs_.at(c, kept_row).assign(costs.begin(), costs.end());
      }
      kept_.at(c, kept_row) = std::move(found.kept);
      pruned_.at(c, kept_row) = std::move(found.pruned);
      last_rows_.at(c, kept_row) = std::move(found.last_rows);
      read_.at(c, kept_row) = std::move(found.read);
    }
  });
  for (std::size_t c = 0; c < plan_.cases.size(); ++c)
    if (plan_.cases[c].phase.decodes())
      for (Index s = 0; s < columns_.steps(); ++s)
        figures[columns_.steps_of(c) + s] =
            relative_error(figures[columns_.steps_of(c) + s], step_full_sq[s]);
  if (!compensations_.any()) return;
  std::vector<const KeptSet*> kept;
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) kept.push_back(&kept_.at(c, group.kv_head));
  compensations_.head(group, kept, figures);
}

void EvictStage::head(const HeadGroup<float>& group, std::span<double> figures) { compute(group, figures); }
void EvictStage::head(const HeadGroup<double>& group, std::span<double> figures) { compute(group, figures); }

void EvictStage::finish_layer(Index layer, LayerFigures figures) {
  const std::size_t own = columns_.losses().per_layer();
  measured_.end(layer, compute_.workers, {figures.heads, figures.whole.first(own)});
  compensations_.end_layer(layer, {figures.heads, figures.whole.subspan(own)});
  if (plan_.with_residual) {
    // The stream in units of the attention's output, which is multiplied before it is added.
    const double multiplier = dump_.output_multiplier(layer);
    std::vector<double> norms(dump_.shape().T);
    dump_.read(Tensor::residual_norm, layer, 0, norms.data());
    const auto squares = [&](RowRange rows) {
      double sum = 0;
      for (Index row = rows.begin; row < rows.end; ++row) sum += norms[row] * norms[row];
      return sum / (multiplier * multiplier);
    };
    figures.heads.col(columns_.of(EvictionColumns::window_residual_sq)).setConstant(squares(plan_.window));
    figures.heads.col(columns_.of(EvictionColumns::future_residual_sq)).setConstant(squares(plan_.future));
  }
}

void EvictStage::end_layer(const ResultFolder& folder, Index layer, LayerFigures figures) {
  finish_layer(layer, figures);
  compensations_.write_layer(folder, layer);
  kept_.write(folder, layer);
  pruned_.write(folder, layer);
  key_costs_.write(folder, layer);
  last_rows_.write(folder, layer);
  read_.write(folder, layer);
  write_kept_differences(folder, layer, plan_, kept_.all());
}

EvictionTable EvictStage::table(const HeadFigures& figures) const {
  return {plan_, columns_, figures, dump_.has(Tensor::wo)};
}

Json EvictStage::write_tables(const ResultFolder& folder, const HeadFigures& figures) {
  const EvictionTable evictions = table(figures);
  const std::size_t rows = evictions.write(folder);
  Json totals = {{"candidates", plan_.l},
                 {"measured_window_rows", plan_.window.count()},
                 {"future_rows", plan_.future.count()},
                 {"evictions", plan_.cases.size()},
                 {"prompt_bytes", evictions.prompt_bytes()},
                 {"eviction_rows", rows},
                 {"eviction_errors", evictions.metrics().of_model(name_of(EvictionFigure::output_error),
                                                                  evictions.best_rows())}};
  if (plan_.ties) totals["ties"] = evictions.ties();
  if (compensations_.any()) totals["compensation_rows"] = compensations_.table(figures).write(folder);
  return totals;
}

std::string EvictStage::report(const HeadFigures& figures) const {
  if (figures.layers.empty()) return "";
  return eviction_report(plan_, table(figures)) + compensations_.report(figures);
}

template <class T>
LayerEvictions layer_evictions(
    EvictStage& stage, Index layer, Index n_kv,
    const std::function<std::shared_ptr<const HeadGroup<T>>(Index kv_head)>& group) {
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

template decltype(layer_evictions<float>) layer_evictions<float>;
template decltype(layer_evictions<double>) layer_evictions<double>;

namespace {

template <class T>
HeadFigures figures_of_all_layers(EvictStage& stage, const Dump& dump) {
  std::vector<Index> layers;
  std::vector<LayerEvictions> parts;
  for (Index layer = 0; layer < dump.shape().layers; ++layer) {
    layers.push_back(layer);
    parts.push_back(layer_evictions<T>(stage, layer, dump.shape().n_kv, [&](Index g) {
      return std::make_shared<const HeadGroup<T>>(load_head_group<T>(dump, layer, g));
    }));
  }
  std::vector<const LayerEvictions*> all;
  for (const LayerEvictions& part : parts) all.push_back(&part);
  return joined(layers, all);
}

}  // namespace

EvictionOptions with_worst_layers(const Dump& dump, EvictionOptions options, const Compute& compute) {
  EvictionOptions alone;
  alone.policies = {std::nullopt};
  alone.window = options.window;
  alone.stored = options.stored;
  alone.stored.formats.clear();
  for (const CacheFormat& format : options.stored.formats)
    if (format.spared) alone.stored.formats.push_back(format.sparing({}));
  if (alone.stored.formats.empty()) return options;
  EvictStage stage(dump, alone, compute);
  const HeadFigures figures = in_float32(compute.precision) ? figures_of_all_layers<float>(stage, dump)
                                                            : figures_of_all_layers<double>(stage, dump);
  const EvictionTable table = stage.table(figures);
  for (std::size_t c = 0; c < stage.plan().cases.size(); ++c) {
    std::vector<std::pair<double, Index>> losses;
    const auto* const nats = table.entry(c, EvictionFigure::loss_layer, table.best_rows());
    const auto* const error = table.entry(c, EvictionFigure::output_error, table.best_rows());
    for (std::size_t layer = 0; layer < table.layers().size(); ++layer)
      losses.emplace_back(nats != nullptr    ? nats->layers[layer]
                          : error != nullptr ? error->layers[layer]
                                             : 0,
                          table.layers()[layer]);
    std::ranges::stable_sort(losses, std::greater<>(), &std::pair<double, Index>::first);
    std::vector<Index>& worst = options.stored.worst_first[stage.plan().compression->formats[c].name];
    for (const auto& [loss, layer] : losses) worst.push_back(layer);
  }
  return options;
}

}  // namespace kvreplay
