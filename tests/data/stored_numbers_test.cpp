#include "data/atomic_file.hpp"
#include "data/dtype.hpp"
#include "data/dump.hpp"
#include "data/npy_write.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/data/small_dump.hpp"
#include "tests/data/zip_file.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <cstring>
#include <optional>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

float widened(Dtype dtype, const std::byte* at) {
  if (dtype == Dtype::f32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == Dtype::f16 ? half_to_float(bits) : bfloat_to_float(bits);
}

/// Whether every head's stored numbers are those that read() gives.
bool stored_as_read(const Dump& dump, Tensor tensor, Index layer, Index heads, Index n) {
  const Dtype dtype = dump.stored_dtype(tensor, layer).value();
  bool same = true;
  for (Index head = 0; head < heads; ++head) {
    std::vector<float> want(n);
    dump.read(tensor, layer, head, want.data());
    constexpr std::byte kGuard{0xa5};
    std::vector<std::byte> got(want.size() * size_of(dtype) + 1, kGuard);
    dump.read_stored(tensor, layer, head, got.data());
    for (std::size_t i = 0; i < want.size(); ++i)
      same = same && widened(dtype, got.data() + i * size_of(dtype)) == want[i];
    same = same && got.back() == kGuard;
  }
  return same;
}

const SmallDump small;

/// k of layer 1, element by element as `append` writes it.
template <class Append>
std::string other_k(NpyBuilder npy, Append append) {
  for (const float value : small.elements(Tensor::k, 1)) append(npy.data, value);
  return npy.bytes();
}

}  // namespace

TEST_CASE("numbers of 16 and 32 bits are handed out as they lie", "[dump]") {
  const TempDir dir;
  small.write(dir.path());
  write_npy_as(dir / "layer_00/k.npy", Dtype::f16, small.shape(Tensor::k), small.elements(Tensor::k, 0));
  write_npy_as(dir / "layer_00/v.npy", Dtype::bf16, small.shape(Tensor::v), small.elements(Tensor::v, 0));
  const Dump dump = Dump::open(dir.path());
  CHECK(dump.stored_dtype(Tensor::q, 0) == Dtype::f32);
  CHECK(dump.stored_dtype(Tensor::k, 0) == Dtype::f16);
  CHECK(dump.stored_dtype(Tensor::k, 1) == Dtype::f32);
  CHECK(dump.stored_dtype(Tensor::v, 0) == Dtype::bf16);
  CHECK(stored_as_read(dump, Tensor::q, 1, small.n_q, small.T_q * small.d));
  CHECK(stored_as_read(dump, Tensor::k, 0, small.n_kv, small.T * small.d));
  CHECK(stored_as_read(dump, Tensor::v, 0, small.n_kv, small.T * small.d_v));
}

TEST_CASE("all layers in one array are handed out layer by layer", "[dump]") {
  const TempDir dir;
  small.write(dir.path(), false);
  for (const char* layer : {"layer_00", "layer_01"}) std::filesystem::remove(dir / layer / "k.npy");
  std::vector<std::size_t> shape = small.shape(Tensor::k);
  shape.insert(shape.begin(), static_cast<std::size_t>(small.layers));
  write_npy_as(dir / "k.npy", Dtype::f16, shape, small.elements(Tensor::k, 0, small.layers));
  const Dump dump = Dump::open(dir.path());
  for (Index layer = 0; layer < small.layers; ++layer)
    CHECK(stored_as_read(dump, Tensor::k, layer, small.n_kv, small.T * small.d));
}

TEST_CASE("an archive hands out its stored members, not its deflated ones", "[dump]") {
  const TempDir dir;
  for (const bool deflated : {false, true}) {
    std::vector<std::pair<std::string, std::string>> members;
    for (Index layer = 0; layer < small.layers; ++layer)
      for (const Tensor tensor : {Tensor::q, Tensor::k, Tensor::v})
        members.emplace_back("layer_0" + std::to_string(layer) + "/" + std::string(name_of(tensor)) + ".npy",
                             small.npy(tensor, layer));
    write_zip(dir / "dump.npz", members, deflated);
    const Dump dump = Dump::open(dir / "dump.npz");
    CHECK(dump.stored_dtype(Tensor::k, 1) == (deflated ? std::nullopt : std::optional(Dtype::f32)));
    if (!deflated) CHECK(stored_as_read(dump, Tensor::k, 1, small.n_kv, small.T * small.d));
  }
}

TEST_CASE("other layouts, byte orders and widths are not handed out", "[dump]") {
  const TempDir dir;
  small.write(dir.path());
  const auto refused = [&](const std::string& npy) {
    write_file(dir / "layer_01/k.npy", npy);
    const Dump dump = Dump::open(dir.path());
    CHECK_FALSE(dump.stored_dtype(Tensor::k, 1));
    CHECK(dump.stored_dtype(Tensor::k, 0) == Dtype::f32);
  };
  refused(other_k({"<f4", "(2, 5, 6)", "True", 1, ""},
                  [](std::string& to, float value) { append_value(to, value); }));
  refused(other_k({">f4", "(2, 5, 6)", "False", 1, ""},
                  [](std::string& to, float value) { append_value(to, value, true); }));
  refused(other_k({"<f8", "(2, 5, 6)", "False", 1, ""},
                  [](std::string& to, float value) { append_value(to, static_cast<double>(value)); }));
}
