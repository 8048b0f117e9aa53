#include "sim/channels/channel_basis.hpp"

#include "data/error.hpp"
#include "sim/backend.hpp"
#include "sim/channels/channel_interaction.hpp"

#include <string>

namespace kvreplay {
namespace {

template <class T>
void require_finite(const HeadGroup<T>& group, bool finite) {
  if (!finite)
    throw InputError("layer " + std::to_string(group.layer) + ", KV head " + std::to_string(group.kv_head),
                     "squared logits within float64", "an overflow");
}

/// Rotation partners and protected channels, once the norms are there.
template <class T>
void add_choices(const HeadGroup<T>& group, const ChannelSetting& setting, ChannelScores& scores) {
  if (group.rope) scores.rope_partner = rope_partners(*group.rope, group.d());
  if (setting.protection) scores.fixed = protected_channels(scores.key_sq, *setting.protection);
}

}  // namespace

template <class T>
ChannelBasis channel_basis(const HeadGroup<T>& group, const KeptSet& cache, const ChannelSetting& setting,
                           bool with_outputs, const Compute& compute) {
  const RowRange window = window_rows(group.l, group.first_query(), setting.window);
  const RowRange future = future_rows(group.l, group.T_all(), group.first_query());
  ChannelBasis basis;
  basis.keys = {cache, without_recent(cache, setting.recent)};
  const Matrix<double> keys = gram_f64(group.k, positions(basis.keys.prunable), compute.workers);
  const Matrix<double> queries = query_gram(group, window, compute.workers);
  basis.window = keys.cwiseProduct(queries);
  basis.future = keys.cwiseProduct(query_gram(group, future, compute.workers));

  ChannelScores& scores = basis.scores;
  const Matrix<double> ranked =
      setting.semantics == Semantics::official ? gram_f64(group.k, positions(cache), compute.workers) : keys;
  scores.key_sq = ranked.diagonal();
  scores.logits = ranked.cwiseProduct(queries);
  scores.diagonal = scores.logits.diagonal();
  require_finite(group, basis.window.allFinite() && basis.future.allFinite() && scores.logits.allFinite());
  if (with_outputs)
    scores.outputs = compute.backend.output_interaction(group, window, basis.keys, compute.workers);
  add_choices(group, setting, scores);
  return basis;
}

template <class T>
ChannelBasis channel_diagonal(const HeadGroup<T>& group, const KeptSet& cache, const ChannelSetting& setting,
                              Workers& workers) {
  ChannelBasis basis;
  basis.keys = {cache, without_recent(cache, setting.recent)};
  const KeptSet& ranked = setting.semantics == Semantics::official ? basis.keys.cache : basis.keys.prunable;
  basis.scores.key_sq = gram_diagonal(group.k, positions(ranked), workers);
  basis.scores.diagonal = basis.scores.key_sq.cwiseProduct(
      query_gram_diagonal(group, window_rows(group.l, group.first_query(), setting.window), workers));
  require_finite(group, basis.scores.diagonal.allFinite());
  add_choices(group, setting, basis.scores);
  return basis;
}

template decltype(channel_diagonal<float>) channel_diagonal<float>;
template decltype(channel_diagonal<double>) channel_diagonal<double>;
template decltype(channel_basis<float>) channel_basis<float>;
template decltype(channel_basis<double>) channel_basis<double>;

}  // namespace kvreplay
