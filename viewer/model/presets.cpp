#include "viewer/model/presets.hpp"

namespace kvreplay::viewer {

Layout layout_for(Preset preset) { return Layout::from_json(nlohmann::json::parse(kPresets[preset].layout)); }

}  // namespace kvreplay::viewer
