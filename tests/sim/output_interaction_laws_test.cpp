#include "data/error.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/channels/output_interaction.hpp"
#include "sim/head_group.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

/// The keys p < l with p mod 3 in `classes`, of a whole cache.
PrunableKeys thirds(Index l, const std::vector<Index>& classes) {
  PrunableKeys keys = prompt_keys(l, l);
  for (Index p = 0; p < l; ++p)
    for (const Index c : classes)
      if (p % 3 == c) keys.prunable[p] = 1;
  return keys;
}

constexpr Tolerance kRounding{.of_largest = 1e-12, .floor = 1.0};

/// The largest difference between two interactions where every channel is measured in its own size.
double largest_difference(const Matrix<double>& want, const Matrix<double>& got) {
  const Vector<double> size = want.diagonal().cwiseSqrt();
  return ((got - want).array() / (size * size.transpose()).array()).abs().maxCoeff();
}

}  // namespace

TEST_CASE("prompt keys: everything is cached, the recent stay whole", "[channels]") {
  const PrunableKeys keys = prompt_keys(5, 2);
  CHECK(keys.cache == KeptSet{1, 1, 1, 1, 1});
  CHECK(keys.prunable == KeptSet{1, 1, 1, 0, 0});
  CHECK(prompt_keys(3, 0).prunable == KeptSet{1, 1, 1});
  CHECK(prompt_keys(3, 7).prunable == KeptSet{0, 0, 0});
}

// Weights 3/4 and 1/4, o = (2, 1), D = -log 3 * 3/4 (v_0 - o).
TEST_CASE("two tokens and one query's interaction by hand", "[channels]") {
  Workers workers(1);
  HeadGroup<double> group = random_group({.l = 2, .T = 2, .T_q = 1, .G = 1, .d = 2, .d_v = 2});
  group.rule.scale = 0.5;
  group.q[0] << 2, 0.5;
  group.k << std::log(3.0), 0, 0, 0;
  group.v << 1, 2, 5, -2;
  const auto M = [&](const KeptSet& prunable) {
    return output_interaction(group, {1, 2}, {{1, 1}, prunable}, workers);
  };
  const double D_sq = std::pow(0.75 * std::log(3.0), 2) * 2;  // of v_0 - o = (-1, 1)
  CHECK(M({1, 0})(0, 0) == Approx(D_sq));
  CHECK(M({1, 1})(0, 0) == Approx(D_sq));  // the other key is 0
  CHECK(M({0, 1})(0, 0) == Approx(0).margin(1e-15));
  CHECK(M({1, 1}).cwiseAbs().sum() == Approx(D_sq));  // and so is the other channel
  CHECK(output_interaction(group, {1, 2}, {{1, 0}, {1, 0}}, workers)(0, 0) == Approx(0).margin(1e-15));
  group.rule.sink_logit = {std::log(4.0)};  // weights 3/8, 1/8 and 4/8 for nothing: o = (1, 1/2)
  CHECK(M({1, 0})(0, 0) == Approx(std::pow(0.375 * std::log(3.0) * 1.5, 2)));
  group.rule.sink_logit = {};
  group.rule.softcap = 2.0;  // the logit log 3 becomes z, with the slope 1 - (z / 2)^2
  const double z = 2 * std::tanh(std::log(3.0) / 2), a = 1 / (1 + std::exp(-z));
  const double D_0 = a * (1 - z * z / 4) * std::log(3.0) * (1 - a);  // times v_0 - v_1 = (-4, 4)
  CHECK(M({1, 0})(0, 0) == Approx(32 * D_0 * D_0));
}

TEST_CASE("the output's interaction is positive semidefinite and adds up over rows", "[channels]") {
  Workers workers(2);
  const HeadGroup<double> group =
      random_group({.l = 70, .T = 90, .G = 3, .d = 20, .sliding_window = 40, .sink_logit = 0.5});
  const PrunableKeys keys = prompt_keys(70, 8);
  const Matrix<double> whole = output_interaction(group, {30, 90}, keys, workers);
  const Vector<double> eigenvalues = spectrum(whole);
  CHECK(eigenvalues[19] >= -1e-13 * eigenvalues[0]);
  CHECK(eigenvalues[0] > 0);
  for (const Index cut : {31, 34, 46, 69, 70, 89}) {
    const Matrix<double> parts = output_interaction(group, {30, cut}, keys, workers) +
                                 output_interaction(group, {cut, 90}, keys, workers);
    CHECK(mismatch("rows", whole, parts, kRounding) == "");
  }
}

TEST_CASE("D adds up over disjoint sets of keys", "[channels]") {
  Workers workers(2);
  const HeadGroup<double> group = random_group({.l = 130, .T = 140, .d = 20, .attention_sink = 4});
  const auto M = [&](const std::vector<Index>& classes) {
    return output_interaction(group, {100, 140}, thirds(130, classes), workers);
  };
  // ||a + b + c||^2 from the norms of the pairs and of each alone.
  const Matrix<double> pairs = M({0, 1}) + M({0, 2}) + M({1, 2}) - M({0}) - M({1}) - M({2});
  CHECK(mismatch("sets", M({0, 1, 2}), pairs, kRounding) == "");
}

TEST_CASE("permuting the prompt's keys with their values changes no interaction", "[channels]") {
  Workers workers(2);
  const Index l = 300;
  const HeadGroup<double> group =
      random_group({.l = l, .T = 310, .logit_std = 3.0, .softcap = 20.0, .sink_logit = 1.0});
  HeadGroup<double> other = group;
  const PrunableKeys keys{prompt_keys(l, 30).prunable, thirds(l - 30, {0, 2}).prunable};
  PrunableKeys whole = keys, permuted{keys.cache, keys.cache};
  whole.prunable.resize(l, 0);
  for (Index p = 0; p < l; ++p) {
    const Index to = (p * 77 + 5) % l;  // 77 and 300 have no factor in common
    other.k.row(to) = group.k.row(p);
    other.v.row(to) = group.v.row(p);
    permuted.cache[to] = whole.cache[p];
    permuted.prunable[to] = whole.prunable[p];
  }
  const Matrix<double> want = output_interaction(group, {l, 310}, whole, workers);
  CHECK(want.cwiseAbs().maxCoeff() > 0);
  CHECK(mismatch("order", want, output_interaction(other, {l, 310}, permuted, workers), kRounding) == "");
}

TEST_CASE("nothing prunable, or in sight, is no interaction", "[channels]") {
  Workers workers(1);
  const HeadGroup<double> group = random_group({.sink_logit = 1.0});
  CHECK(output_interaction(group, {30, 40}, prompt_keys(40, 40), workers).isZero(0.0));
  // Rows 30 to 35 see none of the cache, and the sink alone changes nothing.
  PrunableKeys late = prompt_keys(40, 0);
  std::fill_n(late.cache.begin(), 36, std::uint8_t{0});
  late.prunable = late.cache;
  for (const bool sink : {true, false}) {
    HeadGroup<double> other = group;
    if (!sink) other.rule.sink_logit.clear();
    CHECK(output_interaction(other, {30, 36}, late, workers).isZero(0.0));
    const Matrix<double> both = output_interaction(other, {30, 40}, late, workers);
    CHECK(mismatch("rows", output_interaction(other, {36, 40}, late, workers), both, kRounding) == "");
    CHECK(both(0, 0) > 0);
  }
}

// What all keys of a channel have in common multiplies the sum of a_p (v_p - o) over them, which is next to
// nothing: in float32, with keys as they are, 1000 times its rounding would be all there is.
TEST_CASE("an offset of a key channel does not drown what lies about it", "[channels]") {
  Workers workers(1);
  for (const GroupSpec& spec :
       std::vector<GroupSpec>{{.l = 200, .T = 210},
                              {.l = 200, .T = 210, .attention_sink = 3},
                              {.l = 200, .T = 210, .value_offset = 5.0, .sink_logit = 2.0},
                              {.l = 200, .T = 210, .value_offset = 5.0, .sink_logit = 40.0},
                              {.l = 200, .T = 210, .softcap = 50.0}}) {
    HeadGroup<double> group = random_group(spec);
    group.k.col(2).array() += 1000.0;
    for (HeadMatrix<double>& q : group.q) q.col(2) *= 1e-3;  // so that the logits keep their digits
    const HeadGroup<float> single = to_float(group);
    const HeadGroup<double> judged = to_double(single);
    for (const Index recent : {0, 8, 150}) {
      INFO("sink " << spec.attention_sink.value_or(-1) << ", soft cap " << spec.softcap.value_or(0) << ", "
                   << recent << " recent");
      const RowRange rows{180, 200};
      const PrunableKeys keys = prompt_keys(200, recent);
      const Matrix<double> want = output_interaction_reference(judged, rows, keys);
      const double difference = largest_difference(want, output_interaction(single, rows, keys, workers));
      INFO("largest difference " << difference);
      CHECK(difference < 2e-5);
    }
  }
}

TEST_CASE("rows of a thinned cache see by position, not by number", "[channels]") {
  Workers workers(1);
  HeadGroup<double> group = random_group({.l = 40, .T = 48, .T_q = 12, .sliding_window = 9});
  for (Index p = 0; p < 48; ++p) group.position.push_back(p < 30 ? 3 * p : 60 + p);
  const RowRange rows{36, 48};
  const PrunableKeys keys = prompt_keys(40, 2);
  const Matrix<double> want = output_interaction_reference(group, rows, keys);
  CHECK(mismatch("M", want, output_interaction(group, rows, keys, workers), kRounding) == "");
  group.position.clear();
  for (Index p = 0; p < 48; ++p) group.position.push_back(p < 38 ? 2 * p : 60 + p);
  CHECK(mismatch("M", want, output_interaction(group, rows, keys, workers), kRounding) != "");
}

TEST_CASE("logits and interactions beyond the type are an input error, not a number", "[channels]") {
  Workers workers(2);
  const auto interaction = [&](auto type, const HeadGroup<double>& group) {
    return output_interaction(converted<decltype(type)>(group), {32, 40}, prompt_keys(40, 4), workers);
  };
  HeadGroup<double> group = random_group({});
  CHECK_NOTHROW(interaction(0.0f, group));
  group.k.row(35).setConstant(1e25);
  for (HeadMatrix<double>& q : group.q) q *= 1e20;
  CHECK_THROWS_AS(interaction(0.0f, group), InputError);
  CHECK_NOTHROW(interaction(0.0, group));
  // What no row sees may overflow.
  group = random_group({});
  group.k.row(44).setConstant(1e38);
  for (HeadMatrix<double>& q : group.q) q *= 10;
  CHECK_NOTHROW(interaction(0.0f, group));
  PrunableKeys without = prompt_keys(40, 4);
  without.cache[35] = without.prunable[35] = 0;
  group.k.row(35).setConstant(1e38);
  CHECK_THROWS_AS(interaction(0.0f, group), InputError);
  CHECK_NOTHROW(output_interaction(to_float(group), {32, 40}, without, workers));
  group = random_group({});
  group.v *= 1e25;
  CHECK_THROWS_AS(interaction(0.0f, group), InputError);
  CHECK_NOTHROW(interaction(0.0, group));
}

TEST_CASE("output interactions stop where they are asked to", "[channels]") {
  Workers stopped(2);
  stopped.stop();
  CHECK_THROWS_AS(output_interaction(random_group({}), {32, 40}, prompt_keys(40, 4), stopped), Interrupted);
}
