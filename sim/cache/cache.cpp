#include "sim/cache/cache.hpp"

#include "sim/simd/panel.hpp"

#include <algorithm>
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
Cache<T> compressed_cache(const HeadGroup<T>& group, const CacheCase& which) {
  Cache<T> cache{which.kept, which.pruned, which.prunable};
  if (!which.quantization) return cache;
  const std::vector<Index> tokens = positions(which.kept);
  cache.k = keys_held(group, cache);
  cache.v = group.v;
  quantize_keys(cache.k, tokens, which.pruned, which.prunable, *which.quantization);
  quantize_values(cache.v, tokens, *which.quantization);
  return cache;
}

double cache_bytes(const CacheCase& which, Index d, Index d_v, const CacheElements& elements) {
  const std::optional<Quantization>& quantization = which.quantization;
  const std::vector<Index> tokens = positions(which.kept);
  const Index n = std::ssize(tokens), lost = count(which.pruned);
  const auto prunable_in = [&](Index begin, Index end) {
    return std::count_if(tokens.begin() + begin, tokens.begin() + end,
                         [&](Index p) { return lost > 0 && which.prunable[p] != 0; });
  };
  const Index group = quantization ? quantization->group : 1;
  const Index quantized_k = quantization ? quantized_keys(n, *quantization) : 0;
  const Index quantized_v = quantization ? quantized_values(n, *quantization) : 0;

  const Index key_numbers = quantized_k * d - prunable_in(0, quantized_k) * lost;
  Index key_groups = 0;
  for (Index begin = 0; begin < quantized_k; begin += group)
    key_groups += prunable_in(begin, begin + group) < group ? d : d - lost;
  const Index value_numbers = quantized_v * d_v, value_groups = quantized_v * div_up(d_v, group);
  const Index plain_keys = (n - quantized_k) * d - prunable_in(quantized_k, n) * lost;
  const Index plain_values = (n - quantized_v) * d_v;

  const double bytes = quantization ? static_cast<double>(quantization->bits) / 8 : 0;
  return static_cast<double>(key_numbers + value_numbers) * bytes +
         static_cast<double>((plain_keys + 2 * key_groups) * elements.key +
                             (plain_values + 2 * value_groups) * elements.value);
}

template decltype(keys_held<float>) keys_held<float>;
template decltype(keys_held<double>) keys_held<double>;
template decltype(compressed_cache<float>) compressed_cache<float>;
template decltype(compressed_cache<double>) compressed_cache<double>;

}  // namespace kvreplay
