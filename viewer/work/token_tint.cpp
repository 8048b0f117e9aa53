#include "viewer/work/token_tint.hpp"

#include "analysis/results/agreement.hpp"
#include "data/error.hpp"
#include "sim/backend.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/model/value_scale.hpp"
#include "viewer/work/head_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::viewer {

TokenSums layer_token_sums(const Run& run, Index layer, TokenMetric metric, Index window, JobControl& job) {
  TokenSums sums;
  const Index heads = run.shape().n_kv;
  for (Index g = 0; g < heads; ++g) {
    TokenMetrics found;
    if (run.dump() != nullptr) {
      TokenOptions options;
      options.window = window;
      options.metrics = {metric};
      found = job.compute().backend.token_metrics(*run.head(layer, g), options, job.workers());
    } else {
      found = read_token_metrics(*run.results(), layer, g);
    }
    const Matrix<double>& values = found[metric];
    if (values.size() == 0)
      throw InputError(fmt::format("{}: no {} of layer {}", run.path().string(), name_of(metric), layer));
    sums.values.resize(values.cols(), 0.0);
    for (Index p = 0; p < values.cols(); ++p) sums.values[p] += values(0, p);
    job.progress(static_cast<double>(g + 1) / static_cast<double>(heads));
    job.check();
  }
  return sums;
}

std::size_t bytes_of(const TokenSums& sums) { return sizeof(sums) + sums.values.capacity() * sizeof(double); }

std::uint8_t TokenTint::rank_level(Index token) const {
  const auto last = std::max<std::ptrdiff_t>(std::ssize(place) - 1, 1);
  return static_cast<std::uint8_t>(255 - 255 * static_cast<std::ptrdiff_t>(place[token]) / last);
}

TokenTint token_tint(std::vector<double> values) {
  TokenTint tint;
  tint.values = std::move(values);
  std::vector<float> finite, positive;
  for (const double value : tint.values) {
    const auto v = static_cast<float>(value);
    if (std::isfinite(v)) finite.push_back(v);
    if (std::isfinite(v) && v > 0) positive.push_back(v);
  }
  const auto [least, most] = std::minmax_element(finite.begin(), finite.end());
  if (!positive.empty() && *least >= 0) {
    tint.scale.kind = ScaleKind::log;
    tint.scale.high = *most;
    tint.scale.low = percentile(positive, 50);
    if (tint.scale.low == tint.scale.high) tint.scale.low /= 10;
  } else if (!finite.empty()) {
    tint.scale.low = *least;
    tint.scale.high = *most;
  }
  tint.scale = usable(tint.scale);
  tint.level.reserve(tint.values.size());
  for (const double value : tint.values) {
    const float place = tint.scale.place(static_cast<float>(value));
    tint.level.push_back(
        std::isnan(place) ? 0 : static_cast<std::int16_t>(std::lround(255 * std::clamp(place, 0.0F, 1.0F))));
  }
  tint.place = Ranking(tint.values).place();
  return tint;
}

TokenTint difference_tint(const std::vector<double>& own, const std::vector<double>& pinned, bool by_rank) {
  std::vector<double> less(own.size(), kNone), magnitudes;
  const std::size_t both = std::min(own.size(), pinned.size());
  if (by_rank) {
    const std::vector<std::int32_t> mine = Ranking(own).place(), theirs = Ranking(pinned).place();
    for (std::size_t p = 0; p < both; ++p) less[p] = theirs[p] - mine[p];
  } else {
    for (std::size_t p = 0; p < both; ++p) less[p] = difference_of(pinned[p], own[p]);
  }
  for (const double value : less) magnitudes.push_back(std::abs(value));
  TokenTint tint = token_tint(std::move(magnitudes));
  for (std::size_t p = 0; p < less.size(); ++p)
    if (less[p] < 0) tint.level[p] = static_cast<std::int16_t>(-tint.level[p]);
  tint.values = std::move(less);
  tint.is_difference = true;
  return tint;
}

std::size_t bytes_of(const TokenTint& tint) {
  return sizeof(tint) + tint.values.capacity() * sizeof(double) +
         tint.place.capacity() * sizeof(std::int32_t) + tint.level.capacity() * sizeof(std::int16_t);
}

void KeptCounts::reset(Index heads, Index l) {
  kept_.assign(heads, {});
  counts_.assign(l, 0);
  known_ = 0;
}

void KeptCounts::take(Index head, const KeptSet& kept) {
  std::vector<bool>& last = kept_[head];
  if (last.empty()) {
    last.resize(counts_.size(), false);
    ++known_;
  }
  const std::size_t l = std::min(counts_.size(), kept.size());
  for (std::size_t p = 0; p < l; ++p) {
    const bool now = kept[p] != 0;
    counts_[p] += static_cast<int>(now) - static_cast<int>(last[p]);
    last[p] = now;
  }
}

}  // namespace kvreplay::viewer
