#include "data/atomic_file.hpp"
#include "data/npy_array.hpp"
#include "data/npy_write.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/read_file.hpp"
#include "tests/support/temp_dir.hpp"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <thread>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

using test::expect_error;
using test::TempDir;

std::ptrdiff_t entries(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

}  // namespace

TEST_CASE("an .npy is written byte for byte as NumPy writes it", "[write]") {
  const TempDir dir;
  const std::size_t shape[] = {1, 2};
  write_npy(dir / "a.npy", shape, std::vector<float>{1.0f, -2.0f});
  const std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }";
  const std::string expected = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + dict +
                               std::string(118 - dict.size() - 1, ' ') + "\n" +
                               std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8);
  CHECK(test::read_file(dir / "a.npy") == expected);
}

TEST_CASE("every kind of array: header and elements", "[write]") {
  const TempDir dir;
  const std::size_t shape[] = {3};
  const auto check = [&](const char* name, const std::string& descr, const std::string& elements) {
    const std::string bytes = test::read_file(dir / name);
    INFO(name);
    CHECK(bytes.find("'descr': '" + descr + "', 'fortran_order': False, 'shape': (3,), }") == 11);
    CHECK((bytes.size() - elements.size()) % 64 == 0);
    CHECK(bytes.substr(bytes.size() - elements.size()) == elements);
  };
  const std::vector<float> values{1.0f, 3.14159274f, 0x1p-24f};
  write_npy(dir / "f8.npy", shape, std::vector<double>{1.0, -2.0, 0.0});
  check("f8.npy", "<f8", std::string("\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\xc0\0\0\0\0\0\0\0\0", 24));
  write_npy(dir / "i4.npy", shape, std::vector<std::int32_t>{1, -1, 258});
  check("i4.npy", "<i4", std::string("\1\0\0\0\xff\xff\xff\xff\2\1\0\0", 12));
  write_npy_bool(dir / "b1.npy", shape, std::vector<std::uint8_t>{1, 0, 1});
  check("b1.npy", "|b1", std::string("\1\0\1", 3));
  write_npy_as(dir / "f2.npy", Dtype::f16, shape, values);
  check("f2.npy", "<f2", std::string("\x00\x3c\x48\x42\x01\x00", 6));
  write_npy_as(dir / "V2.npy", Dtype::bf16, shape, values);
  check("V2.npy", "|V2", std::string("\x80\x3f\x49\x40\x80\x33", 6));
  write_npy_as(dir / "f4.npy", Dtype::f32, shape, values);
  check("f4.npy", "<f4", std::string("\0\0\x80\x3f\xdb\x0f\x49\x40\0\0\x80\x33", 12));
  write_npy_as(dir / "f8as.npy", Dtype::f64, shape, std::vector<float>{1.0f, -2.0f, 0.0f});
  check("f8as.npy", "<f8", std::string("\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\xc0\0\0\0\0\0\0\0\0", 24));
}

TEST_CASE("what is written reads back", "[write]") {
  const TempDir dir;
  std::vector<float> values(2 * 3 * 37);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 100.0f;
  const std::size_t shape[] = {2, 3, 37};
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::f32, Dtype::f64}) {
    INFO(name_of(dtype));
    write_npy_as(dir / "a.npy", dtype, shape, values);
    const NpyArray array = open_npy("a", std::make_shared<FileSource>(dir / "a.npy"));
    CHECK(array.header.dtype == dtype);
    CHECK(array.header.shape == std::vector<std::ptrdiff_t>{2, 3, 37});
    std::vector<float> back(values.size());
    CHECK_FALSE(read_matrix(array, dtype, {0, 6, 37, 37, 1}, back.data()));
    CHECK(back == values);  // whole numbers up to 122: exact in every dtype
  }
}

TEST_CASE("a file is written whole, over an older one, into folders that are made", "[write]") {
  const TempDir dir;
  write_file(dir / "a/b/c.txt", "first and longer");
  write_file(dir / "a/b/c.txt", "second");
  CHECK(test::read_file(dir / "a/b/c.txt") == "second");
  CHECK(entries(dir / "a/b") == 1);
  write_file(dir / "empty", "");
  CHECK(std::filesystem::file_size(dir / "empty") == 0);
}

TEST_CASE("a file that is not committed leaves nothing", "[write]") {
  const TempDir dir;
  write_file(dir / "a", "old");
  {
    AtomicFile file(dir / "a");
    const std::byte bytes[10]{};
    file.write(bytes);
  }
  CHECK(test::read_file(dir / "a") == "old");
  CHECK(entries(dir.path()) == 1);
}

TEST_CASE("what cannot be written is an error with path and reason", "[write]") {
  const TempDir dir;
  write_file(dir / "file", "in the way");
  expect_error([&] { write_file(dir / "file/below", "x"); },
               {"file/below: cannot be written: Not a directory"});
  std::filesystem::create_directories(dir / "folder/full");
  expect_error([&] { write_file(dir / "folder", "x"); }, {"folder: cannot be written: Is a directory"});
  expect_error([&] { write_file(dir / std::string(300, 'n'), "x"); },
               {"nnn: cannot be written: File name too long"});
  CHECK(entries(dir.path()) == 2);
}

TEST_CASE("who is told of a file learns what it holds once it is there", "[write]") {
  const TempDir dir;
  std::vector<FileContents> told;
  {
    const auto tell = [&](const FileContents& contents) { told.push_back(contents); };
    write_file(AtomicFile(dir / "empty", tell), "");
    AtomicFile file(dir / "pieces", tell);
    file.write("ab");
    AtomicFile moved = std::move(file);
    moved.write("c");
    CHECK(told.size() == 1);
    moved.commit();
    AtomicFile(dir / "dropped", tell).write("x");
  }
  // The XXH3 of "" and of "abc", from its authors' program (xxhsum -H3).
  CHECK(told == std::vector<FileContents>{{0, 0x2d06800538d394c2}, {3, 0x78af5f94892f3950}});
  CHECK(contents_of(std::as_bytes(std::span("abc", 3))) == told[1]);
  CHECK(test::read_file(dir / "pieces") == "abc");
  CHECK(entries(dir.path()) == 2);
}

TEST_CASE("an output goes to what a person named", "[write]") {
  const TempDir dir;
  const auto path = [&](const char* name) { return std::filesystem::path(dir / name); };
  std::filesystem::create_directory(path("there"));
  write_file(path("there/old"), "old");
  std::filesystem::create_symlink("there/old", path("link"));
  std::filesystem::create_symlink("link", path("link to link"));
  std::filesystem::create_symlink("there/new", path("dangling"));
  write_output(path("link to link"), "new");
  write_output(path("dangling"), "newer");
  write_output(path("plain"), "plain");
  CHECK(test::read_file(path("there/old")) == "new");
  CHECK(test::read_file(path("there/new")) == "newer");
  CHECK(test::read_file(path("plain")) == "plain");
  CHECK(std::filesystem::is_symlink(path("link to link")));
  CHECK(std::filesystem::is_symlink(path("dangling")));

  REQUIRE(::mkfifo(path("pipe").c_str(), 0600) == 0);
  std::string read;
  std::thread reader([&] { read = test::read_file(path("pipe")); });
  write_output(path("pipe"), std::string(1 << 20, 'p'));
  reader.join();
  CHECK(read == std::string(1 << 20, 'p'));
  CHECK(std::filesystem::is_fifo(path("pipe")));

  std::filesystem::create_symlink("/dev/full", path("full"));
  expect_error([&] { write_output(path("full"), "x"); },
               {"full: cannot be written: No space left on device"});
  expect_error([&] { write_output(path("there"), "x"); }, {"there: cannot be written: Is a directory"});
  CHECK(std::filesystem::is_character_file("/dev/full"));
  CHECK(entries(dir.path()) == 7);
}

TEST_CASE("a write that fails midway leaves nothing behind", "[write]") {
  // A limit on the size of files stands in for a full disk: the write begins and then fails.
  const TempDir dir;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 4096;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string message;
  try {
    write_file(dir / "large", std::string(100000, 'x'));
  } catch (const InputError& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(message.find("large: cannot be written: File too large") != std::string::npos);
  CHECK(entries(dir.path()) == 0);
}

}  // namespace kvreplay
