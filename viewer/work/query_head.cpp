#include "viewer/work/query_head.hpp"

#include "analysis/results/result_folder.hpp"
#include "analysis/results/result_reader.hpp"
#include "data/error.hpp"
#include "data/npy/npy_header.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace kvreplay::viewer {

HeadSummary summarise_query_head(const HeadGroup<float>& group, Index query_head,
                                 const HeadSummaryOptions& options, const Compute& compute) {
  TokenOptions token_options;
  token_options.window = options.window;
  token_options.metrics = options.metrics;
  token_options.per_query_head = true;
  TokenMetrics metrics = compute.backend.token_metrics(group, token_options, compute.workers);
  for (Matrix<double>& values : metrics.values)
    if (values.size() > 0) values = values.row(query_head).eval();
  return summary_of(std::move(metrics), group.layer, group.kv_head, options, compute.workers);
}

std::optional<TokenMetrics> read_query_head_metrics(const ResultReader& results, Index layer, Index kv_head,
                                                    Index query_head) {
  const DumpShape& shape = results.shape();
  const Index row = kv_head * (shape.n_q / shape.n_kv) + query_head;
  const std::vector<Index> expected{shape.n_q, shape.l};
  TokenMetrics metrics;
  bool any = false;
  for (const TokenMetric m : kTokenMetrics.all()) {
    const std::filesystem::path name =
        std::filesystem::path(layer_name(layer)) / "tokens" / fmt::format("{}.npy", name_of(m));
    if (!results.has(name)) continue;
    const ResultReader::Array array = results.array(name);
    if (shape.n_q > shape.n_kv && array.shape == std::vector<Index>{shape.n_kv, shape.l}) return std::nullopt;
    if (array.shape != expected || row >= shape.n_q)
      throw InputError((results.folder() / name).string(), "shape " + shape_text(expected),
                       "shape " + shape_text(array.shape));
    metrics[m] = Eigen::Map<const Matrix<double>>(array.values.data() + row * shape.l, 1, shape.l);
    any = true;
  }
  if (!any)
    throw InputError(fmt::format("{}: no token metrics of layer {}", results.folder().string(), layer));
  return metrics;
}

}  // namespace kvreplay::viewer
