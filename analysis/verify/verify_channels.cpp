#include "analysis/verify/verify_channels.hpp"

#include "analysis/verify/output_distance.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/compression/compressed_outputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

template <class T>
CompressedCache<double> widened(const CompressedCache<T>& cache) {
  return {cache.kept, cache.pruned, cache.prunable, cache.k.template cast<double>(),
          cache.v.template cast<double>()};
}

}  // namespace

ChannelCheck::ChannelCheck(const Dump& dump, Index window, const Compute& compute)
    : compute_(compute),
      window_asked_(std::min(window, kVerifiedRows)),
      on_device_{judged_float32(compute.backend)} {
  const DumpShape& shape = dump.shape();
  window_ = window_rows(shape.l, shape.first_query(), window_asked_);
  future_ = future_rows(shape.l, shape.T, shape.first_query());
  future_.end = std::min(future_.end, future_.begin + kVerifiedRows);
  recent_ = std::min(default_recent(Semantics::paper), shape.l / 2);
}

void ChannelCheck::add(const HeadGroup<double>& group, const HeadGroup<float>* single) {
  if (window_.count() == 0) return;
  compare(group, group, kOutputTolerance, f64_, f64_);
  if (single != nullptr) compare(group, *single, kFloat32OutputTolerance, on_cpu() ? f32_ : on_device_, f32_);
  ++heads_;
  with_f32_ = with_f32_ || single != nullptr;
}

template <class T>
void ChannelCheck::compare(const HeadGroup<double>& group, const HeadGroup<T>& fast, double tolerance,
                           Judged& matrices, Judged& caches_judged) {
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
    judge(group, "error of the logits", away == 0 ? 0 : away / scale, tolerance, matrices);
  }
  const Rows last{std::max(window_.begin, window_.end - 2), window_.end};
  const Matrix<double> expected = output_interaction_reference(group, last, basis.keys);
  const double off =
      (compute_.backend.output_interaction(fast, last, basis.keys, compute_.workers) - expected)
          .cwiseAbs()
          .maxCoeff();
  judge(group, "the output-space matrix", off == 0 ? 0 : off / expected.cwiseAbs().maxCoeff(), tolerance,
        matrices);

  const std::vector<CompressedCache<T>> caches = {
      compressed_cache(fast, all, half, basis.keys.prunable, std::nullopt),
      compressed_cache(fast, alternate, most, without_recent(alternate, recent_),
                       Quantization{.bits = 4, .group = 32, .residual = 16})};
  for (const Rows rows : {window_, future_}) {
    if (rows.count() == 0) continue;
    const CompressedOutputs<T> outputs(fast, rows, compute_.workers);
    for (const CompressedCache<T>& cache : caches) {
      const OutputChangeReference brute = compressed_change_reference(group, rows, widened(cache));
      const double difference = distance(outputs.change(cache, true).vectors, brute.change);
      judge(group, "outputs over a compressed cache",
            difference == 0 ? 0 : difference / std::sqrt(brute.full_sq), tolerance, caches_judged);
    }
  }
}

void ChannelCheck::judge(const HeadGroup<double>& group, const char* what, double deviation, double tolerance,
                         Judged& judged) {
  if (std::isnan(deviation) || deviation > judged.worst) judged.worst = std::abs(deviation);
  if (deviation <= tolerance) return;
  failures_.push_back(fmt::format("channels: layer {} KV head {}: {} {:.2g} off in {}, tolerance {:g}",
                                  group.layer, group.kv_head, what, deviation, judged.type, tolerance));
}

Check ChannelCheck::check() const {
  Check check{.name = "channels, caches",
              .covered = {},
              .worst = {},
              .skipped = false,
              .failures = failures_,
              .figures = {}};
  if (window_.count() == 0) {
    check.skipped = true;
    check.worst = "left out: the dump holds no queries of the prompt";
    return check;
  }
  const Index rows = window_.count() + future_.count();
  check.covered = fmt::format("{} heads x {} rows x 2 caches", heads_, rows);
  check.worst = fmt::format("worst {:.1e} of the norm (tolerance {:g})", f64_.worst, kOutputTolerance);
  const auto add = [&](const Judged& judged) {
    check.worst += fmt::format(", {} {:.1e} ({:g})", judged.type, judged.worst, kFloat32OutputTolerance);
  };
  check.figures = {{"heads", heads_}, {"rows", rows}, {"worst_f64", f64_.worst}};
  if (!with_f32_) return check;
  add(f32_);
  check.figures.update({{"worst_f32", f32_.worst}, {"backend", compute_.backend.name()}});
  if (on_cpu()) return check;
  add(on_device_);
  check.figures["worst_f32_on_device"] = on_device_.worst;
  return check;
}

}  // namespace kvreplay
