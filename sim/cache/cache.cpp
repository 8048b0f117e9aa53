#include "sim/cache/cache.hpp"

#include "sim/simd/panel.hpp"

#include <algorithm>
#include <cassert>
#include <vector>

namespace kvreplay {

template <class T>
Matrix<T> keys_held(const HeadGroup<T>& group, const Cache<T>& cache) {
  Matrix<T> k = group.k;
  for (const Index p : positions(cache.kept)) {
    if (cache.k.size() > 0) k.row(p) = cache.k.row(p);
    if (!cache.loses_channels(p)) continue;
    for (Index c = 0; c < group.d(); ++c)
      if (cache.pruned[c] != 0) k(p, c) = 0;
  }
  return k;
}

template <class T>
Vector<T> key_center(const HeadGroup<T>& group, Index from) {
  const Index rows = std::max<Index>(group.l - from, 0);
  if (rows == 0) return Vector<T>::Zero(group.d());
  const Vector<double> sum = group.k.middleRows(from, rows).template cast<double>().colwise().sum();
  return (sum / static_cast<double>(rows)).template cast<T>();
}

namespace {

/// The vector that is subtracted from a head's keys.
template <class T>
Vector<T> center_of(const HeadGroup<T>& group, const StoredAs& keys) {
  const GivenCenters& given = keys.centers;
  if (given.file.empty()) return key_center(group, *keys.centered);
  assert(given.vectors && given.d == group.d());
  return Eigen::Map<const Vector<double>>(
             given.vectors->data() + (group.layer * given.n_kv + group.kv_head) * given.d, given.d)
      .template cast<T>();
}

/// Swaps channels of keys into llama.cpp's order, 0, d/2, 1, d/2 + 1, ..., or back.
template <class T>
void reorder(Matrix<T>& k, const std::vector<Index>& tokens, bool back) {
  const Index half = k.cols() / 2;
  Vector<T> row(2 * half);
  for (const Index p : tokens) {
    for (Index c = 0; c < half; ++c)
      for (const auto& [own, stored] : {std::pair(c, 2 * c), std::pair(half + c, 2 * c + 1)})
        row[back ? own : stored] = k(p, back ? stored : own);
    k.row(p) = row.transpose();
  }
}

/// quantize_keys(), around the head's mean key where the format is centered, and with the channels in
/// llama.cpp's order where the format is one of llama.cpp.
template <class T>
void store_keys(const HeadGroup<T>& group, Matrix<T>& k, const std::vector<Index>& tokens,
                const CacheCase& which) {
  const Quantization& stored = *which.quantization;
  const Index quantized = stored.k.centered ? quantized_keys(std::ssize(tokens), stored) : 0;
  const Vector<T> center = quantized > 0 ? center_of(group, stored.k) : Vector<T>();
  assert(quantized == 0 || which.pruned.empty());
  for (Index n = 0; n < quantized; ++n) k.row(tokens[n]) -= center.transpose();
  const bool reordered = group.rope && group.rope->interleaved_in_ggml && of_ggml(stored.k.format);
  if (reordered) reorder(k, tokens, false);
  quantize_keys(k, tokens, which.pruned, which.prunable, stored);
  if (reordered) reorder(k, tokens, true);
  for (Index n = 0; n < quantized; ++n) k.row(tokens[n]) += center.transpose();
}

}  // namespace

template <class T>
Cache<T> compressed_cache(const HeadGroup<T>& group, const CacheCase& which) {
  Cache<T> cache{
      .kept = which.kept, .pruned = which.pruned, .prunable = which.prunable, .pages = which.pages};
  std::fill_n(cache.kept.begin(), group.first_held(), std::uint8_t{1});
  if (!which.quantization || which.quantization->stores_exactly()) return cache;
  const std::vector<Index> tokens = positions(which.kept);
  cache.k = keys_held(group, cache);
  cache.v = group.v;
  store_keys(group, cache.k, tokens, which);
  quantize_values(cache.v, tokens, *which.quantization);
  return cache;
}

template <class T>
Vector<double> channel_costs(const HeadGroup<T>& group, const CacheCase& which, RowRange rows) {
  Vector<double> queries = Vector<double>::Zero(group.d()), changes = queries;
  if (!which.quantization) return changes;
  const std::vector<Index> tokens = positions(which.kept);
  Matrix<T> held = keys_held<T>(group, {which.kept, which.pruned, which.prunable});
  store_keys(group, held, tokens, which);
  for (const HeadMatrix<T>& q : group.q)
    for (Index i = rows.begin; i < rows.end; ++i)
      queries += q.row(i - group.first_query()).transpose().template cast<double>().cwiseAbs2();
  for (const Index p : tokens)
    changes += (held.row(p) - group.k.row(p)).transpose().template cast<double>().cwiseAbs2();
  return group.rule.scale * group.rule.scale * queries.cwiseProduct(changes);
}

namespace {

/// Bytes of the scales of one token's n stored numbers.
double token_scales(const StoredAs& as, Index n, Index group) {
  const NumberFormatFacts& facts = kNumberFormats[as.format];
  const Index block = facts.uniform ? group : facts.block > 0 ? facts.block : std::max<Index>(n, 1);
  return static_cast<double>(div_up(n, block) * facts.scale_bytes);
}

}  // namespace

double cache_bytes(Index tokens, const Quantization& quantization, Index d, Index d_v) {
  const NumberFormatFacts &k = kNumberFormats[quantization.k.format],
                          &v = kNumberFormats[quantization.v.format];
  const Index quantized_k = quantized_keys(tokens, quantization),
              quantized_v = quantized_values(tokens, quantization);
  const double key_scales =
      quantization.k.per_channel
          ? static_cast<double>(div_up(quantized_k, quantization.group) * d * k.scale_bytes)
          : static_cast<double>(quantized_k) * token_scales(quantization.k, d, quantization.group);
  const double value_scales =
      static_cast<double>(quantized_v) * token_scales(quantization.v, d_v, quantization.group);
  const Index exact_keys = (tokens - quantized_k) * d, exact_values = (tokens - quantized_v) * d_v;
  const Index center = quantization.k.centered && quantized_k > 0 ? d : 0;
  return static_cast<double>(quantized_k * d) * k.bits / 8 +
         static_cast<double>(quantized_v * d_v) * v.bits / 8 + (key_scales + value_scales) +
         static_cast<double>((exact_keys + exact_values + center) * kElementBytes);
}

double cache_bytes(const CacheCase& which, Index d, Index d_v) {
  const Quantization quantization = which.quantization.value_or(Quantization{});
  const std::vector<Index> tokens = positions(which.kept);
  const Index n = std::ssize(tokens), lost = count(which.pruned), group = quantization.group;
  if (lost == 0) return cache_bytes(n, quantization, d, d_v);
  const auto prunable_in = [&](Index begin, Index end) {
    return std::count_if(tokens.begin() + begin, tokens.begin() + end,
                         [&](Index p) { return which.prunable[p] != 0; });
  };
  const Index quantized_k = quantized_keys(n, quantization), quantized_v = quantized_values(n, quantization);
  const NumberFormatFacts &k = kNumberFormats[quantization.k.format],
                          &v = kNumberFormats[quantization.v.format];

  const Index key_numbers = quantized_k * d - prunable_in(0, quantized_k) * lost;
  double scales = 0;
  for (Index at = 0; at < quantized_k; at += quantization.k.per_channel ? group : 1)
    if (quantization.k.per_channel)
      scales += static_cast<double>((prunable_in(at, at + group) < group ? d : d - lost) * k.scale_bytes);
    else if (prunable_in(at, at + 1) == 0)
      scales += token_scales(quantization.k, d, group);
    else
      for (Index begin = 0; begin < d; begin += group) {  // groups that hold a number
        const auto from = which.pruned.begin() + begin,
                   to = which.pruned.begin() + std::min(begin + group, d);
        scales += std::find(from, to, std::uint8_t{0}) != to ? static_cast<double>(k.scale_bytes) : 0;
      }
  scales += static_cast<double>(quantized_v) * token_scales(quantization.v, d_v, group);
  const Index plain_keys = (n - quantized_k) * d - prunable_in(quantized_k, n) * lost;
  const Index plain_values = (n - quantized_v) * d_v;
  return static_cast<double>(key_numbers) * k.bits / 8 + static_cast<double>(quantized_v * d_v) * v.bits / 8 +
         scales + static_cast<double>((plain_keys + plain_values) * kElementBytes);
}

template decltype(key_center<float>) key_center<float>;
template decltype(key_center<double>) key_center<double>;
template decltype(keys_held<float>) keys_held<float>;
template decltype(keys_held<double>) keys_held<double>;
template decltype(channel_costs<float>) channel_costs<float>;
template decltype(channel_costs<double>) channel_costs<double>;
template decltype(compressed_cache<float>) compressed_cache<float>;
template decltype(compressed_cache<double>) compressed_cache<double>;

}  // namespace kvreplay
