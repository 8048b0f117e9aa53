#include "analysis/eviction/eviction_columns.hpp"

#include <limits>

namespace kvreplay {

double relative_error(double change_sq, double full_sq) {
  if (change_sq == 0) return 0;
  return full_sq > 0 ? change_sq / full_sq : std::numeric_limits<double>::quiet_NaN();
}

EvictionColumns::EvictionColumns(const EvictionPlan& plan)
    : steps_(plan.future.count()), count_(kHeadFigures) {
  for (const EvictionCase& which : plan.cases) {
    begin_.push_back(count_);
    count_ += kCaseFigures + (which.phase.decodes() ? steps_ : 0);
  }
  first_pair_ = count_;
  count_ += static_cast<Index>(plan.pairs.size());
}

}  // namespace kvreplay
