#include "viewer/work/view_cells.hpp"

#include "sim/simd/panel.hpp"

#include <algorithm>

namespace kvreplay::viewer {

RowRange heads_of(const EntryView& view, Index G) {
  return view.query_head ? RowRange{*view.query_head, *view.query_head + 1} : RowRange{0, G};
}

Index ViewCells::rows_at_once() { return kPanelWidth<float>; }

ViewCells::ViewCells(const EntryMap<float>& map, const EntryView& view, JobControl& job)
    : map_(map), view_(view), job_(job) {
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

const std::vector<float>& ViewCells::cells(const HeadRows& rows, Index begin, Index end, RowRange tokens) {
  const EntryRows<float>& first = *rows.front();
  const RowRange take{first.position(begin), first.position(end - 1) + 1};
  const auto size = static_cast<std::size_t>((end - begin) * tokens.count());
  shown_.resize(size);
  term_.resize(size);
  sum_over_heads(rows, view_.shown, take, tokens, shown_);
  if (view_.against == EntryView::Against::nothing) return shown_;
  other_.resize(size);
  sum_over_heads(rows, view_.other, take, tokens, other_);
  for (std::size_t i = 0; i < size; ++i) shown_[i] = compared(shown_[i], view_.against, other_[i]);
  return shown_;
}

}  // namespace kvreplay::viewer
