#include "data/mapped_file.hpp"

#include "data/npy_array.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace kvreplay {
namespace {

using test::expect_error;
using test::TempDir;

constexpr std::uint64_t kBytes = 64 * 4096;

std::filesystem::path file_of_ones(const TempDir& dir) {
  const std::filesystem::path path = dir / "ones";
  std::ofstream(path, std::ios::binary) << std::string(kBytes, '\1');
  return path;
}

}  // namespace

TEST_CASE("a mapped file that shrinks reads as zeros and is refused", "[mapped]") {
  const TempDir dir;
  const std::filesystem::path path = file_of_ones(dir);
  const MappedFile file(path), other(path, state_of(path), 10 * 4096, 30 * 4096);
  CHECK(std::count(file.bytes().begin(), file.bytes().end(), std::byte{1}) == kBytes);
  file.require_unchanged();
  std::filesystem::resize_file(path, 5 * 4096);
  CHECK(std::count(file.bytes().begin(), file.bytes().end(), std::byte{1}) == 5 * 4096);
  expect_error([&] { file.require_unchanged(); },
               {"ones: expected a file that stays as it was opened, found one cut short while it was read"});
  CHECK(other.bytes().back() == std::byte{0});
  expect_error([&] { other.require_unchanged(); }, {"cut short"});
  const MappedFile again(path);
  CHECK(again.bytes().size() == 5 * 4096);
  CHECK(std::count(again.bytes().begin(), again.bytes().end(), std::byte{1}) == 5 * 4096);
  again.require_unchanged();
}

TEST_CASE("what a visitor saw of a file that shrank is not taken", "[mapped]") {
  const TempDir dir;
  const std::filesystem::path path = file_of_ones(dir);
  const FileSource source(path);
  std::ptrdiff_t ones = -1;
  expect_error(
      [&] {
        source.read(0, kBytes, true, [&](std::span<const std::byte> bytes) {
          std::filesystem::resize_file(path, 0);
          ones = std::count(bytes.begin(), bytes.end(), std::byte{1});
        });
      },
      {"ones: expected a file that stays as it was opened"});
  CHECK(ones == 0);
}

TEST_CASE("a file that another takes the place of, or that is written again, is refused", "[mapped]") {
  const TempDir dir;
  const std::filesystem::path path = file_of_ones(dir);
  const FileSource source(path);
  const auto nothing = [](std::span<const std::byte>) {};
  source.read(0, kBytes, true, nothing);

  const auto change = GENERATE(0, 1, 2);
  const auto make_change = [&] {
    if (change == 0) std::ofstream(path, std::ios::binary) << std::string(kBytes, '\2');
    if (change == 1) std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now());
    if (change == 2) {
      std::ofstream(dir / "other", std::ios::binary) << std::string(kBytes, '\1');
      std::filesystem::last_write_time(dir / "other", std::filesystem::last_write_time(path));
      std::filesystem::rename(dir / "other", path);
    }
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // what file systems count time in
  SECTION("between two reads") {
    make_change();
    expect_error([&] { source.read(0, 64, true, nothing); },
                 {"ones: expected a file that stays as it was opened, found one changed since"});
  }
  SECTION("during one") {
    expect_error([&] { source.read(0, 64, true, [&](std::span<const std::byte>) { make_change(); }); },
                 {"ones: expected a file that stays as it was opened, found one changed while it was read"});
  }
}

TEST_CASE("threads read while files shrink under them", "[mapped][threads]") {
  const TempDir dir;
  std::atomic<int> refused = 0, whole = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const std::filesystem::path path = dir / std::to_string(t);
      for (int round = 0; round < 20; ++round) {
        std::ofstream(path, std::ios::binary) << std::string(kBytes, '\1');
        const MappedFile file(path);
        if (round % 2 == 1) std::filesystem::resize_file(path, 4096);
        const auto ones = std::count(file.bytes().begin(), file.bytes().end(), std::byte{1});
        try {
          file.require_unchanged();
          whole += ones == kBytes;
        } catch (const InputError&) {
          refused += ones == 4096;
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(whole == 40);
  CHECK(refused == 40);
}

}  // namespace kvreplay
