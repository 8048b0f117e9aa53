#pragma once

#include "analysis/results/recorded_files.hpp"
#include "data/dump.hpp"
#include "data/error.hpp"

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// What is kept of a finished layer: the figures that tables are made of, and the files that were written. As
/// bytes: [fingerprint][figures, float64][files, as a CSV][the CSV's size][XXH3 of all before].
struct LayerRecord {
  std::string fingerprint;  ///< of the layer in the dump
  std::vector<double> figures;
  std::vector<RecordedFile> files;
};

std::string bytes_of(const LayerRecord& record);

/// The layer was computed from another dump.
class OtherDump : public InputError {
 public:
  OtherDump(const std::filesystem::path& folder, Index layer);
};

/// The record of this name below `folder`. Throws InputError where it is not as it was written, OtherDump
/// where the layer's fingerprint is not `fingerprint`.
LayerRecord read_layer_record(const std::filesystem::path& folder, const std::filesystem::path& name,
                              Index layer, std::string_view fingerprint);

}  // namespace kvreplay
