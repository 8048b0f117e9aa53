#pragma once

#include "data/dump.hpp"
#include "sim/schedule.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// One capture of a GGUF file: a dump for every prompt, or the sizes that the dumps would have.
struct CaptureOptions {
  std::filesystem::path model;                 ///< a GGUF file
  std::vector<std::filesystem::path> prompts;  ///< texts; the model is read once
  bool chat = false;                           ///< a text is what a user says, in the model's chat template
  std::vector<std::filesystem::path>
      messages;  ///< of conversations; a last turn of the assistant's is decoded
  std::optional<std::filesystem::path> continued;  ///< a text whose tokens are the decoding steps
  std::optional<Index> prompt_len;                 ///< the tokens behind these are decoding steps
  Index decode = 128;  ///< decoding steps, greedy; at most as many of a text's tokens
  Dtype dtype = Dtype::f16;
  bool wo = false;            ///< with the output projections, dequantized
  std::string name;           ///< the manifest's model name; empty: the GGUF's own
  std::filesystem::path out;  ///< the dump, or the folder of several, each named by its prompt's file
  bool force = false;         ///< replace a dump
  bool resume = false;        ///< keep dumps of these prompts that are there
  bool estimate = false;      ///< sizes and time only
  std::function<std::vector<Index>(Index)> layers;  ///< chosen of so many, ascending
  std::function<void(Index done, Index total)> on_progress;
};

struct CapturedDump {
  std::filesystem::path folder;
  Index layers = 0, prompt = 0, decode = 0;
  std::uint64_t bytes = 0;             ///< of the arrays
  bool was_there = false;              ///< kept as it is
  double deviation = 0;                ///< of o from attention over the files, of a row's norm; the largest
  std::optional<Index> ended = {};     ///< the greedy step at which the model ended its text
  std::optional<double> seconds = {};  ///< an estimate's: about so long, on this machine
};

/// Runs the model over the prompts with llama.cpp and writes the dumps, on `workers.threads()` threads.
/// q, k and v are rounded to the files' dtype where llama.cpp computes them, and the model goes on from
/// there, with a float32 cache: o follows from the files. Each dump is checked (largest_deviation()) and
/// then appears under its name, whole. Memory: model, cache, one chunk of rows. Throws InputError for what
/// cannot be captured, Interrupted where `workers` are stopped; neither leaves a part of a dump.
std::vector<CapturedDump> capture(const CaptureOptions& options, Workers& workers);

}  // namespace kvreplay
