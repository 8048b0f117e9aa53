#include "data/synth.hpp"

#include "data/atomic_file.hpp"
#include "data/dump.hpp"
#include "data/error.hpp"
#include "data/npy_array.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace kvreplay {
namespace {

/// One KV head of a layer and the queries that read it, row by row made of
///
///   - a centre that queries and keys share before the rotation: rotated, it prefers recent positions;
///   - normal noise, and key channels with a large mean (outliers), also before the rotation;
///   - directions that are planted after the rotation, so that they reach any distance: one for the sink
///   (sink heads),
///     one for the heavy hitters and one for the needle (the others). Everything else is made orthogonal to
///     them.
class SyntheticHead {
 public:
  SyntheticHead(const SynthOptions& options, const Planted& planted, Index layer, Index kv_head);

  /// [T, d] each, row-major.
  const std::vector<double>& keys() const { return keys_; }
  std::vector<double> values() const;
  /// Queries of the query head `query_head` of the whole layer.
  std::vector<double> queries(Index query_head) const;

 private:
  std::vector<double> make_keys() const;
  void rotate(Index position, double* row) const;
  void remove_planted(double* row) const;

  SynthOptions options_;
  const Planted& planted_;
  Index T_, d_;
  double scale_;
  bool sink_head_;
  CounterRandom random_;
  std::vector<double> inv_freq_;                 // [d / 2]
  std::vector<double> centre_;                   // [d]
  std::vector<std::vector<double>> directions_;  // sink heads: sink; others: heavy hitter, needle
  std::vector<double> keys_;                     // [T, d]
  double sink_logit_ = 0, hitter_logit_ = 0, needle_logit_ = 0;
};

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

/// Normal numbers from the `first` of a stream on, of variance 1 / d.
std::vector<double> normals(const CounterRandom& random, Index count, Index d = 1, std::uint64_t first = 0) {
  std::vector<double> numbers(count);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = random.normal(first + i) / std::sqrt(static_cast<double>(d));
  return numbers;
}

bool contains(const std::vector<Index>& sorted, Index value) {
  return std::binary_search(sorted.begin(), sorted.end(), value);
}

/// log(n) to within a factor of 2: levels are planted with more room than that.
double coarse_log(Index n) {
  double log = 0;
  for (Index power = 1; power < n; power *= 2) log += 0.6931471805599453;
  return log;
}

/// Places that hold for the whole dump.
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
  centre_ = normals(random_.stream(centre), d_);
  for (const Index c : planted.outlier_channels) centre_[c] = 0;
  const double centre_norm = norm(centre_.data(), d_);
  for (double& value : centre_) value *= std::sqrt(centre_logit / scale_) / std::max(centre_norm, 1e-3);

  while (std::ssize(directions_) < (sink_head_ ? 1 : 2)) {
    std::vector<double> direction = normals(random_.stream(directions), d_, 1, directions_.size() << 32);
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

void check(const SynthOptions& options) {
  const Index most = Index{1} << 24;
  const auto expect = [most](const char* name, Index value, Index least) {
    if (value < least || value > most) {
      throw InputError(std::string("synthetic dump: ") + name, fmt::format("{} to {}", least, most),
                       std::to_string(value));
    }
  };
  expect("layers", options.layers, 1);
  expect("query heads", options.q_heads, 1);
  expect("KV heads", options.kv_heads, 1);
  expect("head dimension", options.head_dim, 2);
  expect("prompt length", options.prompt, 1);
  expect("decoding steps", options.decode, 0);
  expect("samples of gradients", options.gradients, 0);
  if (options.q_heads % options.kv_heads != 0) {
    throw InputError("synthetic dump: query heads",
                     fmt::format("a multiple of the {} KV heads", options.kv_heads),
                     std::to_string(options.q_heads));
  }
  if (options.head_dim % 2 != 0) {
    throw InputError("synthetic dump: head dimension", "an even number, to rotate pairs",
                     std::to_string(options.head_dim));
  }
}

void refuse_existing(const std::filesystem::path& folder) {
  std::error_code error;
  for (const char* name : {"manifest.json", "layer_00"}) {
    if (std::filesystem::exists(folder / name, error)) {
      throw InputError(folder.string(), "a folder without a dump", std::string(name) + " in it");
    }
  }
}

/// An array [heads, ...] that is written one head at a time.
class HeadsFile {
 public:
  HeadsFile(const std::filesystem::path& path, Dtype dtype, const std::vector<Index>& extents)
      : file_(path), dtype_(dtype) {
    const std::vector<std::size_t> shape(extents.begin(), extents.end());
    const std::string header = npy_header(kDtypes[dtype].descr, shape);
    file_.write(std::as_bytes(std::span(header)));
  }

  /// Rounds `values` to what the file holds, and writes them.
  void append(std::vector<double>& values) {
    const std::vector<std::byte> bytes = encode(dtype_, std::span<const double>(values));
    convert({dtype_, false}, bytes.data(), std::ssize(values), values.data());
    file_.write(bytes);
  }

  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
  Dtype dtype_;
};

/// Causal attention in float64: row i of the result is sum_{p <= i} softmax_p(scale q_i . k_p) v_p. All
/// matrices are [T, d], row-major. O(T^2 d) time, O(T d) memory; every sum has a fixed order, so that the
/// bits are the same everywhere.
std::vector<double> exact_output(const std::vector<double>& q, const std::vector<double>& k,
                                 const std::vector<double>& v, Index T, Index d, double scale) {
  // Four terms are added at once, into sums that lie side by side: that vectorises without reordering any
  // sum. Zeros fill the last four.
  const Index d4 = (d + 3) / 4 * 4, T4 = (T + 3) / 4 * 4;
  std::vector<double> k_columns(d4 * T4), v_rows(v), weights(T4);
  v_rows.resize(T4 * d);
  for (Index p = 0; p < T; ++p) {
    for (Index c = 0; c < d; ++c) k_columns[c * T4 + p] = k[p * d + c];
  }
  std::vector<double> o(T * d), query(d4);
  for (Index i = 0; i < T; ++i) {
    std::copy_n(q.begin() + i * d, d, query.begin());
    double* const a = weights.data();
    std::fill(a, a + T4, 0.0);
    for (Index c = 0; c < d4; c += 4) {
      const double* const k0 = k_columns.data() + c * T4;
      const double* const k1 = k0 + T4;
      const double* const k2 = k1 + T4;
      const double* const k3 = k2 + T4;
      const double q0 = query[c], q1 = query[c + 1];
      const double q2 = query[c + 2], q3 = query[c + 3];
      for (Index p = 0; p <= i; ++p) a[p] += (q0 * k0[p] + q1 * k1[p]) + (q2 * k2[p] + q3 * k3[p]);
    }
    const double largest = *std::max_element(a, a + i + 1);
    for (Index p = 0; p <= i; ++p) a[p] = portable_exp(scale * (a[p] - largest));
    double sum = 0;
    for (Index p = 0; p <= i; ++p) sum += a[p];
    double* const out = o.data() + i * d;
    for (Index p = 0; p <= i; p += 4) {
      const double* const v0 = v_rows.data() + p * d;
      const double* const v1 = v0 + d;
      const double* const v2 = v1 + d;
      const double* const v3 = v2 + d;
      const double a0 = a[p], a1 = a[p + 1], a2 = a[p + 2], a3 = a[p + 3];
      for (Index c = 0; c < d; ++c) out[c] += (a0 * v0[c] + a1 * v1[c]) + (a2 * v2[c] + a3 * v3[c]);
    }
    for (Index c = 0; c < d; ++c) out[c] /= sum;
  }
  return o;
}

void write_layer(const std::filesystem::path& folder, const SynthOptions& options, const Planted& planted,
                 Index layer) {
  constexpr Index longest_with_output = 8192;
  const Index T = options.prompt + options.decode, d = options.head_dim, d_model = options.q_heads * d;
  const Index group = options.q_heads / options.kv_heads;
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  const std::filesystem::path path = folder / fmt::format("layer_{:02}", layer);
  HeadsFile q_file(path / "q.npy", options.dtype, {options.q_heads, T, d});
  HeadsFile k_file(path / "k.npy", options.dtype, {options.kv_heads, T, d});
  HeadsFile v_file(path / "v.npy", options.dtype, {options.kv_heads, T, d});
  HeadsFile wo_file(path / "wo.npy", options.dtype, {options.q_heads, d, d_model});
  std::optional<HeadsFile> o_file;
  if (T <= longest_with_output)
    o_file.emplace(path / "o.npy", options.dtype, std::vector<Index>{options.q_heads, T, d});

  const CounterRandom wo_random =
      CounterRandom(options.seed).stream(1).stream(static_cast<std::uint64_t>(layer));
  for (Index kv_head = 0; kv_head < options.kv_heads; ++kv_head) {
    const SyntheticHead head(options, planted, layer, kv_head);
    std::vector<double> k = head.keys(), v = head.values();
    k_file.append(k);
    v_file.append(v);
    for (Index h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      std::vector<double> q = head.queries(h);
      q_file.append(q);
      if (o_file) {
        std::vector<double> o = exact_output(q, k, v, T, d, scale);
        o_file->append(o);
      }
      std::vector<double> wo = normals(wo_random.stream(static_cast<std::uint64_t>(h)), d * d_model, d_model);
      wo_file.append(wo);
    }
  }
  for (HeadsFile* file : {&q_file, &k_file, &v_file, &wo_file}) file->commit();
  if (o_file) o_file->commit();
}

void write_gradients(const std::filesystem::path& folder, const SynthOptions& options, Index layer) {
  const Index S = options.gradients, d = options.head_dim, window = std::min<Index>(options.prompt, 32);
  const auto write = [&](Tensor tensor, std::vector<Index> extents) {
    if (*std::min_element(extents.begin(), extents.end()) == 0) return;
    const CounterRandom random = CounterRandom(options.seed)
                                     .stream(2)
                                     .stream(static_cast<std::uint64_t>(tensor))
                                     .stream(static_cast<std::uint64_t>(layer));
    HeadsFile file(folder / fmt::format("layer_{:02}", layer) / fmt::format("{}.npy", name_of(tensor)),
                   options.dtype, extents);
    const Index size = std::accumulate(extents.begin() + 1, extents.end(), Index{1}, std::multiplies<>());
    for (Index h = 0; h < options.q_heads; ++h) {
      std::vector<double> head = normals(random.stream(static_cast<std::uint64_t>(h)), size, d);
      file.append(head);
    }
    file.commit();
  };
  write(Tensor::g_window, {options.q_heads, S, window, d});
  write(Tensor::g_future, {options.q_heads, S, options.decode, d});
  if (S > 0) write(Tensor::g_nll, {options.q_heads, options.decode, d});
}

void write_tokens(const std::filesystem::path& folder, const SynthOptions& options, const Planted& planted) {
  nlohmann::ordered_json tokens;
  for (Index p = 0; p < options.prompt + options.decode; ++p) {
    tokens["ids"].push_back(p);
    tokens["text"].push_back(p < options.prompt ? fmt::format("t{}", p)
                                                : fmt::format("d{}", p - options.prompt));
  }
  for (const Index p : planted.heavy_hitters) tokens["text"][p] = "<hitter>";
  for (const Index p : planted.sinks) tokens["text"][p] = "<sink>";
  if (planted.needle >= 0) tokens["text"][planted.needle] = "<needle>";
  write_file(folder / "tokens.json", tokens.dump());
}

/// Until all is there: what is found is the beginning of a dump, not a dump.
void write_incomplete_manifest(const std::filesystem::path& folder, const SynthOptions& options) {
  const nlohmann::ordered_json manifest = {{"model", fmt::format("synthetic (seed {})", options.seed)},
                                           {"total_len", options.prompt + options.decode},
                                           {"n_layers", options.layers},
                                           {"incomplete", true}};
  write_file(folder / "manifest.json", manifest.dump(1) + "\n");
}

void write_manifest(const std::filesystem::path& folder, const SynthOptions& options,
                    const Planted& planted) {
  nlohmann::ordered_json manifest;
  manifest["model"] = fmt::format("synthetic (seed {})", options.seed);
  manifest["prompt_len"] = options.prompt;
  manifest["total_len"] = options.prompt + options.decode;
  manifest["n_layers"] = options.layers;
  manifest["n_q_heads"] = options.q_heads;
  manifest["n_kv_heads"] = options.kv_heads;
  manifest["head_dim"] = options.head_dim;
  manifest["dtype"] = name_of(options.dtype);
  manifest["scale"] = 1.0 / std::sqrt(static_cast<double>(options.head_dim));
  manifest["causal"] = true;
  manifest["rope"] = {{"theta", 10000.0}, {"style", "half"}};
  if (options.gradients > 0)
    manifest["gradients"] = {{"samples", options.gradients}, {"labels", "random"}, {"seed", options.seed}};
  auto& places = manifest["planted"];
  places["sinks"] = planted.sinks;
  places["sink_kv_heads"] = planted.sink_kv_heads;
  places["heavy_hitters"] = planted.heavy_hitters;
  places["outlier_channels"] = planted.outlier_channels;
  places["needle"] = planted.needle >= 0 ? nlohmann::ordered_json(planted.needle) : nlohmann::ordered_json();
  write_file(folder / "manifest.json", manifest.dump(1) + "\n");
}

}  // namespace

Planted write_synthetic_dump(const std::filesystem::path& folder, const SynthOptions& options) {
  check(options);
  refuse_existing(folder);
  const Planted planted = plant(options);
  write_incomplete_manifest(folder, options);
  for (Index layer = 0; layer < options.layers; ++layer) {
    write_layer(folder, options, planted, layer);
    write_gradients(folder, options, layer);
  }
  write_tokens(folder, options, planted);
  write_manifest(folder, options, planted);
  return planted;
}

}  // namespace kvreplay
