#include "sim/cache/quantize.hpp"

#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

template <class T>
Matrix<T> random_matrix(Index rows, Index columns, std::uint64_t seed, double offset = 0) {
  return (random_group({.l = rows, .T = rows, .T_q = 1, .G = 1, .d = columns, .d_v = 1, .seed = seed})
              .k.array() +
          offset)
      .template cast<T>();
}

std::vector<Index> first_tokens(Index n) {
  std::vector<Index> tokens(n);
  std::iota(tokens.begin(), tokens.end(), Index{0});
  return tokens;
}

/// Half a step, the error of the arithmetic in float64 and that of rounding to T.
template <class T>
double allowed(const std::vector<T>& numbers, Index bits) {
  const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
  const double step = (static_cast<double>(*high) - static_cast<double>(*low)) / ((1 << bits) - 1);
  const double largest = std::max(std::abs(static_cast<double>(*low)), std::abs(static_cast<double>(*high)));
  const double ulp = std::numeric_limits<T>::epsilon() * largest;
  return step / 2 * (1 + 1e-12) + ulp / 2 + 2 * std::numeric_limits<double>::epsilon() * largest;
}

/// A group before and after: half a step, within its range, ends in place, no more values than bits allow.
template <class T>
void check_group(const std::vector<T>& before, const std::vector<T>& after, Index bits) {
  const auto [low, high] = std::minmax_element(before.begin(), before.end());
  CHECK(*std::min_element(after.begin(), after.end()) == *low);
  CHECK(*std::max_element(after.begin(), after.end()) == *high);
  CHECK(std::set<T>(after.begin(), after.end()).size() <= (std::size_t{1} << bits));
  double worst = 0;
  for (std::size_t n = 0; n < before.size(); ++n)
    worst = std::max(worst, std::abs(static_cast<double>(after[n]) - static_cast<double>(before[n])));
  CHECK(worst <= allowed(before, bits));
}

template <class T>
void check_bounds() {
  for (const Index bits : {2, 4, 8})
    for (const double offset : {0.0, -3.0, 1e4}) {
      const Quantization quantization = Quantization::kivi(bits, 7, 10);
      const std::vector<Index> tokens = first_tokens(40);  // 30 are old enough, 28 make whole groups
      const Matrix<T> k = random_matrix<T>(40, 5, 11, offset), v = random_matrix<T>(40, 17, 12, offset);
      Matrix<T> k_read = k, v_read = v;
      quantize_keys(k_read, tokens, {}, {}, quantization);
      quantize_values(v_read, tokens, quantization);
      INFO("bits " << bits << ", offset " << offset);
      CHECK(k_read.bottomRows(12) == k.bottomRows(12));
      CHECK(v_read.bottomRows(10) == v.bottomRows(10));
      for (Index c = 0; c < 5; ++c)
        for (Index begin = 0; begin < 28; begin += 7) {
          std::vector<T> before, after;
          for (Index p = begin; p < begin + 7; ++p) {
            before.push_back(k(p, c));
            after.push_back(k_read(p, c));
          }
          check_group(before, after, bits);
        }
      for (Index p = 0; p < 30; ++p)
        for (Index begin = 0; begin < 17; begin += 7) {
          std::vector<T> before, after;
          for (Index c = begin; c < std::min<Index>(begin + 7, 17); ++c) {
            before.push_back(v(p, c));
            after.push_back(v_read(p, c));
          }
          check_group(before, after, bits);
        }
    }
}

template <class T>
void check_idempotent() {
  for (const Index bits : {2, 4, 8})
    for (const double offset : {0.0, 1e3}) {
      const Quantization quantization = Quantization::kivi(bits, 8, 5);
      Matrix<T> k = random_matrix<T>(70, 6, 21, offset), v = random_matrix<T>(70, 20, 22, offset);
      const Matrix<T> k_before = k, v_before = v;
      quantize_keys(k, first_tokens(70), {}, {}, quantization);
      quantize_values(v, first_tokens(70), quantization);
      CHECK(k != k_before);
      CHECK(v != v_before);
      const Matrix<T> k_once = k, v_once = v;
      quantize_keys(k, first_tokens(70), {}, {}, quantization);
      quantize_values(v, first_tokens(70), quantization);
      CHECK(k == k_once);
      CHECK(v == v_once);
    }
}

template <class T>
void check_extremes() {
  constexpr T most = std::numeric_limits<T>::max(), least = std::numeric_limits<T>::denorm_min();
  const std::vector<std::vector<T>> groups{{most, -most, 0, most / 2},
                                           {most, most, most, most},
                                           {-most, -most, -most, -most},
                                           {0, least, 0, 0},
                                           {0, least, 3 * least, 0},
                                           {-0.0, 0.0, -0.0, 0.0},
                                           {1, std::nextafter(T{1}, T{2}), 1, 1}};
  for (const Index bits : {2, 4, 8})
    for (const std::vector<T>& group : groups) {
      Matrix<T> k(4, 1), v(1, 4);
      for (Index n = 0; n < 4; ++n) k(n, 0) = v(0, n) = group[n];
      const auto [least_it, most_it] = std::minmax_element(group.begin(), group.end());
      const double low = *least_it, high = *most_it;
      quantize_keys(k, first_tokens(4), {}, {}, Quantization::kivi(bits, 4, 0));
      quantize_values(v, first_tokens(1), Quantization::kivi(bits, 4, 0));
      INFO("group from " << low << " to " << high << ", bits " << bits);
      const double half_step = (high / 2 - low / 2) / ((1 << bits) - 1);
      for (Index n = 0; n < 4; ++n) {
        const double before = group[n];
        CHECK(k(n, 0) == v(0, n));
        CHECK(v(0, n) >= low);  // nor NaN
        CHECK(v(0, n) <= high);
        CHECK(std::abs(v(0, n) / 2.0 - before / 2.0) <= half_step * (0.5 + 1e-6) + least);
      }
    }
}

double error_of(Index bits) {
  const Matrix<double> k = random_matrix<double>(64, 8, 31), v = random_matrix<double>(64, 8, 32);
  Matrix<double> k_read = k, v_read = v;
  quantize_keys(k_read, first_tokens(64), {}, {}, Quantization::kivi(bits, 16, 0));
  quantize_values(v_read, first_tokens(64), Quantization::kivi(bits, 4, 0));
  return (k_read - k).norm() + (v_read - v).norm();
}

}  // namespace

TEST_CASE("how many tokens are quantized", "[quantize]") {
  const Quantization quantization = Quantization::kivi(4, 32, 128);
  const std::vector<std::vector<Index>> wants{{0, 0, 0},    {127, 0, 0},   {128, 0, 0},   {129, 0, 1},
                                              {159, 0, 31}, {160, 32, 32}, {191, 32, 63}, {192, 64, 64}};
  for (const std::vector<Index>& want : wants) {
    INFO("n = " << want[0]);
    CHECK(quantized_keys(want[0], quantization) == want[1]);
    CHECK(quantized_values(want[0], quantization) == want[2]);
  }
  CHECK(quantized_keys(7, Quantization::kivi(2, 3, 0)) == 6);
  CHECK(quantized_values(7, Quantization::kivi(2, 3, 0)) == 7);
}

TEST_CASE("a group by hand", "[quantize]") {
  // 2 bits: steps of 2 from 1 to 7; halves go up.
  Matrix<double> v(1, 7);
  v << 1, 1.9, 2, 2.1, 5.99, 6.01, 7;
  quantize_values(v, {0}, Quantization::kivi(2, 7, 0));
  Matrix<double> want(1, 7);
  want << 1, 1, 3, 3, 5, 7, 7;
  CHECK(v == want);
  // Groups of 3: {1, 2, 7}, {4, 4, 4} and the shorter {0, 9}.
  v.resize(1, 8);
  v << 1, 2.5, 7, 4, 4, 4, 0, 9;
  quantize_values(v, {0}, Quantization::kivi(2, 3, 0));
  want.resize(1, 8);
  want << 1, 3, 7, 4, 4, 4, 0, 9;
  CHECK(v == want);
}

TEST_CASE("half a step, within the group's range, and what is recent stays", "[quantize]") {
  check_bounds<float>();
  check_bounds<double>();
}

TEST_CASE("what was quantized is left as it is", "[quantize]") {
  check_idempotent<float>();
  check_idempotent<double>();
}

TEST_CASE("constants come back exactly, and no range makes NaN", "[quantize]") {
  check_extremes<float>();
  check_extremes<double>();
}

TEST_CASE("more bits, less error", "[quantize]") {
  CHECK(error_of(8) > 0);
  CHECK(error_of(8) < error_of(4) / 10);
  CHECK(error_of(4) < error_of(2) / 3);
}

TEST_CASE("groups of keys are the cache's neighbours, not the prompt's", "[quantize]") {
  const Matrix<double> k = random_matrix<double>(30, 3, 41);
  const std::vector<Index> tokens{2, 3, 11, 12, 20, 21, 29};
  Matrix<double> read = k, dense(7, 3);
  for (Index n = 0; n < 7; ++n) dense.row(n) = k.row(tokens[n]);
  const Quantization quantization = Quantization::kivi(2, 2, 2);
  quantize_keys(read, tokens, {}, {}, quantization);
  quantize_keys(dense, first_tokens(7), {}, {}, quantization);
  Matrix<double> want = k;
  for (Index n = 0; n < 7; ++n) want.row(tokens[n]) = dense.row(n);
  CHECK(read == want);
  CHECK(read.row(20) == k.row(20));  // 5 are old enough, 4 make whole groups
}

TEST_CASE("what pruning took neither counts for a group nor changes", "[quantize]") {
  const Matrix<double> k = random_matrix<double>(12, 4, 51);
  const ChannelSet pruned{0, 1, 0, 1};
  const KeptSet prunable{1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0};
  const Quantization quantization = Quantization::kivi(2, 4, 0);
  Matrix<double> garbage = k;
  for (Index p = 0; p < 12; ++p)
    for (Index c = 0; c < 4; ++c)
      if (prunable[p] != 0 && pruned[c] != 0) garbage(p, c) = 1e6 + static_cast<double>(p);
  Matrix<double> read = k, read_garbage = garbage, whole = k;
  quantize_keys(read, first_tokens(12), pruned, prunable, quantization);
  quantize_keys(read_garbage, first_tokens(12), pruned, prunable, quantization);
  quantize_keys(whole, first_tokens(12), {}, {}, quantization);
  for (Index p = 0; p < 12; ++p)
    for (Index c = 0; c < 4; ++c) {
      INFO("token " << p << ", channel " << c);
      const bool lost = prunable[p] != 0 && pruned[c] != 0;
      CHECK(read_garbage(p, c) == (lost ? garbage(p, c) : read(p, c)));
      if (pruned[c] == 0) CHECK(read(p, c) == whole(p, c));
    }
  // Channel 1: the second group is left with the tokens 4 and 6, both its ends; the third with token 11
  // alone.
  for (const Index p : {4, 6, 11}) CHECK(read(p, 1) == k(p, 1));
  CHECK(read.col(0) != k.col(0));
}

TEST_CASE("quantization commutes with the permutations that keep groups together", "[quantize]") {
  const Quantization quantization = Quantization::kivi(4, 3, 4);
  const Matrix<double> k = random_matrix<double>(20, 6, 61), v = random_matrix<double>(20, 6, 62);
  // Channels for keys; tokens, and whole groups of channels, for values.
  const std::vector<Index> channels{3, 0, 5, 1, 4, 2}, groups{3, 4, 5, 0, 1, 2};
  Matrix<double> k_moved(20, 6), v_moved(20, 6);
  for (Index c = 0; c < 6; ++c) {
    k_moved.col(channels[c]) = k.col(c);
    v_moved.col(groups[c]) = v.col(c);
  }
  Matrix<double> k_read = k, v_read = v;
  quantize_keys(k_read, first_tokens(20), {}, {}, quantization);
  quantize_keys(k_moved, first_tokens(20), {}, {}, quantization);
  quantize_values(v_read, first_tokens(20), quantization);
  quantize_values(v_moved, first_tokens(20), quantization);
  for (Index c = 0; c < 6; ++c) {
    CHECK(k_moved.col(channels[c]) == k_read.col(c));
    CHECK(v_moved.col(groups[c]) == v_read.col(c));
  }
  Matrix<double> v_turned = v.colwise().reverse();
  std::vector<Index> oldest_last = first_tokens(20);
  std::reverse(oldest_last.begin(), oldest_last.end());
  quantize_values(v_turned, oldest_last, quantization);
  CHECK(v_turned.colwise().reverse() == v_read);
}
