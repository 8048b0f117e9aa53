#include "data/atomic_file.hpp"
#include "data/dump.hpp"
#include "data/npy_write.hpp"
#include "data/stored_tensor.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/data/small_dump.hpp"
#include "tests/data/zip_file.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

using test::all_tensors;
using test::expect_error;
using test::SmallDump;
using test::TempDir;

using Members = std::vector<std::pair<std::string, std::string>>;

/// One file a layer and tensor, named by a pattern of {layer} and {tensor}.
void write_flat(const SmallDump& small, const std::filesystem::path& folder, const std::string& pattern) {
  for (Index layer = 0; layer < small.layers; ++layer) {
    for (const Tensor tensor : all_tensors) {
      const std::string name =
          fmt::format(fmt::runtime(pattern), fmt::arg("layer", layer), fmt::arg("tensor", name_of(tensor)));
      write_file(folder / name, small.npy(tensor, layer));
    }
  }
}

/// All layers in one C-ordered array; the shape may have a batch of 1 in front (batch 0) or behind the layers
/// (batch 1).
void write_stacked(const SmallDump& small, const std::filesystem::path& folder, int batch) {
  for (const Tensor tensor : all_tensors) {
    std::vector<std::size_t> shape = small.shape(tensor);
    shape.insert(shape.begin(), static_cast<std::size_t>(small.layers));
    if (batch >= 0) shape.insert(shape.begin() + batch, 1);
    write_npy(folder / fmt::format("{}.npy", name_of(tensor)), shape,
              small.elements(tensor, 0, small.layers));
  }
}

}  // namespace

TEST_CASE("array names", "[layout]") {
  const auto is = [](std::string_view name, Tensor tensor, Index layer) {
    const auto parsed = parse_array_name(name);
    return parsed && parsed->tensor == tensor && parsed->layer == layer;
  };
  CHECK(is("layer_00/q.npy", Tensor::q, 0));
  CHECK(is("layer_7/wo.npy", Tensor::wo, 7));
  CHECK(is("layer_0012/o.npy", Tensor::o, 12));
  CHECK(is("q_ref_00.npy", Tensor::q_ref, 0));  // whose name begins as that of q
  CHECK(is("layer_3_q_ref.npy", Tensor::q_ref, 3));
  CHECK(is("q_ref.npy", Tensor::q_ref, -1));
  CHECK(is("k.npy", Tensor::k, -1));
  CHECK(is("q_00.npy", Tensor::q, 0));
  CHECK(is("wo_123.npy", Tensor::wo, 123));
  CHECK(is("layer_0_q.npy", Tensor::q, 0));
  CHECK(is("layer_031_wo.npy", Tensor::wo, 31));
  CHECK(is("layers.0.q.npy", Tensor::q, 0));
  CHECK(is("layers.10.v.npy", Tensor::v, 10));
  for (const char* name : {"", ".npy", "q", "q.npz", "x.npy", "q_.npy", "q_1x.npy", "q_-1.npy", "q_+1.npy",
                           "layer_/q.npy", "layer_0.npy", "layer_0q.npy", "layer_0-q.npy", "layers.0_q.npy",
                           "layer_-1/q.npy", "qq_0.npy", "layer_0/q.npy.npy"}) {
    INFO(name);
    CHECK_FALSE(parse_array_name(name).has_value());
  }
}

TEST_CASE("every layout of files holds the same dump", "[layout]") {
  const SmallDump small;
  const TempDir dir;
  SECTION("layer folders") { small.write(dir.path()); }
  SECTION("q_00.npy") { write_flat(small, dir.path(), "{tensor}_{layer:02}.npy"); }
  SECTION("q_0.npy") { write_flat(small, dir.path(), "{tensor}_{layer}.npy"); }
  SECTION("layer_0_q.npy") { write_flat(small, dir.path(), "layer_{layer}_{tensor}.npy"); }
  SECTION("layers.0.q.npy") { write_flat(small, dir.path(), "layers.{layer}.{tensor}.npy"); }
  SECTION("layer_0000/q.npy") { write_flat(small, dir.path(), "layer_{layer:04}/{tensor}.npy"); }
  SECTION("stacked") { write_stacked(small, dir.path(), -1); }
  SECTION("stacked, batch first") { write_stacked(small, dir.path(), 0); }
  SECTION("stacked, batch behind the layers") { write_stacked(small, dir.path(), 1); }
  const Dump dump = Dump::open(dir.path());
  CHECK(dump.shape().layers == 2);
  for (const Tensor tensor : all_tensors) CHECK(dump.has(tensor));
  CHECK(small.count_wrong(dump) == 0);
}

TEST_CASE("every layout of archives holds the same dump", "[layout][npz]") {
  const SmallDump small;
  const TempDir dir;
  const bool deflate = GENERATE(false, true);
  CAPTURE(deflate);
  const auto members = [&](Index first, Index last, const std::string& pattern) {
    Members list;
    for (Index layer = first; layer < last; ++layer) {
      for (const Tensor tensor : all_tensors) {
        list.emplace_back(
            fmt::format(fmt::runtime(pattern), fmt::arg("layer", layer), fmt::arg("tensor", name_of(tensor))),
            small.npy(tensor, layer));
      }
    }
    return list;
  };
  std::filesystem::path path = dir.path();
  SECTION("one archive, q_00.npy") {
    test::write_zip(dir / "dump.npz", members(0, 2, "{tensor}_{layer:02}.npy"), deflate);
  }
  SECTION("one archive, layer_00/q.npy") {
    test::write_zip(dir / "anything.npz", members(0, 2, "layer_{layer:02}/{tensor}.npy"), deflate);
  }
  SECTION("an archive a layer") {
    test::write_zip(dir / "layer_00.npz", members(0, 1, "{tensor}.npy"), deflate);
    test::write_zip(dir / "layer_01.npz", members(1, 2, "{tensor}.npy"), deflate);
  }
  SECTION("an archive a layer folder") {
    std::filesystem::create_directories(dir / "layer_00");
    std::filesystem::create_directories(dir / "layer_01");
    test::write_zip(dir / "layer_00/qkv.npz", members(0, 1, "{tensor}.npy"), deflate);
    test::write_zip(dir / "layer_01/qkv.npz", members(1, 2, "{tensor}.npy"), deflate);
  }
  SECTION("the archive itself") {
    path = dir / "dump.npz";
    test::write_zip(path, members(0, 2, "layers.{layer}.{tensor}.npy"), deflate);
    CHECK(Dump::open(path).model() == "dump");
  }
  const Dump dump = Dump::open(path);
  CHECK(dump.files().size() == 10);
  CHECK(small.count_wrong(dump) == 0);
}

TEST_CASE("a batch of 1, Fortran order and mixed dtypes", "[layout]") {
  SmallDump small;
  small.layers = 1;
  const TempDir dir;
  small.write(dir.path());
  SECTION("a batch of 1") {
    write_npy(dir / "layer_00/q.npy", std::vector<std::size_t>{1, 4, 5, 6}, small.elements(Tensor::q, 0));
    CHECK(Dump::open(dir.path()).files().front().shape.size() == 3);  // k, the first by name
  }
  SECTION("Fortran order") {
    test::NpyBuilder npy{">f8", "(1, 2, 5, 6)", "True", 2, ""};
    for (Index c = 0; c < 6; ++c) {
      for (Index t = 0; t < 5; ++t) {
        for (Index h = 0; h < 2; ++h) {
          test::append_value(npy.data, static_cast<double>(SmallDump::element(Tensor::k, 0, h, t, c)), true);
        }
      }
    }
    write_file(dir / "layer_00/k.npy", npy.bytes());
  }
  SECTION("float16 among float32") {
    write_npy_as(dir / "layer_00/v.npy", Dtype::f16, small.shape(Tensor::v), small.elements(Tensor::v, 0));
    const Dump dump = Dump::open(dir.path());
    for (const auto& file : dump.files()) CHECK((file.dtype == Dtype::f16) == (file.tensor == Tensor::v));
  }
  CHECK(small.count_wrong(Dump::open(dir.path())) == 0);
}

TEST_CASE("files of other names are named in the notes, hidden ones are not", "[layout]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  write_file(dir / "layer_00/attention.npy", "not even an array");
  write_file(dir / ".kvreplay-0-0.tmp", "left over");
  write_file(dir / "README.md", "about this dump");
  const auto notes = Dump::open(dir.path()).notes();
  CHECK(std::count_if(notes.begin(), notes.end(), [](const std::string& note) {
          return note.find("is not used") != std::string::npos;
        }) == 1);
  CHECK(std::count_if(notes.begin(), notes.end(), [](const std::string& note) {
          return note.find("attention.npy is not used") != std::string::npos;
        }) == 1);
}

TEST_CASE("layers that are missing or twice there are refused", "[layout]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  const auto open = [&] { Dump::open(dir.path()); };
  SECTION("no k in the last layer") {
    std::filesystem::remove(dir / "layer_01/k.npy");
    expect_error(open,
                 {dir.path().string(), "expected k for each of 2 layers", "found that layer 1 has no k"});
  }
  SECTION("no layer 0") {
    std::filesystem::remove_all(dir / "layer_00");
    expect_error(open, {"expected q for each of 2 layers", "layer 0 has no q"});
  }
  SECTION("a layer far away") {
    std::filesystem::rename(dir / "layer_01", dir / "layer_4000000000000000000");
    expect_error(open, {"4000000000000000001 layers", "layer 1 has no q"});
  }
  SECTION("layers beyond every number") {
    const char* number = GENERATE("9223372036854775807", "9223372036854775808", "99999999999999999999999");
    std::filesystem::rename(dir / "layer_01", dir / ("layer_" + std::string(number)));
    expect_error(open, {"9223372036854775807 layers", "layer 1 has no q"});
  }
  SECTION("wo in one layer only") {
    std::filesystem::remove(dir / "layer_00/wo.npy");
    expect_error(open, {"expected wo for each of 2 layers", "layer 0 has no wo"});
  }
  SECTION("no v at all") {
    std::filesystem::remove(dir / "layer_00/v.npy");
    std::filesystem::remove(dir / "layer_01/v.npy");
    expect_error(open, {"layer 0 has no v"});
  }
  SECTION("two names for one layer") {
    write_file(dir / "layer_0/q.npy", small.npy(Tensor::q, 0));
    expect_error(open, {"q.npy: expected one q for layer 0, found another in", "q.npy"});
  }
  SECTION("stacked and a layer of its own") {
    write_npy(dir / "q.npy", std::vector<std::size_t>{2, 4, 5, 6}, small.elements(Tensor::q, 0, 2));
    expect_error(open, {"expected one q for layer 0, found another in"});
  }
}

}  // namespace kvreplay
