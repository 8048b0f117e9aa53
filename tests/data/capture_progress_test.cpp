#include "data/capture_progress.hpp"

#include "data/atomic_file.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/data/small_dump.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>

namespace kvreplay {
namespace {

using test::expect_error;
using test::SmallDump;
using test::TempDir;

/// Writes a layer's tensor with nothing but zeros from row `rows` of every head on.
void write_part(const TempDir& dir, const SmallDump& small, Tensor tensor, Index layer, std::size_t rows) {
  std::string bytes = small.npy(tensor, layer);
  const auto shape = small.shape(tensor);
  const std::size_t row = shape[2] * sizeof(float), begin = bytes.size() - shape[0] * shape[1] * row;
  for (std::size_t head = 0; head < shape[0]; ++head)
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin + (head * shape[1] + rows) * row),
                (shape[1] - rows) * row, '\0');
  write_file(dir / fmt::format("layer_{:02}/{}.npy", layer, name_of(tensor)), bytes);
}

void cut(const std::filesystem::path& path, std::uintmax_t bytes) {
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - bytes);
}

const std::string kIncomplete = R"({"incomplete": true, "model": "m", "n_layers": 2, "total_len": 5})";

}  // namespace

TEST_CASE("a capture that was interrupted says how far every layer came", "[capture]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  CHECK_FALSE(capture_progress(dir.path()));
  CHECK_FALSE(capture_progress(dir / "nowhere"));
  write_file(dir / "manifest.json", R"({"incomplete": false})");
  CHECK_FALSE(capture_progress(dir.path()));
  CHECK_NOTHROW(Dump::open(dir.path()));
  write_file(dir / "manifest.json", kIncomplete);
  const auto layer = [&](std::size_t i) { return capture_progress(dir.path()).value().layers.at(i); };
  CHECK(capture_progress(dir.path())->model == "m");
  CHECK(capture_progress(dir.path())->whole_layers() == 2);
  CHECK(layer(1).written == 5);

  for (const Tensor tensor : {Tensor::q, Tensor::k, Tensor::v, Tensor::o}) {
    for (std::size_t rows = 0; rows <= 5; ++rows) {
      INFO(name_of(tensor) << ", " << rows << " rows");
      write_part(dir, small, tensor, 1, rows);
      CHECK(layer(1).written == static_cast<Index>(rows));
      CHECK(layer(1).positions == 5);
      CHECK(layer(1).fault.empty());
      CHECK(layer(1).whole() == (rows == 5));
      CHECK(layer(0).whole());
    }
  }
  expect_error([&] { Dump::open(dir.path()); },
               {dir.path().string() + ": expected a whole dump, found one whose capture was interrupted",
                "kvreplay info"});
}

TEST_CASE("queries of the last positions count from where they begin", "[capture]") {
  SmallDump small;
  small.T_q = 3;
  const TempDir dir;
  small.write(dir.path());
  write_file(dir / "manifest.json", kIncomplete);
  write_part(dir, small, Tensor::q, 0, 0);
  write_part(dir, small, Tensor::o, 1, 2);
  const auto progress = capture_progress(dir.path());
  CHECK(progress->layers[0].written == 2);
  CHECK(progress->layers[1].written == 4);
}

TEST_CASE("files of an interrupted capture may be short, missing or anything", "[capture]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  write_file(dir / "manifest.json", kIncomplete);
  const auto layer = [&](std::size_t i) { return capture_progress(dir.path()).value().layers.at(i); };
  const std::filesystem::path k = dir / "layer_00/k.npy", v = dir / "layer_00/v.npy";

  cut(k, 1);  // the last row of the last of two heads is no longer whole
  CHECK(layer(0).fault == "k.npy is cut short by 1 bytes");
  CHECK(layer(0).written == 4);
  CHECK_FALSE(layer(0).whole());
  cut(k, 4 * 6 * 4 + 7);  // all of the last head
  CHECK(layer(0).written == 0);
  std::filesystem::remove(v);
  CHECK(layer(0).fault == "k.npy is cut short by 104 bytes");
  std::filesystem::remove(k);
  CHECK(layer(0).fault == "k.npy is missing");
  for (const char* bytes : {"", "\x93NUMPY", "no array at all, whatever its length"}) {
    INFO(bytes);
    write_file(k, bytes);
    CHECK(layer(0).fault.find("k.npy: expected a") != std::string::npos);
    CHECK(layer(0).written == 0);
  }
  CHECK(layer(1).whole());
  test::NpyBuilder huge{"<f4", "(2, 5, 4611686018427387904)", "False", 1, ""};
  write_file(k, huge.bytes());
  CHECK(layer(0).fault.find("expected a shape that fits") != std::string::npos);
  huge.shape = "(1, 1, 2305843009213693952)";
  write_file(k, huge.bytes());
  CHECK(layer(0).fault.find("expected a shape that fits") != std::string::npos);
  huge.shape = "(5, 6)";
  write_file(k, huge.bytes());
  CHECK(layer(0).fault.find("expected [heads, rows, channels] in C order, found shape [5, 6]") !=
        std::string::npos);

  write_file(dir / "manifest.json", R"({"incomplete": true})");
  CHECK(capture_progress(dir.path())->layers.size() == 2);
  CHECK(layer(1).positions == 5);
  write_file(dir / "manifest.json", R"({"incomplete": true, "n_layers": 4, "total_len": 7})");
  CHECK(capture_progress(dir.path())->layers.size() == 4);
  CHECK(layer(3).fault == "k.npy is missing");
  CHECK(layer(3).positions == 7);
  const auto fails = [&](const std::string& json, std::initializer_list<std::string_view> parts) {
    write_file(dir / "manifest.json", json);
    expect_error([&] { capture_progress(dir.path()); }, parts);
  };
  fails(R"({"incomplete": "yes"})", {"manifest.json: incomplete: expected"});
  fails(R"({"incomplete": true, "n_layers": 1000000000000})", {"n_layers: expected at most 100000"});
  fails("{", {"manifest.json: expected JSON"});
}

TEST_CASE("what a capture left out is a note of the dump", "[capture]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path(), false);
  write_file(dir / "manifest.json",
             R"({"rope_note": "no rope: no layer turns", "wo_note": "no wo: layer 3 has no\u0007 o_proj"})");
  const Dump dump = Dump::open(dir.path());
  CHECK(dump.rope_note() == "the manifest has no rope (no layer turns)");
  const auto& notes = dump.notes();
  CHECK(std::count(notes.begin(), notes.end(), "there is no wo: layer 3 has no\\x07 o_proj") == 1);
  CHECK(std::count_if(notes.begin(), notes.end(), [](const std::string& note) {
          return note.find("no rope (no layer turns): metrics") != std::string::npos;
        }) == 1);
}

}  // namespace kvreplay
