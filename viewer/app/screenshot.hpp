#pragma once

#include "viewer/app/app.hpp"

#include <filesystem>
#include <optional>
#include <string>

namespace kvreplay::viewer {

struct ScreenshotOptions {
  int width = 1280, height = 800;  ///< points
  float scale = 1;                 ///< pixels a point
  std::string panel;               ///< a panel's name: it fills the picture; empty: all panels
  std::optional<Index> layer, kv_head, query_head, row, token;
};

/// Draws without a display until everything in the picture is computed, then writes the PNG. Throws
/// InputError where a path cannot be opened, a selection lies outside it, or the picture cannot be written.
void take_screenshot(AppOptions app, const ScreenshotOptions& options, const std::filesystem::path& path);

/// What was asked for on the command line, once the first run is open; nothing happens before.
void select_at_start(App& app, const ScreenshotOptions& options);

}  // namespace kvreplay::viewer
