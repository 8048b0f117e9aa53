#pragma once

#include "sim/eviction/policy.hpp"

#include <algorithm>
#include <limits>
#include <vector>

// Eviction by pages from its definition: a list of pages, sorted, and taken while they fit.

namespace kvreplay::test {

/// The positions that are kept of a cache whose tokens have these scores, ascending.
inline std::vector<Index> pages_kept_naively(const std::vector<double>& scores, const EvictionRule& rule,
                                             Index budget) {
  struct Page {
    Index begin, end;
    int order_class;  // sinks, recent, the others
    double score;
  };
  const Index n = std::ssize(scores);
  std::vector<Page> pages;
  for (Index begin = 0; begin < n; begin += rule.page) {
    Page page{begin, std::min(begin + rule.page, n), 2, 0};
    double sum = 0, largest = -std::numeric_limits<double>::infinity();
    for (Index p = page.begin; p < page.end; ++p) {
      sum += scores[static_cast<std::size_t>(p)];
      largest = std::max(largest, scores[static_cast<std::size_t>(p)]);
      if (p >= n - rule.recent) page.order_class = std::min(page.order_class, 1);
      if (p < rule.sinks) page.order_class = 0;
    }
    if (page.end - page.begin < rule.page) page.order_class = std::min(page.order_class, 1);
    page.score = rule.page_by == PageScore::max   ? largest
                 : rule.page_by == PageScore::sum ? sum
                                                  : sum / static_cast<double>(page.end - page.begin);
    pages.push_back(page);
  }
  std::stable_sort(pages.begin(), pages.end(), [](const Page& a, const Page& b) {
    if (a.order_class != b.order_class) return a.order_class < b.order_class;
    if (a.order_class == 1) return a.begin > b.begin;
    return a.order_class == 2 && a.score > b.score;
  });
  std::vector<Index> kept;
  for (const Page& page : pages)
    if (std::ssize(kept) + page.end - page.begin <= budget)
      for (Index p = page.begin; p < page.end; ++p) kept.push_back(p);
  std::sort(kept.begin(), kept.end());
  return kept;
}

}  // namespace kvreplay::test
