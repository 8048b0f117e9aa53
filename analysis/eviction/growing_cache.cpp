#include "analysis/eviction/growing_cache.hpp"

#include "sim/eviction/prompt_eviction.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace kvreplay {

template <class T>
GrowingCache<T>::GrowingCache(HeadGroup<T> group, const EvictionPlan& plan)
    : group_(std::make_shared<HeadGroup<T>>(std::move(group))),
      plan_(plan),
      case_(plan.cases.front()),
      rule_(plan.runs.front().rules.front()) {}

template <class T>
Index GrowingCache<T>::next_rows() const {
  if (case_.phase.decodes()) return next_ == 0 ? group_->l : 1;
  return next_ < group_->l ? std::min(case_.phase.block, group_->l - next_) : 0;
}

template <class T>
std::vector<Index> GrowingCache<T>::add(const std::vector<Matrix<T>>& q, const Matrix<T>& k,
                                        const Matrix<T>& v, const Compute& compute) {
  const Index rows = k.rows(), expected = next_rows();
  if ((expected > 0 && rows != expected) || next_ + rows > group_->T_all())
    throw std::invalid_argument("rows of another chunk");
  for (Index g = 0; g < group_->G(); ++g) group_->q[g].middleRows(next_, rows) = q[g];
  group_->k.middleRows(next_, rows) = k;
  group_->v.middleRows(next_, rows) = v;
  next_ += rows;
  if (expected == 0) return {};
  if (!case_.phase.decodes()) return cut_block(rows, compute);
  return decoding_ ? decoding_->step() : begin_decoding(compute);
}

template <class T>
std::vector<Index> GrowingCache<T>::cut_block(Index rows, const Compute& compute) {
  for (Index p = next_ - rows; p < next_; ++p) cache_.push_back(p);
  std::vector<Index> evicted = cut_after_block(*group_, rule_, cache_, *case_.kept, rows, compute), left;
  std::set_difference(cache_.begin(), cache_.end(), evicted.begin(), evicted.end(), std::back_inserter(left));
  cache_ = std::move(left);
  return evicted;
}

template <class T>
std::vector<Index> GrowingCache<T>::begin_decoding(const Compute& compute) {
  const LayerScores shared(plan_.runs.size());  // no ranking that can decode is a layer's
  const HeadRanking ranking = head_ranking(*group_, plan_, shared, {}, std::nullopt, compute);
  const KeptSet kept = prompt_kept(*group_, plan_, case_, ranking, compute);
  const DecodeBegin begin = decode_begin(plan_, case_, kept);
  decoding_.emplace(group_, begin.rule, begin.kept, begin.budget, begin.options,
                    decode_start_scores(*group_, rule_, begin.options, compute));
  return evicted_positions(begin.kept);
}

template class GrowingCache<float>;
template class GrowingCache<double>;

}  // namespace kvreplay
