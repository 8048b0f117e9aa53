#pragma once

#include "viewer/model/camera.hpp"
#include "viewer/model/key.hpp"

#include <map>
#include <string>
#include <utility>

namespace kvreplay::viewer {

/// What views of several panels have in common.
struct HeatmapLinks {
  bool unfinished = false;  ///< a heatmap needs another frame for what it could not bring to the screen yet
  bool joined = false;
  struct Shared {
    AxisView axis;
    int pixels = 1;
  };
  std::map<Key, Shared> columns;  ///< by HeatmapContent::link
  bool locked = false;
  std::map<std::string, std::pair<float, float>> ranges;  ///< by unit
};

}  // namespace kvreplay::viewer
