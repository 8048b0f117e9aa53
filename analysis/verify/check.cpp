#include "analysis/verify/check.hpp"

#include "sim/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

namespace kvreplay {
namespace {

/// A NaN without its sign: "-nan" says nothing.
double shown(double value) { return std::isnan(value) ? std::abs(value) : value; }

}  // namespace

void ValueDistance::add(Index layer, Index kv_head, TokenMetric metric, const std::vector<Index>& tokens,
                        const std::vector<double>& values, const std::vector<double>& reference,
                        double rounding) {
  const double tiny = std::max(tolerance_.tiny, rounding);
  double largest = 0;
  for (const double r : reference) largest = std::max(largest, std::abs(r));
  Index misses = 0;
  double worst_excess = -1;
  std::string worst_line;
  for (std::size_t t = 0; t < reference.size(); ++t) {
    const bool equal =
        values[t] == reference[t] || (std::abs(values[t]) <= tiny && std::abs(reference[t]) <= tiny);
    const double error = equal ? 0 : std::abs(values[t] - reference[t]);
    const double of_largest = error == 0 ? 0 : error / largest;
    const bool counts = std::abs(reference[t]) > tolerance_.floor * largest;
    const double relative = error == 0 || !counts ? 0 : error / std::abs(reference[t]);
    worst_of_largest_ = worse(worst_of_largest_, of_largest);
    worst_relative_ = worse(worst_relative_, relative);
    if (of_largest <= tolerance_.of_largest && relative <= tolerance_.relative) continue;
    ++misses;
    const double excess = std::max(of_largest / tolerance_.of_largest, relative / tolerance_.relative);
    if (misses > 1 && !(excess > worst_excess)) continue;
    worst_excess = excess;
    worst_line = fmt::format(
        "layer {} KV head {} token {} metric {}: {:.17g}, expected {:.17g} ({:.1e} of the largest, "
        "tolerance {:g}; {:.1e} relative, tolerance {:g})",
        layer, kv_head, tokens[t], name_of(metric), shown(values[t]), shown(reference[t]), shown(of_largest),
        tolerance_.of_largest, shown(relative), tolerance_.relative);
  }
  if (misses > 1) worst_line += fmt::format("; {} more tokens of this head miss it", misses - 1);
  if (misses > 0) failures_.push_back(worst_line);
}

void ValueDistance::merge(const ValueDistance& later) {
  worst_of_largest_ = worse(worst_of_largest_, later.worst_of_largest_);
  worst_relative_ = worse(worst_relative_, later.worst_relative_);
  failures_.insert(failures_.end(), later.failures_.begin(), later.failures_.end());
}

Check ValueDistance::check(const std::string& name, const std::string& covered) const {
  Check check{.name = name, .covered = covered};
  check.worst = fmt::format("worst {:.1e} of the largest (tolerance {:g}), {:.1e} relative ({:g})",
                            worst_of_largest_, tolerance_.of_largest, worst_relative_, tolerance_.relative);
  for (const std::string& failure : failures_) check.failures.push_back(name + ": " + failure);
  check.figures = {{"worst_of_largest", worst_of_largest_},
                   {"tolerance_of_largest", tolerance_.of_largest},
                   {"worst_relative", worst_relative_},
                   {"tolerance_relative", tolerance_.relative},
                   {"relative_above", tolerance_.floor}};
  return check;
}

namespace {

constexpr Index kRowBlocks = 64;      // with sums of their own, so that any number of threads gives the same
constexpr Index kTokensAtOnce = 256;  // of a form, that the work may stop

/// All rows that any of the forms is about, ascending.
std::vector<Index> rows_of(const std::vector<ClosedForm>& forms) {
  std::set<Index> rows;
  for (const ClosedForm& form : forms)
    for (Index i = form.rows.begin; i < form.rows.end; ++i) rows.insert(i);
  return {rows.begin(), rows.end()};
}

}  // namespace

std::vector<ClosedForm> closed_forms(const DumpShape& shape, const MetricSet& available, Index window) {
  const RowRange near = window_rows(shape.l, shape.first_query(), window);
  const RowRange far = future_rows(shape.l, shape.T, shape.first_query());
  const std::vector<ClosedForm> all = {
      {TokenMetric::exact_value, TokenChange::zero_value, near},
      {TokenMetric::exact_key, TokenChange::zero_key, near},
      {TokenMetric::exact_joint, TokenChange::zero_key_and_value, near},
      {TokenMetric::exact_remove, TokenChange::remove, near},
      {TokenMetric::oracle_next, TokenChange::remove, {shape.l, shape.l + 1}},
      {TokenMetric::oracle_future, TokenChange::remove, far},
  };
  std::vector<ClosedForm> checked;
  for (const ClosedForm& form : all)
    if (available.contains(form.metric)) checked.push_back(form);
  return checked;
}

std::vector<Index> sampled_tokens(Index l, Index count, const std::vector<Index>& wanted) {
  std::vector<Index> tokens;
  if (count <= 0 || count >= l) {
    tokens.resize(l);
    std::iota(tokens.begin(), tokens.end(), Index{0});
    return tokens;
  }
  std::set<Index> chosen;
  const auto choose = [&](Index p) {
    if (std::ssize(chosen) < count) chosen.insert(p);
  };
  choose(0);
  choose(l - 1);
  for (const Index p : wanted) choose(p);
  for (Index s = 1; s <= count; ++s) choose(s * l / (count + 1));
  for (Index p = 1; p < l; ++p) choose(p);  // where the spread met positions that were chosen already
  return {chosen.begin(), chosen.end()};
}

std::vector<std::vector<Index>> dealt_tokens(Index l, Index count, const std::vector<Index>& wanted,
                                             Index turn) {
  const std::vector<Index> tokens = sampled_tokens(l, count, wanted);
  const auto forms = wanted.size();
  std::vector<std::vector<Index>> dealt(forms);
  auto next = static_cast<std::size_t>(turn);
  for (const Index p : tokens) {
    const bool every_form = std::ssize(tokens) == l || p == 0 || p == l - 1;
    for (std::size_t f = 0; f < forms; ++f)
      if (every_form || p == wanted[f] || next % forms == f) dealt[f].push_back(p);
    if (!every_form) ++next;
  }
  return dealt;
}

std::vector<std::vector<double>> brute_force_sums(const HeadGroup<double>& group,
                                                  const std::vector<ClosedForm>& forms,
                                                  const std::vector<std::vector<Index>>& tokens,
                                                  Workers& workers) {
  const std::vector<Index> rows = rows_of(forms);
  const Index n_rows = std::ssize(rows), blocks = std::min(n_rows, kRowBlocks);
  Index parts = 0;  // of the forms' tokens
  std::vector<Matrix<double>> partial;
  for (const std::vector<Index>& of_form : tokens) {
    parts = std::max(parts, (std::ssize(of_form) + kTokensAtOnce - 1) / kTokensAtOnce);
    partial.push_back(Matrix<double>::Zero(group.G() * blocks, std::ssize(of_form)));
  }
  workers.parallel_for(group.G() * blocks * parts, [&](Index item) {
    const Index at = item / parts, first = item % parts * kTokensAtOnce;
    const Index g = at / blocks, block = at % blocks;
    for (Index r = block * n_rows / blocks; r < (block + 1) * n_rows / blocks && !workers.stopping(); ++r) {
      std::vector<ChangedTokens> changes;
      std::vector<std::size_t> changed;
      for (std::size_t f = 0; f < forms.size(); ++f) {
        const Index end = std::min(first + kTokensAtOnce, std::ssize(tokens[f]));
        if (rows[r] < forms[f].rows.begin || rows[r] >= forms[f].rows.end || first >= end) continue;
        changes.push_back({forms[f].change, {tokens[f].begin() + first, tokens[f].begin() + end}});
        changed.push_back(f);
      }
      const std::vector<Vector<double>> errors = brute_force_errors(group, g, rows[r], changes);
      for (std::size_t c = 0; c < changed.size(); ++c)
        partial[changed[c]].row(at).segment(first, errors[c].size()) += errors[c].transpose();
    }
  });
  std::vector<std::vector<double>> sums;
  for (const Matrix<double>& of_form : partial) {
    const Vector<double> sum = of_form.colwise().sum().transpose();
    sums.emplace_back(sum.data(), sum.data() + sum.size());
  }
  return sums;
}

namespace {

std::vector<KeptSet> kept_sets(const Vector<double>& cost) {
  const Index l = cost.size();
  const auto n = static_cast<std::size_t>(l);
  KeptSet alternate(n, 0), without_costly(n, 1);
  for (std::size_t p = 0; p < n; p += 2) alternate[p] = 1;
  const KeptSet costly = largest(cost, std::max<Index>(l / 100, 1));
  for (std::size_t p = 0; p < n; ++p) without_costly[p] = costly[p] != 0 ? 0 : 1;
  return {alternate, largest(cost, std::max<Index>(l / 10, 1)), without_costly, KeptSet(n, 1), KeptSet(n, 0)};
}

}  // namespace

std::string judged_float32(const Backend& backend) {
  return backend.name() == "cpu" ? "float32" : fmt::format("float32 on {}", backend.name());
}

template <class T>
double panel_distance(const PanelRows<T>& panels, const std::vector<Matrix<double>>& rows) {
  double square = 0;
  for (std::size_t g = 0; g < rows.size(); ++g)
    for (Index r = 0; r < rows[g].rows(); ++r)
      for (Index c = 0; c < rows[g].cols(); ++c) {
        const T found = panels[g][panel_entry<T>(c, r, rows[g].cols())];
        const double off = static_cast<double>(found) - rows[g](r, c);
        square += off * off;
      }
  return std::sqrt(square);
}
template double panel_distance(const PanelRows<float>&, const std::vector<Matrix<double>>&);
template double panel_distance(const PanelRows<double>&, const std::vector<Matrix<double>>&);

std::vector<OutputChangeReference> references_in_parallel(
    RowRange rows, Workers& workers,
    const std::function<std::vector<OutputChangeReference>(RowRange)>& reference) {
  constexpr Index kRows = 8;
  std::vector<std::vector<OutputChangeReference>> parts((rows.count() + kRows - 1) / kRows);
  workers.parallel_for(std::ssize(parts), [&](Index part) {
    const Index begin = rows.begin + part * kRows;
    parts[part] = reference({begin, std::min(begin + kRows, rows.end)});
  });
  std::vector<OutputChangeReference> whole = std::move(parts.front());
  for (std::size_t part = 1; part < parts.size(); ++part)
    for (std::size_t n = 0; n < whole.size(); ++n) {
      const OutputChangeReference& more = parts[part][n];
      whole[n].full_sq += more.full_sq;
      whole[n].change_sq += more.change_sq;
      for (std::size_t g = 0; g < more.change.size(); ++g) {
        Matrix<double>& rows_so_far = whole[n].change[g];
        rows_so_far.conservativeResize(rows_so_far.rows() + more.change[g].rows(), Eigen::NoChange);
        rows_so_far.bottomRows(more.change[g].rows()) = more.change[g];
      }
    }
  return whole;
}

OutputCheck::OutputCheck(const Dump& dump, Index window, const Compute& compute)
    : compute_(compute),
      f64_{"float64", "worst_f64"},
      f32_{"float32", "worst_f32"},
      on_device_{judged_float32(compute.backend), "worst_f32_on_device"} {
  const DumpShape& shape = dump.shape();
  window_ = window_rows(shape.l, shape.first_query(), std::min(window, kVerifiedRows));
  future_ = future_rows(shape.l, shape.T, shape.first_query());
  future_.end = std::min(future_.end, future_.begin + kVerifiedRows);
}

void OutputCheck::judge(const std::string& what, double deviation, double tolerance, Judged& judged) {
  judged.worst = worse(judged.worst, deviation);
  judged.seen = true;
  if (!(deviation <= tolerance))
    failures_.push_back(fmt::format("{} in {}, tolerance {:g}", what, judged.type, tolerance));
}

void OutputCheck::merge(const OutputCheck& later) {
  for (Judged OutputCheck::*judged : {&OutputCheck::f64_, &OutputCheck::f32_, &OutputCheck::on_device_}) {
    (this->*judged).worst = worse((this->*judged).worst, (later.*judged).worst);
    (this->*judged).seen |= (later.*judged).seen;
  }
  heads_ += later.heads_;
  failures_.insert(failures_.end(), later.failures_.begin(), later.failures_.end());
}

Check OutputCheck::check(const char* name, const char* covered, const char* norm, const char* missing) const {
  if (heads_ == 0 || rows() == 0) return left_out(name, missing);
  Check check{.name = name, .failures = failures_};
  check.covered = fmt::format("{} heads x {} rows x {}", heads_, rows(), covered);
  check.worst = fmt::format("worst {:.1e} of {} (tolerance {:g})", f64_.worst, norm, kOutputTolerance);
  check.figures = {{"heads", heads_}, {"rows", rows()}, {f64_.key, f64_.worst}};
  for (const Judged* judged : {&f32_, &on_device_}) {
    if (!judged->seen) continue;
    check.worst += fmt::format(", {} {:.1e} ({:g})", judged->type, judged->worst, kFloat32OutputTolerance);
    check.figures[judged->key] = judged->worst;
    check.figures["backend"] = compute_.backend.name();
  }
  return check;
}

KeptSetCheck::KeptSetCheck(const Dump& dump, Index window, const Compute& compute)
    : OutputCheck(dump, window, compute) {
  f32_.type = judged_float32(compute.backend);
}

void KeptSetCheck::add(const HeadGroup<double>& group, const HeadGroup<float>* single,
                       const Vector<double>& cost) {
  const std::vector<KeptSet> sets = kept_sets(cost);
  for (const RowRange rows : {window_, future_})
    if (rows.count() > 0) compare(group, single, rows, sets);
  count_head();
}

void KeptSetCheck::compare(const HeadGroup<double>& group, const HeadGroup<float>* single, RowRange rows,
                           const std::vector<KeptSet>& sets) {
  const std::vector<OutputChangeReference> expected = references_in_parallel(
      rows, compute_.workers,
      [&](RowRange some) { return output_change_references(group, some, caches_of<double>(sets)); });
  const auto judge_all = [&](const auto& found, double tolerance, Judged& judged) {
    for (std::size_t s = 0; s < sets.size(); ++s) {
      const double deviation =
          share_of(panel_distance(found.change[s], expected[s].change), std::sqrt(expected[s].full_sq));
      judge(fmt::format("kept sets: layer {} KV head {}, rows {} to {}: {:.2g} of the full output's norm off",
                        group.layer, group.kv_head, rows.begin, rows.end - 1, deviation),
            deviation, tolerance, judged);
    }
  };
  judge_all(compute_.backend.output_changes(group, rows, caches_of<double>(sets), true, compute_.workers),
            kOutputTolerance, f64_);
  if (single != nullptr)
    judge_all(compute_.backend.output_changes(*single, rows, caches_of<float>(sets), true, compute_.workers),
              kFloat32OutputTolerance, f32_);
}

Check KeptSetCheck::check() const {
  return OutputCheck::check("kept sets", "5 kept sets", "the output's norm",
                            "the dump holds no queries of the window or the decoding steps");
}

}  // namespace kvreplay
