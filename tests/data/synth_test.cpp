#include "data/synth.hpp"

#include "data/atomic_file.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

using test::expect_error;
using test::TempDir;

/// Every file of a folder by its name within it.
std::map<std::string, std::string> contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[std::filesystem::relative(entry.path(), folder).string()] = {std::istreambuf_iterator<char>(file),
                                                                       {}};
  }
  return files;
}

std::vector<double> head(const Dump& dump, Tensor tensor, Index layer, Index h) {
  const DumpShape& shape = dump.shape();
  std::vector<double> values(shape.T * std::max(shape.d, shape.d_v));
  dump.read(tensor, layer, h, values.data());
  return values;
}

/// Row i of causal attention, computed from the definition.
std::vector<double> attention_row(const std::vector<double>& q, const std::vector<double>& k, Index d,
                                  Index i) {
  std::vector<double> weights;
  for (Index p = 0; p <= i; ++p) {
    double z = 0;
    for (Index c = 0; c < d; ++c) z += q[i * d + c] * k[p * d + c];
    weights.push_back(z / std::sqrt(static_cast<double>(d)));
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - largest);
  for (double& w : weights) w /= sum;
  return weights;
}

bool is_in(const std::vector<Index>& list, Index value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

TEST_CASE("portable exp, sine and cosine agree with the library's", "[synth]") {
  double exp_error = 0, trig_error = 0;
  for (double x = -700; x < 700; x += 0.37)
    exp_error = std::max(exp_error, std::fabs(portable_exp(x) / std::exp(x) - 1));
  for (double x = 0; x < 1e6; x += 12.345) {
    const SinCos result = portable_sincos(x);
    trig_error =
        std::max({trig_error, std::fabs(result.sin - std::sin(x)), std::fabs(result.cos - std::cos(x))});
  }
  CHECK(exp_error < 1e-15);
  CHECK(trig_error < 1e-15);
  CHECK(portable_exp(0) == 1.0);
  CHECK(portable_exp(-1e9) == 0.0);
}

TEST_CASE("random numbers: fixed values, mean and variance", "[synth]") {
  const CounterRandom random(42);
  CHECK(random.bits(0) == CounterRandom(42).bits(0));
  CHECK(random.bits(0) != random.bits(1));
  CHECK(random.stream(0).bits(0) != random.stream(1).bits(0));
  // splitmix64 seeded with 0: its published first outputs.
  CHECK(CounterRandom(0).bits(0) == 0xe220a8397b1dcdafu);
  CHECK(CounterRandom(0).bits(1) == 0x6e789e6aa1b965f4u);
  double sum = 0, squares = 0;
  constexpr int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double x = random.normal(static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
  }
  CHECK(std::fabs(sum / n) < 0.01);  // 3 standard errors
  CHECK(std::fabs(squares / n - 1.0) < 0.015);
}

TEST_CASE("the same options give the same bytes, another seed others", "[synth]") {
  const TempDir dir;
  SynthOptions options;
  options.layers = 1;
  options.prompt = 40;
  options.decode = 5;
  write_synthetic_dump(dir / "a", options);
  write_synthetic_dump(dir / "b", options);
  options.seed = 2;
  write_synthetic_dump(dir / "c", options);
  const auto a = contents(dir / "a"), b = contents(dir / "b"), c = contents(dir / "c");
  CHECK(a.size() == 7);
  CHECK(a == b);
  for (const char* name :
       {"layer_00/q.npy", "layer_00/k.npy", "layer_00/v.npy", "layer_00/wo.npy", "layer_00/o.npy"}) {
    CHECK(a.at(name) != c.at(name));
  }
}

TEST_CASE("a manifest of ours has no key that nothing knows", "[synth]") {
  const TempDir dir;
  write_synthetic_dump(dir / "a", {.layers = 1, .prompt = 20, .decode = 4, .gradients = 2});
  CHECK(Dump::open(dir / "a").other_keys().empty());
}

TEST_CASE("a dump that is not written to its end is none", "[synth]") {
  const TempDir dir;
  write_file(dir / "layer_01", "in the way");
  SynthOptions options;
  options.layers = 2, options.prompt = 8, options.decode = 2;
  CHECK_THROWS_AS(write_synthetic_dump(dir.path(), options), InputError);
  CHECK(std::filesystem::exists(dir / "layer_00" / "v.npy"));
  expect_error([&] { Dump::open(dir.path()); }, {"expected a whole dump", "interrupted"});
}

TEST_CASE("these bytes are the same on every machine", "[synth]") {
  // FNV-1a of all files: a value that changes means that every dump that a seed stands for has changed.
  const TempDir dir;
  SynthOptions options;
  options.prompt = 70;
  options.decode = 6;
  options.dtype = Dtype::f16;
  write_synthetic_dump(dir / "a", options);
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto& [name, bytes] : contents(dir / "a")) {
    if (!name.ends_with(".npy")) continue;
    for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  CHECK(hash == 0x451ac7fee57a11b6u);
}

TEST_CASE("what is planted is found", "[synth]") {
  struct Case {
    Index head_dim, prompt, decode;
    Dtype dtype;
    std::uint64_t seed;
  };
  const Case c = GENERATE(Case{64, 256, 32, Dtype::f32, 1}, Case{64, 300, 20, Dtype::f16, 2},
                          Case{128, 200, 17, Dtype::bf16, 3}, Case{32, 500, 40, Dtype::bf16, 4},
                          Case{16, 129, 31, Dtype::f64, 5});
  CAPTURE(c.head_dim, c.prompt, name_of(c.dtype), c.seed);
  const TempDir dir;
  SynthOptions options;
  options.head_dim = c.head_dim;
  options.prompt = c.prompt;
  options.decode = c.decode;
  options.dtype = c.dtype;
  options.seed = c.seed;
  const Planted planted = write_synthetic_dump(dir / "dump", options);
  const Dump dump = Dump::open(dir / "dump");
  const DumpShape& shape = dump.shape();
  CHECK(shape.T == c.prompt + c.decode);
  CHECK(shape.l == c.prompt);
  CHECK(dump.files().front().dtype == c.dtype);
  CHECK(planted.sinks == std::vector<Index>{0});
  REQUIRE(planted.needle > 0);
  REQUIRE_FALSE(planted.heavy_hitters.empty());
  for (Index layer = 0; layer < shape.layers; ++layer) {
    for (Index h = 0; h < shape.n_q; ++h) {
      CAPTURE(layer, h);
      const auto q = head(dump, Tensor::q, layer, h), k = head(dump, Tensor::k, layer, h / shape.group());
      double least_sink = 1, hitter_share = 0, recent_share = 0, needle_before = 0, needle_after = 0;
      for (Index i = 1; i < shape.T; ++i) {
        const auto a = attention_row(q, k, shape.d, i);
        least_sink = std::min(least_sink, a[0]);
        const double needle = i >= planted.needle ? a[planted.needle] : 0.0;
        if (i < shape.l) needle_before = std::max(needle_before, needle);
        if (i >= shape.l) needle_after += needle / static_cast<double>(c.decode);
        if (i < shape.l / 2 || i >= shape.l) continue;
        // A later prompt row's mean weight on heavy hitters, and on the last eight others, over that on all
        // others.
        double hit = 0, rest = 0, near = 0, hit_count = 0, rest_count = 0, near_count = 0;
        for (Index p = 0; p <= i; ++p) {
          const double w = a[p];
          const bool hitter = is_in(planted.heavy_hitters, p);
          (hitter ? hit : rest) += w;
          (hitter ? hit_count : rest_count) += 1;
          if (!hitter && p > i - 8) near += w, near_count += 1;
        }
        const double rows = static_cast<double>(shape.l - shape.l / 2), mean_rest = rest / rest_count;
        if (hit_count > 0) hitter_share += hit / hit_count / mean_rest / rows;
        if (near_count > 0) recent_share += near / near_count / mean_rest / rows;
      }
      if (h / shape.group() == planted.sink_kv_heads[layer]) {
        CHECK(least_sink > 0.99);
      } else {
        CHECK(hitter_share > 8);
        CHECK(recent_share > 3);
        CHECK(needle_before < 0.01);
        CHECK(needle_after > 0.5);
      }
    }
    for (Index h = 0; h < shape.n_kv; ++h) {
      const auto k = head(dump, Tensor::k, layer, h);
      std::vector<double> energy(shape.d);
      for (std::size_t i = 0; i < static_cast<std::size_t>(shape.T * shape.d); ++i) {
        energy[i % energy.size()] += k[i] * k[i];
      }
      std::vector<double> sorted = energy;
      std::sort(sorted.begin(), sorted.end());
      // Four times the typical channel's norm: 8 before the rotation, which shifts some of it within the
      // pair.
      for (const Index channel : planted.outlier_channels) {
        CHECK(energy[channel] > 16 * sorted[sorted.size() / 2]);
      }
    }
  }
}

TEST_CASE("o is the attention output of the stored q, k and v", "[synth]") {
  const TempDir dir;
  SynthOptions options;
  options.layers = 1;
  options.head_dim = 22;  // no multiple of 4
  options.prompt = 61;
  options.decode = 6;
  // Two roundings of o to float32 or of the dtype; float64 leaves the order of summation.
  const auto [dtype, tolerance] = GENERATE(std::pair{Dtype::f64, 1e-13}, std::pair{Dtype::f32, 1e-6},
                                           std::pair{Dtype::f16, 1e-3}, std::pair{Dtype::bf16, 8e-3});
  CAPTURE(name_of(dtype));
  options.dtype = dtype;
  write_synthetic_dump(dir / "dump", options);
  const Dump dump = Dump::open(dir / "dump");
  const DumpShape& shape = dump.shape();
  REQUIRE(dump.has(Tensor::o));
  REQUIRE(dump.has(Tensor::wo));
  CHECK(shape.d_model == 4 * 22);
  for (Index h = 0; h < shape.n_q; ++h) {
    const auto q = head(dump, Tensor::q, 0, h), k = head(dump, Tensor::k, 0, h / 2),
               v = head(dump, Tensor::v, 0, h / 2);
    const auto o = head(dump, Tensor::o, 0, h);
    double worst = 0;
    for (Index i = 0; i < shape.T; ++i) {
      const auto a = attention_row(q, k, shape.d, i);
      for (Index c = 0; c < shape.d_v; ++c) {
        double expected = 0, size = 0;
        for (Index p = 0; p <= i; ++p) {
          const double term = a[p] * v[p * shape.d_v + c];
          expected += term;
          size += std::fabs(term);
        }
        worst = std::max(worst, std::fabs(o[i * shape.d_v + c] - expected) / size);
      }
    }
    CHECK(worst < tolerance);
  }
}

TEST_CASE("the rotation that the manifest states has been applied", "[synth]") {
  // Undone, keys have the same mean in every channel pair wherever they stand; the outlier channels show it
  // best.
  const TempDir dir;
  SynthOptions options;
  options.layers = 1;
  options.prompt = 400;
  options.decode = 0;
  const Planted planted = write_synthetic_dump(dir / "dump", options);
  CHECK(planted.needle == -1);
  const Dump dump = Dump::open(dir / "dump");
  const auto rope = dump.rope(0);
  REQUIRE(rope.has_value());
  CHECK(rope->style == Rope::Style::half);
  const auto k = head(dump, Tensor::k, 0, 1 - planted.sink_kv_heads[0]);
  const Index half = 32, d = 64;
  for (const Index c : {0, 1, 5}) {  // fast pairs, whose rotated mean is near 0
    double rotated = 0, x = 0, y = 0;
    double rx = 0, ry = 0;
    for (Index p = 0; p < 400; ++p) {
      const double first = k[p * d + c], second = k[p * d + c + half];
      const double angle = static_cast<double>(p) * rope->inv_freq[c];
      rx += first / 400;
      ry += second / 400;
      x += (first * std::cos(angle) + second * std::sin(angle)) / 400;
      y += (second * std::cos(angle) - first * std::sin(angle)) / 400;
    }
    rotated = std::hypot(rx, ry);
    CHECK(rotated < 0.15);
    CHECK(std::hypot(x, y) > 0.2);
  }
}

TEST_CASE("the smallest and oddest dumps are whole", "[synth]") {
  const TempDir dir;
  SynthOptions options;
  options.layers = 1;
  SECTION("one position") { options.prompt = 1, options.decode = 0; }
  SECTION("one position and one step") { options.prompt = 1, options.decode = 1; }
  SECTION("two channels") { options.head_dim = 2; }
  SECTION("one head") { options.q_heads = options.kv_heads = 1; }
  SECTION("every query head its own keys") { options.kv_heads = 4; }
  SECTION("no decoding steps") { options.decode = 0; }
  const Planted planted = write_synthetic_dump(dir / "dump", options);
  CHECK((options.kv_heads == 1) == (options.kv_heads == 1 && planted.heavy_hitters.empty()));
  const Dump dump = Dump::open(dir / "dump");
  for (Index h = 0; h < options.q_heads; ++h) {
    for (const Tensor tensor : {Tensor::q, Tensor::o}) CHECK_NOTHROW(head(dump, tensor, 0, h));
  }
  const Index sink_head = planted.sink_kv_heads[0];
  const auto q = head(dump, Tensor::q, 0, sink_head * dump.shape().group()),
             k = head(dump, Tensor::k, 0, sink_head);
  for (Index i = 1; i < dump.shape().T; ++i) CHECK(attention_row(q, k, dump.shape().d, i)[0] > 0.99);
}

TEST_CASE("above 8192 positions o is left out", "[synth]") {
  const TempDir dir;
  SynthOptions options;
  options.layers = 1;
  options.q_heads = 2;
  options.head_dim = 4;
  options.prompt = 8192;
  options.decode = 1;
  write_synthetic_dump(dir / "dump", options);
  CHECK_FALSE(Dump::open(dir / "dump").has(Tensor::o));
}

TEST_CASE("options that make no dump, and a folder that has one, are refused", "[synth]") {
  const TempDir dir;
  const auto refuse = [&](auto change, std::initializer_list<std::string_view> parts) {
    SynthOptions options;
    change(options);
    expect_error([&] { write_synthetic_dump(dir / "dump", options); }, parts);
    CHECK_FALSE(std::filesystem::exists(dir / "dump"));
  };
  refuse([](auto& o) { o.layers = 0; }, {"synthetic dump: layers: expected 1 to", "found 0"});
  refuse([](auto& o) { o.q_heads = 3; }, {"query heads: expected a multiple of the 2 KV heads, found 3"});
  refuse([](auto& o) { o.kv_heads = 0; }, {"KV heads: expected 1 to"});
  refuse([](auto& o) { o.head_dim = 63; }, {"head dimension: expected an even number", "found 63"});
  refuse([](auto& o) { o.prompt = 0; }, {"prompt length: expected 1 to"});
  refuse([](auto& o) { o.decode = -1; }, {"decoding steps: expected 0 to", "found -1"});
  refuse([](auto& o) { o.prompt = Index{1} << 40; }, {"prompt length: expected 1 to"});

  write_file(dir / "other/manifest.json", "{}");
  expect_error([&] { write_synthetic_dump(dir / "other", {}); },
               {"other: expected a folder without a dump, found manifest.json"});
}

}  // namespace kvreplay
