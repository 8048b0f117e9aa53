#include "tests/support/places.hpp"

#include <cstdlib>

namespace kvreplay::test {

std::filesystem::path source_dir() { return KVREPLAY_SOURCE_DIR; }
std::filesystem::path program() { return KVREPLAY_PROGRAM; }
std::filesystem::path viewer_program() { return KVREPLAY_VIEWER_PROGRAM; }
std::filesystem::path device_program() {
  const char* const named = std::getenv("KVREPLAY_DEVICE_PROGRAM");
  return named != nullptr ? named : KVREPLAY_EMULATED_PROGRAM;
}
std::filesystem::path mpirun() { return KVREPLAY_MPIRUN; }

}  // namespace kvreplay::test
