#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <algorithm>
#include <string>
#include <sys/resource.h>

using namespace kvreplay::test;

namespace {

/// The largest resident size of any child so far, in bytes.
double largest_child() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

}  // namespace

TEST_CASE("the memory of a run does not grow with the number of layers", "[memory]") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  WARN("skipped: sanitizers have memory of their own");
  SUCCEED();
#else
  const TempDir folder;
  const auto peak_with = [&](int layers) {
    const std::string dump = (folder.path() / std::to_string(layers)).string();
    // 3 MiB a layer: 24 layers hold 70 MiB.
    REQUIRE(run_kvreplay({"synth", dump, "--layers", std::to_string(layers), "--q-heads", "2", "--kv-heads",
                          "2", "--head-dim", "64", "--prompt", "1500", "--decode", "8"})
                .code == 0);
    const double before = largest_child();
    REQUIRE(run_kvreplay({"tokens", dump, "--out", dump + "-out", "--threads", "2"}).code == 0);
    return std::max(before, largest_child());
  };
  const double few = peak_with(2), many = peak_with(24);
  INFO(few / 1048576 << " MiB with 2 layers, " << many / 1048576 << " MiB with 24");
  CHECK(many < few + 24.0 * 1048576);
#endif
}
