#include "analysis/capture/capture.hpp"
#include "analysis/capture/judge.hpp"
#include "data/error.hpp"

// In place of llama_*.cpp where there is no llama.cpp.

namespace kvreplay {
namespace {

[[noreturn]] void fail() {
  throw InputError(
      "capture: this build has no llama.cpp; build with cmake --preset release -DKVREPLAY_CAPTURE=ON "
      "(data/capture/README.md), or use data/capture/kvcapture.py --gguf");
}

}  // namespace

std::vector<CapturedDump> capture(const CaptureOptions&, Workers&) { fail(); }
Judgement judge(const JudgeOptions&, Workers&) { fail(); }

}  // namespace kvreplay
