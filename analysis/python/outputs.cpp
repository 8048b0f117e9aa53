#include "analysis/eviction/cache_format.hpp"
#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/measure/measured_columns.hpp"
#include "analysis/python/calls.hpp"
#include "analysis/python/layer.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "sim/compensation/compensate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nanobind/stl/string.h>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay::python {
namespace {

/// The rows that a kept set is measured on.
struct Measured {
  RowSet set = RowSet::none;  ///< none: rows of the user's own, which no loss is taken on
  RowRange rows;
};

struct OutputOptions {
  std::optional<Index> window;
  CacheFormatOptions stored;  ///< no format: unchanged
};

BoundOptions options_of(Asked<OutputOptions>& asked) {
  // A file of scales has a pair for each layer of a model, and a call has one layer of unknown number.
  BoundOptions stored = those_of(bound(asked.of.stored),
                                 [](const OptionFacts* facts) { return facts != &evict_option::scales; });
  return joined(joined({bind_option(evict_option::window, asked.of.window)}, std::move(stored)),
                bound(asked.call));
}
Keywords<Asked<OutputOptions>> g_output_keywords(options_of);

/// Storage format of a layer's caches; empty: unchanged.
std::optional<Quantization> stored_of(const CacheFormatOptions& stored, const DumpShape& shape) {
  if (stored.formats.empty()) return std::nullopt;
  require_one(evict_option::rotate, stored.rotations.size());
  require_one(evict_option::center, stored.centerings.size());
  const auto runs = cache_format_runs(stored, shape, evict_option::bits, evict_option::rotate);
  require_one(evict_option::bits, runs.size());
  return runs.front().of_layers.front();
}

Measured measured_rows(const DumpShape& shape, nb::handle asked, Index window) {
  const RowRange last = window_rows(shape.l, shape.first_query(), window),
                 future = future_rows(shape.l, shape.T, shape.first_query());
  constexpr const char* kRows = "rows";
  if (asked.is_none())
    return future.count() > 0 ? Measured{RowSet::future, future} : Measured{RowSet::window, last};
  if (nb::isinstance<nb::str>(asked)) {
    const std::string name = nb::cast<std::string>(asked);
    const bool is_future = name == name_of(RowSet::future);
    if (!is_future && name != name_of(RowSet::window))
      throw InputError(kRows, "window, future or (first, end)", fmt::format("'{}'", name));
    const Measured found = is_future ? Measured{RowSet::future, future} : Measured{RowSet::window, last};
    if (found.rows.count() == 0)
      throw InputError(is_future ? "rows future: they need decoding steps with queries, and there are none"
                                 : "rows window: there is no query of the prompt");
    return found;
  }
  RowRange rows;
  const bool is_range = nb::isinstance<nb::sequence>(asked) && nb::len(asked) == 2 &&
                        nb::try_cast<Index>(nb::object(asked[0]), rows.begin) &&
                        nb::try_cast<Index>(nb::object(asked[1]), rows.end);
  if (!is_range)
    throw InputError(kRows, "window, future or (first, end)", nb::cast<std::string>(nb::str(asked)));
  if (rows.begin < shape.first_query() || rows.end > shape.T || rows.count() == 0)
    throw InputError(kRows, fmt::format("positions with a query, {} to {}", shape.first_query(), shape.T),
                     fmt::format("{} to {}", rows.begin, rows.end));
  return {RowSet::none, rows};
}

MeasureColumns columns_of(const Dump& dump, const Measured& measured, std::size_t cases) {
  const bool window = measured.set == RowSet::window;
  return MeasureColumns::alone(
      cases, measured.set,
      measured.set == RowSet::none
          ? LossRows{}
          : LossRows::of(dump, window ? measured.rows : RowRange{}, window ? RowRange{} : measured.rows));
}

/// The figures of all heads, as a stage keeps them, of caches whose outputs are
/// outputs_of(group, window, future, with_vectors).
template <class T, class OutputsOf>
HeadFigures layer_figures(const Dump& dump, const Measured& measured, const MeasureColumns& columns,
                          const Compute& compute, const OutputsOf& outputs_of) {
  const DumpShape& shape = dump.shape();
  const bool window = measured.set == RowSet::window;
  const RowRange on_window = window ? measured.rows : RowRange{},
                 on_future = window ? RowRange{} : measured.rows;
  HeadFigures found{{0}, shape.n_kv, {}, std::vector<double>(columns.losses.per_layer())};
  Matrix<double>& figures = found.values;
  figures.setZero(shape.n_kv, columns.end());
  MeasuredLayer layer(dump, compute.precision, columns);
  layer.begin();
  for_each_head(dump, compute.workers, [&](Index g) {
    const HeadGroup<T> group = load_head_group<T>(dump, 0, g, {.first_row = measured.rows.begin});
    layer.add(outputs_of(group, on_window, on_future, layer.with_vectors()), group, on_window, on_future,
              g * shape.group(), std::span(figures.data() + g * figures.cols(), extent(figures.cols())),
              compute.workers);
  });
  layer.end(0, compute.workers, {figures, found.of_layers});
  return found;
}

/// One head's numbers as Python has them.
Matrix<double> matrix_of(const char* name, nb::handle numbers, Index rows, Index columns) {
  Matrix<double> found(rows, columns);
  if (rows == 0) return found;
  std::vector<Index> extents = {rows, columns};
  const std::vector<double> values = numbers_of(name, numbers, extents);
  std::copy(values.begin(), values.end(), found.data());
  return found;
}

Compensated held_of(const nb::tuple& head, const DumpShape& shape) {
  const auto m = static_cast<Index>(nb::len(nb::handle(head[0])));
  std::vector<Index> extents = {m};
  Compensated held;
  for (const double token : m > 0 ? numbers_of("tokens", head[0], extents) : std::vector<double>{}) {
    const bool there = token >= 0 && token < static_cast<double>(shape.l);
    const Index p = there ? static_cast<Index>(token) : -1,
                least = held.tokens.empty() ? 0 : held.tokens.back() + 1;
    if (p < least || token != static_cast<double>(p))
      throw InputError("tokens", fmt::format("ascending positions from 0 to {}", shape.l - 1),
                       fmt::format("{}", token));
    held.tokens.push_back(p);
  }
  held.values = matrix_of("values", head[2], m, shape.d_v);
  if (!head[3].is_none()) held.keys = matrix_of("keys", head[3], m, shape.d);
  const std::vector<double> bias = m > 0 ? numbers_of("bias", head[1], extents) : std::vector<double>{};
  if (std::any_of(bias.begin(), bias.end(), [](double one) { return one != 0; }))
    held.bias = Eigen::Map<const Vector<double>>(bias.data(), m);
  return held;
}

/// Errors of `cases` caches a head, from outputs_of(compute, group, window, future, with_vectors).
template <class OutputsOf>
nb::tuple measured_error(const Layer& layer, nb::handle rows, const Asked<OutputOptions>& asked,
                         std::size_t cases, const OutputsOf& outputs_of) {
  const Dump& dump = layer.dump();
  const DumpShape& shape = dump.shape();
  const CallOptions& call = asked.call;
  const Measured measured = measured_rows(shape, rows, asked.of.window.value_or(kMeasuredRows));
  const MeasureColumns columns = columns_of(dump, measured, cases);
  const HeadFigures figures = computed(call, [&](const Compute& compute) {
    const auto of_heads = [&](const auto&... arguments) { return outputs_of(compute, arguments...); };
    return in_float32(call.precision) ? layer_figures<float>(dump, measured, columns, compute, of_heads)
                                      : layer_figures<double>(dump, measured, columns, compute, of_heads);
  });

  const MeasuredFigures read(columns, figures, dump.has(Tensor::wo));
  const Scope whole{};
  const auto on_heads = [&](const auto& value) {
    std::vector<double> values;
    for (std::size_t c = 0; c < cases; ++c)
      for (Index g = 0; g < shape.n_kv; ++g) values.push_back(value(c, Scope{0, g}));
    return numpy_of(std::move(values), {cases, extent(shape.n_kv)});
  };
  const auto on_layer = [&](const auto& value) {
    std::vector<double> values;
    for (std::size_t c = 0; c < cases; ++c) values.push_back(value(c, whole));
    return numpy_of(std::move(values), {cases});
  };
  const MeasureColumns::OnRows& at = columns.on(measured.set);
  nb::dict found;
  const auto put = [&](const char* name, const auto& value) {
    found[name] = nb::make_tuple(on_layer(value), on_heads(value));
  };
  put("change_sq", [&](std::size_t c, Scope scope) { return read.sum(scope, at.change[c]); });
  put("full_sq", [&](std::size_t, Scope scope) { return read.sum(scope, at.full); });
  put("output_error", [&](std::size_t c, Scope scope) { return read.output_error(c, scope, measured.set); });
  if (dump.has(Tensor::wo))
    found["layer_output_error"] = nb::make_tuple(on_layer([&](std::size_t c, Scope scope) {
                                                   return *read.layer_output_error(c, scope, measured.set);
                                                 }),
                                                 nb::none());
  for (const std::string_view name :
       {kLossRow.name, kLossHead.name, kLossStep.name, kLossJoint.name, kDnll.name}) {
    const auto loss = [&](std::size_t c, Scope scope) { return read.loss(c, scope, name, measured.set); };
    const auto value = [&](std::size_t c, Scope scope) { return *loss(c, scope); };
    if (cases > 0 && loss(0, whole))
      found[std::string(name).c_str()] =
          nb::make_tuple(on_layer(value), loss(0, {0, 0}) ? on_heads(value) : nb::none());
  }
  return nb::make_tuple(found, nb::make_tuple(measured.rows.begin, measured.rows.end));
}

/// keep: [cases, n_kv, l].
nb::tuple output_error(const Layer& layer, nb::handle keep, nb::handle rows, const nb::dict& keywords) {
  const DumpShape& shape = layer.dump().shape();
  std::vector<Index> extents = {-1, shape.n_kv, shape.l};
  const std::vector<std::uint8_t> kept = booleans_of("keep", keep, extents);
  const auto cases = extent(extents[0]);
  const Asked<OutputOptions> asked = g_output_keywords.read(keywords);
  const std::optional<Quantization> stored = stored_of(asked.of.stored, shape);
  return measured_error(layer, rows, asked, cases,
                        [&]<class T>(const Compute& compute, const HeadGroup<T>& group, RowRange window,
                                     RowRange future, bool with_vectors) {
                          std::vector<CacheCase> caches;
                          for (std::size_t c = 0; c < cases; ++c) {
                            const auto begin =
                                kept.begin() + (static_cast<Index>(c) * shape.n_kv + group.kv_head) * shape.l;
                            caches.push_back({KeptSet(begin, begin + shape.l), {}, {}, stored});
                          }
                          return case_outputs(group, window, future, caches, with_vectors, compute);
                        });
}

/// keep: [n_kv] of (tokens, bias, values, keys or None).
nb::tuple compensated_output_error(const Layer& layer, const nb::list& keep, nb::handle rows,
                                   const nb::dict& keywords) {
  const DumpShape& shape = layer.dump().shape();
  if (std::ssize(keep) != shape.n_kv)
    throw InputError("keep", fmt::format("what {} KV heads hold", shape.n_kv),
                     fmt::format("that of {}", nb::len(keep)));
  std::vector<Compensated> held;
  for (const nb::handle head : keep) held.push_back(held_of(nb::cast<nb::tuple>(head), shape));
  const Asked<OutputOptions> asked = g_output_keywords.read(keywords);
  if (!asked.of.stored.formats.empty())
    throw OptionError(option_text("{}", evict_option::bits), "kept sets", "what a compensation holds");
  return measured_error(layer, rows, asked, 1,
                        [&]<class T>(const Compute& compute, const HeadGroup<T>& group, RowRange window,
                                     RowRange future, bool with_vectors) {
                          const auto cache = [&](std::size_t) {
                            return compensated_cache(group, held[extent(group.kv_head)]);
                          };
                          return cache_outputs<T>(group, window, future, 1, cache, with_vectors, compute);
                        });
}

}  // namespace

void bind_outputs(nb::module_& module) {
  module.def("output_error", output_error, nb::arg("layer"), nb::arg("keep"), nb::arg("rows").none(),
             nb::arg("options"), "({figure: (of the layer [cases], of its heads [cases, n_kv])}, rows).");
  module.def("compensated_output_error", compensated_output_error, nb::arg("layer"), nb::arg("keep"),
             nb::arg("rows").none(), nb::arg("options"), "The same of what every KV head holds, one case.");
  module.def("output_options", [] { return g_output_keywords.described(); });
}

}  // namespace kvreplay::python
