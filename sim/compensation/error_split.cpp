#include "sim/compensation/error_split.hpp"

#include "sim/gram_sums.hpp"
#include "sim/least_squares/normal_equations.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace kvreplay {
namespace {

/// All but the bound.
template <class T>
ErrorSplit terms_of(const RowLogits<T>& rows, Index first, Index count, const Matrix<double>& own,
                    const Compensated& held) {
  const Vector<double> weight = held.bias.array().exp();
  const KeptWeights plain = kept_weights(rows, first, count, held.tokens, Vector<double>()),
                    biased = kept_weights(rows, first, count, held.tokens, weight);
  const Matrix<double> plain_own = product(plain.e, own), biased_own = product(biased.e, own),
                       biased_new = product(biased.e, held.values);
  const Vector<double> plain_mass = plain.e.rowwise().sum(), plain_total = plain.total(),
                       total = biased.total();
  /// The output of row r, its weights' sum and that of its weighted values given.
  const auto output = [&](const KeptWeights& kept, double of_all, const Matrix<double>& sum, Index r) {
    const double share = of_all > 0 ? 1 / of_all : 0;
    const double of_rest = kept.rest[r] > 0 && kept.unscale[r] > 0 ? share / kept.unscale[r] : 0;
    return Eigen::RowVectorXd(share * sum.row(r) + of_rest * rows.rest_out.row(first + r));
  };
  ErrorSplit sums;
  for (Index r = 0; r < count; ++r) {
    const auto prompt = rows.prompt_out.row(first + r), rest = rows.rest_out.row(first + r);
    const double of_kept = plain_mass[r] > 0 ? rows.prompt_mass[first + r] / plain_mass[r] : 0;
    const Eigen::RowVectorXd full = prompt + rest, selected = of_kept * plain_own.row(r) + rest,
                             weighted = output(biased, total[r], biased_own, r),
                             changed = output(biased, total[r], biased_new, r);
    sums.full_sq += full.squaredNorm();
    sums.change_sq += (changed - full).squaredNorm();
    sums.selection += (selected - full).squaredNorm();
    sums.mass += (weighted - selected).squaredNorm();
    sums.values += (changed - weighted).squaredNorm();
    sums.plain += (output(plain, plain_total[r], plain_own, r) - full).squaredNorm();
    sums.weighted += (weighted - full).squaredNorm();
  }
  return sums;
}

template <class T>
ErrorSplit split_of(std::span<const RowLogits<T>* const> all, const HeadGroup<T>& group,
                    const Compensated& held, Workers& workers, std::optional<double> bound) {
  const Matrix<double> own = group.v(held.tokens, Eigen::all).template cast<double>();
  ErrorSplit split;
  Index n = 0;
  for (const RowLogits<T>* rows : all) {
    n += rows->n;
    std::vector<ErrorSplit> parts(div_up(rows->n, kGramTile));
    workers.parallel_for(std::ssize(parts), [&](Index item) {
      const Index first = item * kGramTile;
      parts[item] = terms_of(*rows, first, std::min(kGramTile, rows->n - first), own, held);
    });
    for (const ErrorSplit& part : parts) {
      split.full_sq += part.full_sq;
      split.change_sq += part.change_sq;
      split.selection += part.selection;
      split.mass += part.mass;
      split.values += part.values;
      split.plain += part.plain;
      split.weighted += part.weighted;
    }
  }
  const auto m = std::ssize(held.tokens);
  split.bound = std::numeric_limits<double>::quiet_NaN();
  if (n <= m) return split;
  split.bound = bound.value_or(split.change_sq);
  if (m == 0 || bound) return split;
  const Vector<double> weight = held.bias.array().exp();
  NormalEquations equations{Matrix<double>::Zero(m, m), Matrix<double>::Zero(m, own.cols()), 0};
  for (const RowLogits<T>* rows : all)
    equations += value_equations(*rows, held.tokens, weight, held.values, workers);
  split.bound = std::min(equations.least_error(workers), split.change_sq);
  return split;
}

}  // namespace

template <class T>
ErrorSplit error_split(const RowLogits<T>& rows, const HeadGroup<T>& group, const Compensated& held,
                       Workers& workers) {
  const RowLogits<T>* const all[] = {&rows};
  return split_of<T>(all, group, held, workers, std::nullopt);
}

template <class T>
ErrorSplit error_split(const ReferenceRows<T>& rows, const HeadGroup<T>& group, const Compensated& held,
                       Workers& workers, std::optional<double> bound) {
  const RowLogits<T>* const all[] = {&rows.fitted, &rows.held_out};
  return split_of<T>(all, group, held, workers, bound);
}

template ErrorSplit error_split(const RowLogits<float>&, const HeadGroup<float>&, const Compensated&,
                                Workers&);
template ErrorSplit error_split(const RowLogits<double>&, const HeadGroup<double>&, const Compensated&,
                                Workers&);
template ErrorSplit error_split(const ReferenceRows<float>&, const HeadGroup<float>&, const Compensated&,
                                Workers&, std::optional<double>);
template ErrorSplit error_split(const ReferenceRows<double>&, const HeadGroup<double>&, const Compensated&,
                                Workers&, std::optional<double>);

}  // namespace kvreplay
