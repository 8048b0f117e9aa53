#pragma once

#include "sim/schedule.hpp"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace kvreplay {

struct JudgeOptions {
  std::filesystem::path model;    ///< a GGUF file
  std::filesystem::path results;  ///< of `evict --policy none --bits ...`
  bool force = false;             ///< replace a validation
  std::function<void(Index done, Index total)> on_progress;
};

struct Judgement {
  std::vector<std::pair<std::string, double>> cases;  ///< by policy: nats a decoding step
  std::vector<std::string> left_out;                  ///< policies that are no format of llama.cpp
  double floor = 0;  ///< nats a step of a 16-bit cache without flash attention, which is arithmetic alone
};

/// Runs the model over a dump's tokens with llama.cpp's cache in every format that the results have, and
/// writes KL from its 16-bit cache into the results' validate.csv, as protocol `written`. Throws InputError
/// where the dump is gone or another model's, where no case is a format of llama.cpp, and where the results
/// have a validation already.
Judgement judge(const JudgeOptions& options, Workers& workers);

}  // namespace kvreplay
