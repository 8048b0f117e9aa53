#include "data/synth/synthetic_head.hpp"

#include <algorithm>
#include <cmath>

namespace kvreplay {
namespace {

constexpr double ln_theta = 9.210340371976182;  // the manifest's theta is 10000

// Streams of random numbers: one for each thing that is drawn.
enum Stream : std::uint64_t {
  places,
  sink_heads,
  centre,
  directions,
  keys_noise,
  values_mean,
  values_noise,
  values_norm,
  queries_noise,
  query_head_shape,
  hitter_strength
};

constexpr double outlier_norm = 8.0;  // times that of the other key channels
constexpr double key_noise = 0.7;
constexpr double centre_logit = 7.0;        // what a query's centre adds to the logit of its own position
constexpr double rest_logit_bound = 5.0;    // in sink heads, the largest logit of anything but the sink
constexpr double needle_suppression = 6.0;  // what prompt rows take off the needle's logit

double dot(const std::vector<double>& a, const double* b) {
  double sum = 0;
  for (std::size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

void add(double factor, const std::vector<double>& direction, double* row) {
  for (std::size_t c = 0; c < direction.size(); ++c) row[c] += factor * direction[c];
}

double norm(const double* row, Index d) {
  double sum = 0;
  for (Index c = 0; c < d; ++c) sum += row[c] * row[c];
  return std::sqrt(sum);
}

bool contains(const std::vector<Index>& sorted, Index value) {
  return std::binary_search(sorted.begin(), sorted.end(), value);
}

}  // namespace

double coarse_log(Index n) {
  double log = 0;
  for (Index power = 1; power < n; power *= 2) log += 0.6931471805599453;
  return log;
}

Planted plant(const SynthOptions& options) {
  const CounterRandom random = CounterRandom(options.seed);
  Planted planted;
  planted.sinks = {0};
  for (Index layer = 0; layer < options.layers; ++layer) {
    const std::uint64_t draw = random.stream(sink_heads).bits(static_cast<std::uint64_t>(layer));
    planted.sink_kv_heads.push_back(static_cast<Index>(draw % static_cast<std::uint64_t>(options.kv_heads)));
  }
  // The last rotation pairs turn slowest, which is where trained models have their outliers.
  if (options.head_dim >= 8) {
    for (Index pair = 0; pair < std::max<Index>(1, options.head_dim / 64); ++pair) {
      planted.outlier_channels.push_back(options.head_dim / 2 - 1 - pair);
      planted.outlier_channels.push_back(options.head_dim - 1 - pair);
    }
    std::sort(planted.outlier_channels.begin(), planted.outlier_channels.end());
  }
  if (options.kv_heads == 1 || options.prompt < 8) return planted;
  const std::uint64_t choices = static_cast<std::uint64_t>(options.prompt - 1);
  const auto place = [&](std::uint64_t i) {
    return 1 + static_cast<Index>(random.stream(places).bits(i) % choices);
  };
  if (options.decode > 0) planted.needle = std::min(place(0), std::max<Index>(1, options.prompt * 3 / 4));
  const std::size_t hitters = static_cast<std::size_t>(std::max<Index>(1, options.prompt / 64));
  for (std::uint64_t i = 1; planted.heavy_hitters.size() < hitters; ++i) {
    const Index position = place(i);
    const auto at = std::lower_bound(planted.heavy_hitters.begin(), planted.heavy_hitters.end(), position);
    if (position != planted.needle && (at == planted.heavy_hitters.end() || *at != position)) {
      planted.heavy_hitters.insert(at, position);
    }
  }
  return planted;
}

SyntheticHead::SyntheticHead(const SynthOptions& options, const Planted& planted, Index layer, Index kv_head)
    : options_(options),
      planted_(planted),
      T_(options.prompt + options.decode),
      d_(options.head_dim),
      scale_(1.0 / std::sqrt(static_cast<double>(options.head_dim))),
      sink_head_(planted.sink_kv_heads[layer] == kv_head),
      random_(CounterRandom(options.seed)
                  .stream(1000 + static_cast<std::uint64_t>(layer))
                  .stream(static_cast<std::uint64_t>(kv_head))) {
  for (Index c = 0; c < d_; c += 2) {
    inv_freq_.push_back(portable_exp(-ln_theta * static_cast<double>(c) / static_cast<double>(d_)));
  }
  const auto normals = [&](Stream stream, std::uint64_t first) {
    std::vector<double> vector(d_);
    for (std::size_t c = 0; c < vector.size(); ++c) vector[c] = random_.stream(stream).normal(first + c);
    return vector;
  };
  centre_ = normals(centre, 0);
  for (const Index c : planted.outlier_channels) centre_[c] = 0;
  const double centre_norm = norm(centre_.data(), d_);
  for (double& value : centre_) value *= std::sqrt(centre_logit / scale_) / std::max(centre_norm, 1e-3);

  while (std::ssize(directions_) < (sink_head_ ? 1 : 2)) {
    std::vector<double> direction = normals(directions, directions_.size() << 32);
    // Outliers stay within their rotation pairs, so directions without those channels leave them as they are.
    for (const Index c : planted.outlier_channels) direction[c] = 0;
    remove_planted(direction.data());
    const double length = norm(direction.data(), d_);
    for (double& value : direction) value /= length;
    directions_.push_back(std::move(direction));
  }
  // exp(logit) beats T times the largest rest 99 times over (log 99 < 4.6), with 1 to spare for rounding to
  // bfloat16.
  sink_logit_ = coarse_log(T_) + rest_logit_bound + 4.6 + 1.0;
  hitter_logit_ = coarse_log(options.prompt / std::max<Index>(1, std::ssize(planted.heavy_hitters))) + 2.0;
  needle_logit_ = coarse_log(T_) + 8.0;
  keys_ = make_keys();
}

void SyntheticHead::rotate(Index position, double* row) const {
  const Index half = d_ / 2;
  for (Index c = 0; c < half; ++c) {
    const auto [sine, cosine] = portable_sincos(static_cast<double>(position) * inv_freq_[c]);
    const double first = row[c], second = row[c + half];
    row[c] = first * cosine - second * sine;
    row[c + half] = second * cosine + first * sine;
  }
}

void SyntheticHead::remove_planted(double* row) const {
  for (const auto& direction : directions_) add(-dot(direction, row), direction, row);
}

std::vector<double> SyntheticHead::make_keys() const {
  const CounterRandom noise = random_.stream(keys_noise);
  const double outlier_mean =
      outlier_norm * std::sqrt(key_noise * key_noise + centre_logit / (scale_ * static_cast<double>(d_)));
  std::vector<double> keys(T_ * d_);
  for (Index p = 0; p < T_; ++p) {
    double* row = keys.data() + p * d_;
    if (sink_head_ && p == 0) {
      add(std::sqrt(sink_logit_ / scale_), directions_[0], row);
      continue;
    }
    for (Index c = 0; c < d_; ++c) {
      row[c] = centre_[c] + key_noise * noise.normal(static_cast<std::uint64_t>(p * d_ + c));
    }
    for (const Index c : planted_.outlier_channels) row[c] += outlier_mean;
    rotate(p, row);
    remove_planted(row);
    if (sink_head_) continue;
    if (contains(planted_.heavy_hitters, p)) add(std::sqrt(hitter_logit_ / scale_), directions_[0], row);
    if (p == planted_.needle) add(std::sqrt(needle_logit_ / scale_), directions_[1], row);
  }
  return keys;
}

std::vector<double> SyntheticHead::values() const {
  std::vector<double> values(T_ * d_);
  for (Index p = 0; p < T_; ++p) {
    const std::uint64_t row = static_cast<std::uint64_t>(p * d_);
    // Norms spread over about a factor of 4, so that policies that weigh by value differ from those that do
    // not.
    double size = portable_exp(0.35 * random_.stream(values_norm).normal(static_cast<std::uint64_t>(p)));
    if (sink_head_ && p == 0) size = 0.02;
    if (!sink_head_ && p == planted_.needle) size *= 3.0;
    for (Index c = 0; c < d_; ++c) {
      const std::uint64_t i = static_cast<std::uint64_t>(c);
      const double mean = 0.3 * random_.stream(values_mean).normal(i);
      values[row + i] = size * (mean + random_.stream(values_noise).normal(row + i));
    }
  }
  return values;
}

std::vector<double> SyntheticHead::queries(Index query_head) const {
  const std::uint64_t head = static_cast<std::uint64_t>(query_head);
  const CounterRandom noise = random_.stream(queries_noise).stream(head);
  // From broad to sharp: every query head weighs recency and content in its own way.
  const double locality = 0.8 + 0.7 * random_.stream(query_head_shape).stream(head).uniform(0);
  const double content = 0.5 + 0.6 * random_.stream(query_head_shape).stream(head).uniform(1);
  // In sink heads no key but the sink has a logit above the bound: |q| |k| scale limits it.
  double longest_key = 0;
  if (sink_head_) {
    for (Index p = 1; p < T_; ++p) longest_key = std::max(longest_key, norm(keys_.data() + p * d_, d_));
  }
  std::vector<double> queries(T_ * d_);
  for (Index i = 0; i < T_; ++i) {
    double* row = queries.data() + i * d_;
    for (Index c = 0; c < d_; ++c) {
      row[c] = locality * centre_[c] + content * noise.normal(static_cast<std::uint64_t>(i * d_ + c));
    }
    rotate(i, row);
    remove_planted(row);
    if (sink_head_) {
      const double length = norm(row, d_);
      const double allowed = longest_key > 0 ? rest_logit_bound / (scale_ * longest_key) : length;
      for (Index c = 0; c < d_ && length > allowed; ++c) row[c] *= allowed / length;
      add(std::sqrt(sink_logit_ / scale_), directions_[0], row);
      continue;
    }
    const double strength =
        0.7 + 0.4 * random_.stream(hitter_strength).stream(head).uniform(static_cast<std::uint64_t>(i));
    if (!planted_.heavy_hitters.empty())
      add(strength * std::sqrt(hitter_logit_ / scale_), directions_[0], row);
    if (planted_.needle >= 0) {
      const double attention = i >= options_.prompt ? needle_logit_ : -needle_suppression;
      add(attention / (scale_ * std::sqrt(needle_logit_ / scale_)), directions_[1], row);
    }
  }
  return queries;
}

}  // namespace kvreplay
