#pragma once

#include "analysis/commands/arguments.hpp"
#include "analysis/engine/engine.hpp"

#include <string>
#include <vector>

namespace kvreplay {

/// A model and prompts in place of results: what `recommend --model` measures.
struct FromModel {
  std::string model;                 ///< a GGUF file
  std::vector<std::string> prompts;  ///< texts, conversations (.json, .jsonl), or folders of these
  Index max = 16;                    ///< prompts at most
  Index decode = 64;                 ///< decoding steps of a text
  std::string work;                  ///< folder of dumps and results
};

/// Measures the prompts' caches with every setting that recipes or the engine can have: runs `capture` and
/// `evict`, and for llama.cpp `capture --judge`, each printed as the command that does it alone. What is
/// there stays. Returns the result folder. Throws InputError where a step refuses.
std::string measure(const FromModel& from, Engine engine, const CommonOptions& output);

}  // namespace kvreplay
