#include "analysis/verify/channel_check.hpp"

#include "analysis/verify/closed_forms.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/compression/compressed_outputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvreplay {

/// What is judged: sets of channels, keys of the output-space matrix, and caches.
struct ChannelCheck::Case {
  std::vector<ChannelSet> pruned;  ///< from the keys of `prunable`
  KeptSet prunable;
  RowRange rows;      ///< of the output-space matrix
  PrunableKeys keys;  ///< of the same
  std::vector<CompressedCache<double>> caches;
};

/// Of all of it, from the definitions: the errors of the logits, the matrix, and the changes by row set.
struct ChannelCheck::Expected {
  std::vector<double> errors;
  Matrix<double> interaction;
  std::vector<std::pair<RowRange, std::vector<OutputChangeReference>>> changes;
};

namespace {

CompressedCache<double> widened(const CompressedCache<float>& cache) {
  return {cache.kept, cache.pruned, cache.prunable, cache.k.cast<double>(), cache.v.cast<double>()};
}

/// Half of the channels by ThinK, seven in ten by IAP.
std::vector<ChannelSet> pruned_sets(const ChannelBasis& basis, Index d) {
  const auto selected = [&](const char* name, Index count) {
    const ChannelRule rule = *channel_rule_named(name);
    return select_channels(rule, basis.scores, channel_order(rule, basis.scores), count).pruned;
  };
  return {selected("think", d / 2), selected("iap", 7 * d / 10)};
}

/// One with all tokens that only loses channels, and one with every other, fewer channels and four bits.
template <class T>
std::vector<CompressedCache<T>> compressed_caches(const HeadGroup<T>& group, const ChannelBasis& basis,
                                                  const std::vector<ChannelSet>& pruned, Index recent) {
  const KeptSet all(static_cast<std::size_t>(group.l), 1);
  KeptSet alternate = all;
  for (std::size_t p = 1; p < alternate.size(); p += 2) alternate[p] = 0;
  return {compressed_cache(group, all, pruned[0], basis.keys.prunable, std::nullopt),
          compressed_cache(group, alternate, pruned[1], without_recent(alternate, recent),
                           Quantization{.bits = 4, .group = 32, .residual = 16})};
}

constexpr Index kVerifiedKeys = 128;  // of the output-space matrix: its definition takes T d_v for each

/// Of prunable keys at most kVerifiedKeys.
PrunableKeys sampled_keys(PrunableKeys keys) {
  const std::vector<Index> prunable = positions(keys.prunable);
  keys.prunable.assign(keys.prunable.size(), 0);
  if (!prunable.empty())
    for (const Index at : sampled_tokens(std::ssize(prunable), kVerifiedKeys, {}))
      keys.prunable[prunable[at]] = 1;
  return keys;
}

}  // namespace

ChannelCheck::ChannelCheck(const Dump& dump, Index window, const Compute& compute)
    : OutputCheck(dump, window, compute),
      window_asked_(std::min(window, kVerifiedRows)),
      recent_(std::min(default_recent(Semantics::paper), dump.shape().l / 2)) {}

template <class T>
ChannelBasis ChannelCheck::basis(const HeadGroup<T>& group) const {
  return channel_basis(group, KeptSet(static_cast<std::size_t>(group.l), 1),
                       {Semantics::paper, recent_, window_asked_, std::nullopt}, false, compute_);
}

ChannelCheck::Expected ChannelCheck::expected(const HeadGroup<double>& group, const Case& judged_on) const {
  Expected result;
  result.errors.resize(judged_on.pruned.size());
  std::vector<Matrix<double>> of_rows(judged_on.rows.count());
  const std::vector<Index> prunable = positions(judged_on.prunable);
  compute_.workers.parallel_for(std::ssize(of_rows) + std::ssize(result.errors), [&](Index item) {
    if (const Index n = item - std::ssize(of_rows); n >= 0) {
      result.errors[n] = reconstruction_error_reference(group, prunable, window_, judged_on.pruned[n]);
    } else {
      const Index i = judged_on.rows.begin + item;
      of_rows[item] = output_interaction_reference(group, {i, i + 1}, judged_on.keys);
    }
  });
  result.interaction = Matrix<double>::Zero(group.d(), group.d());
  for (const Matrix<double>& of_row : of_rows) result.interaction += of_row;
  for (const RowRange rows : {window_, future_})
    if (rows.count() > 0)
      result.changes.emplace_back(rows, references_in_parallel(rows, compute_.workers, [&](RowRange some) {
                                    return compressed_change_references(group, some, judged_on.caches);
                                  }));
  return result;
}

void ChannelCheck::add(const HeadGroup<double>& group, const HeadGroup<float>* single) {
  if (window_.count() == 0) return;
  const ChannelBasis wide = basis(group), narrow = single != nullptr ? basis(*single) : wide;
  Case judged_on;
  judged_on.pruned = pruned_sets(narrow, group.d());
  judged_on.prunable = wide.keys.prunable;
  judged_on.rows = {std::max(window_.begin, window_.end - 2), window_.end};
  judged_on.keys = sampled_keys(wide.keys);
  std::vector<CompressedCache<float>> narrow_caches;
  if (single != nullptr) {
    narrow_caches = compressed_caches(*single, narrow, judged_on.pruned, recent_);
    for (const CompressedCache<float>& cache : narrow_caches) judged_on.caches.push_back(widened(cache));
  } else {
    judged_on.caches = compressed_caches(group, wide, judged_on.pruned, recent_);
  }
  const Expected want = expected(group, judged_on);
  compare(group, wide, judged_on, judged_on.caches, want, kOutputTolerance, f64_, f64_);
  if (single != nullptr)
    compare(*single, narrow, judged_on, narrow_caches, want, kFloat32OutputTolerance,
            compute_.backend.name() == "cpu" ? f32_ : on_device_, f32_);
  count_head();
}

template <class T>
void ChannelCheck::compare(const HeadGroup<T>& group, const ChannelBasis& basis, const Case& judged_on,
                           const std::vector<CompressedCache<T>>& caches, const Expected& expected,
                           double tolerance, Judged& matrices, Judged& outputs) {
  const auto judge_part = [&](const char* what, double deviation, Judged& judged) {
    judge(fmt::format("channels: layer {} KV head {}: {} {:.2g} off", group.layer, group.kv_head, what,
                      deviation),
          deviation, tolerance, judged);
  };
  for (std::size_t n = 0; n < judged_on.pruned.size(); ++n) {
    const ChannelSet& set = judged_on.pruned[n];
    const double away = std::abs(subset_error(basis.window, set) - expected.errors[n]);
    judge_part("error of the logits", share_of(away, subset_error(basis.window.cwiseAbs(), set)), matrices);
  }
  const Matrix<double> found =
      compute_.backend.output_interaction(group, judged_on.rows, judged_on.keys, compute_.workers);
  judge_part("the output-space matrix",
             share_of((found - expected.interaction).cwiseAbs().maxCoeff(),
                      expected.interaction.cwiseAbs().maxCoeff()),
             matrices);
  for (const auto& [rows, changes] : expected.changes) {
    const CompressedOutputs<T> compressed(group, rows, compute_.workers);
    for (std::size_t n = 0; n < caches.size(); ++n)
      judge_part("outputs over a compressed cache",
                 share_of(panel_distance(compressed.change(caches[n], true).vectors, changes[n].change),
                          std::sqrt(changes[n].full_sq)),
                 outputs);
  }
}

Check ChannelCheck::check() const {
  return OutputCheck::check("channels, caches", "2 caches", "the norm",
                            "the dump holds no queries of the prompt");
}

}  // namespace kvreplay
