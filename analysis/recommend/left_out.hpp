#pragma once

#include "analysis/engine/engine.hpp"
#include "analysis/recommend/levers.hpp"

#include <optional>
#include <string>

// Measured cases that an engine cannot run exactly as they were measured.

namespace kvreplay::recommend {

/// The reason why an engine cannot run a case; nothing if it can.
std::optional<Mismatch> why_left_out(const MeasuredLevers& measured, const Lever& lever, Engine engine);

/// The number of cases that an engine cannot run, with the reasons, the most frequent first: one line. Empty
/// if there are none.
std::string left_out_text(const MeasuredLevers& measured, Engine engine);

/// The format of the engine that loses most over the keys centered, where centering is a cure: one line.
/// Empty if none was measured, or none loses kDecides times less.
std::string centering_text(const MeasuredLevers& measured, Engine engine);

}  // namespace kvreplay::recommend
