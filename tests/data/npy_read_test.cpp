#include "data/npy_read.hpp"

#include "data/atomic_file.hpp"
#include "data/npy_write.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

using test::expect_error;
using test::NpyBuilder;
using test::TempDir;

NpyNumbers numbers_of(const TempDir& dir, const NpyBuilder& npy) {
  write_file(dir / "a.npy", npy.bytes());
  return read_npy_numbers(dir / "a.npy");
}

/// The least, -2, -1, 0, 1 and the largest value of an integer type.
template <class Integer>
NpyBuilder integers(const std::string& descr, bool big) {
  NpyBuilder npy{descr, "(6,)", "False", 1, ""};
  for (const Integer value :
       {std::numeric_limits<Integer>::min(), static_cast<Integer>(-2), static_cast<Integer>(-1), Integer{0},
        Integer{1}, std::numeric_limits<Integer>::max()})
    test::append_bits(npy.data, static_cast<std::make_unsigned_t<Integer>>(value), big);
  return npy;
}

}  // namespace

TEST_CASE("integers of every width, sign and byte order are numbers", "[npy_numbers]") {
  const TempDir dir;
  using Values = std::vector<double>;
  CHECK(numbers_of(dir, integers<std::int8_t>("|i1", false)).values == Values{-128, -2, -1, 0, 1, 127});
  CHECK(numbers_of(dir, integers<std::uint8_t>("|u1", false)).values == Values{0, 254, 255, 0, 1, 255});
  for (const bool big : {false, true}) {
    const std::string order = big ? ">" : "<";
    INFO(order);
    CHECK(numbers_of(dir, integers<std::int16_t>(order + "i2", big)).values ==
          Values{-32768, -2, -1, 0, 1, 32767});
    CHECK(numbers_of(dir, integers<std::uint16_t>(order + "u2", big)).values ==
          Values{0, 65534, 65535, 0, 1, 65535});
    CHECK(numbers_of(dir, integers<std::int32_t>(order + "i4", big)).values ==
          Values{-2147483648.0, -2, -1, 0, 1, 2147483647.0});
    CHECK(numbers_of(dir, integers<std::uint32_t>(order + "u4", big)).values ==
          Values{0, 4294967294.0, 4294967295.0, 0, 1, 4294967295.0});
    CHECK(numbers_of(dir, integers<std::int64_t>(order + "i8", big)).values ==
          Values{-0x1p63, -2, -1, 0, 1, 0x1p63});
    CHECK(numbers_of(dir, integers<std::uint64_t>(order + "u8", big)).values ==
          Values{0, 0x1p64, 0x1p64, 0, 1, 0x1p64});
  }
}

TEST_CASE("integers that ranks are made of are not rounded", "[npy_numbers]") {
  const TempDir dir;
  const auto read = [&](std::int64_t value) {
    NpyBuilder array{"<i8", "(2,)", "False", 1, ""};
    for (const std::int64_t element : {std::int64_t{1}, value}) test::append_bits(array.data, element);
    write_file(dir / "a.npy", array.bytes());
    return read_npy(dir / "a.npy", std::vector<std::ptrdiff_t>{2}).at(1);
  };
  const std::int64_t most = std::int64_t{1} << 53;
  for (const std::int64_t value : {most - 1, most, most + 2, -most, -most + 1, most * 512, INT64_MIN})
    CHECK(read(value) == static_cast<double>(value));
  for (const std::int64_t value : {most + 1, -most - 1, most * 512 + 1, INT64_MAX, INT64_MIN + 1})
    expect_error([&] { read(value); },
                 {"a.npy: expected integers that float64 tells apart, as all up to 2^53, found " +
                  std::to_string(value)});
}

TEST_CASE("booleans and floats of any shape are numbers, in C order", "[npy_numbers]") {
  const TempDir dir;
  const NpyNumbers bits = numbers_of(dir, {"|b1", "(2, 2)", "False", 1, std::string("\0\1\1\2", 4)});
  CHECK(bits.shape == std::vector<std::ptrdiff_t>{2, 2});
  CHECK(bits.values == std::vector<double>{0, 1, 1, 1});

  NpyBuilder turned{"<f4", "(2, 3)", "True", 1, ""};
  for (const float value : {0.F, 10.F, 1.F, 11.F, 2.F, 12.F}) test::append_value(turned.data, value);
  CHECK(numbers_of(dir, turned).values == std::vector<double>{0, 1, 2, 10, 11, 12});

  NpyBuilder integer{"<i2", "(2, 2)", "True", 1, std::string("\1\0\2\0\3\0\4\0", 8)};
  CHECK(numbers_of(dir, integer).values == std::vector<double>{1, 3, 2, 4});

  NpyBuilder scalar{"<f8", "()", "False", 1, ""};
  test::append_value(scalar.data, 2.5);
  CHECK(numbers_of(dir, scalar).shape.empty());
  CHECK(numbers_of(dir, scalar).values == std::vector<double>{2.5});
}

TEST_CASE("NaN, infinities and empty arrays are numbers too", "[npy_numbers]") {
  const TempDir dir;
  const std::size_t shape[] = {3};
  write_npy(dir / "a.npy", shape, std::vector<double>{std::nan(""), HUGE_VAL, -HUGE_VAL});
  const NpyNumbers odd = read_npy_numbers(dir / "a.npy");
  CHECK(std::isnan(odd.values.at(0)));
  CHECK(odd.values.at(1) == HUGE_VAL);
  CHECK(odd.values.at(2) == -HUGE_VAL);
  CHECK(read_npy(dir / "a.npy", std::vector<std::ptrdiff_t>{3}).at(2) == -HUGE_VAL);

  const NpyNumbers none = numbers_of(dir, {"<f8", "(0, 4)", "False", 1, ""});
  CHECK(none.shape == std::vector<std::ptrdiff_t>{0, 4});
  CHECK(none.values.empty());
}

TEST_CASE("what holds no numbers is refused in one line", "[npy_numbers]") {
  const TempDir dir;
  expect_error(
      [&] {
        numbers_of(dir, {"<c8", "(1,)", "False", 1, std::string(8, '\0')});
      },
      {"a.npy: ", "complex numbers"});
  expect_error(
      [&] {
        numbers_of(dir, {"<i3", "(1,)", "False", 1, std::string(3, '\0')});
      },
      {"a.npy: ", "'<i3'"});
  expect_error(
      [&] {
        numbers_of(dir, {"|U4", "(1,)", "False", 1, std::string(4, '\0')});
      },
      {"a.npy: ", "'|U4' (strings)"});
  expect_error(
      [&] {
        numbers_of(dir, {"<i4", "(3,)", "False", 1, std::string(11, '\0')});
      },
      {"a.npy: expected 3 elements of 4 bytes", "11 bytes behind the header"});
  expect_error([&] { read_npy_numbers(dir / "missing.npy"); }, {"missing.npy"});
  write_file(dir / "i.npy", integers<std::int32_t>("<i4", false).bytes());
  CHECK(read_npy(dir / "i.npy", std::vector<std::ptrdiff_t>{6}).size() == 6);
  expect_error([&] { read_npy_bool(dir / "i.npy", std::vector<std::ptrdiff_t>{6}); }, {"i.npy", "booleans"});
}

}  // namespace kvreplay
