#include "analysis/eviction/compensated_cases.hpp"
#include "analysis/python/calls.hpp"
#include "analysis/python/layer.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nanobind/stl/string.h>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::python {
namespace {

constexpr OptionFacts kMethod{"method", "NAME", "What kept tokens make up for evicted ones by", "fit"},
    kWindow{"window", "N",
            "The prompt's last N queries: the reference window, what mergers weigh by, window rows measured",
            "32", 1};

/// The options that decide about what one method makes of one kept set.
BoundOptions method_options_of(Asked<EvictionOptions>& asked) {
  EvictionOptions& options = asked.of;
  options.compensate = {Compensation::fit};
  BoundOptions own = those_of(bound(options), [](const OptionFacts* facts) {
    using namespace evict_option;
    return facts == &evict_option::semantics || facts == &reference || facts == &reference_positions;
  });
  for (BoundOption& option : own) option.needs = nullptr;  // there is a method, asked for or not
  own.insert(own.begin(), bind_option(kMethod, options.compensate)
                              .saying(fmt::format(": {}", fmt::join(kCompensations.names(), ", "))));
  own.push_back(bind_option(kWindow, options.window));
  return joined(std::move(own), bound(asked.call));
}
Keywords<Asked<EvictionOptions>> g_compensate_keywords(method_options_of);

/// Results of a call for one layer.
struct LayerCompensation {
  CompensationPlan plan;
  std::vector<Compensated> held;                           // [n_kv]
  std::vector<std::pair<RowSet, Matrix<double>>> figures;  // a row a figure: of the layer, then of its heads
};

constexpr CompensationFigure kSplit[] = {CompensationFigure::output_error, CompensationFigure::selection,
                                         CompensationFigure::mass, CompensationFigure::values,
                                         CompensationFigure::bound};

/// nan where a figure has no value.
Matrix<double> split_on(const MetricTable& table, RowSet rows, Index n_kv) {
  Matrix<double> found = Matrix<double>::Constant(std::ssize(kSplit), 1 + n_kv, kNan);
  for (Index f = 0; f < found.rows(); ++f) {
    const auto* const entry = table.find({{"rows", name_of(rows)}, {"metric", name_of(kSplit[f])}});
    for (Index g = -1; entry != nullptr && g < n_kv; ++g)
      found(f, 1 + g) = g < 0 ? entry->layers[0] : entry->heads[extent(g)];
  }
  return found;
}

template <class T>
LayerCompensation layer_compensation(const Dump& dump, const EvictionOptions& options,
                                     const EvictionPlan& evictions, const Compute& compute) {
  const DumpShape& shape = dump.shape();
  CompensatedCases cases(dump, options, evictions, 0, compute);
  LayerCompensation found{cases.plan(), std::vector<Compensated>(extent(shape.n_kv)), {}};
  if (!cases.any()) return found;
  HeadFigures figures{{0},
                      shape.n_kv,
                      Matrix<double>::Zero(shape.n_kv, cases.figures_per_head()),
                      std::vector<double>(cases.figures_per_layer())};
  const std::vector<std::uint8_t>& all = evictions.kept.front().values;
  cases.begin_layer();
  for_each_head(dump, compute.workers, [&](Index g) {
    const auto begin = all.begin() + g * shape.l;
    const KeptSet kept(begin, begin + shape.l);
    const KeptSet* const one[] = {&kept};
    found.held[extent(g)] =
        std::move(cases
                      .head<T>(load_head_group<T>(dump, 0, g), one,
                               std::span(figures.values.row(g).data(), extent(figures.values.cols())))
                      .front());
  });
  cases.end_layer(0, {figures.values, figures.of_layers});
  const MetricTable table = cases.table(figures);
  for (const RowSet rows : {RowSet::window, RowSet::future, RowSet::reference})
    if (table.find({{"rows", name_of(rows)}, {"metric", name_of(CompensationFigure::output_error)}}))
      found.figures.emplace_back(rows, split_on(table, rows, shape.n_kv));
  return found;
}

template <class T, class Numbers>
nb::object array_from(const Numbers& numbers, const std::vector<std::size_t>& shape) {
  const Matrix<T> cast = numbers.template cast<T>();
  return numpy_of(std::vector<T>(cast.data(), cast.data() + cast.size()), shape);
}

/// (tokens, bias, values, keys or None).
template <class T>
nb::tuple head_of(const Compensated& held) {
  const std::size_t m = held.tokens.size();
  const auto columns = [](const Matrix<double>& numbers) { return extent(numbers.cols()); };
  const Vector<double> none = Vector<double>::Zero(std::ssize(held.tokens));
  return nb::make_tuple(
      numpy_of(std::vector<std::int32_t>(held.tokens.begin(), held.tokens.end()), {m}),
      array_from<T>(held.bias.size() > 0 ? held.bias : none, {m}),
      array_from<T>(held.values, {m, columns(held.values)}),
      held.keys.size() > 0 ? array_from<T>(held.keys, {m, columns(held.keys)}) : nb::object(nb::none()));
}

nb::dict compensate(const Layer& layer, nb::handle keep, const nb::dict& keywords) {
  const Dump& dump = layer.dump();
  const DumpShape& shape = dump.shape();
  const auto [options, call] = g_compensate_keywords.read(keywords);
  require_one(kMethod, options.compensate.size());
  std::vector<Index> extents = {1, shape.n_kv, shape.l};
  const EvictionPlan evictions = plan_of_kept(dump, options, {{"keep", booleans_of("keep", keep, extents)}});
  const bool single = in_float32(call.precision);
  const LayerCompensation found = computed(call, [&](const Compute& compute) {
    return single ? layer_compensation<float>(dump, options, evictions, compute)
                  : layer_compensation<double>(dump, options, evictions, compute);
  });
  if (!found.plan.left_out.empty())
    throw InputError(fmt::format("keep: {}: {}", evictions.cases.front().kept.value_or(shape.l),
                                 found.plan.left_out.front().why));

  nb::list held;
  std::vector<double> lambda, mu, bytes;
  for (const Compensated& head : found.held) {
    held.append(single ? head_of<float>(head) : head_of<double>(head));
    lambda.push_back(head.lambda);
    mu.push_back(head.mu);
    bytes.push_back(compensated_bytes(head, shape.d));
  }
  nb::dict split;
  for (const auto& [rows, figures] : found.figures) {
    nb::dict on_rows;
    for (Index f = 0; f < figures.rows(); ++f) {
      std::vector<double> heads(figures.row(f).begin() + 1, figures.row(f).end());
      on_rows[std::string(name_of(kSplit[f])).c_str()] =
          nb::make_tuple(figures(f, 0), numpy_of(std::move(heads), {extent(shape.n_kv)}));
    }
    split[std::string(name_of(rows)).c_str()] = on_rows;
  }
  const std::vector<std::size_t> heads = {extent(shape.n_kv)};
  nb::dict result;
  result["held"] = held;
  result["method"] = std::string(name_of(options.compensate.front()));
  result["reference"] =
      found.plan.fits() ? nb::cast(std::string(name_of(found.plan.reference.kind))) : nb::object(nb::none());
  result["lambda_"] = numpy_of(std::move(lambda), heads);
  result["mu"] = numpy_of(std::move(mu), heads);
  result["bytes"] = numpy_of(std::move(bytes), heads);
  result["split"] = split;
  result["notes"] = texts_of(found.plan.notes);
  return result;
}

}  // namespace

void bind_compensations(nb::module_& module) {
  module.def("compensate", compensate, nb::arg("layer"), nb::arg("keep"), nb::arg("options"),
             "{held: [(tokens, bias, values, keys)], method, reference, lambda_, mu, bytes, split: {rows: "
             "{figure: (of the layer, of its heads)}}, notes}.");
  module.def("compensate_options", [] { return g_compensate_keywords.described(); });
  module.def(
      "check_compensate",
      [](const nb::dict& keywords) {
        require_one(kMethod, g_compensate_keywords.read(keywords).of.compensate.size());
      },
      nb::arg("options"), "Refuses options that compensate() refuses of every layer.");
}

}  // namespace kvreplay::python
