#pragma once

#include "analysis/eviction/eviction_plan.hpp"

#include <CLI/CLI.hpp>

namespace kvreplay {

/// The options of `evict`; the struct must outlive the parsing.
void add_eviction_options(CLI::App& app, EvictionOptions& options);

}  // namespace kvreplay
