#include "sim/gram_sums.hpp"

#include <Eigen/Eigenvalues>

#include <algorithm>
#include <array>

namespace kvreplay {

Index gram_item_rows(Index n) {
  constexpr Index kFewest = 1024;   // worth an item and its own sum
  constexpr Index kMostItems = 32;  // which bounds the memory for their sums
  const Index rows = std::max(kFewest, div_up(n, kMostItems));
  return div_up(rows, kGramTile) * kGramTile;
}

template <class T>
Matrix<T> row_products(const Eigen::Ref<const Matrix<T>>& a, const Eigen::Ref<const Matrix<T>>& b) {
  return a * b.transpose();
}

Vector<double> eigenvalues(const Matrix<double>& H) {
  return Eigen::SelfAdjointEigenSolver<Matrix<double>>(H, Eigen::EigenvaluesOnly).eigenvalues();
}

Vector<double> main_direction(const Matrix<double>& H) {
  return Eigen::SelfAdjointEigenSolver<Matrix<double>>(H).eigenvectors().rightCols(1);
}

Matrix<double> gram_of_rows(Index n, Index d, Index per_item,
                            const std::function<void(Index first, Index count, double* panels)>& fill,
                            Workers& workers) {
  GramSums sums(div_up(n, per_item));
  workers.parallel_for(std::ssize(sums), [&](Index item) {
    sums[item].resize(gram_blocks_size<double>(d));
    std::vector<double> panels(panels_of<double>(d) * kGramTile * kPanelWidth<double>);
    const Index end = std::min((item + 1) * per_item, n);
    for (Index first = item * per_item; first < end; first += kGramTile) {
      const Index count = std::min(kGramTile, end - first);
      fill(first, count, panels.data());
      add_gram(panels.data(), count, d, sums[item].data());
    }
  });
  return total_gram<double>(sums, d, workers);
}

Matrix<double> gram_of_rows(Index n, Index d,
                            const std::function<Matrix<double>(Index first, Index count)>& rows_of,
                            Workers& workers) {
  constexpr Index W = kPanelWidth<double>, kPacked = 8 * kGramTile, kPanelsPerItem = 4;
  const Index panels = panels_of<double>(d), tile_size = panels * kGramTile * W;
  GramSums sums(1, std::vector<double>(gram_blocks_size<double>(d), 0.0));
  std::vector<double> packed(std::min(div_up(n, kGramTile), kPacked / kGramTile) * tile_size, 0.0);
  for (Index begin = 0; begin < n; begin += kPacked) {
    const Index end = std::min(begin + kPacked, n), tiles = div_up(end - begin, kGramTile);
    const auto rows_in = [&](Index tile) { return std::min(kGramTile, end - begin - tile * kGramTile); };
    workers.parallel_for(tiles, [&](Index tile) {
      const Index count = rows_in(tile);
      const Matrix<double> rows = rows_of(begin + tile * kGramTile, count);
      for (Index c = 0; c < d; c += W)
        for (Index r = 0; r < count; ++r)
          std::copy_n(rows.data() + r * d + c, std::min(W, d - c),
                      packed.data() + tile * tile_size + panel_entry<double>(r, c, count));
    });
    // A block has one item, and its tiles add up in order. The last columns are the longest.
    workers.parallel_for(div_up(panels, kPanelsPerItem), [&](Index item) {
      const Index last = panels - 1 - item * kPanelsPerItem,
                  first = std::max<Index>(last - kPanelsPerItem, -1);
      for (Index tile = 0; tile < tiles; ++tile)
        for (Index j = last; j > first; --j)
          add_gram_column(packed.data() + tile * tile_size, rows_in(tile), j,
                          sums.front().data() + gram_block<double>(0, j));
    });
  }
  return total_gram<double>(sums, d, workers);
}

template <class T>
Matrix<double> total_gram(const GramSums& sums, Index d, Workers& workers) {
  constexpr Index W = kPanelWidth<T>;
  Matrix<double> total(d, d);
  const Index panels = panels_of<T>(d);
  workers.parallel_for(panels * panels, [&](Index item) {
    const Index i = item / panels, j = item % panels;
    if (i > j) return;
    std::array<double, W * W> block{};
    for (const std::vector<double>& sum : sums)
      for (std::size_t e = 0; e < block.size() && !sum.empty(); ++e) block[e] += sum[gram_block<T>(i, j) + e];
    for (Index m = i * W; m < std::min((i + 1) * W, d); ++m)
      for (Index n = std::max(j * W, m); n < std::min((j + 1) * W, d); ++n)
        total(m, n) = total(n, m) = block[(m - i * W) * W + n - j * W];
  });
  return total;
}

template decltype(row_products<float>) row_products<float>;
template decltype(row_products<double>) row_products<double>;
template decltype(total_gram<float>) total_gram<float>;
template decltype(total_gram<double>) total_gram<double>;

}  // namespace kvreplay
