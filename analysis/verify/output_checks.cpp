#include "analysis/verify/output_checks.hpp"

#include "sim/channels/channel_basis.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/compression/compressed_outputs.hpp"
#include "sim/eviction/kept_outputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

// What verify takes from each head group, and what it allows, as shares of the full output's norm.
constexpr Index kVerifiedRows = 32;  // of each row set: brute force is slow
constexpr double kOutputTolerance = 1e-9, kFloat32OutputTolerance = 1e-4;

/// The norm of the difference between vectors in panels and others in rows, over all query heads.
template <class T>
double distance(const PanelRows<T>& panels, const std::vector<Matrix<double>>& rows) {
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

std::vector<KeptSet> kept_sets(const Vector<double>& cost) {
  const Index l = cost.size();
  const auto n = static_cast<std::size_t>(l);
  KeptSet alternate(n, 0), without_costly(n, 1);
  for (std::size_t p = 0; p < n; p += 2) alternate[p] = 1;
  const KeptSet costly = largest(cost, std::max<Index>(l / 100, 1));
  for (std::size_t p = 0; p < n; ++p) without_costly[p] = costly[p] != 0 ? 0 : 1;
  return {alternate, largest(cost, std::max<Index>(l / 10, 1)), without_costly, KeptSet(n, 1), KeptSet(n, 0)};
}

template <class T>
CompressedCache<double> widened(const CompressedCache<T>& cache) {
  return {cache.kept, cache.pruned, cache.prunable, cache.k.template cast<double>(),
          cache.v.template cast<double>()};
}

}  // namespace

OutputCheck::OutputCheck(const Dump& dump, Index window, const Compute& compute) : compute_(compute) {
  const DumpShape& shape = dump.shape();
  window_ = window_rows(shape.l, shape.first_query(), std::min(window, kVerifiedRows));
  future_ = future_rows(shape.l, shape.T, shape.first_query());
  future_.end = std::min(future_.end, future_.begin + kVerifiedRows);
}

void OutputCheck::judge(const std::string& what, double deviation, double tolerance, Judged& judged) {
  if (std::isnan(deviation) || deviation > judged.worst) judged.worst = std::abs(deviation);
  if (!(deviation <= tolerance))
    failures_.push_back(fmt::format("{} in {}, tolerance {:g}", what, judged.type, tolerance));
}

void OutputCheck::count_head(const HeadGroup<float>* single) {
  ++heads_;
  with_f32_ = with_f32_ || single != nullptr;
}

Check OutputCheck::check(const char* name, const char* covered, const char* norm, const char* missing,
                         std::initializer_list<const Judged*> single) const {
  Check check{
      .name = name, .covered = {}, .worst = {}, .skipped = false, .failures = failures_, .figures = {}};
  if (heads_ == 0 || rows() == 0) {
    check.skipped = true;
    check.worst = fmt::format("left out: {}", missing);
    return check;
  }
  check.covered = fmt::format("{} heads x {} rows x {}", heads_, rows(), covered);
  check.worst = fmt::format("worst {:.1e} of {} (tolerance {:g})", f64_.worst, norm, kOutputTolerance);
  check.figures = {{"heads", heads_}, {"rows", rows()}, {f64_.key, f64_.worst}};
  if (!with_f32_) return check;
  for (const Judged* const judged : single) {
    check.worst += fmt::format(", {} {:.1e} ({:g})", judged->type, judged->worst, kFloat32OutputTolerance);
    check.figures[judged->key] = judged->worst;
    check.figures["backend"] = compute_.backend.name();
  }
  return check;
}

KeptSetCheck::KeptSetCheck(const Dump& dump, Index window, const Compute& compute)
    : OutputCheck(dump, window, compute), f32_{judged_float32(compute.backend), "worst_f32"} {}

void KeptSetCheck::add(const HeadGroup<double>& group, const HeadGroup<float>* single,
                       const Vector<double>& cost) {
  const std::vector<KeptSet> sets = kept_sets(cost);
  for (const RowRange rows : {window_, future_})
    if (rows.count() > 0) compare(group, single, rows, sets);
  count_head(single);
}

void KeptSetCheck::compare(const HeadGroup<double>& group, const HeadGroup<float>* single, RowRange rows,
                           const std::vector<KeptSet>& sets) {
  std::vector<OutputChangeReference> expected(sets.size());
  compute_.workers.parallel_for(std::ssize(sets), [&](std::ptrdiff_t s) {
    const auto at = static_cast<std::size_t>(s);
    expected[at] = output_change_reference(group, rows, sets[at]);
  });
  const auto judge_all = [&](const auto& found, double tolerance, Judged& judged) {
    for (std::size_t s = 0; s < sets.size(); ++s) {
      const double difference = distance(found.change[s], expected[s].change);
      const double deviation = difference == 0 ? 0 : difference / std::sqrt(expected[s].full_sq);
      judge(fmt::format("kept sets: layer {} KV head {}, rows {} to {}: {:.2g} of the full output's norm off",
                        group.layer, group.kv_head, rows.begin, rows.end - 1, deviation),
            deviation, tolerance, judged);
    }
  };
  judge_all(compute_.backend.output_changes(group, rows, sets, true, compute_.workers), kOutputTolerance,
            f64_);
  if (single != nullptr)
    judge_all(compute_.backend.output_changes(*single, rows, sets, true, compute_.workers),
              kFloat32OutputTolerance, f32_);
}

Check KeptSetCheck::check() const {
  return OutputCheck::check("kept sets", "5 kept sets", "the output's norm",
                            "the dump holds no queries of the window or the decoding steps", {&f32_});
}

ChannelCheck::ChannelCheck(const Dump& dump, Index window, const Compute& compute)
    : OutputCheck(dump, window, compute),
      window_asked_(std::min(window, kVerifiedRows)),
      recent_(std::min(default_recent(Semantics::paper), dump.shape().l / 2)),
      on_device_{judged_float32(compute.backend), "worst_f32_on_device"} {}

void ChannelCheck::add(const HeadGroup<double>& group, const HeadGroup<float>* single) {
  if (window_.count() == 0) return;
  compare(group, group, kOutputTolerance, f64_, f64_);
  if (single != nullptr) compare(group, *single, kFloat32OutputTolerance, on_cpu() ? f32_ : on_device_, f32_);
  count_head(single);
}

template <class T>
void ChannelCheck::compare(const HeadGroup<double>& group, const HeadGroup<T>& fast, double tolerance,
                           Judged& matrices, Judged& caches_judged) {
  const auto judge_part = [&](const char* what, double deviation, Judged& judged) {
    judge(fmt::format("channels: layer {} KV head {}: {} {:.2g} off", group.layer, group.kv_head, what,
                      deviation),
          deviation, tolerance, judged);
  };
  const Index d = group.d(), l = group.l;
  const KeptSet all(static_cast<std::size_t>(l), 1);
  KeptSet alternate = all;
  for (std::size_t p = 1; p < alternate.size(); p += 2) alternate[p] = 0;
  const ChannelSetting setting{Semantics::paper, recent_, window_asked_, std::nullopt};
  const ChannelBasis basis = channel_basis(fast, all, setting, false, compute_);
  const ChannelRule think = *channel_rule_named("think"), iap = *channel_rule_named("iap");
  const ChannelSet half =
      select_channels(think, basis.scores, channel_order(think, basis.scores), d / 2).pruned;
  const ChannelSet most =
      select_channels(iap, basis.scores, channel_order(iap, basis.scores), 7 * d / 10).pruned;

  for (const ChannelSet& set : {half, most}) {
    const double error = reconstruction_error_reference(group, positions(basis.keys.prunable), window_, set);
    const double scale = subset_error(basis.window.cwiseAbs(), set);
    const double away = std::abs(subset_error(basis.window, set) - error);
    judge_part("error of the logits", away == 0 ? 0 : away / scale, matrices);
  }
  const RowRange last{std::max(window_.begin, window_.end - 2), window_.end};
  const Matrix<double> expected = output_interaction_reference(group, last, basis.keys);
  const double off =
      (compute_.backend.output_interaction(fast, last, basis.keys, compute_.workers) - expected)
          .cwiseAbs()
          .maxCoeff();
  judge_part("the output-space matrix", off == 0 ? 0 : off / expected.cwiseAbs().maxCoeff(), matrices);

  const std::vector<CompressedCache<T>> caches = {
      compressed_cache(fast, all, half, basis.keys.prunable, std::nullopt),
      compressed_cache(fast, alternate, most, without_recent(alternate, recent_),
                       Quantization{.bits = 4, .group = 32, .residual = 16})};
  for (const RowRange rows : {window_, future_}) {
    if (rows.count() == 0) continue;
    const CompressedOutputs<T> outputs(fast, rows, compute_.workers);
    for (const CompressedCache<T>& cache : caches) {
      const OutputChangeReference brute = compressed_change_reference(group, rows, widened(cache));
      const double difference = distance(outputs.change(cache, true).vectors, brute.change);
      judge_part("outputs over a compressed cache",
                 difference == 0 ? 0 : difference / std::sqrt(brute.full_sq), caches_judged);
    }
  }
}

Check ChannelCheck::check() const {
  const char* const missing = "the dump holds no queries of the prompt";
  const char *const name = "channels, caches", *const covered = "2 caches", *const norm = "the norm";
  return on_cpu() ? OutputCheck::check(name, covered, norm, missing, {&f32_})
                  : OutputCheck::check(name, covered, norm, missing, {&f32_, &on_device_});
}

}  // namespace kvreplay
