#include "sim/tokens/cuda/loss_totals_cuda.hpp"

#include "sim/tokens/cuda/loss_kernels.hpp"

#include <algorithm>
#include <iterator>

namespace kvreplay::cuda {
namespace {

/// [G][S][rows][d_v], each head's times its unit.
std::vector<float> packed_gradients(const RowGradients<float>& gradients, RowRange rows,
                                    const std::vector<double>& units) {
  std::vector<float> packed;
  for (std::size_t g = 0; g < gradients.g.size(); ++g)
    for (Index s = 0; s < gradients.samples; ++s) {
      const auto own = gradients.g[g].middleRows(gradients.at(s, rows.begin), rows.count());
      std::transform(own.data(), own.data() + own.size(), std::back_inserter(packed),
                     [unit = static_cast<float>(units[g])](float x) { return unit * x; });
    }
  return packed;
}

}  // namespace

std::vector<LossTotals> loss_totals_of(const HeadGroup<float>& group, const StoredNumbers& numbers,
                                       const DeviceGroup& attended, const DeviceRows& keys,
                                       const RowGradients<float>& gradients, RowRange rows,
                                       const Stream& stream) {
  const Index G = group.G(), n = rows.count(), S = gradients.samples, l = group.l;
  std::vector<double> units;
  for (const Matrix<float>& g : gradients.g) units.push_back(gradient_unit(g));
  ColumnRun run(attended, rows_at(group, numbers, rows), ColumnSet::future);
  run.ask_top_differences();
  run.launch_pass_one();

  DeviceArrays arrays(stream);
  const ColumnProblem& in = run.problem();
  const Index candidates = in.candidates, numbers_each = 2 * G * candidates;
  const Index token_blocks = G * div_up(candidates, Index{kLossTokens});
  const int segments = narrow(parts_of_work(token_blocks, div_up(n, Index{kLossRows})));
  const LossProblem problem{in,
                            run.finished(),
                            run.out_centred(),
                            run.queries(),
                            keys.stored(),
                            narrow(S),
                            arrays.copy_of<float>(packed_gradients(gradients, rows, units)),
                            arrays.make<float>(G * S * n),
                            arrays.make<float>(G * n),
                            arrays.make<double>(G * n),
                            segments,
                            arrays.make<double>(segments * numbers_each),
                            arrays.make<double>(numbers_each)};
  loss_pass(problem, stream);

  const std::vector<LargestScores> largest = run.largest();
  const std::vector<double> of_top = downloaded(problem.of_top, static_cast<std::size_t>(G * n), stream);
  const std::vector<double> added =
      downloaded(problem.totals, static_cast<std::size_t>(numbers_each), stream);
  std::vector<LossTotals> totals(G, {Vector<double>::Zero(l), Vector<double>::Zero(l)});
  for (Index g = 0; g < G; ++g) {
    auto& [loss, max_attn] = totals[g];
    std::copy_n(added.data() + g * candidates, candidates, loss.data());
    std::copy_n(added.data() + (G + g) * candidates, candidates, max_attn.data());
    for (Index row = 0; row < n; ++row) {
      const LargestScores& column = largest[g * n + row];
      if (column.at >= l) continue;  // a decoded position is no candidate
      const double a = column[RowScore::attention];
      loss[column.at] += a * a * of_top[g * n + row];
      max_attn[column.at] = std::max(max_attn[column.at], a);
    }
    loss *= 0.5 / static_cast<double>(S) / (units[g] * units[g]);
  }
  return totals;
}

}  // namespace kvreplay::cuda
