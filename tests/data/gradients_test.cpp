#include "data/atomic_file.hpp"
#include "data/dump.hpp"
#include "data/npy_write.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/data/small_dump.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

using test::expect_error;
using test::SmallDump;
using test::TempDir;
namespace fs = std::filesystem;

/// 5 positions of which 3 are the prompt; g of 2 samples on 2 prompt rows and the 2 decoding steps.
struct Gradients {
  TempDir dir;
  Gradients() {
    SmallDump().write(dir.path());
    manifest(R"({"samples": 2, "labels": "model", "seed": 7})");
    for (const std::string layer : {"layer_00/", "layer_01/"}) {
      write(layer + "g_future.npy", {4, 2, 2, 3});
      write(layer + "g_window.npy", {4, 2, 2, 3});
      write(layer + "g_nll.npy", {4, 2, 3});
    }
  }
  void manifest(const std::string& gradients) const {
    write_file(dir / "manifest.json", R"({"prompt_len": 3, "gradients": )" + gradients + "}");
  }
  static std::vector<float> numbers(const std::vector<std::size_t>& shape) {
    std::vector<float> values(
        std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>()));
    std::iota(values.begin(), values.end(), 1.0f);
    return values;
  }
  void write(const std::string& name, const std::vector<std::size_t>& shape) const {
    write_npy(dir / name, shape, numbers(shape));
  }
  void refuse(std::initializer_list<std::string_view> parts) const {
    expect_error([&] { Dump::open(dir.path()); }, parts);
  }
};

std::vector<double> head(const Dump& dump, Tensor tensor, Index layer, Index h, std::size_t n) {
  std::vector<double> values(n);
  dump.read(tensor, layer, h, values.data());
  return values;
}

}  // namespace

TEST_CASE("gradients are read sample by sample, whatever their layout", "[dump]") {
  const Gradients g;
  std::vector<double> second(12);  // of query head 1
  std::iota(second.begin(), second.end(), 13.0);
  const auto check = [&] {
    const Dump dump = Dump::open(g.dir.path());
    const DumpShape& shape = dump.shape();
    CHECK(shape.S == 2);
    CHECK(shape.R_F == 2);
    CHECK(shape.R_W == 2);
    CHECK(shape.first_row(Tensor::g_future) == 3);
    CHECK(shape.first_row(Tensor::g_window) == 1);
    REQUIRE(dump.gradients());
    CHECK(dump.gradients()->samples == 2);
    CHECK(dump.gradients()->labels == "model");
    CHECK(dump.gradients()->seed == 7);
    for (const Tensor tensor : {Tensor::g_future, Tensor::g_window})
      CHECK(head(dump, tensor, 1, 1, 12) == second);
    CHECK(head(dump, Tensor::g_nll, 0, 1, 6) == std::vector<double>{7, 8, 9, 10, 11, 12});
  };
  SECTION("a file a layer") { check(); }
  SECTION("with a batch of 1") {
    g.write("layer_01/g_future.npy", {1, 4, 2, 2, 3});
    g.write("layer_00/g_nll.npy", {1, 4, 2, 3});
    check();
  }
  SECTION("in Fortran order, of another dtype") {
    test::NpyBuilder npy{"<f8", "(4, 2, 2, 3)", "True", 1, ""};
    for (Index c = 0; c < 3; ++c)
      for (Index r = 0; r < 2; ++r)
        for (Index s = 0; s < 2; ++s)
          for (Index h = 0; h < 4; ++h)
            test::append_value(npy.data, 1.0 + static_cast<double>(((h * 2 + s) * 2 + r) * 3 + c));
    write_file(g.dir / "layer_01/g_window.npy", npy.bytes());
    check();
    const Dump dump = Dump::open(g.dir.path());
    for (const std::string& note : dump.notes()) CHECK(note.find("g_window") == std::string::npos);
  }
  SECTION("all layers in one file, and flat names") {
    for (const char* layer : {"layer_00", "layer_01"})
      for (const char* name : {"g_future.npy", "g_window.npy"}) fs::remove(g.dir / layer / name);
    const std::vector<float> one = Gradients::numbers({4, 2, 2, 3});
    std::vector<float> both = one;
    both.insert(both.end(), one.begin(), one.end());
    const std::size_t stacked[] = {2, 4, 2, 2, 3};
    write_npy(g.dir / "g_future.npy", stacked, both);
    g.write("g_window_00.npy", {4, 2, 2, 3});
    g.write("layer_1_g_window.npy", {4, 2, 2, 3});
    check();
  }
}

TEST_CASE("another prompt length leaves the window's gradients where they are", "[dump]") {
  const Gradients g;
  const Dump dump = Dump::open(g.dir.path(), {.prompt_len = 4});
  CHECK(dump.shape().l == 4);
  CHECK(dump.shape().window_end == 3);
  CHECK(dump.shape().first_row(Tensor::g_window) == 1);
}

TEST_CASE("gradients that do not fit are refused in one line", "[dump]") {
  const Gradients g;
  SECTION("in one layer alone") {
    fs::remove(g.dir / "layer_01/g_future.npy");
    g.refuse({"expected g_future for each of 2 layers", "layer 1 has no g_future"});
  }
  SECTION("samples that differ") {
    g.write("layer_01/g_window.npy", {4, 3, 2, 3});
    g.refuse({"layer_01/g_window.npy: expected shape [4, 2, 2, 3] (n_q, S, R_W, d_v)", "[4, 3, 2, 3]"});
  }
  SECTION("rows of the NLL") {
    g.write("layer_00/g_nll.npy", {4, 1, 3});
    g.refuse({"layer_00/g_nll.npy: expected shape [4, 2, 3] (n_q, R_F, d_v)", "[4, 1, 3]"});
  }
  SECTION("heads, channels and axes") {
    g.write("layer_00/g_future.npy", {2, 2, 2, 3});
    g.refuse({"layer_00/g_future.npy: expected shape [4, 2, 2, 3]", "[2, 2, 2, 3]"});
    g.write("layer_00/g_future.npy", {4, 2, 3});
    g.refuse({"expected shape [n_q, S, R_F, d_v], or with a leading batch of 1, found shape [4, 2, 3]"});
  }
  SECTION("more rows than there are decoding steps, prompt positions or queries") {
    for (const char* layer : {"layer_00/", "layer_01/"})
      g.write(layer + std::string("g_window.npy"), {4, 2, 4, 3});
    g.refuse({"g_window.npy: expected rows for at most 3 prompt positions with a query, found 4 rows"});
    for (const char* layer : {"layer_00/", "layer_01/"}) {
      g.write(layer + std::string("g_future.npy"), {4, 2, 3, 3});
      g.write(layer + std::string("g_nll.npy"), {4, 3, 3});
    }
    g.refuse({"g_future.npy: expected rows for at most 2 decoding steps, found 3 rows"});
  }
  SECTION("what the manifest says of them") {
    g.manifest(R"({"samples": 24})");
    g.refuse({"g_future.npy: expected 24 samples, as the manifest's gradients say, found 2"});
    g.manifest("[2]");
    g.refuse({"manifest.json: gradients: expected an object", "[2]"});
    g.manifest(R"({"samples": 0})");
    g.refuse({"manifest.json: gradients: samples", "0"});
    g.manifest(R"({"seed": -1})");
    g.refuse({"manifest.json: gradients: seed: expected a whole number of at least 0", "-1"});
    g.manifest("null");
    CHECK_FALSE(Dump::open(g.dir.path()).gradients());
  }
}

TEST_CASE("a gradient that is no number is named by layer, head, sample and position", "[dump]") {
  const Gradients g;
  std::vector<float> values = Gradients::numbers({4, 2, 2, 3});
  values[((2 * 2 + 1) * 2 + 1) * 3 + 2] = std::numeric_limits<float>::quiet_NaN();
  const std::size_t shape[] = {4, 2, 2, 3};
  write_npy(g.dir / "layer_01/g_window.npy", shape, values);
  const Dump dump = Dump::open(g.dir.path());
  expect_error([&] { head(dump, Tensor::g_window, 1, 2, 12); },
               {"layer_01/g_window.npy", "NaN at layer 1, query head 2, sample 1, position 2, channel 2"});
}

}  // namespace kvreplay
