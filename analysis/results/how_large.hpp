#pragma once

#include "analysis/results/result_reader.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

// How large a difference of two output errors has to be: what stands beside tables of them.

namespace kvreplay {

/// What was kept, by its output error and by the nats that it is predicted to cost (loss_step), on the same
/// rows. Two are compared where all but who chose the tokens is alike.
struct JudgedCase {
  std::string setting;
  double output_error = 0, nats = 0;
};
/// The evictions of a finished folder, on the decoding steps where there are any; none without gradients.
std::vector<JudgedCase> judged_cases(const ResultReader& results);

/// Of these cases: how often two output errors have the order of the predicted nats, by how far they are
/// apart, and what the cases cost. Where there are none what was measured elsewhere (tests/research/README.md).
std::string how_large(std::span<const JudgedCase> cases);

/// What predicted nats promise, and of what: stands beside headlines in nats; measured (sim/loss/LOSS.md).
inline constexpr const char* kNatsPromise =
    "predicted nats order policies better than they size what is lost: loss_step was 0.68, 0.77 and 1.03 "
    "times "
    "the true KL in the median on SmolLM2-135M, Gemma-3-270m and pystdlib-lm with 128 steps of running text, "
    "and "
    "0.31 on a Qwen2.5-Coder-0.5B prompt whose answer copies from the prompt";

}  // namespace kvreplay
