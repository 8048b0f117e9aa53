#include "analysis/budgets/allocation.hpp"
#include "analysis/budgets/budget_options.hpp"
#include "analysis/channels/channel_options.hpp"
#include "analysis/python/query.hpp"
#include "data/error.hpp"
#include "data/npy_array.hpp"
#include "sim/channels/channel_basis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

// Queries on arrays that earlier results hold, without a layer.

namespace kvreplay::python {
namespace {

// Selections of key channels.

using ChannelArgs = CallArgs<ChannelOptions>;

Keywords<ChannelOptions> g_selection_keywords([](ChannelArgs& args) {
  args.of.methods.clear();  // a call gives one
  args.of.ratios.clear();
  return all_options(args);
});

/// The interaction of one head: arrays as channel_interaction() names them, None where there are none.
ChannelScores interaction_of(const nb::dict& inputs, Index row, Index d) {
  const auto part = [&](const char* name, Index rows) {
    const nb::object array = inputs[name];
    const double* const first = array.is_none() ? nullptr : nb::cast<Numbers>(array).data() + row * rows * d;
    return Matrix<double>(Eigen::Map<const Matrix<double>>(first, first == nullptr ? 0 : rows, d));
  };
  ChannelScores scores{part("key_sq", 1).reshaped(),
                       part("diagonal", 1).reshaped(),
                       part("logits", d),
                       part("outputs", d),
                       {},
                       {}};
  // Its length is the number of channels, even if no rule reads the norms.
  if (scores.key_sq.size() == 0) scores.key_sq = Vector<double>::Zero(d);
  if (const nb::object pairs = inputs["rope_pair"]; !pairs.is_none()) {
    const auto partners = nb::cast<Numbers>(pairs);
    scores.rope_partner.assign(partners.data(), partners.data() + d);
  }
  if (const nb::object guarded = inputs["protected"]; !guarded.is_none()) {
    const bool* const first = nb::cast<Booleans>(guarded).data() + row * d;
    scores.fixed.assign(first, first + d);
  }
  return scores;
}

/// Throws for a rule whose input is missing.
void require_inputs(const ChannelRule& rule, const nb::dict& inputs) {
  const auto need = [&](bool needed, const char* name, const char* words) {
    if (needed && inputs[name].is_none())
      throw OptionError(
          option_text("{}: {} is unavailable: it needs {}", channel_option::method, rule.name, words));
  };
  need(!rule.alone(), "logits", "the whole interaction, channel_interaction() without diagonal=True");
  need(rule.needs_outputs(), "outputs",
       "the interaction of the outputs, channel_interaction(..., outputs=True)");
  need(rule.first() == ChannelMethod::magnitude, "key_sq",
       "the keys' norms, as channel_interaction() gives them");
  need(rule.needs_rope(), "rope_pair", "rope, as channel_interaction(..., rope=...) takes it");
}

nb::dict select(const Request& request, const ChannelArgs& args) {
  const ChannelOptions& options = args.of;
  require_one(channel_option::method, options.methods.size());
  require_one(channel_option::ratio, options.ratios.size());
  check_ratio(channel_option::ratio, options.ratios.front());
  const ChannelRule& rule = options.methods.front();
  if (rule.protection || rule.recent)
    throw OptionError(channel_option::method,
                      "a method without options of its own: channel_interaction() takes them",
                      "'" + rule.name + "'");
  require_inputs(rule, request.inputs);
  const auto diagonal = nb::cast<Numbers>(request.inputs["diagonal"]);
  const std::size_t rows = diagonal.shape(0), d = diagonal.shape(1);
  std::vector<ChannelScores> interactions;
  for (std::size_t row = 0; row < rows; ++row)
    interactions.push_back(interaction_of(request.inputs, static_cast<Index>(row), static_cast<Index>(d)));
  const Index n = pruned_channels(options.ratios.front(), static_cast<Index>(d), options.semantics);
  std::vector<std::uint8_t> pruned, proven;
  std::vector<std::int32_t> order;
  std::vector<double> error, bound;
  {
    const nb::gil_scoped_release unlocked;
    for (const ChannelScores& scores : interactions) {
      const std::vector<Index> of_head = channel_order(rule, scores);
      const ChannelSelection chosen = select_channels(rule, scores, of_head, n);
      order.insert(order.end(), of_head.begin(), of_head.end());
      pruned.insert(pruned.end(), chosen.pruned.begin(), chosen.pruned.end());
      order.resize(pruned.size(), -1);
      if (scores.logits.size() > 0) error.push_back(subset_error(scores.logits, chosen.pruned));
      bound.push_back(chosen.lower_bound.value_or(kNan));
      proven.push_back(chosen.proven ? 1 : 0);
    }
  }
  nb::dict answer;
  answer["pruned"] = numpy_of<bool>(std::move(pruned), {rows, d});
  if (rule.has_order()) answer["order"] = numpy_of(std::move(order), {rows, d});
  if (!error.empty()) answer["reconstruction_error"] = numpy_of(std::move(error), {rows});
  if (kChannelMethods[rule.method].bounds) {
    answer["lower_bound"] = numpy_of(std::move(bound), {rows});
    answer["proven"] = numpy_of<bool>(std::move(proven), {rows});
  }
  return answer;
}

// Budgets of heads.

using BudgetArgs = CallArgs<BudgetOptions>;

Keywords<BudgetOptions> g_budget_keywords([](BudgetArgs& args) {
  args.of.methods.clear();  // a call gives one
  args.of.sigmas.clear();
  args.of.floor = 0;  // the origin of the curves is unknown
  return all_options(args);
});

std::span<const double> values_of(const Numbers& numbers) { return {numbers.data(), numbers.size()}; }

/// The place of the first number that is above the one before it in its row of `width`.
std::optional<Index> first_rise(std::span<const double> numbers, Index width) {
  for (std::size_t at = 1; at < numbers.size(); ++at)
    if (at % extent(width) != 0 && numbers[at] > numbers[at - 1]) return static_cast<Index>(at);
  return std::nullopt;
}

/// Frame of a total in tokens, or of a share of all.
BudgetFrame frame_of(const BudgetOptions& options, std::optional<Index> total, Index layers, Index heads,
                     Index l) {
  const Index all = layers * heads * l,
              lower = static_cast<Index>(*options.floor * static_cast<double>(l) + 0.5);
  if (!(*options.floor >= 0 && *options.floor <= 1))
    throw OptionError(budget_option::floor, "a share from 0 to 1", fmt::format("{}", *options.floor));
  if (!total) {
    require_one_budget(budget_option::keep, options.sigmas);
    const Budget& budget = options.sigmas.front();
    if (!budget.tokens) return budget_frame(layers, heads, l, budget.sigma, lower);
    total = *budget.tokens * layers * heads;
  }
  if (*total < 0 || *total > all)
    throw InputError("total", fmt::format("0 to {} tokens, those of all heads", all),
                     fmt::format("{}", *total));
  BudgetFrame frame{layers, heads, l, *total, 0, 1 - static_cast<double>(*total) / static_cast<double>(all)};
  frame.lower = std::min({lower, l, *total / (layers * heads)});
  return frame;
}

nb::dict allocate_budgets(const Request& request, const BudgetArgs& args) {
  const BudgetOptions& options = args.of;
  require_one(budget_option::method, options.methods.size());
  const BudgetDivision& division = options.methods.front();
  const auto losses = nb::cast<Numbers>(request.inputs["curves"]);
  const auto layers = static_cast<Index>(losses.shape(0)), heads = static_cast<Index>(losses.shape(1)),
             l = static_cast<Index>(losses.shape(2)) - 1;
  if (l < 1) throw InputError("curves", "losses of budgets 0 to l, [layers, n_kv, l + 1]", "one budget");
  const nb::object total = request.inputs["total"], scores = request.inputs["scores"];
  const BudgetFrame frame = frame_of(
      options, total.is_none() ? std::nullopt : std::optional(nb::cast<Index>(total)), layers, heads, l);
  std::span<const double> ranked;
  if (kBudgetMethods[division.method].needs_scores) {
    if (scores.is_none())
      throw OptionError(
          option_text("{}: {} is unavailable: it needs scores, [layers, n_kv, l] in the curves' order",
                      budget_option::method, division.name));
    ranked = values_of(nb::cast<Numbers>(scores));
    if (const auto at = first_not_finite(ranked.data(), std::ssize(ranked)))
      throw InputError("scores", "finite values", fmt::format("{} at place {}", ranked[extent(*at)], *at));
    if (const auto at = first_rise(ranked, l))
      throw InputError("scores", "scores in the order's own order, never rising",
                       fmt::format("others at head {}", *at / l));
  }
  if (const auto at = first_rise(values_of(losses), l + 1))
    throw InputError("curves", "losses that never rise with the budget",
                     fmt::format("one that does at head {}, budget {}", *at / (l + 1), *at % (l + 1)));
  Allocation found;
  {
    const nb::gil_scoped_release unlocked;
    LossCurves curves(layers * heads, l);
    for (Index head = 0; head < layers * heads; ++head)
      curves.set_losses(head, values_of(losses).subspan(extent(head * (l + 1)), extent(l + 1)));
    const HullGreedy greedy(curves, frame.lower);
    found =
        allocate(division, {frame, kBudgetSemantics[options.semantics].divides, 0, curves, greedy, ranked});
  }
  const std::vector<std::size_t> extents = {extent(layers), extent(heads)};
  nb::dict answer;
  answer["budgets"] =
      numpy_of(std::vector<std::int64_t>(found.budgets.begin(), found.budgets.end()), extents);
  answer["loss"] = numpy_of(std::move(found.loss), extents);
  return answer;
}

}  // namespace

void add_array_queries(Queries& queries) {
  const auto read = [](auto& keywords, const nb::dict&, const nb::dict& options) {
    return keywords.read(options);
  };
  add_query(queries, "select_channels", g_selection_keywords, read, select);
  add_query(queries, "allocate", g_budget_keywords, read, allocate_budgets);
}

}  // namespace kvreplay::python
