#pragma once

#include "sim/head_matrix.hpp"

#include <cstdint>
#include <vector>

namespace kvreplay {

/// Pages of the prompt that are read, chosen anew for each row: what retrieval makes of a cache. Page n holds
/// the positions n size to (n + 1) size - 1.
struct PagesRead {
  Eigen::Index size = 0;  ///< positions to a page; 0: every row reads all of them
  Eigen::Index first_row =
      0;  ///< position of the first row that `read` has; it must have every row that is asked of
  std::vector<std::vector<std::uint8_t>> read{};  ///< [rows][pages of the prompt], 1 where read

  bool reads(Eigen::Index row, Eigen::Index p) const {
    return size == 0 || read[row - first_row][p / size] != 0;
  }
  bool operator==(const PagesRead&) const = default;
};

}  // namespace kvreplay
