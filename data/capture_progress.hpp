#pragma once

#include "data/dump.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

/// How far a capture came that did not end: data/capture/kvcapture.py writes layer_NN/{q,k,v,o}.npy full of
/// zeros first and fills them position by position.
struct CaptureProgress {
  struct Layer {
    Index written = 0;    ///< positions that q, k, v and o all hold, from the first on
    Index positions = 0;  ///< that they are to hold
    std::string fault;    ///< the first file that is missing or cut short, as one clause; empty where none is
    bool whole() const { return fault.empty() && written == positions; }
  };
  std::string model;  ///< empty where the manifest does not say
  std::vector<Layer> layers;

  Index whole_layers() const;
};

/// Nothing where manifest.json does not say `"incomplete": true` or there is none. Reads a row of every array
/// a few times, never an array. Throws InputError where the manifest is broken.
std::optional<CaptureProgress> capture_progress(const std::filesystem::path& dump);

}  // namespace kvreplay
