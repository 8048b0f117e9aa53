#include "data/npy/mapped_file.hpp"

#include "data/npy/byte_source.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <algorithm>
#include <atomic>
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
  const MappedFile file(path), other(path, kBytes, 10 * 4096, 30 * 4096);
  CHECK(std::count(file.bytes().begin(), file.bytes().end(), std::byte{1}) == kBytes);
  file.require_whole();
  std::filesystem::resize_file(path, 5 * 4096);
  CHECK(std::count(file.bytes().begin(), file.bytes().end(), std::byte{1}) == 5 * 4096);
  expect_error([&] { file.require_whole(); },
               {"ones: expected a file that stays as it was opened, found one cut short while it was read"});
  other.require_whole();  // nobody has read there yet
  CHECK(other.bytes().back() == std::byte{0});
  expect_error([&] { other.require_whole(); }, {"cut short"});
  const MappedFile again(path);
  CHECK(again.bytes().size() == 5 * 4096);
  CHECK(std::count(again.bytes().begin(), again.bytes().end(), std::byte{1}) == 5 * 4096);
  again.require_whole();
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
          file.require_whole();
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
