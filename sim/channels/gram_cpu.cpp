#include "sim/channels/channel_interaction.hpp"
#include "sim/gram_sums.hpp"

#include <algorithm>

namespace kvreplay {

template <class T>
Matrix<double> gram(const Matrix<T>& x, const std::vector<Index>& rows, Workers& workers) {
  const Index n = std::ssize(rows), d = x.cols(), per_item = gram_item_rows(n);
  GramSums sums(static_cast<std::size_t>((n + per_item - 1) / per_item));
  workers.parallel_for(std::ssize(sums), [&](Index item) {
    std::vector<double>& sum = sums[item];
    sum.resize(gram_blocks_size<T>(d));
    std::vector<T> panels(panels_of<T>(d) * kGramTile * kPanelWidth<T>);
    const Index end = std::min((item + 1) * per_item, n);
    for (Index begin = item * per_item; begin < end; begin += kGramTile) {
      const Index next = std::min(begin + kGramTile, end);
      const ListedRows<T> tile{x.data(), rows.data() + begin, next - begin, d};
      pack_rows(tile, panels.data());
      add_gram(panels.data(), tile.n, d, sum.data(),
               {x.data(), rows.data() + next, std::min(kGramTile, end - next), d});
    }
  });
  Matrix<double> total = total_gram<T>(sums, d, workers);
  require_finite<T>(total);
  return total;
}

template <class T>
Matrix<double> gram_f64(const Matrix<T>& x, const std::vector<Index>& rows, Workers& workers) {
  const Index n = std::ssize(rows), d = x.cols(), per_item = gram_item_rows(n);
  GramSums sums(static_cast<std::size_t>((n + per_item - 1) / per_item));
  workers.parallel_for(std::ssize(sums), [&](Index item) {
    std::vector<double>& sum = sums[item];
    sum.resize(gram_blocks_size<double>(d));
    std::vector<double> panels(
        static_cast<std::size_t>(panels_of<double>(d) * kGramTile * kPanelWidth<double>));
    const Index end = std::min((item + 1) * per_item, n);
    for (Index begin = item * per_item; begin < end; begin += kGramTile) {
      const Index tile = std::min(kGramTile, end - begin);
      for (Index r = 0; r < tile; ++r) {
        const T* row = x.data() + rows[begin + r] * d;
        for (Index c = 0; c < d; ++c) panels[panel_entry<double>(r, c, tile)] = static_cast<double>(row[c]);
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

}  // namespace kvreplay
