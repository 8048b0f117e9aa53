#include "analysis/channels/channel_plan.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/python/calls.hpp"
#include "analysis/python/layer.hpp"
#include "sim/channels/channel_basis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nanobind/stl/string.h>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvreplay::python {
namespace {

using namespace channel_option;

/// Options that an interaction depends on; below, those of a selection.
BoundOptions options_of_setting(Asked<ChannelOptions>& asked) {
  return joined(those_of(bound(asked.of),
                         [](const OptionFacts* facts) {
                           return facts == &semantics || facts == &recent || facts == &window ||
                                  facts == &protect;
                         }),
                bound(asked.call));
}
BoundOptions options_of_selection(ChannelOptions& options) {
  options.methods.clear();  // a call is asked for one
  options.ratios.clear();
  return those_of(bound(options), [](const OptionFacts* facts) {
    return facts == &method || facts == &ratio || facts == &semantics;
  });
}
Keywords<Asked<ChannelOptions>> g_setting(options_of_setting);
Keywords<ChannelOptions> g_selection(options_of_selection);

/// Requested extent of an interaction.
enum class Depth { diagonal, logits, outputs };

/// The bases of a layer's heads, or of its query heads where each has a selection of its own.
template <class T>
std::vector<ChannelBasis> layer_bases(const Dump& dump, const ChannelPlan& plan, Depth depth,
                                      const Compute& compute) {
  const DumpShape& shape = dump.shape();
  const Index rows = plan.per_query_head() ? shape.group() : 1;
  const KeptSet all(extent(shape.l), 1);
  std::vector<ChannelBasis> bases(extent(shape.n_kv * rows));
  const bool diagonal = depth == Depth::diagonal;
  const HeadParts parts{.first_row = window_rows(shape.l, shape.first_query(), plan.setting.window).begin,
                        .values = depth == Depth::outputs,
                        .others = false,
                        .checked_keys = !diagonal};
  const auto basis_of = [&](const HeadGroup<T>& group) {
    return diagonal ? channel_diagonal(group, all, plan.setting, compute.workers)
                    : channel_basis(group, all, plan.setting, depth == Depth::outputs, compute);
  };
  const auto of_head = [&](Index g) {
    const HeadGroup<T> group = loaded_head<T>(dump, g, parts, compute.workers);
    each_part(group, plan.per_query_head(),
              [&](Index row, const HeadGroup<T>& mine) { bases[extent(g * rows + row)] = basis_of(mine); });
  };
  on_parts<T>(dump, parts, [&] { for_each_head(dump, compute.workers, of_head); });
  return bases;
}

nb::dict channel_interaction(const Layer& layer, bool with_outputs, bool diagonal_alone,
                             const nb::dict& keywords) {
  if (with_outputs && diagonal_alone)
    throw OptionError(option_text("diagonal: expected no outputs, which have no part in it"));
  const Depth depth = diagonal_alone ? Depth::diagonal : with_outputs ? Depth::outputs : Depth::logits;
  const auto [options, call] = g_setting.read(keywords);
  const ChannelPlan plan = channel_plan(layer.dump(), options);
  const std::vector<ChannelBasis> bases = computed(call, [&](const Compute& compute) {
    return in_float32(call.precision) ? layer_bases<float>(layer.dump(), plan, depth, compute)
                                      : layer_bases<double>(layer.dump(), plan, depth, compute);
  });
  const std::size_t n = bases.size(), d = extent(layer.dump().shape().d);
  nb::dict found;
  const auto put = [&]<class Owner, class Part>(const char* name, Part Owner::*part) {
    std::vector<double> values;
    for (const ChannelBasis& basis : bases) {
      const Part* one = nullptr;
      if constexpr (std::is_same_v<Owner, ChannelBasis>)
        one = &(basis.*part);
      else
        one = &(basis.scores.*part);
      values.insert(values.end(), one->data(), one->data() + one->size());
    }
    std::vector<std::size_t> shape = {n, d};
    if constexpr (std::is_same_v<Part, Matrix<double>>) shape.push_back(d);
    found[name] = numpy_of(std::move(values), shape);
  };
  put("diagonal", &ChannelScores::diagonal);
  put("key_sq", &ChannelScores::key_sq);
  if (!diagonal_alone) {
    put("logits", &ChannelScores::logits);
    put("window", &ChannelBasis::window);
    put("future", &ChannelBasis::future);
  }
  if (with_outputs) put("outputs", &ChannelScores::outputs);
  const ChannelScores& first = bases.front().scores;
  if (!first.rope_partner.empty()) {
    std::vector<std::int32_t> partners(first.rope_partner.begin(), first.rope_partner.end());
    found["rope_pair"] = numpy_of(std::move(partners), {d});
  }
  if (!first.fixed.empty()) {
    std::vector<std::uint8_t> fixed;
    for (const ChannelBasis& basis : bases)
      fixed.insert(fixed.end(), basis.scores.fixed.begin(), basis.scores.fixed.end());
    found["protected"] = numpy_of<bool>(std::move(fixed), {n, d});
  }
  found["semantics"] = std::string(name_of(plan.setting.semantics));
  found["notes"] = texts_of(plan.notes);
  return found;
}

/// Arrays of n selections over d channels, whose logits' interaction, or its diagonal where that is all,
/// gives n and d.
struct Matrices {
  Index n = 0, d = 0;
  std::vector<double> logits, diagonal, outputs, key_sq;
  std::vector<Index> rope_partner;
  std::vector<std::uint8_t> fixed;
};

Matrix<double> matrix_at(const std::vector<double>& all, Index row, Index d) {
  return Eigen::Map<const Matrix<double>>(all.data() + row * d * d, d, d);
}

void require_symmetric(const char* name, const std::vector<double>& all, Index n, Index d) {
  for (Index row = 0; row < n; ++row) {
    const Matrix<double> H = matrix_at(all, row, d);
    if (const double largest = H.cwiseAbs().maxCoeff();
        (H - H.transpose()).cwiseAbs().maxCoeff() > 1e-9 * largest)
      throw InputError(name, "symmetric matrices [n, d, d]", fmt::format("another at {}", row));
  }
}

Matrices matrices_of(const nb::dict& arrays) {
  Matrices found;
  const auto get = [&](const char* name) -> nb::object {
    return arrays.contains(name) ? nb::object(arrays[name]) : nb::none();
  };
  std::vector<Index> shape = {-1, -1, -1};
  if (const nb::object logits = get("logits"); !logits.is_none()) {
    found.logits = numbers_of("interaction", logits, shape);
    if (shape[1] != shape[2]) throw InputError("interaction", "shape [n, d, d]", "other ones");
    require_symmetric("interaction", found.logits, shape[0], shape[1]);
  } else {
    shape = {-1, -1};
    found.diagonal = numbers_of("diagonal", get("diagonal"), shape);
  }
  found.n = shape[0];
  found.d = shape[1];
  if (const nb::object outputs = get("outputs"); !outputs.is_none()) {
    found.outputs = numbers_of("outputs", outputs, shape);
    require_symmetric("outputs", found.outputs, found.n, found.d);
  }
  if (const nb::object key_sq = get("key_sq"); !key_sq.is_none()) {
    std::vector<Index> rows = {found.n, found.d};
    found.key_sq = numbers_of("key_sq", key_sq, rows);
  }
  if (const nb::object pairs = get("rope_pair"); !pairs.is_none()) {
    std::vector<Index> of_d = {found.d};
    for (const double partner : numbers_of("rope_pair", pairs, of_d)) {
      if (!(partner >= -1 && partner < static_cast<double>(found.d)))
        throw InputError("rope_pair", fmt::format("channels from -1 to {}", found.d - 1),
                         fmt::format("{}", partner));
      found.rope_partner.push_back(static_cast<Index>(partner));
    }
  }
  if (const nb::object fixed = get("protected"); !fixed.is_none()) {
    std::vector<Index> rows = {found.n, found.d};
    found.fixed = booleans_of("protected", fixed, rows);
  }
  return found;
}

ChannelScores scores_at(const Matrices& matrices, Index row) {
  const Index d = matrices.d;
  ChannelScores scores;
  if (matrices.logits.empty()) {
    scores.diagonal = Eigen::Map<const Vector<double>>(matrices.diagonal.data() + row * d, d);
  } else {
    scores.logits = matrix_at(matrices.logits, row, d);
    scores.diagonal = scores.logits.diagonal();
  }
  if (!matrices.outputs.empty()) scores.outputs = matrix_at(matrices.outputs, row, d);
  // The length is the number of channels, even if the norms themselves are not used.
  scores.key_sq = Vector<double>::Zero(d);
  if (!matrices.key_sq.empty())
    scores.key_sq = Eigen::Map<const Vector<double>>(matrices.key_sq.data() + row * d, d);
  scores.rope_partner = matrices.rope_partner;
  if (!matrices.fixed.empty())
    scores.fixed.assign(matrices.fixed.begin() + row * d, matrices.fixed.begin() + (row + 1) * d);
  return scores;
}

/// Throws where a rule looks at what is not there.
void require_fed(const ChannelRule& rule, const Matrices& matrices) {
  const auto need = [&](bool there, const char* what) {
    if (!there) throw OptionError(option_text("{}: {} is unavailable: it needs {}", method, rule.name, what));
  };
  need(rule.alone() || !matrices.logits.empty(),
       "the whole interaction, channel_interaction() without diagonal=True");
  need(!rule.needs_outputs() || !matrices.outputs.empty(),
       "the interaction of the outputs, channel_interaction(..., outputs=True)");
  need(rule.first() != ChannelMethod::magnitude || !matrices.key_sq.empty(),
       "the keys' norms, as channel_interaction() gives them");
  need(!rule.needs_rope() || !matrices.rope_partner.empty(),
       "rope, as channel_interaction(..., rope=...) takes it");
}

nb::dict select(const nb::dict& arrays, const nb::dict& keywords) {
  const ChannelOptions options = g_selection.read(keywords);
  require_one(method, options.methods.size());
  require_one(ratio, options.ratios.size());
  check_ratio(ratio, options.ratios.front());
  const Matrices matrices = matrices_of(arrays);
  const ChannelRule& rule = options.methods.front();
  if (rule.protection || rule.recent)
    throw OptionError(method, "a method without options of its own: channel_interaction() takes them",
                      "'" + rule.name + "'");
  require_fed(rule, matrices);
  const Index d = matrices.d, n = pruned_channels(options.ratios.front(), d, options.semantics);
  const auto rows = extent(matrices.n);
  std::vector<std::uint8_t> pruned, proven;
  std::vector<std::int32_t> order(rows * extent(d), -1);
  std::vector<double> error, bound;
  {
    const nb::gil_scoped_release unlocked;
    for (Index row = 0; row < matrices.n; ++row) {
      const ChannelScores scores = scores_at(matrices, row);
      const std::vector<Index> of_row = channel_order(rule, scores);
      const ChannelSelection chosen = select_channels(rule, scores, of_row, n);
      std::copy(of_row.begin(), of_row.end(), order.begin() + row * d);
      pruned.insert(pruned.end(), chosen.pruned.begin(), chosen.pruned.end());
      if (!matrices.logits.empty()) error.push_back(subset_error(scores.logits, chosen.pruned));
      bound.push_back(chosen.lower_bound.value_or(std::nan("")));
      proven.push_back(chosen.proven ? 1 : 0);
    }
  }
  nb::dict found;
  found["pruned"] = numpy_of<bool>(std::move(pruned), {rows, extent(d)});
  if (rule.has_order()) found["order"] = numpy_of(std::move(order), {rows, extent(d)});
  if (!error.empty()) found["reconstruction_error"] = numpy_of(std::move(error), {rows});
  if (kChannelMethods[rule.method].bounds) {
    found["lower_bound"] = numpy_of(std::move(bound), {rows});
    found["proven"] = numpy_of<bool>(std::move(proven), {rows});
  }
  return found;
}

}  // namespace

void bind_channels(nb::module_& module) {
  module.def("channel_interaction", channel_interaction, nb::arg("layer"), nb::arg("outputs"),
             nb::arg("diagonal"), nb::arg("options"), "{array: [rows, d, d] or [rows, d], ...}.");
  module.def("select_channels", select, nb::arg("arrays"), nb::arg("options"), "{array: [rows, d], ...}.");
  module.def("channel_options", [] { return g_setting.described(); });
  module.def("selection_options", [] { return g_selection.described(); });
}

}  // namespace kvreplay::python
