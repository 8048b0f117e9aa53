#pragma once

#include "data/dump.hpp"

#include <string>

namespace kvreplay {

/// 16 hex digits that tell dumps of different make apart: a hash of manifest.json and of every array's name
/// in the folder, type and shape. Independent of where the folder lies and of what the arrays hold.
std::string fingerprint(const Dump& dump);

/// The same of what one layer's arrays hold, without reading them whole: the first and last 64 KiB of every
/// file.
std::string layer_fingerprint(const Dump& dump, Index layer);

}  // namespace kvreplay
