#include "sim/channels/subset.hpp"
#include "tests/sim/channel_cases.hpp"
#include "tests/support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Units = std::vector<std::vector<Index>>;

/// Greedy from the definition: every unit left is tried, its error with all that was taken summed anew.
std::vector<Index> naive_greedy(const Matrix<double>& H, const Units& units, const ChannelSet& fixed) {
  Units left;
  for (const auto& unit : units)
    if (std::none_of(unit.begin(), unit.end(), [&](Index c) { return holds(fixed, c); }))
      left.push_back(unit);
  std::vector<Index> order;
  double error = 0;
  while (!left.empty()) {
    double least = std::numeric_limits<double>::infinity();
    std::size_t best = 0;
    for (std::size_t u = 0; u < left.size(); ++u) {
      std::vector<Index> with = order;
      with.insert(with.end(), left[u].begin(), left[u].end());
      const double rise = (naive_error(H, with) - error) / static_cast<double>(left[u].size());
      if (rise >= least) continue;
      least = rise;
      best = u;
    }
    order.insert(order.end(), left[best].begin(), left[best].end());
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
    error = naive_error(H, order);
  }
  return order;
}

Units singletons(Index d) {
  Units units;
  for (Index c = 0; c < d; ++c) units.push_back({c});
  return units;
}

/// The lowest error that one swap leads to.
double best_neighbour(const Matrix<double>& H, ChannelSet set, const ChannelSet& fixed) {
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t c = 0; c < set.size(); ++c)
    for (std::size_t e = 0; e < set.size(); ++e) {
      if (set[c] == 0 || set[e] != 0 || holds(fixed, static_cast<Index>(e))) continue;
      std::swap(set[c], set[e]);
      best = std::min(best, subset_error(H, set));
      std::swap(set[c], set[e]);
    }
  return best;
}

Index members(const ChannelSet& set) { return std::accumulate(set.begin(), set.end(), Index{0}); }

Matrix<double> permuted(const Matrix<double>& H, const std::vector<Index>& to) {
  Matrix<double> P(H.rows(), H.cols());
  for (Index c = 0; c < H.rows(); ++c)
    for (Index e = 0; e < H.rows(); ++e) P(to[c], to[e]) = H(c, e);
  return P;
}

}  // namespace

TEST_CASE("the error of a set sums both triangles and the diagonal", "[channel_subset]") {
  Matrix<double> H(3, 3);
  H << 1, 2, 4, 2, 8, 16, 4, 16, 32;
  CHECK(subset_error(H, {0, 0, 0}) == 0);
  CHECK(subset_error(H, {0, 1, 0}) == 8);
  CHECK(subset_error(H, {1, 0, 1}) == 1 + 32 + 2 * 4);
  CHECK(subset_error(H, {1, 1, 1}) == H.sum());
}

TEST_CASE("channels ascend by score and fixed ones are left out", "[channel_subset]") {
  Vector<double> score(6);
  score << 3, 1, 2, 1, -4, 2;
  CHECK(ascending_order(score, {}) == std::vector<Index>{4, 1, 3, 2, 5, 0});
  CHECK(ascending_order(score, {0, 1, 0, 0, 1, 0}) == std::vector<Index>{3, 2, 5, 0});
  CHECK(ascending_order(Vector<double>(0), {}).empty());
}

TEST_CASE("without terms off the diagonal greedy pruning sorts the diagonal", "[channel_subset]") {
  for (const Index d : {1, 2, 7, 64}) {
    const Matrix<double> D = channel_matrix({.d = d, .seed = 3}).diagonal().asDiagonal();
    const ChannelSet fixed = random_channels(d, d / 4, 5);
    CHECK(greedy_order(D, {}) == ascending_order(D.diagonal(), {}));
    CHECK(greedy_order(D, fixed) == ascending_order(D.diagonal(), fixed));
  }
}

TEST_CASE("greedy pruning takes the cheapest channel at every step", "[channel_subset]") {
  int unlike_diagonal = 0;
  for (const ChannelSpec& spec : channel_specs({1, 2, 3, 9, 16, 33})) {
    const Matrix<double> H = channel_matrix(spec);
    for (const Index n_fixed : {Index{0}, spec.d / 3}) {
      const ChannelSet fixed = random_channels(spec.d, n_fixed, spec.seed);
      INFO(name_of(spec) << ", fixed " << n_fixed);
      const std::vector<Index> order = greedy_order(H, fixed);
      CHECK(std::ssize(order) == spec.d - n_fixed);
      CHECK(order == naive_greedy(H, singletons(spec.d), fixed));
      CHECK(order == greedy_order(H, singletons(spec.d), fixed));
      unlike_diagonal += order != ascending_order(H.diagonal(), fixed);
    }
  }
  CHECK(unlike_diagonal > 20);
}

TEST_CASE("greedy pruning of units", "[channel_subset]") {
  for (const ChannelSpec& spec : channel_specs({2, 8, 18, 32})) {
    const Matrix<double> H = channel_matrix(spec);
    const Index half = spec.d / 2;
    INFO(name_of(spec));
    Units pairs, mixed;
    Matrix<double> contracted = Matrix<double>::Zero(half, half);
    for (Index p = 0; p < half; ++p) {
      pairs.push_back({p, p + half});
      for (Index q = 0; q < half; ++q)
        contracted(p, q) = H(p, q) + H(p + half, q) + H(p, q + half) + H(p + half, q + half);
    }
    std::vector<Index> want;
    for (const Index p : greedy_order(contracted, {})) want.insert(want.end(), {p, p + half});
    CHECK(greedy_order(H, pairs, {}) == want);
    CHECK(greedy_order(H, pairs, {}) == naive_greedy(H, pairs, {}));

    // Sizes 1, 2, 3, 1, ..., members in falling order; one unit and one channel of no unit are left out.
    for (Index c = 0; c + 3 < spec.d; c += std::ssize(mixed.back())) {
      mixed.emplace_back();
      for (Index i = static_cast<Index>(mixed.size() - 1) % 3; i >= 0; --i) mixed.back().push_back(c + i);
    }
    ChannelSet fixed(static_cast<std::size_t>(spec.d), 0);
    if (!mixed.empty()) fixed[mixed[mixed.size() / 2].front()] = 1;
    CHECK(greedy_order(H, mixed, fixed) == naive_greedy(H, mixed, fixed));
  }
}

TEST_CASE("the unit that is cheapest per channel goes first", "[channel_subset]") {
  Matrix<double> H = Matrix<double>::Zero(4, 4);
  H.diagonal() << 3, 2.5, 2.4, 4;
  CHECK(greedy_order(H, Units{{0}, {1, 2}, {3}}, {}) == std::vector<Index>{1, 2, 0, 3});
  H(0, 1) = H(1, 0) = 2;
  CHECK(greedy_order(H, Units{{2, 1}, {0}, {3}}, {}) == std::vector<Index>{2, 1, 3, 0});
}

TEST_CASE("among equal channels the lower one goes first", "[channel_subset]") {
  const Matrix<double> ones = Matrix<double>::Ones(5, 5);
  CHECK(greedy_order(ones, {}) == std::vector<Index>{0, 1, 2, 3, 4});
  CHECK(greedy_order(ones, {0, 1, 0, 0, 0}) == std::vector<Index>{0, 2, 3, 4});
  CHECK(exchange_channels(ones, {0, 1, 0, 1, 0}, {}) == ChannelSet{0, 1, 0, 1, 0});
  Matrix<double> H = Matrix<double>::Identity(6, 6);
  H(1, 1) = H(3, 3) = 5;  // 1 leaves before 3, and 0 joins before 4
  CHECK(exchange_channels(H, {0, 1, 0, 0, 0, 0}, {}) == ChannelSet{1, 0, 0, 0, 0, 0});
  CHECK(exchange_channels(H, {0, 1, 0, 1, 0, 0}, {1, 0, 1, 0, 0, 1}) == ChannelSet{0, 0, 0, 1, 1, 0});
}

TEST_CASE("orders follow their channels", "[channel_subset]") {
  std::mt19937_64 bits(17);
  for (const ChannelSpec& spec : channel_specs({5, 16, 64})) {
    const Matrix<double> H = channel_matrix(spec);
    std::vector<Index> to(spec.d);
    std::iota(to.begin(), to.end(), Index{0});
    std::shuffle(to.begin(), to.end(), bits);
    const Matrix<double> P = permuted(H, to);
    INFO(name_of(spec));
    std::vector<Index> want = greedy_order(H, {});
    for (Index& c : want) c = to[c];
    CHECK(greedy_order(P, {}) == want);
  }
}

TEST_CASE("exchange never ends above its start and no swap pays at its end", "[channel_subset]") {
  int greedy_improved = 0, random_improved = 0;
  for (const ChannelSpec& spec : channel_specs({1, 2, 9, 24, 40})) {
    const Matrix<double> H = channel_matrix(spec);
    const double rounding = 1e-12 * H.cwiseAbs().sum();
    for (const Index n_fixed : {Index{0}, spec.d / 4}) {
      const ChannelSet fixed = random_channels(spec.d, n_fixed, spec.seed);
      for (const Index n : {Index{0}, Index{1}, spec.d / 2, spec.d - n_fixed}) {
        std::vector<Index> shuffled = ascending_order(H.col(spec.d / 2).cwiseAbs() * -1, fixed);
        for (const bool greedy : {true, false}) {
          const ChannelSet start = first_of(greedy ? greedy_order(H, fixed) : shuffled, n, spec.d);
          const ChannelSet end = exchange_channels(H, start, fixed);
          INFO(name_of(spec) << ", fixed " << n_fixed << ", n " << n << ", greedy " << greedy);
          REQUIRE(members(end) == members(start));
          for (Index c = 0; c < spec.d; ++c) CHECK_FALSE((holds(end, c) && holds(fixed, c)));
          const double before = subset_error(H, start), after = subset_error(H, end);
          CHECK((end == start || after < before));
          CHECK(best_neighbour(H, end, fixed) >= after - rounding);
          (greedy ? greedy_improved : random_improved) += end != start;
        }
      }
    }
  }
  CHECK(greedy_improved > 3);
  CHECK(random_improved > 30);
}

TEST_CASE("the first of an order", "[channel_subset]") {
  CHECK(first_of({3, 0, 2}, 2, 5) == ChannelSet{1, 0, 0, 1, 0});
  CHECK(first_of({3, 0, 2}, 0, 5) == ChannelSet{0, 0, 0, 0, 0});
  CHECK(first_of({3, 0, 2}, 9, 5) == ChannelSet{1, 0, 1, 1, 0});
}

TEST_CASE("no scale changes an order", "[channel_subset]") {
  for (const ChannelSpec& spec : channel_specs({16, 41})) {
    const Matrix<double> H = channel_matrix(spec);
    const std::vector<Index> order = greedy_order(H, {});
    const ChannelSet start = first_of(order, spec.d / 2, spec.d);
    for (const int exponent : {-100, 100}) {
      const Matrix<double> scaled = H * std::ldexp(1.0, exponent);
      CHECK(greedy_order(scaled, {}) == order);
      CHECK(exchange_channels(scaled, start, {}) == exchange_channels(H, start, {}));
    }
  }
}

// Half of the set is 1e8 times the size of the rest: what they leave in the sums must not hide small gains.
TEST_CASE("exchange is exact among small channels once the large ones have left", "[channel_subset]") {
  const Index d = 24, n = 8;
  Matrix<double> H = channel_matrix({.d = d, .seed = 12});
  Vector<double> size = Vector<double>::Ones(d);
  for (Index c = 0; c < n / 2; ++c) size[c] = 1e8;
  H = (size.asDiagonal() * H * size.asDiagonal()).eval();
  ChannelSet start(static_cast<std::size_t>(d), 0);
  std::fill(start.begin(), start.begin() + n, 1);
  const ChannelSet end = exchange_channels(H, start, {});
  CHECK(std::count(end.begin(), end.begin() + n / 2, 1) == 0);
  const double error = subset_error(H, end);
  CHECK(best_neighbour(H, end, {}) >= error * (1 - 1e-12));
}

TEST_CASE("exchange takes small gains", "[channel_subset]") {
  Matrix<double> H = Matrix<double>::Identity(3, 3);
  H(0, 0) = 1 + 1e-12;
  CHECK(exchange_channels(H, {1, 0, 0}, {}) == ChannelSet{0, 1, 0});
}

TEST_CASE("exchange ends where rounding hides all differences", "[channel_subset]") {
  for (const Index d : {1, 17, 128}) {
    const ChannelSet half = random_channels(d, d / 2, 3);
    CHECK(exchange_channels(Matrix<double>::Zero(d, d), half, {}) == half);
    CHECK(exchange_channels(Matrix<double>::Constant(d, d, 1e30), half, {}) == half);
    CHECK(exchange_channels(Matrix<double>::Constant(d, d, 0.1), half, {}) == half);
    // Rank one, x'Hx = (a'x)^2, and sets whose a sums to nearly 0: all that is left is rounding.
    Vector<double> a(d);
    for (Index c = 0; c < d; ++c)
      a[c] = (c % 2 == 0 ? 1 : -1) * std::sqrt(static_cast<double>(c - c % 2 + 4));
    const Matrix<double> H = a * a.transpose();
    const ChannelSet end = exchange_channels(H, half, {});
    CHECK(subset_error(H, end) <= subset_error(H, half) + 1e-12 * H.cwiseAbs().sum());
  }
}
