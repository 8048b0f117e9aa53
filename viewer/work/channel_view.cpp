#include "viewer/work/channel_view.hpp"

#include "analysis/channels/channel_options.hpp"
#include "analysis/channels/head_channels.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "data/error.hpp"
#include "sim/backend.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/head_group.hpp"
#include "viewer/model/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// The groups that have a selection of their own: the group itself, or its query heads one by one.
class Parts {
 public:
  Parts(const HeadGroup<float>& group, const ChannelPlan& plan) : group_(group) {
    if (!plan.per_query_head()) return;
    for (Index g = 0; g < group.G(); ++g) own_.push_back(query_head_group(group, g));
  }
  std::size_t size() const { return own_.empty() ? 1 : own_.size(); }
  const HeadGroup<float>& operator[](std::size_t part) const { return own_.empty() ? group_ : own_[part]; }

 private:
  const HeadGroup<float>& group_;
  std::vector<HeadGroup<float>> own_;
};

/// What selections look at, the output-space matrix included where it is there.
std::vector<ChannelScores> scores_of(const ChannelHead& head, const ChannelOutputs* outputs) {
  std::vector<ChannelScores> scores;
  for (std::size_t part = 0; part < head.parts.size(); ++part) {
    scores.push_back(head.parts[part].basis.scores);
    if (outputs != nullptr) scores.back().outputs = outputs->outputs[part];
  }
  return scores;
}

std::size_t bytes_of_matrix(const Matrix<double>& matrix) {
  return static_cast<std::size_t>(matrix.size()) * sizeof(double);
}

/// What one method costs one part.
struct PartFigures {
  ChannelSelection selection;
  double channels = 0;
  double window_reconstruction = 0, future_reconstruction = 0;
  double window_change_sq = 0, future_change_sq = 0;
  double bytes = 0;
};

ChannelPruning joined(const ChannelRule& rule, std::vector<PartFigures> parts) {
  ChannelPruning all;
  all.method = rule.name;
  double lower_bound = 0;
  all.proven = true;
  for (PartFigures& part : parts) {
    all.channels += part.channels / static_cast<double>(parts.size());
    all.window.reconstruction += part.window_reconstruction;
    all.future.reconstruction += part.future_reconstruction;
    all.window.change_sq += part.window_change_sq;
    all.future.change_sq += part.future_change_sq;
    all.bytes += part.bytes;
    lower_bound += part.selection.lower_bound.value_or(0);
    all.proven = all.proven && part.selection.proven;
    all.pruned.push_back(std::move(part.selection.pruned));
  }
  // A bound is on what the search minimises: with a selection for every query head that is not what is
  // measured.
  if (kChannelMethods[rule.method].proves && parts.size() == 1) all.lower_bound = lower_bound;
  all.proven = all.proven && all.lower_bound.has_value();
  return all;
}

}  // namespace

BoundOptions bound(ChannelSettings& settings) {
  BoundOptions options = bound(static_cast<ChannelOptions&>(settings));
  std::erase_if(options, [](const BoundOption& option) {
    return option.facts == &channel_option::ratio || option.facts == &channel_option::png;
  });
  return options;
}

ChannelPlan channel_view_plan(const ChannelSettings& settings, const Dump& dump) {
  return channel_plan(dump, settings);
}

bool all_keys_recent(const ChannelSettings& settings, Index l) {
  return l > 0 && settings.recent.value_or(default_recent(settings.semantics)) >= l;
}

Key basis_key(const ChannelPlan& plan) {
  const ChannelSetting& setting = plan.setting;
  const Key key(setting.semantics, setting.recent, setting.window);
  return setting.protection ? Key(key, setting.protection->least, setting.protection->most) : key;
}

ChannelHead channel_head(const HeadGroup<float>& group, const ChannelPlan& plan, JobControl& job) {
  const Parts groups(group, plan);
  const KeptSet all(static_cast<std::size_t>(group.l), 1);
  ChannelHead head;
  for (std::size_t p = 0; p < groups.size(); ++p) {
    job.check();
    ChannelHead::Part part;
    part.basis = channel_basis(groups[p], all, plan.setting, false, job.compute());
    const ChannelScores& scores = part.basis.scores;
    part.spectrum = spectrum(scores.logits);
    part.off_diagonal_share = off_diagonal_share(scores.logits);
    part.rope_pair_share =
        scores.rope_partner.empty() ? kNone : rope_pair_share(scores.logits, scores.rope_partner);
    head.off_diagonal_share += part.off_diagonal_share;
    head.rope_pair_share += part.rope_pair_share;
    head.window_logits_sq += part.basis.window.sum();
    head.future_logits_sq += part.basis.future.sum();
    head.parts.push_back(std::move(part));
    job.progress(static_cast<double>(p + 1) / static_cast<double>(groups.size()));
  }
  for (Index g = 0; g < group.G(); ++g) {
    head.window.push_back(query_moments(group, g, plan.window));
    if (plan.future.count() > 0) head.future.push_back(query_moments(group, g, plan.future));
  }
  head.off_diagonal_share /= static_cast<double>(groups.size());
  head.rope_pair_share /= static_cast<double>(groups.size());
  return head;
}

ChannelOutputs channel_outputs(const HeadGroup<float>& group, const ChannelPlan& plan,
                               const ChannelHead& head, JobControl& job) {
  const Parts groups(group, plan);
  ChannelOutputs outputs;
  for (std::size_t p = 0; p < groups.size(); ++p) {
    outputs.outputs.push_back(job.compute().backend.output_interaction(
        groups[p], plan.window, head.parts[p].basis.keys, job.workers()));
    job.progress(static_cast<double>(p + 1) / static_cast<double>(groups.size()));
  }
  return outputs;
}

ChannelPrunings channel_prunings(const HeadGroup<float>& group, const ChannelPlan& plan,
                                 const ChannelHead& head, const ChannelOutputs* outputs, double ratio,
                                 const CacheElements& elements, JobControl& job) {
  check_ratio(channel_option::ratio, ratio);
  ChannelPrunings result;
  result.ratio = ratio;
  result.asked = pruned_channels(ratio, group.d(), plan.setting.semantics);
  const Parts groups(group, plan);
  std::vector<const ChannelRule*> rules;
  for (const ChannelRule& rule : plan.rules)
    if (rule.needs_outputs() && outputs == nullptr)
      result.waiting.push_back(rule.name);
    else
      rules.push_back(&rule);
  const std::vector<ChannelScores> scores = scores_of(head, outputs);
  const KeptSet all(static_cast<std::size_t>(group.l), 1);
  std::vector<std::vector<PartFigures>> figures(rules.size(), std::vector<PartFigures>(groups.size()));
  std::vector<std::vector<CacheCase>> caches(groups.size(), std::vector<CacheCase>(rules.size()));
  const auto parts = std::ssize(groups);
  job.workers().parallel_for(std::ssize(rules) * parts, [&](std::ptrdiff_t n) {
    const auto r = static_cast<std::size_t>(n / parts), p = static_cast<std::size_t>(n % parts);
    const ChannelBasis& basis = head.parts[p].basis;
    PartFigures& found = figures[r][p];
    found.selection =
        select_channels(*rules[r], scores[p], channel_order(*rules[r], scores[p]), result.asked);
    const ChannelSet& pruned = found.selection.pruned;
    found.channels = static_cast<double>(std::count(pruned.begin(), pruned.end(), 1));
    found.window_reconstruction = subset_error(basis.window, pruned);
    found.bytes =
        cache_bytes(all, pruned, basis.keys.prunable, group.d(), group.d_v(), std::nullopt, elements);
    found.future_reconstruction = plan.future.count() > 0 ? subset_error(basis.future, pruned) : kNone;
    caches[p][r] = {all, pruned, basis.keys.prunable};
  });
  for (std::size_t p = 0; p < groups.size(); ++p) {
    const CaseOutputs<float> exact =
        case_outputs(groups[p], plan.window, plan.future, caches[p], false, job.compute());
    result.window_full_sq += exact.window.full_sq;
    result.future_full_sq += exact.future.full_sq;
    for (std::size_t r = 0; r < rules.size(); ++r) {
      figures[r][p].window_change_sq = exact.window.change_sq[r];
      figures[r][p].future_change_sq = exact.future.change_sq[r];
    }
  }
  for (std::size_t r = 0; r < rules.size(); ++r) {
    ChannelPruning method = joined(*rules[r], std::move(figures[r]));
    const auto relate = [](ChannelPruning::RowFigures& rows, double logits_sq, double full_sq) {
      rows.relative_reconstruction = relative_error(rows.reconstruction, logits_sq);
      rows.error = relative_error(rows.change_sq, full_sq);
    };
    relate(method.window, head.window_logits_sq, result.window_full_sq);
    relate(method.future, head.future_logits_sq, result.future_full_sq);
    result.methods.push_back(std::move(method));
  }
  return result;
}

std::size_t bytes_of(const ChannelHead& head) {
  std::size_t bytes = sizeof(head);
  for (const ChannelHead::Part& part : head.parts) {
    const ChannelBasis& basis = part.basis;
    bytes += sizeof(part) + basis.keys.cache.size() + basis.keys.prunable.size();
    bytes += bytes_of_matrix(basis.window) + bytes_of_matrix(basis.future) +
             bytes_of_matrix(basis.scores.logits) + bytes_of_matrix(basis.scores.outputs);
    bytes += static_cast<std::size_t>(2 * part.spectrum.size()) * sizeof(double) +
             basis.scores.rope_partner.size() * sizeof(Index) + basis.scores.fixed.size();
  }
  for (const auto* const moments : {&head.window, &head.future})
    for (const ChannelMoments& one : *moments)
      bytes += sizeof(one) + static_cast<std::size_t>(2 * one.mean.size()) * sizeof(double);
  return bytes;
}

std::size_t bytes_of(const ChannelOutputs& outputs) {
  std::size_t bytes = sizeof(outputs);
  for (const Matrix<double>& matrix : outputs.outputs) bytes += bytes_of_matrix(matrix);
  return bytes;
}

std::size_t bytes_of(const ChannelPrunings& prunings) {
  std::size_t bytes = sizeof(prunings);
  for (const ChannelPruning& method : prunings.methods) {
    bytes += sizeof(method) + method.method.capacity();
    for (const ChannelSet& set : method.pruned) bytes += set.capacity();
  }
  return bytes;
}

}  // namespace kvreplay::viewer
