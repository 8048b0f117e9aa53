#include "analysis/verify/verify_kept_sets.hpp"

#include "analysis/verify/output_distance.hpp"
#include "sim/eviction/kept_outputs.hpp"
#include "sim/eviction/kept_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

std::vector<KeptSet> kept_sets(const Vector<double>& cost) {
  const Index l = cost.size();
  const auto n = static_cast<std::size_t>(l);
  KeptSet alternate(n, 0), without_costly(n, 1);
  for (std::size_t p = 0; p < n; p += 2) alternate[p] = 1;
  const KeptSet costly = largest(cost, std::max<Index>(l / 100, 1));
  for (std::size_t p = 0; p < n; ++p) without_costly[p] = costly[p] != 0 ? 0 : 1;
  return {alternate, largest(cost, std::max<Index>(l / 10, 1)), without_costly, KeptSet(n, 1), KeptSet(n, 0)};
}

}  // namespace

KeptSetCheck::KeptSetCheck(const Dump& dump, Index window, const Compute& compute) : compute_(compute) {
  const DumpShape& shape = dump.shape();
  window_ = window_rows(shape.l, shape.first_query(), std::min(window, kVerifiedRows));
  future_ = future_rows(shape.l, shape.T, shape.first_query());
  future_.end = std::min(future_.end, future_.begin + kVerifiedRows);
}

void KeptSetCheck::add(const HeadGroup<double>& group, const HeadGroup<float>* single,
                       const Vector<double>& cost) {
  const std::vector<KeptSet> sets = kept_sets(cost);
  for (const Rows rows : {window_, future_})
    if (rows.count() > 0) compare(group, single, rows, sets);
  ++heads_;
  with_f32_ = with_f32_ || single != nullptr;
}

void KeptSetCheck::compare(const HeadGroup<double>& group, const HeadGroup<float>* single, Rows rows,
                           const std::vector<KeptSet>& sets) {
  std::vector<OutputChangeReference> expected(sets.size());
  compute_.workers.parallel_for(std::ssize(sets), [&](std::ptrdiff_t s) {
    const auto at = static_cast<std::size_t>(s);
    expected[at] = output_change_reference(group, rows, sets[at]);
  });
  const auto judge_all = [&](const auto& found, const std::string& type, double tolerance, double& worst) {
    for (std::size_t s = 0; s < sets.size(); ++s) {
      const double difference = distance(found.change[s], expected[s].change);
      const double norm = std::sqrt(expected[s].full_sq);
      judge(group, rows, type, difference == 0 ? 0 : difference / norm, tolerance, worst);
    }
  };
  judge_all(compute_.backend.output_changes(group, rows, sets, true, compute_.workers), "float64",
            kOutputTolerance, worst_f64_);
  if (single != nullptr)
    judge_all(compute_.backend.output_changes(*single, rows, sets, true, compute_.workers),
              judged_float32(compute_.backend), kFloat32OutputTolerance, worst_f32_);
}

void KeptSetCheck::judge(const HeadGroup<double>& group, Rows rows, const std::string& type, double deviation,
                         double tolerance, double& worst) {
  if (std::isnan(deviation) || deviation > worst) worst = std::abs(deviation);
  if (deviation <= tolerance) return;
  failures_.push_back(
      fmt::format("kept sets: layer {} KV head {}, rows {} to {}: {:.2g} of the full output's norm off in "
                  "{}, tolerance {:g}",
                  group.layer, group.kv_head, rows.begin, rows.end - 1, deviation, type, tolerance));
}

Check KeptSetCheck::check() const {
  Check check{.name = "kept sets",
              .covered = {},
              .worst = {},
              .skipped = false,
              .failures = failures_,
              .figures = {}};
  const Index rows = window_.count() + future_.count();
  if (rows == 0) {
    check.skipped = true;
    check.worst = "left out: the dump holds no queries of the window or the decoding steps";
    return check;
  }
  check.covered = fmt::format("{} heads x {} rows x 5 kept sets", heads_, rows);
  check.worst =
      fmt::format("worst {:.1e} of the output's norm (tolerance {:g})", worst_f64_, kOutputTolerance);
  if (with_f32_)
    check.worst += fmt::format(", {} {:.1e} ({:g})", judged_float32(compute_.backend), worst_f32_,
                               kFloat32OutputTolerance);
  check.figures = {{"heads", heads_}, {"rows", rows}, {"worst_f64", worst_f64_}};
  if (with_f32_) check.figures.update({{"worst_f32", worst_f32_}, {"backend", compute_.backend.name()}});
  return check;
}

}  // namespace kvreplay
