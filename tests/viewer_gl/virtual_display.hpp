#pragma once

#include "tests/support/catch.hpp"
#include "tests/support/process.hpp"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace kvreplay::test {

/// An X server without a screen, while in scope; DISPLAY names it.
class VirtualDisplay {
 public:
  static constexpr const char* kServer = "/usr/bin/Xvfb";
  static bool installed() { return std::filesystem::exists(kServer); }

  VirtualDisplay() : number_(folder_ / "number") {
    // The server finds a free number itself and writes it down.
    const std::string script = fmt::format(
        "exec {} -displayfd 3 -screen 0 1024x768x24 -nolisten tcp -noreset 3>{}", kServer, number_.string());
    server_.emplace(std::vector<std::string>{"/bin/sh", "-c", script});
    for (int i = 0; i < 200 && number().empty(); ++i) {
      if (!server_->running()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    REQUIRE_FALSE(number().empty());
    const char* before = std::getenv("DISPLAY");
    if (before != nullptr) before_ = before;
    ::setenv("DISPLAY", fmt::format(":{}", number()).c_str(), 1);
    ::unsetenv("WAYLAND_DISPLAY");
  }
  VirtualDisplay(const VirtualDisplay&) = delete;
  VirtualDisplay& operator=(const VirtualDisplay&) = delete;
  ~VirtualDisplay() {
    if (before_)
      ::setenv("DISPLAY", before_->c_str(), 1);
    else
      ::unsetenv("DISPLAY");
    // Asked, it removes its lock and its socket.
    server_->send(SIGTERM);
    server_->wait();
  }

 private:
  std::string number() const {
    std::ifstream in(number_);
    std::string text;
    std::getline(in, text);
    return in.eof() ? "" : text;  // not the whole line yet
  }

  TempDir folder_;
  std::filesystem::path number_;
  std::optional<Process> server_;
  std::optional<std::string> before_;
};

/// What X11's OpenGL drivers leave behind when GLFW unloads them has no name that a suppression could give;
/// the hosts without a display are checked for leaks of ours.
struct DriversMayLeak {
#if defined(__SANITIZE_ADDRESS__)
  __lsan::ScopedDisabler off;
#endif
  DriversMayLeak() {}
};

}  // namespace kvreplay::test
