#include "analysis/run/left_out.hpp"

#include <algorithm>

namespace kvreplay {

std::vector<std::string> left_out_lines(const std::vector<LeftOut>& left_out) {
  std::vector<LeftOut> grouped;
  for (const LeftOut& item : left_out) {
    const auto same =
        std::find_if(grouped.begin(), grouped.end(), [&](const LeftOut& g) { return g.why == item.why; });
    if (same == grouped.end())
      grouped.push_back(item);
    else
      same->what.append(", ").append(item.what);
  }
  std::vector<std::string> lines;
  for (const LeftOut& group : grouped) lines.push_back(group.what + " (" + group.why + ")");
  return lines;
}

}  // namespace kvreplay
