#include "viewer/model/column_fit.hpp"

namespace kvreplay::viewer {

std::vector<std::size_t> columns_that_fit(std::span<const float> widths, float room) {
  std::vector<std::size_t> fitting;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (i > 0 && widths[i] > room) continue;
    fitting.push_back(i);
    room -= widths[i];
  }
  return fitting;
}

}  // namespace kvreplay::viewer
