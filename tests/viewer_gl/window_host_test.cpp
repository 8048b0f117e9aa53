#include "viewer/gl/window_host.hpp"

#include "data/error.hpp"
#include "tests/support/catch.hpp"
#include "tests/viewer_gl/clients.hpp"
#include "tests/viewer_gl/virtual_display.hpp"
#include "viewer/gl/frame_buffer.hpp"

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

// The window itself, on a virtual display.

namespace kvreplay::viewer {
namespace {

using test::DriversMayLeak;
using test::VirtualDisplay;

class WindowClient : public ButtonClient {
 public:
  std::vector<Rgb> picture;
  int width = 0, height = 0;
  int quit_after = 1 << 30;
  std::string name = "first";

  void drawn(int w, int h) override {
    width = w;
    height = h;
    picture = read_pixels(w, h, FirstRow::last);
  }
  bool quit() const override { return frames >= quit_after; }
  std::string title() const override { return name; }
};

TEST_CASE("window: opens, draws, sleeps, wakes and closes on a virtual display", "[viewer][gl][window]") {
  if (!VirtualDisplay::installed()) {
    WARN("skipped: Xvfb is not installed");
    return;
  }
  const VirtualDisplay display;
  const DriversMayLeak drivers;
  WindowClient client;
  {
    WindowHost host(client, {640, 480});
    for (int i = 0; i < 5; ++i) {
      WindowHost::wake();
      REQUIRE(host.step());
    }
    CHECK(client.frames == 5);
    CHECK(client.width == 640);
    CHECK(client.height == 480);
    CHECK(client.scales == std::vector<float>{1});
    CHECK(host.size().width == 640);
    CHECK(host.size().height == 480);
    REQUIRE(client.picture.size() == 640U * 480U);
    CHECK_FALSE(client.picture[30 * 640 + 25] == client.picture[300 * 640 + 300]);  // button and ground

    // Once all has settled it sleeps until another thread wakes it.
    using Clock = std::chrono::steady_clock;
    std::thread later;
    const int settled = client.frames;
    const auto start = Clock::now();
    later = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      WindowHost::wake();
    });
    while (Clock::now() - start < std::chrono::milliseconds(650)) host.step();
    later.join();
    CHECK(client.frames - settled < 20);

    client.quit_after = client.frames + 3;
    client.name = "second";
    host.run();
    CHECK(client.frames == client.quit_after);
  }
  // And again in the same process.
  WindowClient other;
  other.quit_after = 2;
  WindowHost host(other);
  host.run();
  CHECK(other.frames == 2);
}

TEST_CASE("window: without a display there is one line that says so", "[viewer][gl][window]") {
  const char* display = std::getenv("DISPLAY");
  const std::optional<std::string> before =
      display == nullptr ? std::nullopt : std::optional<std::string>(display);
  ::setenv("DISPLAY", ":65000", 1);
  std::string message;
  try {
    WindowClient client;
    const WindowHost host(client);
  } catch (const InputError& error) {
    message = error.what();
  }
  if (before)
    ::setenv("DISPLAY", before->c_str(), 1);
  else
    ::unsetenv("DISPLAY");
  CHECK(message.find("expected a display") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
  WindowHost::wake();  // nothing to wake
}

}  // namespace
}  // namespace kvreplay::viewer
