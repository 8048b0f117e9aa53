#include "analysis/eviction/eviction_columns.hpp"

namespace kvreplay {

EvictionColumns::EvictionColumns(const EvictionPlan& plan)
    : steps_(plan.future.count()), count_(kHeadFigures) {
  for (const EvictionCase& which : plan.cases) {
    begin_.push_back(count_);
    count_ += kCaseFigures + (which.phase.decodes() ? steps_ : 0);
  }
  first_pair_ = count_;
  count_ += std::ssize(plan.pairs);
}

}  // namespace kvreplay
