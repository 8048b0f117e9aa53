#include "sim/backend/backend_cuda.hpp"
#include "sim/backend/plugin.hpp"
#include "sim/cuda/runtime.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <link.h>
#include <string>
#include <system_error>
#include <vector>

// In the place of the CUDA backend where the build has none.

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

/// Folder of the program or of the extension module that contains this code.
fs::path own_folder() {
  Dl_info info{};
  void* object = nullptr;
  if (::dladdr1(kPluginBuild, &info, &object, RTLD_DL_LINKMAP) == 0) return {};
  const char* const name = static_cast<const link_map*>(object)->l_name;  // empty: the program
  std::error_code none;
  return fs::canonical(*name == '\0' ? "/proc/self/exe" : name, none).parent_path();
}

/// The plug-in's file: the one that KVREPLAY_CUDA_PLUGIN names, else that beside us, else that of a Python
/// package beside ours, for the newest CUDA; empty where there is none.
fs::path plugin_file() {
  std::error_code none;
  if (const char* const named = std::getenv("KVREPLAY_CUDA_PLUGIN"); named != nullptr && *named != '\0')
    return fs::absolute(named, none);
  const fs::path folder = own_folder();
  if (folder.empty()) return {};
  std::vector<fs::path> folders = {folder};
  for (const fs::path& package : {folder, folder.parent_path()})  // the module's; the program's is bin/
    if (fs::exists(package / "__init__.py", none))
      for (const char* const name : {"kvreplay_cuda13", "kvreplay_cuda12"})
        folders.push_back(package.parent_path() / name);
  for (const fs::path& each : folders)
    if (fs::path file = each / "libkvreplay_cuda.so"; fs::exists(file, none)) return file;
  return {};
}

struct Loaded {
  const CudaPlugin* plugin = nullptr;
  std::string why_not;
};

Loaded load() {
  const fs::path file = plugin_file();
  if (file.empty()) return {nullptr, "this build has no CUDA backend, and no plug-in with one was found"};
  const std::string not_loaded = "the CUDA plug-in is not loaded: ";
  // Never closed: what it made, exceptions too, may live to the end.
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {nullptr, not_loaded + ::dlerror()};
  const auto* const plugin = static_cast<const CudaPlugin*>(::dlsym(library, "kvreplay_cuda_plugin"));
  if (plugin == nullptr) return {nullptr, not_loaded + file.string() + " is another library"};
  if (plugin->build != std::string(kPluginBuild))
    return {nullptr,
            not_loaded + file.string() + " is built for " + plugin->build + ", this is " + kPluginBuild};
  return {plugin, ""};
}

/// Looked for at the first question.
const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

std::vector<ComputeDevice> cuda_devices() {
  return loaded().plugin != nullptr ? loaded().plugin->devices() : std::vector<ComputeDevice>{};
}

std::string why_no_cuda() {
  return loaded().plugin != nullptr ? loaded().plugin->why_none() : loaded().why_not;
}

bool too_little_for_cuda(double multiply_adds) {
  return loaded().plugin != nullptr && loaded().plugin->too_little(multiply_adds);
}

std::shared_ptr<const Backend> cuda_backend(bool falls_back, Products products, const CudaChoice& choice) {
  if (loaded().plugin == nullptr) throw cuda::DeviceError(loaded().why_not);
  return loaded().plugin->backend(falls_back, products, choice);
}

}  // namespace kvreplay
