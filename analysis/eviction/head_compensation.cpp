#include "analysis/eviction/head_compensation.hpp"

#include <limits>

namespace kvreplay {
namespace {

template <class T>
std::size_t row_bytes(const RowLogits<T>& rows) {
  return rows.log_weight.size() * sizeof(T) +
         static_cast<std::size_t>(rows.prompt_out.size() + rows.rest_out.size() + rows.prompt_mass.size() +
                                  rows.log_rest.size()) *
             sizeof(double);
}

}  // namespace

template <class T>
HeadCompensation<T>::HeadCompensation(const HeadGroup<T>& group, const CompensationPlan& plan,
                                      Workers& workers)
    : group_(group) {
  if (plan.fits()) reference_ = reference_rows(group, plan.reference, workers);
  const auto rows_at = [&](RowRange rows) {
    return rows.count() > 0 ? std::optional(row_logits(group, own_rows(group, rows), workers)) : std::nullopt;
  };
  window_ = rows_at(plan.window);
  future_ = rows_at(plan.future);
  if (!plan.merges()) return;
  wide_ = converted<double>(group);
  if (plan.window.count() > 0) attention_ = window_attention(*wide_, plan.reference.window);
}

template <class T>
double HeadCompensation<T>::reference_full_sq() const {
  return reference_ ? reference_->full_sq() : std::numeric_limits<double>::quiet_NaN();
}

template <class T>
std::vector<CompensatedHead> HeadCompensation<T>::of(const KeptSet& kept,
                                                     std::span<const CompensationCase> cases,
                                                     Semantics semantics, Workers& workers) const {
  Compensations<T> compensations(group_, kept, reference_ ? &*reference_ : nullptr, workers);
  std::vector<CompensatedHead> found;
  for (const CompensationCase& one : cases) {
    const auto merging = kCompensations[one.method].merging;
    CompensatedHead head{
        merging ? merged(*wide_, kept, *merging, semantics, attention_) : compensations.with(one.method),
        {},
        {},
        {}};
    if (head.held.keys.size() == 0) {
      if (window_) head.window = error_split(*window_, group_, head.held, workers);
      if (future_) head.future = error_split(*future_, group_, head.held, workers);
      if (reference_)
        head.reference =
            error_split(*reference_, group_, head.held, workers, compensations.bound(one.method));
    }
    found.push_back(std::move(head));
  }
  return found;
}

template <class T>
std::size_t HeadCompensation<T>::bytes() const {
  std::size_t bytes = sizeof(*this);
  for (const auto* rows : {&window_, &future_})
    if (*rows) bytes += row_bytes(**rows);
  if (reference_) bytes += row_bytes(reference_->fitted) + row_bytes(reference_->held_out);
  if (wide_) bytes += bytes_of(*wide_);
  return bytes + static_cast<std::size_t>(attention_.a.size() + attention_.log_s.size()) * sizeof(double);
}

template class HeadCompensation<float>;
template class HeadCompensation<double>;

}  // namespace kvreplay
