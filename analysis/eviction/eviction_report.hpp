#pragma once

#include "analysis/eviction/eviction_tables.hpp"

#include <string>

namespace kvreplay {

/// A short plain text: the output error and the recall of every policy at every budget over the whole model,
/// and how far semantics differ.
std::string eviction_report(const EvictionPlan& plan, const EvictionTable& table);

}  // namespace kvreplay
