#pragma once

#include "viewer/work/decode_view.hpp"
#include "viewer/work/run.hpp"

#include <string>

namespace kvreplay::viewer {

/// Budget (where linked, the desk's), phase, semantics, and behind a button window, pooling and pins. True
/// where something changed.
bool edit_decoding(const Run& run, KeptBudget& desk, DecodeSettings& settings);
/// A button with a menu of the policies that can decode on this dump; the one chosen, or empty.
std::string add_policy(const Run& run, const DecodeSettings& settings);
/// A slider for the step in [0, steps); true where it changed. What follows it on the line says the position
/// and, where there is room, its token.
bool edit_step(const Run& run, Index steps, Index first_step, Index& step);

}  // namespace kvreplay::viewer
