#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"

using namespace kvreplay::test;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasurable = false;  // sanitizers have memory of their own
#else
constexpr bool kMeasurable = true;
#endif
constexpr std::size_t kMiB = std::size_t{1} << 20;

std::size_t peak_bytes(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--quiet", "--threads", "2"});
  const ProcessResult done = succeed(arguments);
  return done.peak_bytes;
}

std::size_t size_of(const std::string& folder) {
  std::size_t bytes = 0;
  for (const auto& [name, text] : contents(folder)) bytes += text.size();
  return bytes;
}

}  // namespace

TEST_CASE("a long prompt as its own window stays far below l^2 memory", "[cli][memory]") {
  if (!kMeasurable) {
    WARN("skipped: sanitizers have memory of their own");
    return;
  }
  const TempDir temp;
  succeed({"synth", temp / "d", "--layers", "1", "--q-heads", "2", "--kv-heads", "1", "--head-dim", "32",
           "--prompt", "16384", "--decode", "4"});
  const std::size_t peak = peak_bytes({"tokens", temp / "d", "--out", temp / "r", "--window", "16384"});
  CHECK(peak < size_of(temp / "d") + 400 * kMiB);  // one l x l matrix would be 1 GiB
}

TEST_CASE("memory does not grow with the number of layers", "[cli][memory]") {
  if (!kMeasurable) {
    WARN("skipped: sanitizers have memory of their own");
    return;
  }
  const TempDir temp;
  succeed({"synth", temp / "d", "--layers", "16", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "64",
           "--prompt", "2048", "--decode", "4"});
  const std::size_t two = peak_bytes({"tokens", temp / "d", "--out", temp / "2", "--layers", "0-1"});
  const std::size_t all = peak_bytes({"tokens", temp / "d", "--out", temp / "16"});
  INFO("2 layers: " << two / 1024 << " KiB, 16 layers: " << all / 1024 << " KiB");
  CHECK(all < two + 8 * kMiB);  // a layer's files are 4 MiB and more
}
