#include "data/dump.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

/// Largest relative L2 error of a head's o against causal attention over the stored q, k and v, for a few
/// rows.
double replay_error(const Dump& dump, Index layer, Index h) {
  const DumpShape& shape = dump.shape();
  const auto size = [](Index rows, Index cols) { return static_cast<std::size_t>(rows * cols); };
  std::vector<double> q(size(shape.T_q, shape.d)), k(size(shape.T, shape.d)), v(size(shape.T, shape.d_v));
  std::vector<double> o(size(shape.T_q, shape.d_v));
  dump.read(Tensor::q, layer, h, q.data());
  dump.read(Tensor::k, layer, h / shape.group(), k.data());
  dump.read(Tensor::v, layer, h / shape.group(), v.data());
  dump.read(Tensor::o, layer, h, o.data());
  double error = 0, norm = 0;
  for (Index r = 0; r < shape.T_q; r += 37) {
    std::vector<double> out(shape.d_v);
    double sum = 0;
    for (Index p = 0; p <= shape.first_query() + r; ++p) {
      double z = 0;
      for (Index c = 0; c < shape.d; ++c)
        z += q[size(r, shape.d) + size(c, 1)] * k[size(p, shape.d) + size(c, 1)];
      const double weight = std::exp(dump.rule(layer).scale * z);
      sum += weight;
      for (Index c = 0; c < shape.d_v; ++c) out[size(c, 1)] += weight * v[size(p, shape.d_v) + size(c, 1)];
    }
    for (Index c = 0; c < shape.d_v; ++c) {
      const double expected = out[size(c, 1)] / sum,
                   difference = o[size(r, shape.d_v) + size(c, 1)] - expected;
      error += difference * difference;
      norm += expected * expected;
    }
  }
  return std::sqrt(error / norm);
}

void check_replay(const Dump& dump, double tolerance) {
  for (Index layer = 0; layer < dump.shape().layers; ++layer) {
    for (Index h = 0; h < dump.shape().n_q; ++h) {
      CAPTURE(layer, h);
      CHECK(replay_error(dump, layer, h) < tolerance);
    }
  }
}

}  // namespace

TEST_CASE("the sample dump opens, and its o follows from its q, k and v", "[samples]") {
  const Dump dump = Dump::open(test::source_dir() / "data/samples/pystdlib-lm");
  const DumpShape& shape = dump.shape();
  CHECK(dump.model() == "pystdlib-lm / hashlib.py");
  CHECK(shape.layers == 6);
  CHECK(shape.n_q == 4);
  CHECK(shape.n_kv == 2);
  CHECK(shape.d == 64);
  CHECK(shape.d_v == 64);
  CHECK(shape.d_model == 256);
  CHECK(shape.T == 1024);
  CHECK(shape.T_q == 1024);
  CHECK(shape.l == 896);
  CHECK(dump.rope(0).has_value());
  CHECK(dump.notes().empty());
  REQUIRE(dump.tokens().has_value());
  CHECK(dump.tokens()->ids.size() == 1024);
  CHECK(dump.files().size() == 30);
  CHECK(dump.files().front().bytes == 2 * 1024 * 64 * 2);
  check_replay(dump, 2e-3);  // o.npy is rounded to float16
}

TEST_CASE("dumps of other people's models, where they are at hand", "[samples]") {
  const std::filesystem::path dumps = test::source_dir() / "../shared/dumps";
  if (!std::filesystem::exists(dumps / "stories260k-story")) {
    WARN("skipped: these dumps are not part of the repository");
    return;
  }
  for (const char* name : {"stories260k-story", "shakespeare-char-gqa", "shakespeare-char-mha"}) {
    INFO(name);
    const Dump dump = Dump::open(dumps / name);
    CHECK(dump.rope(0).has_value() == (std::string(name) == "stories260k-story"));
    CHECK(dump.rope(0).has_value() == dump.rope_note().empty());
    check_replay(dump, 1e-4);  // float32
  }
}

}  // namespace kvreplay
