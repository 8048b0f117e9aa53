#include "data/atomic_file.hpp"
#include "data/dump.hpp"
#include "data/npy_write.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/data/small_dump.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <filesystem>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

using test::expect_error;
using test::SmallDump;
using test::TempDir;

/// 5 positions of which 3 are the prompt, and 7 rows of a second reading, in numbers 1, 2, 3, ...
struct SecondReading {
  TempDir dir;
  SecondReading() {
    SmallDump().write(dir.path());
    manifest(R"({"prompt_len": 3, "reference_rows": {"kind": "repeat"}})");
    for (const std::string layer : {"layer_00/", "layer_01/"}) write(layer + "q_ref.npy", {4, 7, 6});
  }
  void manifest(const std::string& text) const { write_file(dir / "manifest.json", text); }
  void write(const std::string& name, const std::vector<std::size_t>& shape, float last = 0) const {
    std::vector<float> values(
        std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>()));
    std::iota(values.begin(), values.end(), 1.0f);
    if (last != 0) values.back() = last;
    write_npy(dir / name, shape, values);
  }
  void refuse(std::initializer_list<std::string_view> parts) const {
    expect_error([&] { Dump::open(dir.path()); }, parts);
  }
};

}  // namespace

TEST_CASE("queries of a second reading are read in every layout", "[dump]") {
  const SecondReading again;
  const auto check = [&] {
    const Dump dump = Dump::open(again.dir.path());
    REQUIRE(dump.has(Tensor::q_ref));
    CHECK(dump.shape().R_ref == 7);
    CHECK(dump.shape().first_row(Tensor::q_ref) == 3);
    CHECK(dump.shape().extents(Tensor::q_ref) == std::vector<Index>{4, 7, 6});
    CHECK_FALSE(dump.has(Tensor::h_ref_norm));
    for (const Index layer : {0, 1}) {
      std::vector<double> found(42), want(42);
      std::iota(want.begin(), want.end(), 2 * 42 + 1.0);
      dump.read(Tensor::q_ref, layer, 2, found.data());
      CHECK(found == want);
    }
  };
  SECTION("a file a layer") { check(); }
  SECTION("with a batch of 1, and flat names") {
    std::filesystem::remove(again.dir / "layer_00/q_ref.npy");
    again.write("layer_01/q_ref.npy", {1, 4, 7, 6});
    again.write("q_ref_00.npy", {4, 7, 6});
    check();
  }
  SECTION("a manifest that does not name it") {
    again.manifest(R"({"prompt_len": 3})");
    check();
  }
  CHECK(Dump::open(again.dir.path(), {.prompt_len = 4}).shape().first_row(Tensor::q_ref) == 3);
}

TEST_CASE("a dump without a second reading has none", "[dump]") {
  const TempDir dir;
  SmallDump().write(dir.path());
  const Dump dump = Dump::open(dir.path());
  CHECK_FALSE(dump.has(Tensor::q_ref));
  CHECK(dump.shape().R_ref == 0);
}

TEST_CASE("a second reading that does not fit is refused", "[dump]") {
  const SecondReading again;
  SECTION("heads") {
    again.write("layer_00/q_ref.npy", {3, 7, 6});
    again.refuse({"layer_00/q_ref.npy: expected shape [4, 7, 6] (n_q, R_ref, d)", "found shape [3, 7, 6]"});
  }
  SECTION("channels") {
    again.write("layer_00/q_ref.npy", {4, 7, 3});
    again.refuse({"layer_00/q_ref.npy: expected shape [4, 7, 6]", "found shape [4, 7, 3]"});
  }
  SECTION("rows of another layer") {
    again.write("layer_01/q_ref.npy", {4, 6, 6});
    again.refuse({"layer_01/q_ref.npy: expected shape [4, 7, 6]", "layer_00/q_ref.npy", "[4, 6, 6]"});
  }
  SECTION("one layer alone") {
    std::filesystem::remove(again.dir / "layer_01/q_ref.npy");
    again.refuse({"expected q_ref for each of 2 layers", "layer 1 has no q_ref"});
  }
  SECTION("another kind") {
    again.manifest(R"({"prompt_len": 3, "reference_rows": {"kind": "shifted"}})");
    again.refuse({"reference_rows", "kind: expected \"repeat\", found \"shifted\""});
    again.manifest(R"({"prompt_len": 3, "reference_rows": "repeat"})");
    again.refuse({"reference_rows: expected an object, found \"repeat\""});
  }
  SECTION("a NaN, named by the position that it would stand at") {
    again.write("layer_01/q_ref.npy", {4, 7, 6}, std::numeric_limits<float>::quiet_NaN());
    const Dump dump = Dump::open(again.dir.path());
    std::vector<float> values(42);
    expect_error([&] { dump.read(Tensor::q_ref, 1, 3, values.data()); },
                 {"layer_01/q_ref.npy", "NaN at layer 1, query head 3, position 9, channel 5"});
  }
}

TEST_CASE("norms of what a second reading's attention was called with", "[dump]") {
  const SecondReading again;
  for (const std::string layer : {"layer_00/", "layer_01/"}) again.write(layer + "h_ref_norm.npy", {7});
  const Dump dump = Dump::open(again.dir.path());
  REQUIRE(dump.has(Tensor::h_ref_norm));
  CHECK(dump.shape().extents(Tensor::h_ref_norm) == std::vector<Index>{7});
  CHECK(dump.shape().first_row(Tensor::h_ref_norm) == 3);
  std::vector<double> found(7), want(7);
  std::iota(want.begin(), want.end(), 1.0);
  dump.read(Tensor::h_ref_norm, 1, 0, found.data());
  CHECK(found == want);
  again.write("layer_01/h_ref_norm.npy", {6});
  again.refuse({"layer_01/h_ref_norm.npy: expected shape [7] (R_ref)", "found shape [6]"});
  std::filesystem::remove(again.dir / "layer_01/h_ref_norm.npy");
  again.refuse({"expected h_ref_norm for each of 2 layers", "layer 1 has no h_ref_norm"});
}

}  // namespace kvreplay
