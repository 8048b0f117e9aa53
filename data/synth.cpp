#include "data/synth.hpp"

#include "data/atomic_file.hpp"
#include "data/error.hpp"
#include "data/npy/convert.hpp"
#include "data/npy_write.hpp"
#include "data/synth/portable_math.hpp"
#include "data/synth/synthetic_head.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <system_error>

namespace kvreplay {
namespace {

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
      std::vector<double> wo(d * d_model);
      for (std::size_t i = 0; i < wo.size(); ++i) {
        wo[i] = wo_random.stream(static_cast<std::uint64_t>(h)).normal(i) /
                std::sqrt(static_cast<double>(d_model));
      }
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
    std::vector<double> head(static_cast<std::size_t>(
        std::accumulate(extents.begin() + 1, extents.end(), Index{1}, std::multiplies<>())));
    for (Index h = 0; h < options.q_heads; ++h) {
      for (std::size_t i = 0; i < head.size(); ++i)
        head[i] = random.stream(static_cast<std::uint64_t>(h)).normal(i) / std::sqrt(static_cast<double>(d));
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
