#include "analysis/eviction/compensated_cases.hpp"

#include "analysis/eviction/compensation_table.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace kvreplay {
namespace {

using Cc = CompensationColumns;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

template <class Numbers>
std::vector<float> narrowed(const Numbers& numbers) {
  const Matrix<float> narrow = numbers.template cast<float>();
  return {narrow.data(), narrow.data() + narrow.size()};
}

}  // namespace

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
  terms[0] = split ? split->selection : kNone;
  terms[1] = split ? split->mass : kNone;
  terms[2] = split ? split->values : kNone;
  terms[3] = split ? split->bound : kNone;
}

template <class T>
std::vector<Compensated> CompensatedCases::head(const HeadGroup<T>& group,
                                                std::span<const KeptSet* const> kept,
                                                std::span<double> figures) {
  if (!any()) return {};
  Workers& workers = compute_.workers;
  const HeadCompensation<T> compensation(group, plan_, workers);
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
      figures[columns_.of(c, Cc::bytes)] = compensated_bytes(found[i].held, group.d(), plan_.elements);
      put_terms(c, RowSet::window, found[i].window, figures);
      put_terms(c, RowSet::future, found[i].future, figures);
      put_terms(c, RowSet::reference, found[i].reference, figures);
      figures[columns_.of(c, Cc::reference_change_sq)] =
          found[i].reference ? found[i].reference->change_sq : kNone;
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

void CompensatedCases::save_head(Index kv_head, ByteWriter& out) const {
  if (!any()) return;
  measured_.save_head(kv_head, out);
  for (const std::vector<Held>& heads : held_) {
    const Held& held = heads[static_cast<std::size_t>(kv_head)];
    out.put(held.tokens);
    out.put(held.bias);
    out.put(held.values);
    out.put(held.keys);
  }
}

void CompensatedCases::load_head(Index kv_head, ByteReader& in) {
  if (!any()) return;
  measured_.load_head(kv_head, in);
  for (std::vector<Held>& heads : held_) {
    Held& held = heads[static_cast<std::size_t>(kv_head)];
    held.tokens = in.get<std::int32_t>();
    held.bias = in.get<float>();
    held.values = in.get<float>();
    held.keys = in.get<float>();
  }
}

HeadFigures CompensatedCases::own_figures(const HeadFigures& figures) const {
  HeadFigures own = figures;
  own.of_layers.erase(own.of_layers.begin(),
                      own.of_layers.end() - static_cast<std::ptrdiff_t>(figures_per_layer()));
  return own;
}

std::size_t CompensatedCases::write_tables(const ResultFolder& folder, const HeadFigures& figures) const {
  if (!any()) return 0;
  const HeadFigures own = own_figures(figures);
  return CompensationTable(plan_, evictions_, columns_, own, dump_.has(Tensor::wo)).write(folder);
}

std::string CompensatedCases::report(const HeadFigures& figures) const {
  if (!any()) return "";
  const HeadFigures own = own_figures(figures);
  return CompensationTable(plan_, evictions_, columns_, own, dump_.has(Tensor::wo)).report();
}

}  // namespace kvreplay
