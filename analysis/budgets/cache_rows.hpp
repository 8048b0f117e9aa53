#pragma once

#include "data/dump.hpp"
#include "sim/head_matrix.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace kvreplay {

/// The caches that the layers of a run read. Budgets are shared between caches: one that several layers read
/// has its budget and its loss once, in the rows of the first of them.
class CacheRows {
 public:
  CacheRows() = default;
  CacheRows(const Dump& dump, std::span<const Index> layers) {
    for (const Index layer : layers) {
      const auto is_same = [&](Index other) { return dump.cache_of(other) == dump.cache_of(layer); };
      first_.push_back(std::ranges::find_if(layers, is_same) - layers.begin());
      if (first_.back() + 1 == std::ssize(first_)) own_.push_back(first_.back());
    }
  }

  Index layers() const { return std::ssize(first_); }
  Index caches() const { return std::ssize(own_); }
  /// The place among the layers of the first that reads the cache of the one at `at`.
  Index first(Index at) const { return first_[static_cast<std::size_t>(at)]; }
  /// The number of its cache.
  Index cache(Index at) const { return std::ranges::find(own_, first(at)) - own_.begin(); }
  bool is_first(Index at) const { return first(at) == at; }

  /// [caches n_kv, columns] of [layers n_kv, columns].
  Matrix<double> of_caches(const Matrix<double>& rows) const {
    if (own_.size() == first_.size()) return rows;
    const Index n_kv = rows.rows() / std::ssize(first_);
    Matrix<double> kept(caches() * n_kv, rows.cols());
    for (Index c = 0; c < caches(); ++c)
      kept.middleRows(c * n_kv, n_kv) = rows.middleRows(own_[static_cast<std::size_t>(c)] * n_kv, n_kv);
    return kept;
  }
  /// [layers, width] of [caches, width]: a layer's own, and where an earlier one has its cache that one's, or
  /// zeros.
  template <class T>
  std::vector<T> of_layers(std::span<const T> caches, bool repeat) const {
    const std::size_t width = caches.size() / std::max<std::size_t>(own_.size(), 1);
    std::vector<T> all;
    for (Index at = 0; at < std::ssize(first_); ++at) {
      const auto c = static_cast<std::size_t>(cache(at));
      if (repeat || is_first(at))
        all.insert(all.end(), caches.begin() + c * width, caches.begin() + (c + 1) * width);
      else
        all.resize(all.size() + width);
    }
    return all;
  }

 private:
  std::vector<Index> first_,
      own_;  // places among the layers: of the first reader of each, and of the first readers
};

}  // namespace kvreplay
