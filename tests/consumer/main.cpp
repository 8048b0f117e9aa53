// What the joint score of OBCache keeps of one head's prompt, and what the loss of the rest does to the
// outputs that follow.
#include <kvreplay/data/dump.hpp>
#include <kvreplay/sim/cache/cache_outputs.hpp>
#include <kvreplay/sim/tokens/token_metrics.hpp>

#include <cstdio>

int main(int, char** argv) {
  using namespace kvreplay;
  const Dump dump = Dump::open(argv[1]);
  const HeadGroup<float> group = load_head_group<float>(dump, /*layer=*/0, /*kv_head=*/0);
  Workers workers;

  const TokenMetrics metrics = token_metrics_cpu(group, {.window = 32}, workers);
  const Cache<float> cache{largest(metrics[TokenMetric::joint].row(0), /*keep=*/group.l / 4)};

  const RowRange rows = future_rows(group.l, group.T_all(), group.first_query());
  const OutputChanges<float> changes = output_changes<float>(group, rows, {&cache, 1}, false, workers);
  std::printf("%td of %td tokens kept: output error %.4f\n", count(cache.kept), group.l,
              changes.change_sq[0] / changes.full_sq);
}
