#include "analysis/verify/replay_check.hpp"

#include "analysis/tokens/agreement.hpp"
#include "sim/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

constexpr Index kRows = 128;

}  // namespace

double replay_tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return 1e-9;
    case Dtype::f32:
      return 1e-4;
    case Dtype::f16:
      return 2e-3;
    case Dtype::bf16:
      return 2e-2;
  }
  return 0;
}

ReplayCheck::ReplayCheck(const Dump& dump, Workers& workers) : dump_(dump), workers_(workers) {
  const Index n = std::min(kRows, dump.shape().T_q);
  for (Index r = 0; r < n; ++r) rows_.push_back(n == 1 ? 0 : r * (dump.shape().T_q - 1) / (n - 1));
}

void ReplayCheck::add(const HeadGroup<double>& group) {
  const DumpShape& shape = dump_.shape();
  Matrix<double> stored(shape.T_q, shape.d_v);
  const Dtype dtype = dtype_of_output(group.layer);
  dtypes_.insert(dtype);
  for (Index g = 0; g < group.G(); ++g) {
    const Index head = group.kv_head * group.G() + g;
    dump_.read(Tensor::o, group.layer, head, stored.data());
    std::vector<double> error(rows_.size()), size(rows_.size());
    workers_.parallel_for(std::ssize(rows_), [&](Index at) {
      const Index row = rows_[at];
      const Vector<double> o = attention_output(group, g, shape.first_query() + row);
      error[at] = (o - stored.row(row).transpose()).squaredNorm();
      size[at] = stored.row(row).squaredNorm();
    });
    const double difference = std::sqrt(compensated_sum(error)), norm = std::sqrt(compensated_sum(size));
    const double relative = norm > 0 ? difference / norm : difference;
    worst_ = worse(worst_, relative);
    if (!(relative <= replay_tolerance(dtype)))
      failures_.push_back(
          fmt::format("replay: layer {} query head {}: relative L2 {:.2g} from o.npy ({}), tolerance {:g}",
                      group.layer, head, worse(0, relative), name_of(dtype), replay_tolerance(dtype)));
  }
  heads_ += group.G();
}

void ReplayCheck::merge(const ReplayCheck& later) {
  dtypes_.insert(later.dtypes_.begin(), later.dtypes_.end());
  heads_ += later.heads_;
  worst_ = worse(worst_, later.worst_);
  failures_.insert(failures_.end(), later.failures_.begin(), later.failures_.end());
}

Check ReplayCheck::check() const {
  Check check{
      .name = "replay", .covered = {}, .worst = {}, .skipped = false, .failures = failures_, .figures = {}};
  const bool sampled = std::ssize(rows_) < dump_.shape().T_q;
  check.covered = fmt::format("{} query heads x {} rows{}", heads_, rows_.size(),
                              sampled ? fmt::format(" (evenly spread over {})", dump_.shape().T_q) : "");
  std::string tolerances;
  for (const Dtype dtype : dtypes_)
    tolerances +=
        fmt::format("{}{:g} for {}", tolerances.empty() ? "" : ", ", replay_tolerance(dtype), name_of(dtype));
  check.worst = fmt::format("worst {:.1e} relative L2 from o.npy (tolerance {})", worst_, tolerances);
  check.figures = {{"query_heads", heads_}, {"rows", rows_.size()}, {"worst_relative_l2", worst_}};
  return check;
}

Dtype ReplayCheck::dtype_of_output(Index layer) const {
  for (const DumpFile& file : dump_.files())
    if (file.tensor == Tensor::o && (file.layer == layer || file.layer < 0)) return file.dtype;
  return Dtype::f32;
}

}  // namespace kvreplay
