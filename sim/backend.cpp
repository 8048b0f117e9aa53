#include "sim/backend.hpp"

namespace kvreplay {

const Backend& cpu_backend() {
  static const Backend backend;
  return backend;
}

}  // namespace kvreplay
