#include "sim/eviction/retrieval/retrieval.hpp"

#include "sim/gram_sums.hpp"
#include "sim/overflow.hpp"
#include "sim/simd/panel.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

namespace kvreplay {
namespace {

constexpr Index kRowsAtOnce = 16;  ///< of an item of work
/// In place of the score of what is pinned.
constexpr double kPinned = std::numeric_limits<double>::infinity();

/// The prompt positions that a row sees.
template <class T>
RowRange prompt_seen(const HeadGroup<T>& group, Index row) {
  const Index end = std::min(group.end_visible(row), group.l);
  return {std::min(group.first_visible(row), end), end};
}

/// The 1s of a set of channels, 0 elsewhere.
template <class T>
Matrix<T> mask_of(const ChannelSet& channels) {
  Matrix<T> mask(1, std::ssize(channels));
  for (Index c = 0; c < mask.cols(); ++c) mask(0, c) = static_cast<T>(channels[c]);
  return mask;
}

/// Looks at a group's queries as a rule does: 0 in the channels that it does not read.
template <class T>
class QueryView {
 public:
  QueryView(const HeadGroup<T>& group, const EvictionRule& rule) : group_(group), rule_(rule) {
    if (rule.reads == ReadBy::heavy_channels)
      heavy_ = mask_of<T>(heavy_channels(group, channels_read(rule, group.d())));
  }

  /// [G] of [rows, d].
  std::vector<Matrix<T>> of(RowRange rows) const {
    std::vector<Matrix<T>> queries;
    for (const HeadMatrix<T>& q : group_.q)
      queries.push_back(q.middleRows(rows.begin - group_.first_query(), rows.count()));
    if (rule_.reads == ReadBy::heavy_channels)
      for (Matrix<T>& q : queries) q.array().rowwise() *= heavy_.row(0).array();
    if (rule_.reads == ReadBy::query_channels)
      for (Index r = 0; r < rows.count(); ++r) keep_largest(queries, r);
    return queries;
  }

 private:
  /// SparQ, alg. 1: the r channels of largest |q|, of a group of the largest sum over it; logits are divided
  /// by the root of their share of ||q||_1, which is what the temperature sqrt(d ||q'||_1 / ||q||_1) is over
  /// sqrt(d).
  void keep_largest(std::vector<Matrix<T>>& queries, Index r) const {
    Vector<double> sums = Vector<double>::Zero(group_.d());
    for (const Matrix<T>& q : queries) sums += q.row(r).transpose().template cast<double>().cwiseAbs();
    const Matrix<T> mask = mask_of<T>(largest(sums, channels_read(rule_, group_.d())));
    for (Matrix<T>& q : queries) {
      const T whole = q.row(r).template lpNorm<1>();
      q.row(r).array() *= mask.row(0).array();
      const T part = q.row(r).template lpNorm<1>();
      if (part > 0) q.row(r) *= std::sqrt(whole / part);
    }
  }

  const HeadGroup<T>& group_;
  const EvictionRule& rule_;
  Matrix<T> heavy_;  // [1, d]
};

/// Scores of pages: the largest logits that the least and largest channels of a page's keys allow, summed
/// over the query heads (Quest, alg. 1).
template <class T>
class PageBounds {
 public:
  PageBounds(const HeadGroup<T>& group, Index page)
      : least_(div_up(group.l, page), group.d()), most_(least_.rows(), group.d()) {
    for (Index n = 0; n < least_.rows(); ++n) {
      const auto keys = group.k.middleRows(n * page, std::min(page, group.l - n * page));
      least_.row(n) = keys.colwise().minCoeff();
      most_.row(n) = keys.colwise().maxCoeff();
    }
  }

  /// [rows, pages]
  Matrix<T> of(const std::vector<Matrix<T>>& queries) const {
    Matrix<T> sum = Matrix<T>::Zero(queries.front().rows(), least_.rows());
    for (const Matrix<T>& q : queries) {
      sum += row_products<T>(q.cwiseMax(T{0}), most_);
      sum += row_products<T>(q.cwiseMin(T{0}), least_);
    }
    return sum;
  }

 private:
  Matrix<T> least_, most_;
};

/// The softmax of a row's logits over what it sees of all T positions, and the sink; 0 elsewhere.
template <class T>
void to_weights(const HeadGroup<T>& group, Index g, Index row, Eigen::Ref<Vector<double>> z) {
  const RowRange seen{group.first_visible(row), group.end_visible(row)};
  z.head(seen.begin).setZero();
  z.tail(z.size() - seen.end).setZero();
  if (seen.count() == 0) return;
  auto weights = z.segment(seen.begin, seen.count());
  const double top = std::max(weights.maxCoeff(), group.sink(g));
  weights = (weights.array() - top).exp();
  weights /= weights.sum() + std::exp(group.sink(g) - top);
}

/// Scores of tokens, [rows, l]: softmax weights of the logits of `queries`, or these logits themselves,
/// summed over the query heads.
template <class T>
Matrix<T> summed_weights(const HeadGroup<T>& group, const EvictionRule& rule,
                         const std::vector<Matrix<T>>& queries, Index first_row) {
  const Index rows = queries.front().rows();
  Matrix<double> sum = Matrix<double>::Zero(rows, group.l);
  for (Index g = 0; g < group.G(); ++g) {
    Matrix<T> products = row_products<T>(queries[g], group.k);
    products *= static_cast<T>(group.rule.scale);
    for (Index r = 0; r < rows; ++r) {
      Vector<double> z = products.row(r).transpose().template cast<double>();
      if (const auto cap = group.rule.softcap) z = *cap * (z.array() / *cap).tanh();
      const RowRange seen{group.first_visible(first_row + r), group.end_visible(first_row + r)};
      if (!z.segment(seen.begin, seen.count()).allFinite())
        report_overflow(group, g, "position " + std::to_string(first_row + r));
      if (!rule.reads_by_logits) to_weights(group, g, first_row + r, z);
      sum.row(r) += z.head(group.l);
    }
  }
  return sum.template cast<T>();
}

/// The pages that a row reads, `budget` of those that hold what it sees: what is pinned, then the largest
/// scores.
template <class T>
std::vector<std::uint8_t> pages_of_row(const HeadGroup<T>& group, const EvictionRule& rule,
                                       const Eigen::Ref<const Vector<double>>& scores, Index row,
                                       Index budget) {
  const RowRange seen = prompt_seen(group, row);
  const Index page = rule.page, begin = seen.begin / page,
              end = seen.count() > 0 ? div_up(seen.end, page) : begin;
  std::vector<std::uint8_t> read(scores.size());
  Vector<double> order = scores.segment(begin, end - begin);
  if (!order.allFinite())
    report_not_finite(group, "finite scores of what is read", ", position " + std::to_string(row));
  Index left = std::min(budget, end - begin);
  const auto pin = [&](Index n) {
    if (left == 0 || n < begin || order[n - begin] == kPinned) return;
    order[n - begin] = kPinned;
    --left;
  };
  for (Index n = 0; n < std::min(div_up(rule.sinks, page), end); ++n) pin(n);
  for (Index n = end; rule.recent > 0 && n-- > std::max(seen.end - rule.recent, seen.begin) / page;) pin(n);
  const KeptSet best = largest(order, budget);
  std::copy(best.begin(), best.end(), read.begin() + begin);
  return read;
}

/// Rows that read by a share of their weight: in which order they take the tokens that they see, and what of
/// all their weight they have after each.
struct WeightOrder {
  std::vector<Index> tokens;
  std::vector<double> mass;  ///< [1 + tokens]; the first is that of decoded tokens and sink

  /// The fewest tokens that reach the share p.
  Index reaching(double p) const {
    const auto found = std::ranges::lower_bound(mass, p) - mass.begin();
    return std::min(found, std::ssize(tokens));
  }
};

template <class T>
WeightOrder weight_order(const HeadGroup<T>& group, const EvictionRule& rule,
                         const Eigen::Ref<const Vector<double>>& weights, Index row) {
  const RowRange seen = prompt_seen(group, row);
  WeightOrder order;
  order.tokens.resize(static_cast<std::size_t>(seen.count()));
  std::iota(order.tokens.begin(), order.tokens.end(), seen.begin);
  const auto pinned = [&](Index p) { return p < rule.sinks || p >= seen.end - rule.recent; };
  std::ranges::stable_sort(order.tokens, [&](Index a, Index b) {
    return pinned(a) != pinned(b) ? pinned(a) : weights[a] > weights[b];
  });
  const double all = static_cast<double>(group.G());
  double mass = 1 - weights.segment(seen.begin, seen.count()).sum() / all;
  order.mass.push_back(mass);
  for (const Index p : order.tokens) order.mass.push_back(mass += weights[p] / all);
  return order;
}

/// The largest share that `judged` rows reach reading no more than `budget` tokens on average.
double share_within(std::span<const WeightOrder> judged, Index budget) {
  const auto fits = [&](double p) {
    Index all = 0;
    for (const WeightOrder& row : judged) all += row.reaching(p);
    return all <= budget * std::ssize(judged);
  };
  double least = 0, most = 1;  // in 60 halvings: neighbours among doubles
  for (int halving = 0; halving < 60; ++halving) {
    const double p = (least + most) / 2;
    (fits(p) ? least : most) = p;
  }
  return least;
}

template <class T>
std::vector<PagesRead> rows_read_by_share(const HeadGroup<T>& group, std::span<const ReadRequest> asked,
                                          RowRange rows, RowRange judged, const Matrix<T>& scores,
                                          Workers& workers) {
  std::vector<PagesRead> found;
  std::vector<WeightOrder> orders(static_cast<std::size_t>(rows.count()));
  const EvictionRule* ordered = nullptr;  // the rule whose pins lead them
  for (const ReadRequest& one : asked) {
    const EvictionRule& rule = *one.rule;
    if (ordered == nullptr || ordered->sinks != rule.sinks || ordered->recent != rule.recent)
      workers.parallel_for(rows.count(), [&](Index r) {
        orders[static_cast<std::size_t>(r)] =
            weight_order(group, rule, scores.row(r).transpose().template cast<double>(), rows.begin + r);
      });
    ordered = &rule;
    const auto judged_orders = std::span(orders).subspan(static_cast<std::size_t>(judged.begin - rows.begin),
                                                         static_cast<std::size_t>(judged.count()));
    const double p = share_within(judged_orders, one.budget);
    PagesRead& pages = found.emplace_back(PagesRead{1, rows.begin, {}});
    for (const WeightOrder& order : orders) {
      std::vector<std::uint8_t>& read = pages.read.emplace_back(group.l);
      for (Index n = 0; n < order.reaching(p); ++n) read[static_cast<std::size_t>(order.tokens[n])] = 1;
    }
  }
  return found;
}

}  // namespace

template <class T>
Matrix<T> row_scores(const HeadGroup<T>& group, const EvictionRule& rule, RowRange rows, Workers& workers) {
  const QueryView<T> view(group, rule);
  std::optional<PageBounds<T>> bounds;
  if (rule.reads == ReadBy::page_bounds) bounds.emplace(group, rule.page);
  Matrix<T> scores(rows.count(), div_up(group.l, rule.page));
  workers.parallel_for(div_up(rows.count(), kRowsAtOnce), [&](Index item) {
    const Index begin = rows.begin + item * kRowsAtOnce;
    const RowRange part{begin, std::min(begin + kRowsAtOnce, rows.end)};
    const std::vector<Matrix<T>> queries = view.of(part);
    scores.middleRows(begin - rows.begin, part.count()) =
        bounds ? bounds->of(queries) : summed_weights(group, rule, queries, begin);
  });
  return scores;
}

template <class T>
std::vector<PagesRead> rows_read(const HeadGroup<T>& group, std::span<const ReadRequest> asked, RowRange rows,
                                 RowRange judged, Workers& workers) {
  std::vector<PagesRead> found(asked.size());
  std::vector<ReadRequest> choosing;
  std::vector<std::size_t> at;
  for (std::size_t n = 0; n < asked.size(); ++n)
    if (asked[n].budget < group.l && group.layer >= asked[n].rule->dense) {
      choosing.push_back(asked[n]);
      at.push_back(n);
    }
  if (choosing.empty() || rows.count() == 0) return found;
  const EvictionRule& rule = *choosing.front().rule;
  const Matrix<T> scores = row_scores(group, rule, rows, workers);
  if (rule.reads == ReadBy::weight_share) {
    std::vector<PagesRead> by_share = rows_read_by_share<T>(group, choosing, rows, judged, scores, workers);
    for (std::size_t c = 0; c < at.size(); ++c) found[at[c]] = std::move(by_share[c]);
    return found;
  }
  for (const std::size_t n : at)
    found[n] = {rule.page, rows.begin,
                std::vector<std::vector<std::uint8_t>>(static_cast<std::size_t>(rows.count()))};
  workers.parallel_for(rows.count(), [&](Index r) {
    const Vector<double> of_row = scores.row(r).transpose().template cast<double>();
    for (const std::size_t n : at)
      found[n].read[static_cast<std::size_t>(r)] =
          pages_of_row(group, *asked[n].rule, of_row, rows.begin + r, asked[n].budget / rule.page);
  });
  return found;
}

template <class T>
double mean_tokens_read(const HeadGroup<T>& group, const PagesRead& pages, RowRange rows) {
  Index all = 0;
  for (Index row = rows.begin; row < rows.end; ++row) {
    const RowRange seen = prompt_seen(group, row);
    for (Index p = seen.begin; p < seen.end; ++p) all += pages.reads(row, p) ? 1 : 0;
  }
  return static_cast<double>(all) / static_cast<double>(rows.count());
}

Index channels_read(const EvictionRule& rule, Index d) {
  return std::min(rule.r.value_or(std::max<Index>(d / 4, 1)), d);
}

ReadIndex read_index(const EvictionRule& rule, Index l, Index d) {
  switch (*rule.reads) {
    case ReadBy::weight:
    case ReadBy::weight_share:
      break;
    case ReadBy::page_bounds:
      return {2 * d * div_up(l, rule.page), 2 * d * div_up(l, rule.page)};
    case ReadBy::query_channels:
      return {0, channels_read(rule, d) * l};
    case ReadBy::heavy_channels:
      return {channels_read(rule, d) * l, channels_read(rule, d) * l};
  }
  return {};
}

template <class T>
ChannelSet heavy_channels(const HeadGroup<T>& group, Index r) {
  const Index first = group.first_query(), n = std::max<Index>(group.l - first, 0);
  Vector<double> sums = Vector<double>::Zero(group.d());
  for (const HeadMatrix<T>& q : group.q)
    sums += q.topRows(n)
                .cwiseProduct(group.k.middleRows(std::min(first, group.l), n))
                .template cast<double>()
                .cwiseAbs()
                .colwise()
                .sum()
                .transpose();
  return largest(sums, r);
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define KVREPLAY_RETRIEVAL(T)                                                                            \
  template Matrix<T> row_scores(const HeadGroup<T>&, const EvictionRule&, RowRange, Workers&);           \
  template std::vector<PagesRead> rows_read(const HeadGroup<T>&, std::span<const ReadRequest>, RowRange, \
                                            RowRange, Workers&);                                         \
  template double mean_tokens_read(const HeadGroup<T>&, const PagesRead&, RowRange);                     \
  template ChannelSet heavy_channels(const HeadGroup<T>&, Index);
KVREPLAY_RETRIEVAL(float)
KVREPLAY_RETRIEVAL(double)
#undef KVREPLAY_RETRIEVAL
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace kvreplay
