#include "analysis/verify/closed_forms.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace kvreplay {
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

}  // namespace kvreplay
