#include "viewer/questions/run.hpp"

#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/on_queue.hpp"

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

TEST_CASE("run: a layer that holds other numbers than its results is not shown, the others are") {
  const TempDir dir;
  succeed({"synth", dir / "dump", "--layers", "2", "--prompt", "40", "--decode", "4"});
  succeed({"tokens", dir / "dump", "--out", dir / "r", "--quiet"});
  Npy keys = npy_file(dir / "dump/layer_01/k.npy");
  keys.data.back() ^= 1;  // as many bytes, another number
  write_file(dir / "dump/layer_01/k.npy", keys.bytes());

  const auto run = Run::open(dir / "r", 1);
  REQUIRE(run->dump());
  CHECK(run->head(0, 0));
  const std::string line = refusal_of([&] { run->head(1, 0); });
  INFO(line);
  CHECK(contains(line, "layer 1 holds other numbers than when"));
  CHECK(lines(line + "\n") == 1);
}
