#include "viewer/questions/token_reading.hpp"

#include "analysis/results/agreement.hpp"
#include "sim/attention.hpp"
#include "viewer/model/numbers.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvreplay::viewer {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// A row of one query head apart from one of the tokens that it sees: everything about the token follows
/// without a difference of nearly equal numbers, however near 1 its weight is.
struct RowWithout {
  Index first = 0;        ///< of the tokens that the row sees
  double odds = 0;        ///< a / (1 - a)
  Vector<double> others;  ///< the weights that all others would have without it; its own place holds 0
  Vector<double> output;  ///< o', theirs
  Vector<double> change;  ///< o - o' = a (v - o')
  double distance = 0;    ///< ||v - o||
  bool alone = false;     ///< the row reads nothing else

  double weight() const { return alone ? 1 : odds == kInf ? 1 : odds / (1 + odds); }
};

RowWithout row_without(const HeadGroup<double>& group, Index g, Index row, Index token) {
  RowWithout result;
  result.first = group.first_visible(row);
  const Index n = group.end_visible(row) - result.first, at = token - result.first;
  Vector<double> z = attention_logits(group, g, row).z.segment(result.first, n);
  const double own = z[at], sink = group.sink(g);
  z[at] = -kInf;
  const double largest = std::max(z.maxCoeff(), sink);
  result.alone = largest == -kInf;
  const auto values = group.v.middleRows(result.first, n);
  if (result.alone) {
    result.odds = kInf;
    result.others = Vector<double>::Zero(n);
    result.output = Vector<double>::Zero(group.d_v());
    result.change = group.v.row(token).transpose();
    return result;
  }
  result.others = (z.array() - largest).exp();
  const double sum = result.others.sum() + std::exp(sink - largest);
  result.others /= sum;
  result.odds = std::exp(own - largest - std::log(sum));
  result.output = values.transpose() * result.others;
  const Vector<double> apart = group.v.row(token).transpose() - result.output;
  result.change = result.weight() * apart;
  result.distance = apart.norm() / (1 + result.odds);
  return result;
}

/// Squared changes of the row's output where a token of [begin, end) stands in this one's place, added.
void add_substitutes(const HeadGroup<double>& group, const RowWithout& row, Index begin,
                     Vector<double>& sums) {
  for (Index j = 0; j < sums.size(); ++j) {
    const double share = row.others[begin + j - row.first];
    // The row has token j twice then: its output is o' + share / (1 + share) (v_j - o').
    sums[j] +=
        (share / (1 + share) * (group.v.row(begin + j).transpose() - row.output) - row.change).squaredNorm();
  }
}

RowRange heads_of(const HeadGroup<double>& group, std::optional<Index> query_head) {
  return query_head ? RowRange{*query_head, *query_head + 1} : RowRange{0, group.G()};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return values.empty() ? kNone : *middle;
}

bool sees(const HeadGroup<double>& group, Index row, Index token) {
  return token >= group.first_visible(row) && token < group.end_visible(row);
}

}  // namespace

double TokenReadings::cost() const {
  std::vector<double> costs;
  for (const TokenReading& reading : rows) costs.push_back(reading.cost);
  return compensated_sum(costs);
}

std::vector<TokenReading> TokenReadings::largest(double TokenReading::*figure, std::size_t most) const {
  std::vector<TokenReading> found = rows;
  std::stable_sort(found.begin(), found.end(),
                   [&](const TokenReading& a, const TokenReading& b) { return a.*figure > b.*figure; });
  found.resize(std::min(most, found.size()));
  return found;
}

double TokenReadings::share_of_dearest(std::size_t most) const {
  const double all = cost();
  if (!(all > 0)) return kNone;
  double dearest = 0;
  for (const TokenReading& reading : largest(&TokenReading::cost, most)) dearest += reading.cost;
  return std::min(dearest / all, 1.0);
}

TokenReadings token_readings(const HeadGroup<double>& group, std::optional<Index> query_head, Index token,
                             Index window, JobControl& job) {
  const RowRange rows = window_rows(group.l, group.first_query(), window);
  const RowRange heads = heads_of(group, query_head);
  TokenReadings result;
  result.window = rows.count();
  Index begin = 0, end = group.l;  // seen by all
  for (Index row = rows.begin; row < rows.end; ++row) {
    if (!sees(group, row, token)) continue;
    result.rows.push_back({row});
    begin = std::max(begin, group.first_visible(row));
    end = std::min(end, group.end_visible(row));
  }
  // Rows in turn, a few side by side, so that the sums are the same for any number of threads.
  constexpr Index kAtOnce = 16;
  Vector<double> sums = Vector<double>::Zero(std::max<Index>(end - begin, 0));
  std::vector<Vector<double>> parts(kAtOnce);
  const Index n = std::ssize(result.rows);
  for (Index from = 0; from < n; from += kAtOnce) {
    const Index count = std::min(kAtOnce, n - from);
    job.progress(static_cast<double>(from) / static_cast<double>(n));
    job.workers().parallel_for(count, [&](Index r) {
      TokenReading& reading = result.rows[from + r];
      parts[r] = Vector<double>::Zero(sums.size());
      for (Index g = heads.begin; g < heads.end; ++g) {
        const RowWithout seen = row_without(group, g, reading.row, token);
        reading.weight += seen.weight() / static_cast<double>(heads.count());
        reading.cost += seen.change.squaredNorm();
        add_substitutes(group, seen, begin, parts[r]);
      }
    });
    for (Index r = 0; r < count; ++r) sums += parts[r];
  }
  if (n == 0) return result;
  for (Index j = 0; j < sums.size(); ++j)
    if (begin + j != token && (!result.substitute || sums[j] < result.substitute->cost))
      result.substitute = {begin + j, sums[j]};
  return result;
}

std::optional<ReadingFactors> reading_factors(const HeadGroup<double>& group, std::optional<Index> query_head,
                                              Index row, Index token) {
  if (!sees(group, row, token)) return std::nullopt;
  const RowRange heads = heads_of(group, query_head);
  ReadingFactors factors;
  RowWithout dearest;
  for (Index g = heads.begin; g < heads.end; ++g) {
    RowWithout seen = row_without(group, g, row, token);
    const double cost = seen.change.squaredNorm();
    if (g != heads.begin && cost <= factors.cost) continue;
    factors = {row, g, seen.weight(), seen.odds, seen.distance, cost};
    dearest = std::move(seen);
  }
  const Vector<double> output = dearest.output + dearest.change;
  std::vector<double> odds, distances;
  for (Index j = 0; j < dearest.others.size(); ++j) {
    const bool itself = dearest.first + j == token;
    // The others' weights with it there are (1 - a) times those without it.
    const double a = dearest.others[j] / (1 + dearest.odds);
    odds.push_back(itself ? factors.odds : a / (1 - a));
    distances.push_back(itself ? factors.distance
                               : (group.v.row(dearest.first + j).transpose() - output).norm());
  }
  factors.median_odds = median(std::move(odds));
  factors.median_distance = median(std::move(distances));
  return factors;
}

}  // namespace kvreplay::viewer
