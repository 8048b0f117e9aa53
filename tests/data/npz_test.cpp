#include "data/npz.hpp"

#include "data/npy_array.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/data/zip_file.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/read_file.hpp"
#include "tests/support/temp_dir.hpp"

#include <atomic>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

using test::expect_error;
using test::TempDir;

constexpr std::ptrdiff_t heads = 5, rows = 1000, cols = 33;

/// [heads, rows, cols] float64, 1.3 MB: several of the pieces in which members are read.
std::string large_npy(const char* order = "False") {
  test::NpyBuilder npy{"<f8", "(5, 1000, 33)", order, 1, ""};
  for (std::ptrdiff_t i = 0; i < heads * rows * cols; ++i)
    test::append_value(npy.data, static_cast<double>(i));
  return npy.bytes();
}

MatrixView head_view(std::ptrdiff_t head) { return {head * rows * cols, rows, cols, cols, 1}; }

/// The number of wrong elements of a head that is read.
int wrong_in_head(const NpyArray& array, std::ptrdiff_t head) {
  std::vector<float> out(rows * cols);
  int wrong = read_matrix(array, Dtype::f64, head_view(head), out.data()).has_value();
  for (std::ptrdiff_t i = 0; i < rows * cols; ++i) {
    wrong += out[i] != static_cast<float>(head * rows * cols + i);
  }
  return wrong;
}

/// A stored member in the form that archives beyond 4 GiB have: every size and offset in 64-bit extra fields.
std::string zip64_archive(const std::string& name, const std::string& bytes) {
  std::string zip = "padding, so that offsets are not 0";
  const auto field = [&](auto value) { test::append_bits(zip, value); };
  const auto u16 = [&](std::size_t value) { field(static_cast<std::uint16_t>(value)); };
  const auto u32 = [&](std::size_t value) { field(static_cast<std::uint32_t>(value)); };
  const auto u64 = [&](std::size_t value) { field(static_cast<std::uint64_t>(value)); };
  const std::size_t local = zip.size(), in_extra = 0xffffffff;
  zip += "PK\x03\x04";
  for (const std::size_t value : {45, 0, 0, 0, 33}) u16(value);  // version, flags, method, time, date
  for (const std::size_t value : {std::size_t{0}, in_extra, in_extra}) u32(value);
  for (const std::size_t value : {name.size(), std::size_t{20}}) u16(value);
  zip += name;
  for (const std::size_t value : {1, 16}) u16(value);
  for (const std::size_t value : {bytes.size(), bytes.size()}) u64(value);
  zip += bytes;
  const std::size_t directory = zip.size();
  zip += "PK\x01\x02";
  for (const std::size_t value : {45, 45, 0, 0, 0, 33}) u16(value);
  for (const std::size_t value : {std::size_t{0}, in_extra, in_extra}) u32(value);
  for (const std::size_t value :
       {name.size(), std::size_t{34}, std::size_t{0}, std::size_t{0}, std::size_t{0}})
    u16(value);
  for (const std::size_t value : {std::size_t{0}, in_extra}) u32(value);
  zip += name;
  for (const std::size_t value : {0x7777, 2, 0}) u16(value);  // another extra field comes first
  for (const std::size_t value : {1, 24}) u16(value);
  for (const std::size_t value : {bytes.size(), bytes.size(), local}) u64(value);
  const std::size_t end = zip.size();
  zip += "PK\x06\x06";
  u64(44);
  for (const std::size_t value : {45, 45}) u16(value);
  for (const std::size_t value : {0, 0}) u32(value);
  for (const std::size_t value : {std::size_t{1}, std::size_t{1}, end - directory, directory}) u64(value);
  zip += "PK\x06\x07";
  u32(0);
  u64(end);
  u32(1);
  zip += "PK\x05\x06";
  for (const std::size_t value : {0, 0, 0xffff, 0xffff}) u16(value);
  for (const std::size_t value : {in_extra, in_extra}) u32(value);
  u16(0);
  return zip;
}

}  // namespace

TEST_CASE("stored members of 64-bit archives are found where they are", "[npz]") {
  const std::string npy = test::NpyBuilder{"<f4", "(1,)", "False", 1, "\x01\x02\x03\x04"}.bytes();
  const std::string zip = zip64_archive("q.npy", npy);
  const auto located = locate_stored_members(test::as_span(zip));
  REQUIRE(located.size() == 1);
  REQUIRE(located[0].has_value());
  CHECK(located[0]->name == "q.npy");
  CHECK(zip.substr(located[0]->offset, located[0]->bytes) == npy);
  const TempDir dir;
  std::ofstream(dir / "a.npz", std::ios::binary) << zip;
  const NpzArchive npz = NpzArchive::open(dir / "a.npz");
  CHECK(npz.members().at(0).offset == located[0]->offset);
}

TEST_CASE("no prefix of an archive is mistaken for one", "[npz]") {
  const std::string zip = zip64_archive("q.npy", "bytes");
  for (std::size_t length = 0; length < zip.size(); ++length) {
    const std::string prefix =
        zip.substr(0, length);  // of its own size, for the sanitizer to see reads beyond it
    CHECK(locate_stored_members(test::as_span(prefix)).empty());
  }
}

TEST_CASE("members are read head by head, in any order", "[npz]") {
  const TempDir dir;
  const bool deflate = GENERATE(false, true);
  CAPTURE(deflate);
  test::write_zip(dir / "a.npz", {{"k.npy", large_npy()}, {"q.npy", large_npy()}}, deflate);
  const NpzArchive npz = NpzArchive::open(dir / "a.npz");
  REQUIRE(npz.members().size() == 2);
  CHECK(npz.members()[0].name == "k.npy");
  CHECK(npz.members()[0].offset.has_value() == !deflate);
  CHECK(npz.members()[1].bytes == large_npy().size());
  const NpyArray array = open_npy("q", npz.source(1));
  for (const std::ptrdiff_t head : {0, 1, 3, 4, 4, 2, 0}) CHECK(wrong_in_head(array, head) == 0);
}

TEST_CASE("a Fortran-ordered member is read in one piece", "[npz]") {
  const TempDir dir;
  const bool deflate = GENERATE(false, true);
  test::write_zip(dir / "a.npz", {{"k.npy", large_npy("True")}}, deflate);
  const NpyArray array = open_npy("k", NpzArchive::open(dir / "a.npz").source(0));
  std::vector<double> out(rows * cols);
  CHECK_FALSE(read_matrix(array, Dtype::f64, {2, rows, cols, heads, heads * rows}, out.data()));
  CHECK(out[0] == 2.0);
  CHECK(out[1] == 2.0 + heads * rows);
  CHECK(out[rows * cols - 1] == 2.0 + heads * (rows - 1) + heads * rows * (cols - 1));
}

TEST_CASE("threads may read the same member at once", "[npz][threads]") {
  const TempDir dir;
  const bool deflate = GENERATE(false, true);
  test::write_zip(dir / "a.npz", {{"k.npy", large_npy()}}, deflate);
  const NpyArray array = open_npy("k", NpzArchive::open(dir / "a.npz").source(0));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::ptrdiff_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (std::ptrdiff_t head = 0; head < heads; ++head) wrong += wrong_in_head(array, (head + i) % heads);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("broken archives are refused", "[npz]") {
  const TempDir dir;
  const std::string path = (dir / "a.npz").string();
  const auto rewrite = [&](const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; };
  const auto read_all = [&] {
    const NpzArchive npz = NpzArchive::open(path);
    for (std::size_t i = 0; i < npz.members().size(); ++i) {
      const NpyArray array = open_npy(path + ":" + npz.members()[i].name, npz.source(i));
      for (std::ptrdiff_t head = 0; head < heads; ++head) wrong_in_head(array, head);
    }
  };
  SECTION("empty") {
    rewrite("");
    expect_error(read_all, {"a.npz: expected an .npz (zip) archive, found"});
  }
  SECTION("no archive") {
    rewrite("no archive");
    expect_error(read_all, {"a.npz: expected an .npz (zip) archive, found"});
  }
  SECTION("cut") {
    test::write_zip(path, {{"k.npy", large_npy()}}, true);
    const std::string bytes = test::read_file(path);
    rewrite(bytes.substr(0, bytes.size() / 2));
    expect_error(read_all, {"a.npz: expected an .npz (zip) archive, found"});
  }
  SECTION("compressed data damaged") {
    test::write_zip(path, {{"k.npy", large_npy()}}, true);
    std::string bytes = test::read_file(path);
    for (std::size_t i = bytes.size() / 2; i < bytes.size() / 2 + 64; ++i) bytes[i] = '\x55';
    rewrite(bytes);
    expect_error(read_all, {"a.npz:k.npy: expected", "more bytes behind byte", "found"});
  }
  SECTION("a member that is no array") {
    test::write_zip(path, {{"k.npy", "text"}}, true);
    expect_error(read_all, {"a.npz:k.npy: expected a .npy array", "found 4 bytes"});
  }
  SECTION("an array cut short") {
    test::write_zip(path, {{"k.npy", large_npy().substr(0, 1000)}}, true);
    expect_error(read_all, {"a.npz:k.npy: expected 165000 elements of 8 bytes", "bytes behind the header"});
  }
  SECTION("a size that cannot be") {
    test::write_zip(path, {{"k.npy", std::string(100, 'x')}}, true);
    std::string bytes = test::read_file(path);
    const std::size_t directory = bytes.find("PK\x01\x02");
    REQUIRE(directory != std::string::npos);
    bytes.replace(directory + 24, 4, "\xff\xff\xff\x7f");  // uncompressed size in the central directory
    rewrite(bytes);
    expect_error(read_all,
                 {"a.npz:k.npy: expected a size that the archive can hold, found 2147483647 bytes from"});
  }
  SECTION("encrypted") {
    test::write_zip(path, {{"k.npy", std::string(100, 'x')}}, true);
    std::string bytes = test::read_file(path);
    for (const auto& [signature, flags] : {std::pair{"PK\x01\x02", 8u}, {"PK\x03\x04", 6u}})
      bytes[bytes.find(signature) + flags] |= 1;
    rewrite(bytes);
    expect_error(read_all, {"a.npz:k.npy: expected a member that is not encrypted"});
  }
}

TEST_CASE("a flipped bit does not agree with the archive's checksum", "[npz]") {
  const TempDir dir;
  const bool deflate = GENERATE(false, true);
  const auto nothing = [](std::span<const std::byte>) {};
  test::write_zip(dir / "a.npz", {{"k.npy", large_npy()}}, deflate);
  NpzArchive::open(dir / "a.npz").source(0)->read_all(nothing);
  std::string bytes = test::read_file(dir / "a.npz");
  if (deflate) {
    const std::size_t entry =
        bytes.find("PK\x01\x02");  // the sum itself: flipped data may no longer decompress
    bytes[entry + 16] ^= 1;
  } else {
    bytes[bytes.size() / 2] ^= 1;
  }
  std::ofstream(dir / "a.npz", std::ios::binary) << bytes;
  const auto source = NpzArchive::open(dir / "a.npz").source(0);
  const std::initializer_list<std::string_view> refused = {
      "a.npz:k.npy: expected bytes that agree with the archive's checksum, found others"};
  expect_error([&] { source->read_all(nothing); }, refused);
  if (deflate) expect_error([&] { source->read(0, source->size(), false, nothing); }, refused);
}

TEST_CASE("an archive that changes after opening is an error", "[npz]") {
  const TempDir dir;
  const bool deflate = GENERATE(false, true);
  test::write_zip(dir / "a.npz", {{"k.npy", large_npy()}}, deflate);
  const NpyArray array = open_npy("k", NpzArchive::open(dir / "a.npz").source(0));
  std::filesystem::resize_file(dir / "a.npz", 1000);
  expect_error([&] { wrong_in_head(array, 1); },
               {"a.npz: expected", "as when it was opened", "found 1000 bytes"});
}

}  // namespace kvreplay
