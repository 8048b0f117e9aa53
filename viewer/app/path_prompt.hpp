#pragma once

#include "viewer/work/desk.hpp"
#include "viewer/work/folder_listing.hpp"

#include <filesystem>
#include <optional>
#include <string>

namespace kvreplay::viewer {

/// A field for a path with what lies there below it: Tab completes, a click on a folder goes into it, on a
/// dump or results opens it.
class PathPrompt {
 public:
  /// Empty again; what lies in folders is looked up anew.
  void begin();
  /// Draws as wide as there is room; the list takes at most `height` pixels. The path that was chosen.
  std::optional<std::filesystem::path> draw(Desk& desk, const char* hint, float height, bool take_keyboard);
  const std::string& typed() const { return typed_; }

 private:
  std::string typed_;
  int begun_ = 0;
  bool to_end_ = false;  ///< the cursor goes behind what a click put there
};

}  // namespace kvreplay::viewer
