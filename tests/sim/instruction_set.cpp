// KVREPLAY_TEST_INSTRUCTIONS=avx2|plain takes the kernels of a lesser processor than this one.
#include <hwy/targets.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

[[maybe_unused]] const bool chosen = [] {
  const char* name = std::getenv("KVREPLAY_TEST_INSTRUCTIONS");
  if (name == nullptr) return false;
  const std::string_view wanted = name;
  int64_t targets = 0;
  if (wanted == "avx2")
    targets = HWY_AVX2;
  else if (wanted == "plain")
    targets = HWY_EMU128 | HWY_SCALAR;
  else {
    std::fprintf(stderr, "KVREPLAY_TEST_INSTRUCTIONS: expected avx2 or plain, found %s\n", name);
    std::exit(2);
  }
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(targets);
  return true;
}();

}  // namespace
