#include "analysis/capture/capture.hpp"
#include "data/error.hpp"

// In place of llama_capture.cpp where there is no llama.cpp.

namespace kvreplay {

std::vector<CapturedDump> capture(const CaptureOptions&, Workers&) {
  throw InputError(
      "capture: this build has no llama.cpp; build with cmake --preset release -DKVREPLAY_CAPTURE=ON "
      "(data/capture/README.md), or use data/capture/kvcapture.py --gguf");
}

}  // namespace kvreplay
