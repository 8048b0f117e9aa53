#include "viewer/work/view_cells.hpp"

#include "sim/simd/panel.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/work/rank_shares.hpp"

#include <algorithm>

namespace kvreplay::viewer {

RowRange heads_of(const EntryView& view, Index G) {
  return view.query_head ? RowRange{*view.query_head, *view.query_head + 1} : RowRange{0, G};
}

Index ViewCells::rows_at_once() { return kPanelWidth<float>; }

ViewCells::ViewCells(const EntryMap<float>& map, const EntryView& view, JobControl& job,
                     const EntryMap<float>* minus)
    : map_(map), view_(view), job_(job) {
  if (minus != nullptr) minus_ = std::make_unique<ViewCells>(*minus, view, job);
  constexpr Index kNumbersAtOnce = Index{1} << 19;
  at_once_ = std::clamp<Index>(kNumbersAtOnce / (map.group().d() + map.group().d_v()), 128, 8192);
}

void ViewCells::sum_over_heads(const HeadRows& rows, EntryTerm entry, RowRange take, RowRange tokens,
                               std::vector<float>& sum) {
  for (std::size_t g = 0; g < rows.size(); ++g) {
    job_.check();
    map_.entries(*rows[g], entry, take, tokens.begin, tokens.end, g == 0 ? sum.data() : term_.data());
    if (g == 0) continue;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += term_[i];
  }
  if (entry != EntryTerm::logit || rows.size() == 1) return;
  for (float& x : sum) x /= static_cast<float>(rows.size());
}

const std::vector<float>& ViewCells::cells(const RowsOfMaps& rows, Index begin, Index end, RowRange tokens) {
  const std::vector<float>& own = own_cells(rows.shown, begin, end, tokens);
  if (!minus_) return own;
  const std::vector<float>& other = minus_->own_cells(rows.minus, begin, end, tokens);
  for (std::size_t i = 0; i < own.size(); ++i) shown_[i] -= other[i];  // what `own` is
  return shown_;
}

const std::vector<float>& ViewCells::own_cells(const HeadRows& rows, Index begin, Index end,
                                               RowRange tokens) {
  return view_.against == EntryView::Against::rank ? rank_cells(rows, begin, end, tokens)
                                                   : compared_cells(rows, begin, end, tokens);
}

const std::vector<float>& ViewCells::compared_cells(const HeadRows& rows, Index begin, Index end,
                                                    RowRange tokens) {
  const EntryRows<float>& first = *rows.front();
  const RowRange take{first.position(begin), first.position(end - 1) + 1};
  const auto size = static_cast<std::size_t>((end - begin) * tokens.count());
  shown_.resize(size);
  term_.resize(size);
  sum_over_heads(rows, view_.shown, take, tokens, shown_);
  if (view_.against == EntryView::Against::nothing) return shown_;
  other_.resize(size);
  sum_over_heads(rows, view_.other, take, tokens, other_);
  if (view_.against == EntryView::Against::rank)
    for (Index r = 0; r < end - begin; ++r)
      for (std::vector<float>* cells : {&shown_, &other_})
        rank_shares({cells->data() + r * tokens.count(), static_cast<std::size_t>(tokens.count())});
  for (std::size_t i = 0; i < size; ++i) shown_[i] = compared(shown_[i], view_.against, other_[i]);
  return shown_;
}

/// A place is one among all tokens of the row.
const std::vector<float>& ViewCells::rank_cells(const HeadRows& rows, Index begin, Index end,
                                                RowRange tokens) {
  const EntryRows<float>& first = *rows.front();
  if (ranked_ != rows.front() || ranked_begin_ != begin || ranked_end_ != end) {
    seen_ = {map_.group().first_visible(first.position(begin)),
             map_.group().end_visible(first.position(end - 1))};
    ranks_ = compared_cells(rows, begin, end, seen_);
    ranked_ = rows.front();
    ranked_begin_ = begin;
    ranked_end_ = end;
  }
  const Index n = end - begin;
  shown_.assign(static_cast<std::size_t>(n * tokens.count()), kNaN);
  const RowRange both{std::max(tokens.begin, seen_.begin), std::min(tokens.end, seen_.end)};
  for (Index r = 0; r < n && both.count() > 0; ++r)
    std::copy_n(ranks_.data() + r * seen_.count() + (both.begin - seen_.begin), both.count(),
                shown_.data() + r * tokens.count() + (both.begin - tokens.begin));
  return shown_;
}

}  // namespace kvreplay::viewer
