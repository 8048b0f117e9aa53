#include "data/error.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/channels/gram_sums.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace kvreplay {
namespace {

constexpr Index kRowsPerTile = 128;  // that a sum in T runs over: two panels of them fit the first cache
constexpr Index kFewestRows = 1024;  // worth an item and its own sum
constexpr Index kMostItems = 32;     // which bounds the memory for their sums

/// Rows of an item: whole tiles, from the number of rows alone.
Index rows_per_item(Index n) {
  const Index rows = std::max(kFewestRows, (n + kMostItems - 1) / kMostItems);
  return (rows + kRowsPerTile - 1) / kRowsPerTile * kRowsPerTile;
}

}  // namespace

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
        total(m, n) = total(n, m) = block[static_cast<std::size_t>((m - i * W) * W + n - j * W)];
  });
  return total;
}

template <class T>
void require_finite(const Matrix<double>& gram) {
  if (gram.allFinite()) return;
  throw InputError(
      "keys or queries",
      std::string("squares within ") + (sizeof(T) == 4 ? "float32 (see --precision f64)" : "float64"),
      "an overflow");
}

template <class T>
Matrix<double> gram(const Matrix<T>& x, const std::vector<Index>& rows, Workers& workers) {
  const Index n = static_cast<Index>(rows.size()), d = x.cols(), per_item = rows_per_item(n);
  GramSums sums(static_cast<std::size_t>((n + per_item - 1) / per_item));
  workers.parallel_for(static_cast<Index>(sums.size()), [&](Index item) {
    std::vector<double>& sum = sums[static_cast<std::size_t>(item)];
    sum.resize(gram_blocks_size<T>(d));
    std::vector<T> panels(static_cast<std::size_t>(panels_of<T>(d) * kRowsPerTile * kPanelWidth<T>));
    const Index end = std::min((item + 1) * per_item, n);
    for (Index begin = item * per_item; begin < end; begin += kRowsPerTile) {
      const Index next = std::min(begin + kRowsPerTile, end);
      const ListedRows<T> tile{x.data(), rows.data() + begin, next - begin, d};
      pack_rows(tile, panels.data());
      add_gram(panels.data(), tile.n, d, sum.data(),
               {x.data(), rows.data() + next, std::min(kRowsPerTile, end - next), d});
    }
  });
  Matrix<double> total = total_gram<T>(sums, d, workers);
  require_finite<T>(total);
  return total;
}

template <class T>
Matrix<double> gram_f64(const Matrix<T>& x, const std::vector<Index>& rows, Workers& workers) {
  constexpr Index W = kPanelWidth<double>;
  const Index n = static_cast<Index>(rows.size()), d = x.cols(), per_item = rows_per_item(n);
  GramSums sums(static_cast<std::size_t>((n + per_item - 1) / per_item));
  workers.parallel_for(static_cast<Index>(sums.size()), [&](Index item) {
    std::vector<double>& sum = sums[static_cast<std::size_t>(item)];
    sum.resize(gram_blocks_size<double>(d));
    std::vector<double> panels(static_cast<std::size_t>(panels_of<double>(d) * kRowsPerTile * W));
    const Index end = std::min((item + 1) * per_item, n);
    for (Index begin = item * per_item; begin < end; begin += kRowsPerTile) {
      const Index tile = std::min(kRowsPerTile, end - begin);
      for (Index r = 0; r < tile; ++r) {
        const T* row = x.data() + rows[static_cast<std::size_t>(begin + r)] * d;
        for (Index c = 0; c < d; ++c)
          panels[static_cast<std::size_t>((c / W * tile + r) * W + c % W)] = static_cast<double>(row[c]);
      }
      add_gram(panels.data(), tile, d, sum.data());
    }
  });
  return total_gram<double>(sums, d, workers);
}

template Matrix<double> gram_f64(const Matrix<float>&, const std::vector<Index>&, Workers&);
template Matrix<double> gram_f64(const Matrix<double>&, const std::vector<Index>&, Workers&);
template Matrix<double> gram(const Matrix<float>&, const std::vector<Index>&, Workers&);
template Matrix<double> gram(const Matrix<double>&, const std::vector<Index>&, Workers&);
template Matrix<double> total_gram<float>(const GramSums&, Index, Workers&);
template Matrix<double> total_gram<double>(const GramSums&, Index, Workers&);
template void require_finite<float>(const Matrix<double>&);
template void require_finite<double>(const Matrix<double>&);

}  // namespace kvreplay
