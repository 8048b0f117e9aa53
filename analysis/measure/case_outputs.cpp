#include "analysis/measure/case_outputs.hpp"

#include "data/npy_write.hpp"
#include "sim/backend.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/loss/change_loss.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

template <class T>
OutputChanges<T> no_rows(std::size_t cases) {
  OutputChanges<T> none;
  none.full_sq = kNan;
  none.change_sq.assign(cases, kNan);
  return none;
}

/// Caches that only evict share the work.
template <class T>
CaseOutputs<T> evicted(const HeadGroup<T>& group, RowRange window, RowRange future,
                       std::span<const CacheCase> cases, bool with_vectors, const Compute& compute) {
  std::vector<Cache<T>> caches;
  for (const CacheCase& one : cases) caches.push_back(compressed_cache(group, one));
  const auto on = [&](RowRange rows) {
    return rows.count() == 0
               ? no_rows<T>(cases.size())
               : compute.backend.output_changes(group, rows, caches, with_vectors, compute.workers);
  };
  return {on(window), on(future)};
}

/// On a device, as many caches at a time as fit into this.
constexpr std::size_t kCachesAtOnce = std::size_t{128} << 20;

bool on_a_device(std::span<const CacheCase> cases, const Compute& compute) {
  return !compute.backend.devices().empty() &&
         std::ranges::all_of(cases, [](const CacheCase& one) { return one.pages.size == 0; });
}

CaseOutputs<float> compressed_on_device(const HeadGroup<float>& group, RowRange window, RowRange future,
                                        std::span<const CacheCase> cases, bool with_vectors,
                                        const Compute& compute) {
  const auto a_cache = static_cast<std::size_t>(group.k.size() + group.v.size()) * sizeof(float);
  const std::size_t together = std::clamp<std::size_t>(kCachesAtOnce / a_cache, 1, cases.size());
  CaseOutputs<float> found{no_rows<float>(cases.size()), no_rows<float>(cases.size())};
  for (std::size_t first = 0; first < cases.size(); first += together) {
    std::vector<Cache<float>> held(std::min(together, cases.size() - first));
    compute.workers.parallel_for(std::ssize(held), [&](std::ptrdiff_t n) {
      held[n] = compressed_cache(group, cases[first + static_cast<std::size_t>(n)]);
    });
    const auto take = [&](RowRange rows, OutputChanges<float>& into) {
      if (rows.count() == 0) return;
      OutputChanges<float> part =
          compute.backend.output_changes(group, rows, held, with_vectors, compute.workers);
      std::ranges::copy(part.change_sq, into.change_sq.begin() + static_cast<std::ptrdiff_t>(first));
      std::ranges::move(part.change, std::back_inserter(into.change));
      if (first > 0) return;
      into.full_sq = part.full_sq;
      into.full = std::move(part.full);
    };
    take(window, found.window);
    take(future, found.future);
  }
  return found;
}

/// Calls outputs_of with the distinct cases only and copies each result to all equal cases.
template <class T, class OutputsOf>
CaseOutputs<T> once_each(std::span<const CacheCase> cases, const OutputsOf& outputs_of) {
  std::vector<CacheCase> distinct;
  std::vector<std::size_t> found_at;
  for (const CacheCase& one : cases) {
    const auto at = std::ranges::find(distinct, one);
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
  const bool only_evict = std::ranges::all_of(cases, [](const CacheCase& one) { return one.only_evicts(); });
  return once_each<T>(cases, [&](std::span<const CacheCase> distinct) {
    if (only_evict) return evicted<T>(group, window, future, distinct, with_vectors, compute);
    if constexpr (std::is_same_v<T, float>)
      if (on_a_device(distinct, compute))
        return compressed_on_device(group, window, future, distinct, with_vectors, compute);
    const auto cache = [&](std::size_t c) { return compressed_cache(group, distinct[c]); };
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

namespace {

/// W_O of all query heads of a layer, [n_q] of [d_v, d_model].
template <class T>
std::vector<Matrix<T>> read_layer_wo(const Dump& dump, Index layer) {
  const DumpShape& shape = dump.shape();
  std::vector<Matrix<T>> wo(shape.n_q, Matrix<T>(shape.d_v, shape.d_model));
  for (Index h = 0; h < shape.n_q; ++h) dump.read<T>(Tensor::wo, layer, h, wo[h].data());
  return wo;
}

/// Sums over rows of ||sum_h o_i W_O(h)||^2, of each of `all` [n_q]; nan where a head was not set.
template <class T>
std::vector<double> projected(const std::vector<PanelRows<T>>& all, const std::vector<Matrix<T>>& wo,
                              Workers& workers) {
  std::vector<double> sums(all.size(), kNan);
  std::vector<LayerRows<T>> whole;
  std::vector<std::size_t> of;
  for (std::size_t c = 0; c < all.size(); ++c) {
    if (std::ranges::any_of(all[c], [](const auto& head) { return head.empty(); })) continue;
    of.push_back(c);
    for (LayerRows<T>& rows = whole.emplace_back(); const std::vector<T>& head : all[c])
      rows.push_back(&head);
  }
  const std::vector<double> found = projected_sq<T>(whole, wo, workers);
  for (std::size_t c = 0; c < of.size(); ++c) sums[of[c]] = found[c];
  return sums;
}

/// Multiplies a query head's outputs, in panels, by its gate on as many rows from `first` on.
template <class T>
void apply_gate(std::vector<T>& panels, const Matrix<T>& gate, Index first) {
  const Index d_v = gate.cols(), rows = std::min(std::ssize(panels) / d_v, gate.rows() - first);
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < d_v; ++c) panels[panel_entry<T>(c, r, d_v)] *= gate(first + r, c);
}

/// Calls visit(row, at) for the numbers of a panel's rows in a query head.
template <class T, class Visit>
void each_in_panel(Index panel, Index d_v, const Visit& visit) {
  constexpr Index W = kPanelWidth<T>;
  for (Index first = panel * d_v * W; first < (panel + 1) * d_v * W; first += W)
    for (Index row = 0; row < W; ++row) visit(row, first + row);
}

/// A panel's rows o of all heads become o / r, r^2 = mean(o^2) + eps.
template <class T>
void apply_norm(PanelRows<T>& full, Index panel, Index d_v, double eps) {
  std::array<double, kPanelWidth<T>> sq{}, r{};
  for (const std::vector<T>& o : full)
    each_in_panel<T>(panel, d_v, [&](Index row, Index at) { sq[row] += double{o[at]} * o[at]; });
  const double count = static_cast<double>(full.size()) * static_cast<double>(d_v);
  for (std::size_t row = 0; row < r.size(); ++row) r[row] = std::sqrt(sq[row] / count + eps);
  for (std::vector<T>& o : full)
    each_in_panel<T>(panel, d_v, [&](Index row, Index at) { o[at] = static_cast<T>(o[at] / r[row]); });
}

/// Changes D of such rows become (o + D) / r' - o / r, r' of o + D. With the larger of r and r' under D, it
/// is D / r' - o c or D / r - (o + D) c, c = (r'^2 - r^2) / (r r' (r + r')), and r'^2 - r^2 = mean((2 o + D)
/// D): neither a small change cancels nor one to or from next to nothing.
template <class T>
void apply_norm_to_change(const PanelRows<T>& full, PanelRows<T>& change, Index panel, Index d_v,
                          double eps) {
  std::array<double, kPanelWidth<T>> sq{}, changed_sq{}, more_sq{}, under{}, c{}, with_change{};
  for (std::size_t h = 0; h < full.size(); ++h)
    each_in_panel<T>(panel, d_v, [&](Index row, Index at) {
      const double o = full[h][at], D = change[h][at];
      sq[row] += o * o;
      changed_sq[row] += (o + D) * (o + D);
      more_sq[row] += (2 * o + D) * D;
    });
  const double count = static_cast<double>(full.size()) * static_cast<double>(d_v);
  for (std::size_t row = 0; row < c.size(); ++row) {
    const double r = std::sqrt(sq[row] / count + eps), changed = std::sqrt(changed_sq[row] / count + eps);
    under[row] = std::max(r, changed);
    c[row] = more_sq[row] / count / (r + changed) / r / changed;
    with_change[row] = changed < r ? 1 : 0;
  }
  for (std::size_t h = 0; h < full.size(); ++h)
    each_in_panel<T>(panel, d_v, [&](Index row, Index at) {
      const double o = full[h][at], D = change[h][at];
      change[h][at] = static_cast<T>(D / under[row] - (o + with_change[row] * D) * c[row]);
    });
}

/// Applies the norm before W_O to [1 + cases][n_q]: outputs, and their changes.
template <class T>
void apply_norm(std::vector<PanelRows<T>>& all, Index d_v, double eps, Workers& workers) {
  const auto is_whole = [](const PanelRows<T>& heads) {
    return std::ranges::none_of(heads, [](const auto& head) { return head.empty(); });
  };
  PanelRows<T>& full = all.front();
  if (!is_whole(full)) return;
  const Index panels = std::ssize(full.front()) / (d_v * kPanelWidth<T>), cases = std::ssize(all) - 1;
  workers.parallel_for(cases * panels, [&](Index item) {
    PanelRows<T>& change = all[1 + item / panels];
    if (is_whole(change)) apply_norm_to_change(full, change, item % panels, d_v, eps);
  });
  workers.parallel_for(panels, [&](Index panel) { apply_norm(full, panel, d_v, eps); });
}

}  // namespace

MeasuredLayer::MeasuredLayer(const Dump& dump, Precision precision, MeasureColumns columns)
    : dump_(dump), precision_(precision), columns_(std::move(columns)), with_layer_(dump.has(Tensor::wo)) {}

void MeasuredLayer::begin() {
  const auto room = [&]<class T>(T) {
    const PanelRows<T> heads(dump_.shape().n_q);
    return Outputs<T>{{1 + columns_.window.change.size(), heads}, {1 + columns_.future.change.size(), heads}};
  };
  if (in_float32(precision_))
    outputs_ = room(float{});
  else
    outputs_ = room(double{});
  steps_.assign(dump_.shape().n_kv, std::vector<double>(columns_.losses.per_layer()));
}

/// Adds the predicted losses of a group, its gradients times the changes, for all cases that have vectors.
template <class T>
void MeasuredLayer::add_losses(const OutputChanges<T>& outputs, const HeadGroup<T>& group, RowRange measured,
                               RowSet rows, std::span<double> figures, Workers& workers) {
  const LossColumns& columns = columns_.losses;
  const auto G = static_cast<std::size_t>(group.G()), cases = outputs.change.size();
  const RowRange on = columns.rows().on(rows), nll = rows == RowSet::future ? columns.rows().nll : RowRange{};
  const std::vector<ChangeLoss> sampled = change_losses(
      rows == RowSet::window ? group.g_window : group.g_future, on, outputs.change, measured, workers);
  const std::vector<ChangeLoss> of_nll = change_losses(group.g_nll, nll, outputs.change, measured, workers);
  for (std::size_t c = 0; c < cases; ++c)
    for (std::size_t g = 0; g < G && !outputs.change[c].empty(); ++g) {
      if (!sampled.empty()) {
        const ChangeLoss& loss = sampled[g * cases + c];
        figures[columns.row(c, rows)] += loss.row;
        figures[columns.head(c, rows)] += loss.head;
        for (std::size_t s = 0; s < loss.samples.size(); ++s)
          figures[columns.samples(c, rows) + static_cast<Index>(s)] += loss.samples[s];
        const auto sums = steps_[group.kv_head].begin() + columns.steps(c, rows);
        std::transform(loss.steps.begin(), loss.steps.end(), sums, sums, std::plus<>{});
      }
      if (!of_nll.empty()) figures[columns.nll(c)] += of_nll[g * cases + c].samples.front();
    }
}

template <class T>
void MeasuredLayer::add(CaseOutputs<T>&& outputs, const HeadGroup<T>& group, RowRange window, RowRange future,
                        Index first_query_head, std::span<double> figures, Workers& workers) {
  const auto put = [&](Index column, double value) {
    if (column >= 0) figures[column] += value;
  };
  const DumpShape& shape = dump_.shape();
  std::vector<Matrix<T>> gates;
  for (Index g = 0; with_layer_ && dump_.has(Tensor::gate) && g < group.G(); ++g)
    dump_.read(Tensor::gate, group.layer, first_query_head + g,
               gates.emplace_back(shape.T_q, shape.d_v).data());
  const auto add_rows = [&](OutputChanges<T>& from, RowRange rows, const MeasureColumns::OnRows& columns,
                            std::vector<PanelRows<T>>& to) {
    put(columns.full, from.full_sq);
    for (std::size_t c = 0; c < columns.change.size(); ++c) put(columns.change[c], from.change_sq[c]);
    if (!with_layer_) return;
    for (std::size_t g = 0; g < gates.size(); ++g) {
      const Index first = rows.begin - shape.first_query();
      if (!from.full.empty()) apply_gate(from.full[g], gates[g], first);
      for (PanelRows<T>& change : from.change)
        if (!change.empty()) apply_gate(change[g], gates[g], first);
    }
    std::move(from.full.begin(), from.full.end(), to.front().begin() + first_query_head);
    for (std::size_t c = 0; c < from.change.size(); ++c)
      std::move(from.change[c].begin(), from.change[c].end(), to[1 + c].begin() + first_query_head);
  };
  add_losses(outputs.window, group, window, RowSet::window, figures, workers);
  add_losses(outputs.future, group, future, RowSet::future, figures, workers);
  auto& [of_window, of_future] = std::get<Outputs<T>>(outputs_);
  add_rows(outputs.window, window, columns_.window, of_window);
  add_rows(outputs.future, future, columns_.future, of_future);
}
template void MeasuredLayer::add(CaseOutputs<float>&&, const HeadGroup<float>&, RowRange, RowRange, Index,
                                 std::span<double>, Workers&);
template void MeasuredLayer::add(CaseOutputs<double>&&, const HeadGroup<double>&, RowRange, RowRange, Index,
                                 std::span<double>, Workers&);

void MeasuredLayer::end(Index layer, Workers& workers, const LayerFigures& figures) {
  std::fill(figures.whole.begin(), figures.whole.end(), 0.0);
  for (const std::vector<double>& head : steps_)
    std::transform(head.begin(), head.end(), figures.whole.begin(), figures.whole.begin(), std::plus<>{});
  Eigen::Ref<Matrix<double>> heads = figures.heads;
  const LossColumns& losses = columns_.losses;
  for (std::size_t c = 0; c < losses.cases(); ++c)
    for (const RowSet rows : {RowSet::window, RowSet::future}) {
      const Index count = losses.rows().samples * losses.rows().on(rows).count();
      if (count == 0) continue;
      double squares = 0;
      for (const double sum : figures.whole.subspan(losses.steps(c, rows), count)) squares += sum * sum;
      heads.col(losses.step(c, rows)).setConstant(squares / (2 * static_cast<double>(losses.rows().samples)));
    }
  if (with_layer_) project(layer, workers, heads);
}

/// Applies the layer's W_O to the outputs of all heads and stores the sums of squares.
void MeasuredLayer::project(Index layer, Workers& workers, Eigen::Ref<Matrix<double>> heads) {
  const auto project_outputs = [&]<class T>(Outputs<T>& outputs) {
    const std::vector<Matrix<T>> wo = read_layer_wo<T>(dump_, layer);
    const auto project_rows = [&](std::vector<PanelRows<T>>& on_rows, const MeasureColumns::OnRows& columns) {
      if (columns.layer_full < 0) return;
      if (const auto eps = dump_.output_norm()) apply_norm(on_rows, dump_.shape().d_v, *eps, workers);
      constexpr double kLeast = sizeof(T) == 4 ? 1e-60 : std::numeric_limits<double>::min();
      const std::vector<double> sq = projected(on_rows, wo, workers);
      const bool lost = sq.front() < kLeast;  // below what T's digits reach down to: 0, and no change is none
      heads.col(columns.layer_full).setConstant(lost ? 0 : sq.front());
      for (std::size_t c = 0; c < columns.layer_change.size(); ++c) {
        const double change_sq = sq[1 + c];
        const bool changes = lost && heads.col(columns.change[c]).sum() > 0;
        heads.col(columns.layer_change[c]).setConstant(changes ? at_least_some(change_sq) : change_sq);
      }
    };
    project_rows(outputs.window, columns_.window);
    project_rows(outputs.future, columns_.future);
  };
  std::visit(project_outputs, outputs_);
}

template <class T>
CaseRows<T>::CaseRows(std::string kind, Index rows, Index length, std::vector<std::string> names, Index last)
    : kind_(std::move(kind)),
      rows_(static_cast<std::size_t>(rows)),
      length_(static_cast<std::size_t>(length)),
      last_(static_cast<std::size_t>(last)),
      names_(std::move(names)) {}

template <class T>
void CaseRows<T>::begin() {
  cases_.assign(names_.size(), std::vector<std::vector<T>>(rows_));
}

template <class T>
void CaseRows<T>::write(const ResultFolder& folder, Index layer) const {
  std::vector<std::size_t> shape{rows_, length_};
  if (last_ > 0) shape = {rows_, length_ / last_, last_};
  for (std::size_t c = 0; c < names_.size(); ++c) {
    std::vector<T> all;
    for (const std::vector<T>& row : cases_[c]) all.insert(all.end(), row.begin(), row.end());
    if (all.empty() && (length_ > 0 || last_ > 0)) continue;
    AtomicFile file = folder.layer_file(layer, kind_ + "/" + names_[c] + ".npy");
    if constexpr (std::is_same_v<T, std::uint8_t>)
      write_npy_bool(std::move(file), shape, all);
    else
      write_npy(std::move(file), shape, std::span<const T>(all));
  }
}

template class CaseRows<std::uint8_t>;
template class CaseRows<std::int32_t>;
template class CaseRows<double>;
template class CaseRows<std::byte>;

}  // namespace kvreplay
