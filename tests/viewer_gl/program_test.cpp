// The programs as they are called: kvreplay view, and kvreplay-viewer where it cannot draw.

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/picture.hpp"
#include "tests/support/places.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temp_dir.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

using namespace kvreplay;
using test::contains;
using test::lines;
using test::ProcessResult;

namespace {

namespace fs = std::filesystem;

const fs::path kProgram = test::program();
const fs::path kViewer = test::viewer_program();

/// A program with some variables of its environment set, NAME=VALUE.
ProcessResult run_with(const std::vector<std::string>& variables, std::vector<std::string> command) {
  command.insert(command.begin(), variables.begin(), variables.end());
  command.insert(command.begin(), "/usr/bin/env");
  return test::run(command);
}

void check_one_line(const ProcessResult& result) {
  INFO(result.err);
  CHECK(result.code == 2);
  CHECK(lines(result.err) == 1);
  CHECK(result.out.empty());
}

}  // namespace

TEST_CASE("kvreplay view finds the viewer beside itself and passes all arguments on", "[view]") {
  REQUIRE(kViewer.parent_path() == kProgram.parent_path());
  const test::TempDir folder;
  const fs::path picture = folder / "heads.png";
  const ProcessResult result =
      run_with({"PATH=/nowhere"}, {kProgram, "view", test::sample_dump(), "--screenshot", picture, "--panel",
                                   "inspector", "--size", "400x300", "--scale", "2"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const test::Picture read(picture);
  CHECK(read.width == 800);
  CHECK(read.height == 600);
}

TEST_CASE("kvreplay view finds the viewer along the PATH, and says so where there is none", "[view]") {
  const test::TempDir folder;
  fs::copy_file(kProgram, folder / "kvreplay");
  const std::string moved = folder / "kvreplay";
  const ProcessResult none = run_with({"PATH=/nowhere:"}, {moved, "view", test::sample_dump()});
  check_one_line(none);
  CHECK(contains(none.err, "kvreplay-viewer is neither beside kvreplay nor on the PATH"));
  CHECK(contains(none.err, "libimgui-dev libstb-dev libgl-dev libegl-dev"));
  CHECK(contains(none.err, "kvreplay report"));
  const ProcessResult found =
      run_with({"PATH=/nowhere:" + kViewer.parent_path().string()}, {moved, "view", "--version"});
  INFO(found.err);
  CHECK(found.code == 0);
  CHECK(contains(found.out, "kvreplay-viewer "));
}

TEST_CASE("kvreplay view: a path that is nothing and a bad dump are one line", "[view]") {
  const test::TempDir folder;
  const fs::path picture = folder / "none.png";
  const ProcessResult nowhere = test::run_kvreplay({"view", folder / "not there", "--screenshot", picture});
  check_one_line(nowhere);
  CHECK(contains(nowhere.err, "not there"));

  fs::create_directory(folder / "bad");
  fs::copy(test::sample_dump(), folder / "bad", fs::copy_options::recursive);
  for (const auto& file : fs::recursive_directory_iterator(folder / "bad"))
    if (file.path().extension() == ".npy") {
      fs::resize_file(file.path(), fs::file_size(file.path()) - 7);
      break;
    }
  const ProcessResult bad = test::run_kvreplay({"view", folder / "bad", "--screenshot", picture});
  check_one_line(bad);
  CHECK(contains(bad.err, ".npy"));
  CHECK_FALSE(fs::exists(picture));
}

TEST_CASE("kvreplay view: a panel or a score that is none is one line", "[view]") {
  const test::TempDir folder;
  const fs::path picture = folder / "none.png";
  const auto refused = [&](std::vector<std::string> options, const char* word) {
    options.insert(options.begin(), {"view", test::sample_dump(), "--screenshot", picture});
    const ProcessResult result = test::run_kvreplay(options);
    check_one_line(result);
    CHECK(contains(result.err, word));
    CHECK_FALSE(fs::exists(picture));
  };
  refused({"--panel", ""}, "--panel: expected one of heads, text, tokens");
  refused({"--panel", "heat"}, "found 'heat'");
  refused({"--score", "x=/nonexistent.npy"}, "/nonexistent.npy: expected a readable file");
}

TEST_CASE("kvreplay view: one bad path among others is not passed over", "[view]") {
  const test::TempDir folder;
  const fs::path picture = folder / "none.png";
  const ProcessResult result =
      test::run_kvreplay({"view", folder / "not there", test::sample_dump(), "--screenshot", picture});
  check_one_line(result);
  CHECK(contains(result.err, "not there"));
  CHECK_FALSE(fs::exists(picture));
}

TEST_CASE("kvreplay view: what cannot be computed makes no picture", "[view]") {
  const test::TempDir folder;
  fs::copy(test::sample_dump(), folder / "dump", fs::copy_options::recursive);
  std::fstream array(folder / "dump/layer_00/v.npy", std::ios::in | std::ios::out | std::ios::binary);
  array.seekp(-2, std::ios::end);
  array.write("\xff\x7f", 2);  // a NaN, in float16 and in bfloat16
  array.close();
  const fs::path picture = folder / "none.png";
  const ProcessResult result =
      test::run_kvreplay({"view", folder / "dump", "--screenshot", picture, "--panel", "heads"});
  check_one_line(result);
  CHECK(contains(result.err, "layer_00/v.npy: expected finite values"));
  CHECK_FALSE(fs::exists(picture));
}

TEST_CASE("kvreplay view: a picture of a session, which stays as it is", "[view]") {
  const test::TempDir folder;
  const fs::path session = folder / "session.json", picture = folder / "session.png";
  const std::string path = test::sample_dump();
  const auto take = [&](const std::string& text) {
    fs::remove(picture);
    std::ofstream(session) << text;
    const ProcessResult result = test::run_kvreplay({"view", "--session", session, "--screenshot", picture});
    CHECK(test::file_text(session) == text);
    CHECK(fs::exists(picture) == (result.code == 0));
    return result;
  };
  const ProcessResult shown =
      take(R"({"version": 1, "runs": [")" + path + R"("], "window": {"width": 400, "height": 300}})");
  INFO(shown.err);
  REQUIRE(shown.code == 0);
  CHECK(test::Picture(picture).width == 400);
  const std::pair<std::string, const char*> bad[] = {
      {R"({"n_layers": 2})", "session.json: expected a session of the dashboard, found another file"},
      {"notes\n", "session.json: expected a session of the dashboard, found another file"},
      {R"({"version": 1, "theme": "pink"})", "session.json: session.theme: expected a known name"},
      {R"({"version": 1})", "--screenshot: expected a dump or a result folder to show"},
      {R"({"version": 1, "runs": [")" + path + R"("], "scores": ["="]})",
       "expected name=FILE.npy, found '='"},
  };
  for (const auto& [text, line] : bad) {
    const ProcessResult result = take(text);
    check_one_line(result);
    CHECK(contains(result.err, line));
  }
  for (const char* option : {"--session", "--size"}) {
    const ProcessResult result = test::run_kvreplay({"view", path, "--screenshot", picture, option, ""});
    check_one_line(result);
    CHECK(contains(result.err, std::string(option) + ": expected a value, found ''"));
  }
}

TEST_CASE("kvreplay-viewer: without OpenGL 3.3 there is one line and exit 2", "[view]") {
  const test::TempDir folder;
  const fs::path picture = folder / "none.png";
  for (const char* poor : {"MESA_GL_VERSION_OVERRIDE=3.2", "__EGL_VENDOR_LIBRARY_FILENAMES=/nowhere.json"}) {
    INFO(poor);
    const ProcessResult result = run_with({poor}, {kViewer, test::sample_dump(), "--screenshot", picture});
    check_one_line(result);
    CHECK(contains(result.err, "OpenGL 3.3"));
    CHECK(contains(result.err, "surfaceless EGL: "));
    CHECK(contains(result.err, "libegl1 and libgl1-mesa-dri"));
    CHECK_FALSE(fs::exists(picture));
  }
}

TEST_CASE("kvreplay-viewer: without a display there is one line and exit 2", "[view]") {
  const ProcessResult result =
      run_with({"-u", "WAYLAND_DISPLAY", "DISPLAY=:65000"}, {kViewer, test::sample_dump(), "--fresh"});
  check_one_line(result);
#ifdef KVREPLAY_WINDOW
  CHECK(contains(result.err, "expected a display"));
#else
  CHECK(contains(result.err, "built without GLFW"));
#endif
  CHECK(contains(result.err, "--serve shows it in a browser, --screenshot FILE.png draws"));
}
