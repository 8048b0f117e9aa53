#pragma once

#include "data/dump.hpp"

#include <string>

namespace kvreplay {

/// 16 hex digits that tell one dump from another without reading it whole: a hash of manifest.json and of
/// every file's name in the folder, size, first and last 64 KiB. Independent of where the folder lies.
std::string fingerprint(const Dump& dump);

}  // namespace kvreplay
