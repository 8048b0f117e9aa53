#pragma once

#include "sim/head_group.hpp"
#include "tests/bench/cuda_floor.hpp"
#include "tests/bench/cuda_report.hpp"

// The benchmark's parts, each a table.

namespace kvreplay::bench {

struct BenchOptions {
  Index tokens = 32768;        ///< l; four times as many where it is long
  int repeats = 10;            ///< samples of each median, at least
  double least_seconds = 0.2;  ///< that they take together, or else ten times as many
};

struct Bench {
  BenchOptions options;
  cuda::DeviceInfo device;
  DeviceFacts facts;
  DeviceFloor floor;
  Report& report;
};

/// Column sums of a small group on the device beside the CPU's; throws std::runtime_error where they differ
/// by more than rounding.
void check_section(Bench& bench);
/// Every row in the window: each pass and both.
void window_section(Bench& bench);
/// The last 32 rows, 1 and 4 query heads.
void rows_section(Bench& bench);
/// Both of these of weights alone.
void weights_section(Bench& bench);
/// A run of head groups from pinned host memory to their sums.
void transfer_section(Bench& bench);
/// The longest prompt, every row, 4 query heads: time and device memory.
void long_section(Bench& bench);

}  // namespace kvreplay::bench
