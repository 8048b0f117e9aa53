#pragma once

#include "analysis/report/page.hpp"
#include "analysis/results/compare_report.hpp"

#include <cstddef>

namespace kvreplay::report {

/// Two result folders side by side: how the runs differ, then for every table of figures that differ pictures
/// of A against B and what plain_text() says, with the `most` largest differences of every block.
Page make_page(const FolderComparison& comparison, std::size_t most);

}  // namespace kvreplay::report
