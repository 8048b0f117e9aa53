#include "analysis/verify/output_checks.hpp"

#include "sim/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

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

std::string judged_float32(const Backend& backend) {
  return backend.name() == "cpu" ? "float32" : fmt::format("float32 on {}", backend.name());
}

template <class T>
double panel_distance(const PanelRows<T>& panels, const std::vector<Matrix<double>>& rows) {
  double square = 0;
  for (std::size_t g = 0; g < rows.size(); ++g)
    for (Index r = 0; r < rows[g].rows(); ++r)
      for (Index c = 0; c < rows[g].cols(); ++c) {
        const T found = panels[g][panel_entry<T>(c, r, rows[g].cols())];
        const double off = static_cast<double>(found) - rows[g](r, c);
        square += off * off;
      }
  return std::sqrt(square);
}
template double panel_distance(const PanelRows<float>&, const std::vector<Matrix<double>>&);
template double panel_distance(const PanelRows<double>&, const std::vector<Matrix<double>>&);

std::vector<OutputChangeReference> references_in_parallel(
    RowRange rows, Workers& workers,
    const std::function<std::vector<OutputChangeReference>(RowRange)>& reference) {
  constexpr Index kRows = 8;
  std::vector<std::vector<OutputChangeReference>> parts((rows.count() + kRows - 1) / kRows);
  workers.parallel_for(std::ssize(parts), [&](Index part) {
    const Index begin = rows.begin + part * kRows;
    parts[part] = reference({begin, std::min(begin + kRows, rows.end)});
  });
  std::vector<OutputChangeReference> whole = std::move(parts.front());
  for (std::size_t part = 1; part < parts.size(); ++part)
    for (std::size_t n = 0; n < whole.size(); ++n) {
      const OutputChangeReference& more = parts[part][n];
      whole[n].full_sq += more.full_sq;
      whole[n].change_sq += more.change_sq;
      for (std::size_t g = 0; g < more.change.size(); ++g) {
        Matrix<double>& rows_so_far = whole[n].change[g];
        rows_so_far.conservativeResize(rows_so_far.rows() + more.change[g].rows(), Eigen::NoChange);
        rows_so_far.bottomRows(more.change[g].rows()) = more.change[g];
      }
    }
  return whole;
}

OutputCheck::OutputCheck(const Dump& dump, Index window, const Compute& compute)
    : compute_(compute),
      f64_{"float64", "worst_f64"},
      f32_{"float32", "worst_f32"},
      on_device_{judged_float32(compute.backend), "worst_f32_on_device"} {
  const DumpShape& shape = dump.shape();
  window_ = window_rows(shape.l, shape.first_query(), std::min(window, kVerifiedRows));
  future_ = future_rows(shape.l, shape.T, shape.first_query());
  future_.end = std::min(future_.end, future_.begin + kVerifiedRows);
}

void OutputCheck::judge(const std::string& what, double deviation, double tolerance, Judged& judged) {
  judged.worst = worse(judged.worst, deviation);
  judged.seen = true;
  if (!(deviation <= tolerance))
    failures_.push_back(fmt::format("{} in {}, tolerance {:g}", what, judged.type, tolerance));
}

void OutputCheck::merge(const OutputCheck& later) {
  for (Judged OutputCheck::*judged : {&OutputCheck::f64_, &OutputCheck::f32_, &OutputCheck::on_device_}) {
    (this->*judged).worst = worse((this->*judged).worst, (later.*judged).worst);
    (this->*judged).seen |= (later.*judged).seen;
  }
  heads_ += later.heads_;
  failures_.insert(failures_.end(), later.failures_.begin(), later.failures_.end());
}

Check OutputCheck::check(const char* name, const char* covered, const char* norm, const char* missing) const {
  if (heads_ == 0 || rows() == 0) return left_out(name, missing);
  Check check{.name = name, .failures = failures_};
  check.covered = fmt::format("{} heads x {} rows x {}", heads_, rows(), covered);
  check.worst = fmt::format("worst {:.1e} of {} (tolerance {:g})", f64_.worst, norm, kOutputTolerance);
  check.figures = {{"heads", heads_}, {"rows", rows()}, {f64_.key, f64_.worst}};
  for (const Judged* judged : {&f32_, &on_device_}) {
    if (!judged->seen) continue;
    check.worst += fmt::format(", {} {:.1e} ({:g})", judged->type, judged->worst, kFloat32OutputTolerance);
    check.figures[judged->key] = judged->worst;
    check.figures["backend"] = compute_.backend.name();
  }
  return check;
}

KeptSetCheck::KeptSetCheck(const Dump& dump, Index window, const Compute& compute)
    : OutputCheck(dump, window, compute) {
  f32_.type = judged_float32(compute.backend);
}

void KeptSetCheck::add(const HeadGroup<double>& group, const HeadGroup<float>* single,
                       const Vector<double>& cost) {
  const std::vector<KeptSet> sets = kept_sets(cost);
  for (const RowRange rows : {window_, future_})
    if (rows.count() > 0) compare(group, single, rows, sets);
  count_head();
}

void KeptSetCheck::compare(const HeadGroup<double>& group, const HeadGroup<float>* single, RowRange rows,
                           const std::vector<KeptSet>& sets) {
  const std::vector<OutputChangeReference> expected = references_in_parallel(
      rows, compute_.workers,
      [&](RowRange some) { return output_change_references(group, some, caches_of<double>(sets)); });
  const auto judge_all = [&](const auto& found, double tolerance, Judged& judged) {
    for (std::size_t s = 0; s < sets.size(); ++s) {
      const double deviation =
          share_of(panel_distance(found.change[s], expected[s].change), std::sqrt(expected[s].full_sq));
      judge(fmt::format("kept sets: layer {} KV head {}, rows {} to {}: {:.2g} of the full output's norm off",
                        group.layer, group.kv_head, rows.begin, rows.end - 1, deviation),
            deviation, tolerance, judged);
    }
  };
  judge_all(compute_.backend.output_changes(group, rows, caches_of<double>(sets), true, compute_.workers),
            kOutputTolerance, f64_);
  if (single != nullptr)
    judge_all(compute_.backend.output_changes(*single, rows, caches_of<float>(sets), true, compute_.workers),
              kFloat32OutputTolerance, f32_);
}

Check KeptSetCheck::check() const {
  return OutputCheck::check("kept sets", "5 kept sets", "the output's norm",
                            "the dump holds no queries of the window or the decoding steps");
}

}  // namespace kvreplay
