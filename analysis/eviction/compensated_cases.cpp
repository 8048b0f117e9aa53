#include "analysis/eviction/compensated_cases.hpp"

#include "analysis/results/figure_facts.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

using namespace evict_option;

void require_compensable(const EvictionOptions& options) {
  const auto refuse = [](const OptionFacts& other, const std::string& why) {
    throw OptionError(option_text("{} and {}: {}", compensate, other, why));
  };
  for (const Phase& one : options.phases)
    if (one.decodes())
      throw OptionError(option_text("{}", compensate),
                        "phases that end with the prompt (prefill, blockwise:N)", one.name());
  if (options.per_query_head) refuse(per_query_head, "what is fitted serves all query heads of a KV head");
  if (options.channels) refuse(channels, "one or the other");
  if (!options.stored.formats.empty()) refuse(bits, "one or the other");
}

/// The rows asked for; where nobody says, those that the dump has.
Reference reference_of(const Dump& dump, const EvictionOptions& options) {
  if (!options.reference)
    return why_no_reference(dump, Reference::shifted) ? Reference::window : Reference::shifted;
  if (const auto why = why_no_reference(dump, *options.reference))
    throw OptionError(option_text("{}: {} is unavailable: {}", reference, name_of(*options.reference), *why));
  return *options.reference;
}

}  // namespace

bool CompensationPlan::fits() const {
  return std::ranges::any_of(
      cases, [](const CompensationCase& which) { return kCompensations[which.method].fits(); });
}

bool CompensationPlan::merges() const {
  return std::ranges::any_of(
      cases, [](const CompensationCase& which) { return kCompensations[which.method].merging.has_value(); });
}

namespace {

/// Operations a second of one core in float64, of products and factors as large as a fit's.
constexpr double kFitRate = 1e10;
constexpr double kWorthSaying = 20;  // seconds

/// A note on the time that fits will take, if it is long: fits may take most of a run's time. `rows` is the
/// number of rows of a head group that are fitted to. Operations are counted as in
/// sim/compensation/compensate.hpp.
std::optional<OptionText> price_of_fits(const CompensationPlan& plan, const EvictionPlan& evictions,
                                        const DumpShape& shape, Index rows) {
  double operations = 0;
  Index fits = 0, most = 0;
  for (const CompensationCase& one : plan.cases) {
    const Index tokens = evictions.cases[one.eviction].kept.value_or(evictions.l);
    if (!kCompensations[one.method].fits() || tokens >= evictions.l) continue;
    const auto m = static_cast<double>(tokens);
    const double products = static_cast<double>(rows) * std::pow(m + static_cast<double>(shape.d_v), 2);
    const double factors = static_cast<double>(kRidges.size()) * std::pow(m, 3) / 3;
    operations += (one.method == Compensation::fit ? 1.5 : 1) * (products + factors);
    most = std::max(most, tokens);
    ++fits;
  }
  const Index heads = shape.layers * shape.n_kv;
  const double of_head = operations / kFitRate, of_all = of_head * static_cast<double>(heads);
  if (of_all < kWorthSaying) return std::nullopt;
  return option_text(
      "fits take about {:.2g} s of one core in each KV head, {:.2g} min in all {} of the dump: "
      "{} of up to {} tokens to {} queries ({})",
      of_head, of_all / 60, heads, fits, most, rows, evict_option::compensate);
}

}  // namespace

CompensationPlan compensation_plan(const Dump& dump, const EvictionOptions& options,
                                   const EvictionPlan& evictions) {
  CompensationPlan plan;
  if (options.compensate.empty()) return plan;
  require_compensable(options);
  const bool fits = std::ranges::any_of(options.compensate,
                                        [](Compensation method) { return kCompensations[method].fits(); });
  plan.reference = {reference_of(dump, options), evictions.window_asked, options.reference_rows};
  if (const auto why = why_no_reference(dump, plan.reference.kind); fits && why)
    throw OptionError(option_text("{}: a fit is unavailable: {}", compensate, *why));
  for (const Compensation method : options.compensate)
    if (const auto merging = kCompensations[method].merging;
        merging && kMergings[*merging].needs_attention && evictions.window.count() == 0)
      throw OptionError(option_text("{}: {} is unavailable: the dump holds no query of the prompt",
                                    compensate, name_of(method)));
  plan.window = evictions.window;
  plan.future = evictions.future;
  plan.losses = evictions.losses;
  std::vector<Compensation> methods;
  for (const Compensation method : options.compensate) place_in(methods, method);
  for (std::size_t e = 0; e < evictions.cases.size(); ++e)
    for (const Compensation method : methods) {
      const Index most = evictions.cases[e].kept.value_or(evictions.l);
      if (evictions.reads(evictions.cases[e]) != nullptr)
        plan.left_out.push_back({file_name(evictions, {e, method}), "nothing is evicted"});
      else if (kCompensations[method].fits() && most > kMostFitted && most < evictions.l)
        plan.left_out.push_back({file_name(evictions, {e, method}),
                                 fmt::format("more than {} tokens are not fitted", kMostFitted)});
      else {
        if (plan.cases.empty() || plan.cases.back().eviction != e) plan.first.push_back(plan.cases.size());
        plan.cases.push_back({e, method});
      }
    }
  const DumpShape& shape = dump.shape();
  const Reference kind = plan.reference.kind;
  const Index there = kind == Reference::shifted  ? shape.l - shape.first_query()
                      : kind == Reference::repeat ? shape.R_ref
                                                  : Index{0};
  if (fits && there > plan.reference.most)
    plan.notes.push_back(option_text("fits look at {} of the {}'s {} queries ({})", plan.reference.most,
                                     kind == Reference::repeat ? "second reading" : "prompt", there,
                                     reference_positions));
  else if (fits && kind == Reference::shifted && there < shape.l)
    plan.notes.push_back(fmt::format(
        "fits look at {} queries: the dump holds those of {} of {} prompt positions", there, there, shape.l));
  else if (fits && !options.reference && kind == Reference::window)
    plan.notes.push_back(fmt::format("fits look at the last {} queries of the prompt, which are not {}: {}",
                                     std::min(plan.reference.window, shape.l - shape.first_query()),
                                     name_of(Reference::shifted),
                                     *why_no_reference(dump, Reference::shifted)));
  const Index positions =
      kind == Reference::window ? plan.reference.window : std::min(there, plan.reference.most);
  plan.price = price_of_fits(plan, evictions, shape, positions * shape.group());
  return plan;
}

std::string file_name(const EvictionPlan& evictions, const CompensationCase& which) {
  return fmt::format("{}-{}", evictions.cases[which.eviction].file_name(), name_of(which.method));
}

namespace {

using Cc = CompensationColumns;

template <class T>
std::size_t row_bytes(const RowLogits<T>& rows) {
  return rows.log_weight.size() * sizeof(T) +
         static_cast<std::size_t>(rows.prompt_out.size() + rows.rest_out.size() + rows.prompt_mass.size() +
                                  rows.log_rest.size()) *
             sizeof(double);
}

template <class Numbers>
std::vector<float> narrowed(const Numbers& numbers) {
  const Matrix<float> narrow = numbers.template cast<float>();
  return {narrow.data(), narrow.data() + narrow.size()};
}

}  // namespace

namespace {

class CompensationFigures : public MeasuredTable<CompensationPlan, CompensationColumns> {
 public:
  using MeasuredTable::MeasuredTable;

  MetricTable table(const EvictionPlan& evictions) const {
    MetricTable table = table_of(Table::compensation);
    for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
      const EvictionCase& eviction = evictions.cases[plan_.cases[c].eviction];
      table.add_case(
          kCompensationFigures,
          {eviction.policy, eviction.semantics, eviction.phase.name(), eviction.budget_label,
           std::string(name_of(plan_.cases[c].method)), std::string(name_of(plan_.reference.kind))},
          file_name(evictions, plan_.cases[c]),
          table.at_scopes([&](Scope scope) { return scoped_.common(scope, columns_.of(c, Cc::tokens)); }),
          [&](Scope scope, CompensationFigure metric, RowSet rows) { return value(c, scope, metric, rows); });
    }
    return table;
  }

 private:
  /// Empty where nothing was fitted, or the method has no such error.
  std::optional<double> relative(Scope scope, Index column, RowSet rows) const {
    const double full_sq = sum(scope, columns_.of(rows == RowSet::window   ? Cc::window_full_sq
                                                  : rows == RowSet::future ? Cc::future_full_sq
                                                                           : Cc::reference_full_sq));
    const double part = sum(scope, column);
    if (std::isnan(part) || (rows == RowSet::reference && std::isnan(full_sq))) return std::nullopt;
    return relative_error(part, full_sq);
  }
  std::optional<double> value(std::size_t which, Scope scope, CompensationFigure metric, RowSet rows) const {
    const FigureFacts& facts = facts_of(metric);
    if (!facts.rows.has(rows) || !facts.levels.has(level_of(scope))) return std::nullopt;
    if ((rows == RowSet::window && plan_.window.count() == 0) ||
        (rows == RowSet::future && plan_.future.count() == 0))
      return std::nullopt;
    if (metric == CompensationFigure::output_error)
      return rows == RowSet::reference ? relative(scope, columns_.of(which, Cc::reference_change_sq), rows)
                                       : output_error(which, scope, rows);
    if (metric == CompensationFigure::layer_output_error) return layer_output_error(which, scope, rows);
    if (metric >= CompensationFigure::selection && metric <= CompensationFigure::bound)
      return relative(scope,
                      columns_.of(which, Cc::terms_on(rows)) + static_cast<Index>(metric) -
                          static_cast<Index>(CompensationFigure::selection),
                      rows);
    return facts.over_heads == HeadTotal::formed ? loss(which, scope, facts.name, rows)
                                                 : kept_number(which, scope, metric, rows);
  }
};

}  // namespace

std::string CompensatedCases::report(const HeadFigures& figures) const {
  if (!any()) return "";
  const MetricTable table = this->table(figures);
  const RowSet rows = plan_.future.count() > 0 ? RowSet::future : RowSet::window;
  std::string text = fmt::format("\noutput error {} on the {} rows, by what makes up for evicted tokens",
                                 kOverHeads, name_of(rows));
  if (plan_.fits()) text += fmt::format(" (fitted to {} rows)", name_of(plan_.reference.kind));
  std::vector<Compensation> methods;
  std::size_t width = 6;
  for (const CompensationCase& which : plan_.cases) {
    place_in(methods, which.method);
    width = std::max(width, evictions_.cases[which.eviction].file_name().size());
  }
  text += fmt::format("\n{:{}}", "kept", width);
  for (const Compensation method : methods) text += fmt::format("  {:>20}", name_of(method));
  for (std::size_t e = 0; e < evictions_.cases.size(); ++e) {
    text += fmt::format("\n{:{}}", evictions_.cases[e].file_name(), width);
    for (const Compensation method : methods) {
      const auto* const found =
          table.of_case(file_name(evictions_, {e, method}), name_of(CompensationFigure::output_error), rows);
      text += fmt::format("  {:>20}",
                          found == nullptr ? "-" : with_median_head(found->model, median(found->heads)));
    }
  }
  return text + "\n";
}

template <class T>
HeadCompensation<T>::HeadCompensation(const HeadGroup<T>& group, const CompensationPlan& plan,
                                      Workers& workers, const HeadGroup<T>* readers)
    : group_(group), readers_(readers != nullptr ? *readers : group) {
  if (plan.fits()) reference_ = reference_rows(readers_, plan.reference, workers);
  const auto rows_at = [&](RowRange rows) {
    return rows.count() > 0 ? std::optional(row_logits(group, own_rows(group, rows), workers)) : std::nullopt;
  };
  // Rows of the prompt also see positions that left a sliding window. The terms would take these for evicted.
  if (group.first_held() == 0) window_ = rows_at(plan.window);
  future_ = rows_at(plan.future);
  if (!plan.merges()) return;
  wide_ = converted<double>(readers_);
  if (plan.window.count() > 0) attention_ = window_attention(*wide_, plan.reference.window);
}

template <class T>
double HeadCompensation<T>::reference_full_sq() const {
  return reference_ ? reference_->full_sq() : kNan;
}

template <class T>
std::vector<CompensatedHead> HeadCompensation<T>::of(const KeptSet& kept,
                                                     std::span<const CompensationCase> cases,
                                                     Semantics semantics, Workers& workers) const {
  Compensations<T> compensations(readers_, kept, reference_ ? &*reference_ : nullptr, workers);
  std::vector<CompensatedHead> found;
  for (const CompensationCase& one : cases) {
    const auto merging = kCompensations[one.method].merging;
    CompensatedHead head{
        merging ? merged(*wide_, kept, *merging, semantics, attention_) : compensations.with(one.method),
        {},
        {},
        {}};
    if (head.held.keys.size() == 0) {
      if (window_) head.window = error_split(*window_, group_, head.held, workers);
      if (future_) head.future = error_split(*future_, group_, head.held, workers);
      if (reference_)
        head.reference =
            error_split(*reference_, readers_, head.held, workers, compensations.bound(one.method));
    }
    found.push_back(std::move(head));
  }
  return found;
}

template <class T>
std::size_t HeadCompensation<T>::bytes() const {
  std::size_t bytes = sizeof(*this);
  for (const auto* rows : {&window_, &future_})
    if (*rows) bytes += row_bytes(**rows);
  if (reference_) bytes += row_bytes(reference_->fitted) + row_bytes(reference_->held_out);
  if (wide_) bytes += bytes_of(*wide_);
  return bytes + static_cast<std::size_t>(attention_.a.size() + attention_.log_s.size()) * sizeof(double);
}

template class HeadCompensation<float>;
template class HeadCompensation<double>;

CompensatedCases::CompensatedCases(const Dump& dump, const EvictionOptions& options,
                                   const EvictionPlan& evictions, Index first_column, const Compute& compute)
    : dump_(dump),
      evictions_(evictions),
      compute_(compute),
      plan_(compensation_plan(dump, options, evictions)),
      columns_(first_column, plan_.cases.size(), plan_.losses),
      measured_(dump, compute.precision, measure_columns(columns_, plan_.cases.size())) {}

void CompensatedCases::begin_layer() {
  if (!any()) return;
  measured_.begin();
  held_.assign(plan_.cases.size(), std::vector<Held>(static_cast<std::size_t>(dump_.shape().n_kv)));
}

void CompensatedCases::keep(std::size_t which, Index kv_head, const Compensated& held) {
  Held& written = held_[which][static_cast<std::size_t>(kv_head)];
  written.tokens.assign(held.tokens.begin(), held.tokens.end());
  const Vector<double> none = Vector<double>::Zero(std::ssize(held.tokens));
  written.bias = narrowed(held.bias.size() > 0 ? held.bias : none);
  written.values = narrowed(held.values);
  written.keys = narrowed(held.keys);
}

void CompensatedCases::put_terms(std::size_t which, RowSet rows, const std::optional<ErrorSplit>& split,
                                 std::span<double> figures) const {
  double* const terms = figures.data() + columns_.of(which, Cc::terms_on(rows));
  terms[0] = split ? split->selection : kNan;
  terms[1] = split ? split->mass : kNan;
  terms[2] = split ? split->values : kNan;
  terms[3] = split ? split->bound : kNan;
}

template <class T>
std::vector<Compensated> CompensatedCases::head(const HeadGroup<T>& group,
                                                std::span<const KeptSet* const> kept,
                                                std::span<double> figures) {
  if (!any()) return {};
  Workers& workers = compute_.workers;
  std::optional<HeadGroup<T>> readers;
  if (dump_.readers(group.layer).size() > 1) readers = load_readers<T>(dump_, group.layer, group.kv_head);
  const double caches = dump_.cache_of(group.layer) == group.layer ? 1 : 0;
  const HeadCompensation<T> compensation(group, plan_, workers, readers ? &*readers : nullptr);
  // Sums that what is measured is added to begin at 0; figures that a method lacks have no value.
  std::fill_n(figures.begin() + columns_.begin(), columns_.count(), 0.0);
  figures[columns_.of(Cc::reference_full_sq)] = compensation.reference_full_sq();
  std::vector<Compensated> held(plan_.cases.size());
  workers.parallel_for(std::ssize(plan_.first), [&](std::ptrdiff_t n) {
    const auto cases = plan_.cases_of_kept_set(static_cast<std::size_t>(n));
    const std::size_t eviction = cases.front().eviction;
    std::vector<CompensatedHead> found = compensation.of(
        *kept[eviction], cases, semantics_of(evictions_, evictions_.cases[eviction]), workers);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::size_t c = plan_.first[static_cast<std::size_t>(n)] + i;
      figures[columns_.of(c, Cc::tokens)] = static_cast<double>(count(*kept[eviction]));
      figures[columns_.of(c, CompensationFigure::bytes, RowSet::none)] =
          caches * compensated_bytes(found[i].held, group.d());
      put_terms(c, RowSet::window, found[i].window, figures);
      put_terms(c, RowSet::future, found[i].future, figures);
      put_terms(c, RowSet::reference, found[i].reference, figures);
      figures[columns_.of(c, Cc::reference_change_sq)] =
          found[i].reference ? found[i].reference->change_sq : kNan;
      keep(c, group.kv_head, found[i].held);
      held[c] = std::move(found[i].held);
    }
  });
  measured_.add(cache_outputs<T>(
                    group, plan_.window, plan_.future, held.size(),
                    [&](std::size_t c) { return compensated_cache(group, held[c]); },
                    measured_.with_vectors(), compute_),
                group, plan_.window, plan_.future, group.kv_head * group.G(), figures, workers);
  return held;
}
template std::vector<Compensated> CompensatedCases::head(const HeadGroup<float>&,
                                                         std::span<const KeptSet* const>, std::span<double>);
template std::vector<Compensated> CompensatedCases::head(const HeadGroup<double>&,
                                                         std::span<const KeptSet* const>, std::span<double>);

void CompensatedCases::end_layer(Index layer, const LayerFigures& figures) {
  if (any()) measured_.end(layer, compute_.workers, figures);
}

void CompensatedCases::write_layer(const ResultFolder& folder, Index layer) const {
  if (!any()) return;
  const auto d = static_cast<std::size_t>(dump_.shape().d), d_v = static_cast<std::size_t>(dump_.shape().d_v);
  for (std::size_t c = 0; c < plan_.cases.size(); ++c) {
    if (plan_.cases[c].method == Compensation::none) continue;  // kept/ has it
    const std::string name = file_name(evictions_, plan_.cases[c]);
    for (std::size_t g = 0; g < held_[c].size(); ++g) {
      const Held& held = held_[c][g];
      const std::size_t m = held.tokens.size(), of_each[] = {m}, of_keys[] = {m, d}, of_values[] = {m, d_v};
      const auto file = [&](const char* what) {
        return folder.layer_file(layer, fmt::format("compensated/{}/{}_{}.npy", name, what, g));
      };
      write_npy(file("tokens"), of_each, std::span<const std::int32_t>(held.tokens));
      write_npy(file("bias"), of_each, std::span<const float>(held.bias));
      write_npy(file("values"), of_values, std::span<const float>(held.values));
      if (!held.keys.empty()) write_npy(file("keys"), of_keys, std::span<const float>(held.keys));
    }
  }
}

MetricTable CompensatedCases::table(HeadFigures figures) const {
  // Figures of layers as a whole begin with the evictions'.
  figures.of_layers.erase(figures.of_layers.begin(),
                          figures.of_layers.end() - static_cast<std::ptrdiff_t>(figures_per_layer()));
  return CompensationFigures(plan_, columns_, figures, dump_.has(Tensor::wo)).table(evictions_);
}

}  // namespace kvreplay
