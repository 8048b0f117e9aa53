#include "sim/gram_sums.hpp"

#include "data/error.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace kvreplay {

Index gram_item_rows(Index n) {
  constexpr Index kFewest = 1024;   // worth an item and its own sum
  constexpr Index kMostItems = 32;  // which bounds the memory for their sums
  const Index rows = std::max(kFewest, (n + kMostItems - 1) / kMostItems);
  return (rows + kGramTile - 1) / kGramTile * kGramTile;
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

template <class T>
void require_finite(const Matrix<double>& gram) {
  if (gram.allFinite()) return;
  throw InputError(
      "keys or queries",
      std::string("squares within ") + (sizeof(T) == 4 ? "float32 (see --precision f64)" : "float64"),
      "an overflow");
}

template Matrix<double> total_gram<float>(const GramSums&, Index, Workers&);
template Matrix<double> total_gram<double>(const GramSums&, Index, Workers&);
template void require_finite<float>(const Matrix<double>&);
template void require_finite<double>(const Matrix<double>&);

}  // namespace kvreplay
