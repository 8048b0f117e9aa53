#include "data/dtype.hpp"
#include "data/npy_array.hpp"
#include "data/npy_header.hpp"
#include "tests/data/broken_inputs.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

using test::NpyBuilder;

NpyArray open_bytes(const std::string& bytes) {
  return open_npy("some.npy", std::make_shared<MemorySource>(test::as_span(bytes)));
}

/// Element i of the arrays below: exact in every dtype.
double element(int i) { return (i % 2 == 0 ? 1 : -1) * (i + 0.5); }

std::string elements(Dtype dtype, bool big, int count) {
  std::string data;
  for (int i = 0; i < count; ++i) {
    const float value = static_cast<float>(element(i));
    switch (dtype) {
      case Dtype::f16:
        test::append_bits(data, float_to_half(value), big);
        break;
      case Dtype::bf16:
        test::append_bits(data, float_to_bfloat(value), big);
        break;
      case Dtype::f32:
        test::append_value(data, value, big);
        break;
      case Dtype::f64:
        test::append_value(data, element(i), big);
        break;
    }
  }
  return data;
}

}  // namespace

TEST_CASE("every dtype, byte order and format version reads back", "[npy]") {
  struct Kind {
    const char* descr;
    Dtype dtype;
    bool big;
  };
  for (const Kind& kind : {Kind{"<f2", Dtype::f16, false},
                           {">f2", Dtype::f16, true},
                           {"<f4", Dtype::f32, false},
                           {">f4", Dtype::f32, true},
                           {"<f8", Dtype::f64, false},
                           {">f8", Dtype::f64, true},
                           {"|V2", Dtype::bf16, false},
                           {"<V2", Dtype::bf16, false},
                           {"<u2", Dtype::bf16, false},
                           {">u2", Dtype::bf16, true}}) {
    for (const int version : {1, 2, 3}) {
      INFO(kind.descr << " version " << version);
      NpyBuilder npy{kind.descr, "(3, 7)", "False", version, elements(kind.dtype, kind.big, 21)};
      const std::string bytes = npy.bytes();
      const NpyArray array = open_bytes(bytes);
      CHECK(array.header.dtype.value_or(Dtype::bf16) == kind.dtype);
      CHECK(array.header.dtype.has_value() == (kind.descr[1] != 'u'));
      CHECK(array.header.shape == std::vector<std::ptrdiff_t>{3, 7});
      std::vector<float> floats(21);
      std::vector<double> doubles(21);
      CHECK_FALSE(read_matrix(array, kind.dtype, {0, 3, 7, 7, 1}, floats.data()));
      CHECK_FALSE(read_matrix(array, kind.dtype, {0, 3, 7, 7, 1}, doubles.data()));
      for (int i = 0; i < 21; ++i) {
        CHECK(static_cast<double>(floats[i]) == element(i));
        CHECK(doubles[i] == element(i));
      }
    }
  }
}

TEST_CASE("a strided matrix is gathered, across block edges too", "[npy]") {
  constexpr int rows = 70, cols = 45;  // no multiples of the block
  std::string data;
  for (int c = 0; c < cols; ++c) {
    for (int r = 0; r < rows; ++r) test::append_value(data, static_cast<double>(1000 * r + c), true);
  }
  const std::string bytes = NpyBuilder{">f8", "(70, 45)", "True", 1, data}.bytes();
  const NpyArray array = open_bytes(bytes);
  CHECK(array.header.fortran_order);
  std::vector<float> out(rows * cols);
  CHECK_FALSE(read_matrix(array, Dtype::f64, {0, rows, cols, 1, rows}, out.data()));
  int wrong = 0;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) wrong += out[r * cols + c] != static_cast<float>(1000 * r + c);
  }
  CHECK(wrong == 0);
}

TEST_CASE("NaN and infinity are found wherever they stand", "[npy]") {
  constexpr int count = 5000;
  for (const int at : {0, 1023, 1024, 2047, 2048, 4999}) {
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      std::string data;
      for (int i = 0; i < count; ++i) test::append_value(data, i == at ? bad : static_cast<float>(i));
      const std::string bytes = NpyBuilder{"<f4", "(5000,)", "False", 1, data}.bytes();
      const NpyArray array = open_bytes(bytes);
      std::vector<double> out(count);
      CHECK(read_matrix(array, Dtype::f32, {0, 1, count, count, 1}, out.data()) == at);
      CHECK(read_matrix(array, Dtype::f32, {0, count, 1, 1, count}, out.data()) == at);
    }
  }
}

TEST_CASE("a float64 beyond float32 is no finite float32", "[npy]") {
  std::string data;
  test::append_value(data, 1.0);
  test::append_value(data, 1e300);
  const std::string bytes = NpyBuilder{"<f8", "(2,)", "False", 1, data}.bytes();
  const NpyArray array = open_bytes(bytes);
  float floats[2];
  double doubles[2];
  CHECK(read_matrix(array, Dtype::f64, {0, 1, 2, 2, 1}, floats) == 1);
  CHECK_FALSE(read_matrix(array, Dtype::f64, {0, 1, 2, 2, 1}, doubles));
  CHECK(doubles[1] == 1e300);
}

TEST_CASE("a header may be written in any way that Python reads", "[npy]") {
  NpyBuilder npy;
  npy.data = std::string(24, '\0');
  for (const char* dict : {"{'shape':(2,3),'fortran_order':False,'descr':'<f4'}",
                           "{\"descr\": \"<f4\", \"shape\": (2L, 3L), \"fortran_order\": True}   ",
                           "  { 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 2 , 3 , ) , } "}) {
    INFO(dict);
    CHECK(open_bytes(npy.with_dict(dict)).header.shape == std::vector<std::ptrdiff_t>{2, 3});
  }
  npy.data = std::string(4, '\0');
  npy.shape = "()";
  CHECK(open_bytes(npy.bytes()).header.count == 1);
}

TEST_CASE("what is no array of a dump is refused with what was expected and found", "[npy]") {
  NpyBuilder good;
  good.data = std::string(24, '\0');
  CHECK_NOTHROW(open_bytes(good.bytes()));
  test::check_broken_inputs("npy", "some.npy", open_bytes);
}

}  // namespace kvreplay
