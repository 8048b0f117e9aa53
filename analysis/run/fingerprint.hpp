#pragma once

#include "data/dump.hpp"
#include "sim/schedule.hpp"

#include <map>
#include <span>
#include <string>

namespace kvreplay {

/// 16 hex digits that tell dumps of different make apart: a hash of manifest.json and of every array's name
/// in the folder, type and shape. Independent of where the folder lies and of what the arrays hold.
std::string fingerprint(const Dump& dump);

/// 16 hex digits a layer, of all that its arrays hold: every file that has some of it is read once, whole.
std::map<Index, std::string> layer_fingerprints(const Dump& dump, std::span<const Index> layers,
                                                Workers& workers);

}  // namespace kvreplay
