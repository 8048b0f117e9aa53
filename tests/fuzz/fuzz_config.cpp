// Any text as a file of --config: refused with an InputError, or options with values.

#include "analysis/commands/arguments.hpp"
#include "analysis/eviction/evict_stage.hpp"
#include "data/error.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <unistd.h>

using namespace kvreplay;

namespace kvreplay {
Ranks& this_run() {  // as the program's main() has it
  static Ranks alone;
  return alone;
}
}  // namespace kvreplay

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const std::string file = "/dev/shm/kvreplay-config-" + std::to_string(::getpid()) + ".toml";
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  const auto app = make_app("evict", "", "");
  CommonOptions common;
  EvictionOptions options;
  common.add_dumps(*app);
  common.add_results(*app);
  app->add(bound(options));
  common.add_compute(*app);
  common.add_output(*app);
  try {
    with_dashes([&] { parse(*app, {"--config", file, "dump"}); });
    if (common.dumps.empty()) std::abort();
  } catch (const InputError&) {
  }
  ::unlink(file.c_str());
  return 0;
}
