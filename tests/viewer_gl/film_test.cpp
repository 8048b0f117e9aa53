// The film of a budget, in the dashboard and on the command line.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/picture.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/process.hpp"
#include "tests/support/read_file.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::contains;
using test::kSample;

namespace {

namespace fs = std::filesystem;

/// What an APNG says of its number of frames; 0 where it is none.
std::uint32_t frames_of(const fs::path& path) {
  const std::string bytes = test::file_text(path);
  const std::size_t at = bytes.find("acTL");
  std::uint32_t frames = 0;
  for (std::size_t i = 0; at != std::string::npos && i < 4; ++i)
    frames = frames << 8 | static_cast<std::uint8_t>(bytes.at(at + 4 + i));
  return frames;
}

std::size_t differing(const test::Picture& a, const test::Picture& b) {
  REQUIRE(a.pixels.size() == b.pixels.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i) count += a.pixels[i] == b.pixels[i] ? 0 : 1;
  return count;
}

}  // namespace

TEST_CASE("a film of the selected head is written, light whatever the window is, and told of", "[film]") {
  const test::TempDir folder;
  test::Dashboard dark(kSample, 900, 600);
  dark.app.state().select_head(3, 1);
  dark.app.export_film(folder / "film.png", {.width = 700, .height = 420});
  dark.settle();
  INFO(dark.app.state().message());
  CHECK(contains(dark.app.state().message(), "Saved " + fs::path(folder / "film.png").string()));
  CHECK(frames_of(folder / "film.png") > 20);
  const test::Picture first(folder / "film.png");
  CHECK(first.width == 700);
  CHECK(first.height == 420);
  CHECK(first.at(2, 2).r > 200);
  // Another head's begins with the same text and another title.
  dark.app.state().select_head(2, 0);
  dark.app.export_film(folder / "other.png", {.width = 700, .height = 420});
  dark.settle();
  const std::size_t other = differing(first, test::Picture(folder / "other.png"));
  CHECK(other > 0);
  CHECK(other < first.pixels.size() / 4);
}

TEST_CASE("a film needs a dump, and leaves no file without one", "[film]") {
  const test::TempDir folder;
  fs::copy(kSample, folder / "dump", fs::copy_options::recursive);
  test::succeed({"tokens", folder / "dump", "--out", folder / "results", "--layers", "3", "--quiet"});
  fs::remove_all(folder / "dump");
  test::Dashboard board(folder / "results", 900, 600);
  board.app.export_film(folder / "film.png");
  board.settle();
  CHECK(board.app.state().message_is_error());
  CHECK_FALSE(fs::exists(folder / "film.png"));
}

TEST_CASE("kvreplay view --film: of all heads or of one, with a name that says what it is", "[film]") {
  const test::TempDir folder;
  test::make_small_dump(folder / "dump");
  const auto film = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> command = {"view",   folder / "dump", "--film",    folder / name,
                                        "--size", "400x300",       "--threads", "2"};
    command.insert(command.end(), more.begin(), more.end());
    return test::run_kvreplay(command);
  };
  const test::ProcessResult all = film("all.apng", {});
  INFO(all.err);
  REQUIRE(all.code == 0);
  REQUIRE(film("head.png", {"--head", "1", "--scale", "2"}).code == 0);
  CHECK(frames_of(folder / "all.apng") > 20);
  CHECK(test::Picture(folder / "all.apng").width == 400);
  CHECK(test::Picture(folder / "head.png").width == 800);
  REQUIRE(film("h2o.png", {"--policy", "h2o,keydiff"}).code == 0);
  CHECK_FALSE(test::file_text(folder / "h2o.png") == test::file_text(folder / "all.apng"));
  const test::ProcessResult unknown = film("x.png", {"--policy", "snapvk"});
  CHECK(unknown.code == 2);
  CHECK(test::lines(unknown.err) == 1);
  CHECK(contains(unknown.err, "snapkv"));
  const test::ProcessResult bad = film("film.gif", {});
  CHECK(bad.code == 2);
  CHECK(test::lines(bad.err) == 1);
  CHECK(contains(bad.err, ".apng"));
}
