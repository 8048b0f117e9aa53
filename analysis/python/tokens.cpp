#include "analysis/python/calls.hpp"
#include "analysis/python/layer.hpp"
#include "analysis/tokens/token_stage.hpp"
#include "sim/backend.hpp"
#include "sim/head_group.hpp"

#include <algorithm>
#include <nanobind/stl/string.h>
#include <string>
#include <vector>

namespace kvreplay::python {
namespace {

/// The options that make sense for arrays.
BoundOptions options_of(Asked<TokenStageOptions>& asked) {
  return joined(those_of(bound(asked.of),
                         [](const OptionFacts* facts) {
                           return facts != &token_option::reserve && facts != &token_option::score;
                         }),
                bound(asked.call));
}
Keywords<Asked<TokenStageOptions>> g_token_keywords(options_of);

/// Every metric of `plan` over a layer's heads, [rows, l] each, as the command line writes them.
template <class T>
std::vector<std::vector<T>> layer_metrics(const Dump& dump, const TokenPlan& plan, const Compute& compute) {
  const DumpShape& shape = dump.shape();
  const Index rows = plan.options.per_query_head ? shape.group() : 1;
  std::vector<std::vector<T>> values(plan.metrics.size(),
                                     std::vector<T>(extent(shape.n_kv * rows * shape.l)));
  const bool as_stored = compute.backend.reads_stored() && sizeof(T) == 4;
  HeadParts parts = parts_of(plan.metrics.front(), shape, plan.options.window);
  for (const TokenMetric metric : plan.metrics) parts |= parts_of(metric, shape, plan.options.window);
  if (as_stored) parts.checked_keys = true;  // a device finds overflow, not which key it is
  const auto of_head = [&](Index kv_head) {
    const HeadGroup<T> group = loaded_head<T>(dump, kv_head, parts, compute.workers);
    std::optional<StoredGroup> stored;
    if (as_stored) stored = load_stored_group(dump, 0, kv_head, parts);
    const TokenMetrics metrics =
        compute.backend.token_metrics(group, plan.options, compute.workers, stored ? &*stored : nullptr);
    for (std::size_t m = 0; m < plan.metrics.size(); ++m) {
      const Matrix<double>& found = metrics[plan.metrics[m]];
      std::transform(found.data(), found.data() + found.size(), values[m].data() + kv_head * found.size(),
                     [](double value) { return static_cast<T>(value); });
    }
  };
  on_parts<T>(dump, parts, [&] { for_each_head(dump, compute.workers, of_head); });
  return values;
}

template <class T>
nb::dict arrays_of(const Dump& dump, const TokenPlan& plan, const CallOptions& call) {
  auto values = computed(call, [&](const Compute& compute) { return layer_metrics<T>(dump, plan, compute); });
  const DumpShape& shape = dump.shape();
  const Index rows = plan.options.per_query_head ? shape.n_q : shape.n_kv;
  nb::dict arrays;
  for (std::size_t m = 0; m < values.size(); ++m)
    arrays[std::string(name_of(plan.metrics[m])).c_str()] =
        numpy_of(std::move(values[m]), {extent(rows), extent(shape.l)});
  return arrays;
}

nb::tuple token_metrics(const Layer& layer, const nb::dict& keywords) {
  const auto [options, call] = g_token_keywords.read(keywords);
  require_one(token_option::window, options.window.size());
  const TokenPlan plan = token_plan(layer.dump(), options);
  const nb::dict arrays = in_float32(call.precision) ? arrays_of<float>(layer.dump(), plan, call)
                                                     : arrays_of<double>(layer.dump(), plan, call);
  return nb::make_tuple(arrays, texts_of(plan.left_out), texts_of(plan.notes));
}

}  // namespace

void bind_tokens(nb::module_& module) {
  module.def("token_metrics", token_metrics, nb::arg("layer"), nb::arg("options"),
             "({name: [rows, l]}, {left out: why}, notes).");
  module.def("token_options", [] { return g_token_keywords.described(); });
}

}  // namespace kvreplay::python
