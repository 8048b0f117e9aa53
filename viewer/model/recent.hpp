#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace kvreplay::viewer {

inline constexpr std::size_t kMostRecent = 10;

/// What was opened, newest first, each once; this one now.
inline void add_recent(std::vector<std::string>& recent, const std::string& path) {
  std::erase(recent, path);
  recent.insert(recent.begin(), path);
  if (recent.size() > kMostRecent) recent.resize(kMostRecent);
}

}  // namespace kvreplay::viewer
