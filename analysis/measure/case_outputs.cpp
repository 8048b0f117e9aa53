#include "analysis/measure/case_outputs.hpp"

#include "sim/backend.hpp"
#include "sim/cache/cache_outputs.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

template <class T>
OutputChanges<T> no_rows(std::size_t cases) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  OutputChanges<T> none;
  none.full_sq = kNone;
  none.change_sq.assign(cases, kNone);
  return none;
}

/// Caches that only evict share the work.
template <class T>
CaseOutputs<T> evicted(const HeadGroup<T>& group, RowRange window, RowRange future,
                       std::span<const CacheCase> cases, bool with_vectors, const Compute& compute) {
  std::vector<Cache<T>> caches;
  for (const CacheCase& one : cases) caches.push_back({one.kept});
  const auto on = [&](RowRange rows) {
    return rows.count() == 0
               ? no_rows<T>(cases.size())
               : compute.backend.output_changes(group, rows, caches, with_vectors, compute.workers);
  };
  return {on(window), on(future)};
}

/// What outputs_of the distinct ones among the cases gives, for each of them all.
template <class T, class OutputsOf>
CaseOutputs<T> once_each(std::span<const CacheCase> cases, const OutputsOf& outputs_of) {
  std::vector<CacheCase> distinct;
  std::vector<std::size_t> found_at;
  for (const CacheCase& one : cases) {
    const auto at = std::find(distinct.begin(), distinct.end(), one);
    found_at.push_back(static_cast<std::size_t>(at - distinct.begin()));
    if (at == distinct.end()) distinct.push_back(one);
  }
  CaseOutputs<T> outputs = outputs_of(std::span<const CacheCase>(distinct));
  const auto spread = [&](auto& figures) {  // from the back: a case never stands before what it equals
    if (figures.empty()) return;
    figures.resize(cases.size());
    for (std::size_t c = cases.size(); c-- > 0;)
      if (found_at[c] != c) figures[c] = figures[found_at[c]];
  };
  for (OutputChanges<T>* rows : {&outputs.window, &outputs.future}) {
    spread(rows->change_sq);
    spread(rows->change);
  }
  return outputs;
}

}  // namespace

template <class T>
CaseOutputs<T> case_outputs(const HeadGroup<T>& group, RowRange window, RowRange future,
                            std::span<const CacheCase> cases, bool with_vectors, const Compute& compute) {
  const bool only_evict =
      std::all_of(cases.begin(), cases.end(), [](const CacheCase& one) { return one.only_evicts(); });
  return once_each<T>(cases, [&](std::span<const CacheCase> distinct) {
    if (only_evict) return evicted<T>(group, window, future, distinct, with_vectors, compute);
    const auto cache = [&](std::size_t c) {
      const CacheCase& one = distinct[c];
      return compressed_cache(group, one.kept, one.pruned, one.prunable, one.quantization);
    };
    return cache_outputs<T>(group, window, future, distinct.size(), cache, with_vectors, compute);
  });
}

template CaseOutputs<float> case_outputs(const HeadGroup<float>&, RowRange, RowRange,
                                         std::span<const CacheCase>, bool, const Compute&);
template CaseOutputs<double> case_outputs(const HeadGroup<double>&, RowRange, RowRange,
                                          std::span<const CacheCase>, bool, const Compute&);

template <class T>
CaseOutputs<T> cache_outputs(const HeadGroup<T>& group, RowRange window, RowRange future, std::size_t cases,
                             const std::function<Cache<T>(std::size_t)>& cache, bool with_vectors,
                             const Compute& compute) {
  struct Measured {
    CacheOutputs<T> outputs;
    OutputChanges<T>& into;
  };
  CaseOutputs<T> found{no_rows<T>(cases), no_rows<T>(cases)};
  std::vector<Measured> measured;
  const auto take = [&](RowRange rows, OutputChanges<T>& into) {
    if (rows.count() == 0) return;
    measured.push_back({CacheOutputs<T>(group, rows, compute.workers), into});
    into.full_sq = measured.back().outputs.full_sq();
    if (!with_vectors) return;
    into.full = measured.back().outputs.full();
    into.change.resize(cases);
  };
  take(window, found.window);
  take(future, found.future);
  compute.workers.parallel_for(static_cast<std::ptrdiff_t>(cases), [&](std::ptrdiff_t n) {
    const auto c = static_cast<std::size_t>(n);
    const Cache<T> held = cache(c);
    for (const Measured& rows : measured) {
      auto change = rows.outputs.change(held, with_vectors);
      rows.into.change_sq[c] = change.change_sq;
      if (with_vectors) rows.into.change[c] = std::move(change.vectors);
    }
  });
  return found;
}

template CaseOutputs<float> cache_outputs(const HeadGroup<float>&, RowRange, RowRange, std::size_t,
                                          const std::function<Cache<float>(std::size_t)>&, bool,
                                          const Compute&);
template CaseOutputs<double> cache_outputs(const HeadGroup<double>&, RowRange, RowRange, std::size_t,
                                           const std::function<Cache<double>(std::size_t)>&, bool,
                                           const Compute&);

CacheElements cache_elements(const Dump& dump) {
  const auto size = [&](Tensor tensor) {
    const auto& files = dump.files();
    const auto file =
        std::find_if(files.begin(), files.end(), [&](const DumpFile& f) { return f.tensor == tensor; });
    return file == files.end() ? Index{0} : static_cast<Index>(size_of(file->dtype));
  };
  return {size(Tensor::k), size(Tensor::v)};
}

}  // namespace kvreplay
