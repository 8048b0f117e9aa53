#pragma once

#include "analysis/engine/engine.hpp"
#include "analysis/recommend/levers.hpp"

#include <optional>
#include <string>

// Measured cases that an engine cannot run exactly as they were measured.

namespace kvreplay::recommend {

/// Why an engine cannot run a case; nothing where it can.
std::optional<Mismatch> why_left_out(const MeasuredLevers& measured, const Lever& lever, Engine engine);

/// How many cases an engine cannot run, and why: one line, the most frequent reasons first. Empty without
/// one.
std::string left_out_text(const MeasuredLevers& measured, Engine engine);

}  // namespace kvreplay::recommend
