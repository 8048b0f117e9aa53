#include "analysis/commands/commands.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr const char* kViewer = "kvreplay-viewer";

/// Beside this program first, then along PATH; empty where there is none.
fs::path find_viewer() {
  std::error_code ignored;
  const fs::path beside = fs::read_symlink("/proc/self/exe", ignored).parent_path() / kViewer;
  if (access(beside.c_str(), X_OK) == 0) return beside;
  const char* path = std::getenv("PATH");
  std::string folders = path != nullptr ? path : "";
  for (std::size_t at = 0; at <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', at), folders.size());
    const fs::path candidate = fs::path(folders.substr(at, end - at)) / kViewer;
    if (end > at && access(candidate.c_str(), X_OK) == 0) return candidate;
    at = end + 1;
  }
  return {};
}

}  // namespace

/// The dashboard is a program of its own, so that this one needs no graphics libraries: it takes this process
/// over, with all arguments.
int run_view(const Arguments& arguments) {
  const fs::path viewer = find_viewer();
  if (viewer.empty())
    throw InputError(fmt::format(
        "view: {} is neither beside kvreplay nor on the PATH; it is built where Dear ImGui and OpenGL are "
        "(Debian: libimgui-dev libstb-dev libgl-dev libegl-dev, for --serve libcivetweb-dev, for a window "
        "libglfw3-dev); without it kvreplay report writes a page of results",
        kViewer));
  std::vector<std::string> all = {viewer.string()};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : all) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(viewer.c_str(), argv.data());
  throw InputError(fmt::format("{}: cannot be started: {}", viewer.string(), std::strerror(errno)));
}

}  // namespace kvreplay
