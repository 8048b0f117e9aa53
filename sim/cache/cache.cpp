#include "sim/cache/cache.hpp"

#include "sim/simd/panel.hpp"

#include <algorithm>
#include <limits>
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
  Cache<T> cache{which.kept, which.pruned, which.prunable, {}, {}, {}, which.pages};
  if (!which.quantization) return cache;
  const std::vector<Index> tokens = positions(which.kept);
  cache.k = keys_held(group, cache);
  cache.v = group.v;
  quantize_keys(cache.k, tokens, which.pruned, which.prunable, *which.quantization);
  quantize_values(cache.v, tokens, *which.quantization);
  return cache;
}

template <class T>
PagesRead quest_pages(const HeadGroup<T>& group, Index size, Index budget) {
  const Index pages = div_up(group.l, size), read = div_up(budget, size);
  Matrix<T> least(pages, group.d()), most(pages, group.d());
  for (Index n = 0; n < pages; ++n) {
    const auto keys = group.k.middleRows(n * size, std::min(size, group.l - n * size));
    least.row(n) = keys.colwise().minCoeff();
    most.row(n) = keys.colwise().maxCoeff();
  }
  PagesRead found{size, group.first_query(), {}};
  for (Index i = group.first_query(); i < group.T_all(); ++i) {
    Vector<double> bound = Vector<double>::Constant(pages, -std::numeric_limits<double>::infinity());
    for (Index n = 0; n < pages; ++n) {
      if (n * size >= group.end_visible(i) || (n + 1) * size <= group.first_visible(i)) continue;
      for (const auto& q : group.q) {
        const auto row = q.row(i - group.first_query()).array();
        const T by_page = (row * least.row(n).array()).max(row * most.row(n).array()).sum();
        bound[n] = std::max(bound[n], static_cast<double>(by_page));
      }
    }
    found.read.push_back(largest(bound, std::min(read, pages)));
  }
  return found;
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
template decltype(quest_pages<float>) quest_pages<float>;
template decltype(quest_pages<double>) quest_pages<double>;
template decltype(compressed_cache<float>) compressed_cache<float>;
template decltype(compressed_cache<double>) compressed_cache<double>;

}  // namespace kvreplay
