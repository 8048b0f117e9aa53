#include "sim/freed_memory.hpp"

#include <benchmark/benchmark.h>

int main(int argc, char** argv) {
  kvreplay::keep_freed_memory();  // as the program does
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
