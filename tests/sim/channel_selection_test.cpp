#include "sim/channels/selection.hpp"
#include "tests/sim/channel_cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"

#include <Eigen/Cholesky>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

using Method = ChannelMethod;
using Channels = std::vector<Index>;

ChannelRule rule_of(std::string_view name) {
  const auto rule = channel_rule_named(name);
  INFO(name);
  REQUIRE(rule.has_value());
  return *rule;
}

std::vector<std::string> all_rule_names() {
  std::vector<std::string> names;
  for (const Method method : kChannelMethods.all()) names.emplace_back(name_of(method));
  for (const char* start : {"magnitude", "think", "iap", "output", "rope_pairs"})
    names.push_back(std::string("exchange+") + start);
  return names;
}

ChannelSelection select(std::string_view name, const ChannelScores& scores, Index n) {
  const ChannelRule rule = rule_of(name);
  return select_channels(rule, scores, channel_order(rule, scores), n);
}

Channels members(const ChannelSet& set) {
  Channels channels;
  for (std::size_t c = 0; c < set.size(); ++c)
    if (set[c] != 0) channels.push_back(static_cast<Index>(c));
  return channels;
}

Channels pruned_by(std::string_view name, const ChannelScores& scores, Index n) {
  const ChannelSelection selection = select(name, scores, n);
  CHECK(std::ssize(selection.pruned) == scores.key_sq.size());
  CHECK(selection.lower_bound.has_value() == (name == "convex"));
  return members(selection.pruned);
}

Vector<double> vector_of(const std::vector<double>& values) {
  return Eigen::Map<const Vector<double>>(values.data(), std::ssize(values));
}

Matrix<double> symmetric(const std::vector<double>& diagonal,
                         const std::vector<std::tuple<Index, Index, double>>& others) {
  Matrix<double> H = Matrix<double>::Zero(std::ssize(diagonal), vector_of(diagonal).size());
  H.diagonal() = vector_of(diagonal);
  for (const auto& [c, e, value] : others) H(c, e) = H(e, c) = value;
  return H;
}

/// Five channels in which every method finds something else.
///   H: 0 is cheap alone and dear with 1 and 2; 3 and 4 all but cancel.
///   M: 4 is cheap alone, and dear with 3; 2 and 3 cancel a little.
/// The rotation pairs are 0, 1 and 2, 3; channel 4 is not rotated.
ChannelScores five_channels() {
  ChannelScores scores;
  scores.key_sq = vector_of({9, 8, 3, 7, 2});
  scores.logits = symmetric({1, 1.5, 2, 4, 4}, {{0, 1, 1.0}, {0, 2, 0.6}, {1, 2, 0.3}, {3, 4, -3.9}});
  scores.diagonal = scores.logits.diagonal();
  scores.outputs = symmetric({5, 4, 3, 2, 1.2}, {{3, 4, 1.2}, {2, 4, 0.2}, {2, 3, -0.3}});
  scores.rope_partner = {1, 0, 3, 2, -1};
  return scores;
}

/// Random interactions in both spaces; channels c and c + d / 2 rotate together, an odd last one not at all.
ChannelScores random_scores(const ChannelSpec& spec) {
  ChannelScores scores;
  ChannelSpec outputs = spec;
  outputs.seed += 100;
  scores.logits = channel_matrix(spec);
  scores.diagonal = scores.logits.diagonal();
  scores.outputs = channel_matrix(outputs);
  outputs.seed += 100;
  scores.key_sq = channel_matrix(outputs).diagonal();
  scores.rope_partner = rope_partners(rope_of(Rope::Style::half, spec.d / 2 * 2), spec.d);
  return scores;
}

/// The first n channels by ascending score; what is fixed is left out.
Channels naive_sort(const Vector<double>& score, const ChannelSet& fixed) {
  Channels left;
  for (Index c = 0; c < score.size(); ++c)
    if (!holds(fixed, c)) left.push_back(c);
  Channels order;
  while (!left.empty()) {
    const auto least =
        std::min_element(left.begin(), left.end(), [&](Index a, Index b) { return score[a] < score[b]; });
    order.push_back(*least);
    left.erase(least);
  }
  return order;
}

Channels first(const Channels& order, Index n) {
  Channels channels(order.begin(), order.begin() + std::min(n, std::ssize(order)));
  std::sort(channels.begin(), channels.end());
  return channels;
}

Index free_channels(const ChannelScores& scores) {
  return scores.key_sq.size() - std::accumulate(scores.fixed.begin(), scores.fixed.end(), Index{0});
}

}  // namespace

TEST_CASE("channel methods go by their names", "[channel_selection]") {
  std::set<std::string_view> names;
  for (const Method method : kChannelMethods.all()) {
    names.insert(name_of(method));
    CHECK(kChannelMethods.named(name_of(method)) == method);
    const ChannelRule rule = rule_of(name_of(method));
    CHECK(rule.name == name_of(method));
    CHECK(rule.method == method);
    CHECK(rule.start == Method::iap);
    CHECK(rule.has_order() == (method != Method::exchange && method != Method::convex));
    CHECK(rule.alone() == (method == Method::magnitude || method == Method::think));
    CHECK(rule.needs_outputs() == (method == Method::output));
    CHECK(rule.needs_rope() == (method == Method::rope_pairs));
  }
  CHECK(names == std::set<std::string_view>{"magnitude", "think", "iap", "exchange", "output", "convex",
                                            "rope_pairs"});

  for (const char* start : {"magnitude", "think", "iap", "output", "rope_pairs"}) {
    const ChannelRule rule = rule_of(std::string("exchange+") + start);
    CHECK(rule.name == std::string("exchange+") + start);
    CHECK(rule.method == Method::exchange);
    CHECK(name_of(rule.start) == start);
    CHECK_FALSE(rule.has_order());
    CHECK_FALSE(rule.alone());
    CHECK(rule.needs_outputs() == (rule.start == Method::output));
    CHECK(rule.needs_rope() == (rule.start == Method::rope_pairs));
  }
  for (const char* name :
       {"", "nope", "Think", "think ", "iap+think", "+", "+iap", "exchange+", "exchange+nope", "convex+iap",
        "exchange+exchange", "exchange+convex", "exchange+iap+think", "exchange+exchange+iap"}) {
    INFO(name);
    CHECK_FALSE(channel_rule_named(name).has_value());
  }
  CHECK_FALSE(kChannelMethods.named("exchange+iap").has_value());
}

TEST_CASE("a ratio prunes as many channels as its source would", "[channel_selection]") {
  struct Case {
    double ratio;
    Index d, paper, cast;
  };
  // 0.29 * 100 is 28.999999999999996 in floating point
  for (const Case& c : {Case{0.0, 64, 0, 0},
                        {0.5, 64, 32, 32},
                        {0.4, 64, 25, 25},
                        {0.7, 128, 89, 89},
                        {0.29, 100, 29, 28},
                        {0.57, 100, 57, 56},
                        {0.58, 100, 58, 57},
                        {0.58, 50, 29, 28},
                        {0.5, 7, 3, 3},
                        {0.9, 1, 0, 0},
                        {0.99, 2, 1, 1},
                        {1.0 / 3, 3, 1, 1}}) {
    INFO(c.ratio << " of " << c.d);
    CHECK(pruned_channels(c.ratio, c.d, Semantics::paper) == c.paper);
    CHECK(pruned_channels(c.ratio, c.d, Semantics::official) == c.cast);
    CHECK(pruned_channels(c.ratio, c.d, Semantics::kvpress) == c.cast);
  }
  const double below = std::nextafter(0.5, 0.0);
  CHECK(pruned_channels(below, 64, Semantics::paper) == 32);
  CHECK(pruned_channels(below, 64, Semantics::official) == 31);
  CHECK(pruned_channels((32 - 0.9e-9) / 64, 64, Semantics::paper) == 32);
  CHECK(pruned_channels((32 - 1.1e-9) / 64, 64, Semantics::paper) == 31);
}

TEST_CASE("channels of outstanding norm are protected", "[channel_selection]") {
  const auto protects = [](const std::vector<double>& norms, double least, double most) {
    Vector<double> squares = vector_of(norms);
    return members(protected_channels(squares.cwiseAbs2(), {least, most}));
  };
  // mean 1.9, deviation 2.7
  const std::vector<double> one = {1, 1, 1, 10, 1, 1, 1, 1, 1, 1};
  CHECK(protects(one, 0, 100) == Channels{3});
  CHECK(protects(one, 0, 10) == Channels{3});
  CHECK(protects(one, 10, 20) == Channels{3});
  CHECK(protects(one, 0, 0).empty());
  CHECK(protects(one, 20, 20) == Channels{0, 3});  // ties: the lower channel
  CHECK(protects(one, 30, 100) == Channels{0, 1, 3});
  CHECK(protects(one, 100, 100).size() == 10);
  // mean 5.2, deviation 5.15: three stand out, the largest go first
  const std::vector<double> three = {12, 1, 1.5, 11, 0, 1, 13, 2};
  CHECK(protects(three, 0, 100) == Channels{0, 3, 6});
  CHECK(protects(three, 0, 25) == Channels{0, 6});
  CHECK(protects(three, 0, 12.5) == Channels{6});
  CHECK(protects(three, 50, 60) == Channels{0, 3, 6, 7});
  // what lies on the threshold does not exceed it: mean 1, deviation 1
  CHECK(protects({0, 2}, 0, 100).empty());
  CHECK(protects({0, 2}, 50, 50) == Channels{1});
  // norms count, not their squares: those of squares would be mean 2.125 + 2.95, above 2.1 squared
  CHECK(protects({1, 1, 1, 1, 1, 2.1, 1, 1}, 0, 100) == Channels{5});
  CHECK(protects({0, 0, 0, 0}, 0, 100).empty());
  CHECK(protects({3}, 0, 100).empty());
  CHECK(protects({3}, 1, 100) == Channels{0});
}

TEST_CASE("a share of protected channels is rounded, and at least one", "[channel_selection]") {
  const auto protects = [](Index d, double least, double most) {
    return members(protected_channels(Vector<double>::LinSpaced(d, 1, 4), {least, most})).size();
  };
  CHECK(protects(64, 0.001, 0.001) == 1);
  CHECK(protects(8, 5, 5) == 1);       // 0.4
  CHECK(protects(50, 5, 5) == 3);      // 2.5
  CHECK(protects(64, 10, 10) == 6);    // 6.4
  CHECK(protects(64, 12, 12) == 8);    // 7.68
  CHECK(protects(64, 99, 100) == 63);  // 63.36
  CHECK(protects(1, 0, 0) == 0);
  CHECK(protects(1, 100, 100) == 1);
}

TEST_CASE("no channel stands out where all norms are equal", "[channel_selection]") {
  for (Index d = 1; d <= 130; ++d)
    for (const double square : {1.0, 0.1, 2.0, 1.0 / 3, 7e-5, 1.7e9}) {
      INFO("d " << d << ", square " << square);
      const ChannelSet found = protected_channels(Vector<double>::Constant(d, square), {0, 100});
      REQUIRE(members(found).empty());
    }
}

TEST_CASE("channels know the one that they are rotated with", "[channel_selection]") {
  using Style = Rope::Style;
  CHECK(rope_partners(rope_of(Style::half, 8), 8) == Channels{4, 5, 6, 7, 0, 1, 2, 3});
  CHECK(rope_partners(rope_of(Style::interleaved, 8), 8) == Channels{1, 0, 3, 2, 5, 4, 7, 6});
  CHECK(rope_partners(rope_of(Style::half, 4), 7) == Channels{2, 3, 0, 1, -1, -1, -1});
  CHECK(rope_partners(rope_of(Style::interleaved, 4), 7) == Channels{1, 0, 3, 2, -1, -1, -1});
  CHECK(rope_partners(rope_of(Style::half, 2), 2) == Channels{1, 0});
}

TEST_CASE("every method on five channels", "[channel_selection]") {
  const ChannelScores scores = five_channels();
  for (const Matrix<double>& matrix : {scores.logits, scores.outputs})
    REQUIRE(matrix.llt().info() == Eigen::Success);  // positive definite

  const auto order = [&](std::string_view name) { return channel_order(rule_of(name), scores); };
  CHECK(order("magnitude") == Channels{4, 2, 3, 1, 0});
  CHECK(order("think") == Channels{0, 1, 2, 3, 4});
  CHECK(order("iap") == Channels{0, 2, 3, 4, 1});  // 1: 1.5 + 2 + 0.6 after 0 and 2, dearer than 3 and 4
  CHECK(order("exchange") == order("iap"));
  CHECK(order("convex") == order("iap"));
  CHECK(order("output") == Channels{4, 2, 3, 1, 0});
  CHECK(order("rope_pairs") == Channels{0, 1, 2, 3, 4});  // 4.5 / 2 each, 7.8 / 2 each, 4 at first
  CHECK(order("exchange+magnitude") == order("magnitude"));
  CHECK(order("exchange+rope_pairs") == order("rope_pairs"));

  const auto two = [&](std::string_view name) { return pruned_by(name, scores, 2); };
  CHECK(two("magnitude") == Channels{2, 4});
  CHECK(two("think") == Channels{0, 1});     // 4.5
  CHECK(two("iap") == Channels{0, 2});       // 4.2
  CHECK(two("exchange") == Channels{1, 2});  // 4.1: one swap from iap's, and no single one from there
  CHECK(two("convex") == Channels{3, 4});    // 0.2
  CHECK(two("exchange+magnitude") == Channels{3, 4});  // one swap away
  CHECK(two("exchange+think") == Channels{1, 2});
  CHECK(two("output") == Channels{2, 3});  // 4.4 by M; greedily 2, 4: 4.6
  CHECK(two("exchange+output") == Channels{3, 4});
  CHECK(two("rope_pairs") == Channels{0, 1});
  CHECK(two("exchange+rope_pairs") == Channels{1, 2});
  CHECK(*select("convex", scores, 2).lower_bound <= 0.2 + 1e-12);
  CHECK(*select("convex", scores, 0).lower_bound == 0.0);

  for (const std::string& name : all_rule_names()) {
    INFO(name);
    CHECK(pruned_by(name, scores, 0).empty());
    CHECK(pruned_by(name, scores, 5).size() == 5);
  }
}

TEST_CASE("a rotation pair that does not fit ends the list", "[channel_selection]") {
  ChannelScores scores = five_channels();
  CHECK(pruned_by("rope_pairs", scores, 1).empty());
  CHECK(pruned_by("rope_pairs", scores, 3) == Channels{0, 1});  // though channel 4 alone would fit
  CHECK(pruned_by("rope_pairs", scores, 4) == Channels{0, 1, 2, 3});
  CHECK(pruned_by("exchange+rope_pairs", scores, 3).size() == 2);

  // the channel that is not rotated, first
  scores.logits(4, 4) = 0.1;
  scores.logits(3, 4) = scores.logits(4, 3) = 0;
  CHECK(channel_order(rule_of("rope_pairs"), scores) == Channels{4, 0, 1, 2, 3});
  CHECK(pruned_by("rope_pairs", scores, 1) == Channels{4});
  CHECK(pruned_by("rope_pairs", scores, 2) == Channels{4});
  CHECK(pruned_by("rope_pairs", scores, 3) == Channels{0, 1, 4});

  // a pair goes where one of its channels is fixed
  scores.fixed = {0, 1, 0, 0, 0};
  CHECK(channel_order(rule_of("rope_pairs"), scores) == Channels{4, 2, 3});
  CHECK(pruned_by("rope_pairs", scores, 2) == Channels{4});
  CHECK(pruned_by("rope_pairs", scores, 5) == Channels{2, 3, 4});

  // neighbouring pairs: one ends where the next begins
  ChannelScores pairs;
  pairs.logits = symmetric({1, 1, 1.1, 1.1}, {});
  pairs.key_sq = pairs.logits.diagonal();
  for (const Rope::Style style : {Rope::Style::half, Rope::Style::interleaved}) {
    pairs.rope_partner = rope_partners(rope_of(style, 4), 4);
    const Index partner = style == Rope::Style::half ? 2 : 1;
    CHECK(pruned_by("rope_pairs", pairs, 1).empty());
    CHECK(pruned_by("rope_pairs", pairs, 2) == Channels{0, partner});
    CHECK(pruned_by("rope_pairs", pairs, 3) == Channels{0, partner});
    CHECK(pruned_by("rope_pairs", pairs, 4).size() == 4);
  }
}

TEST_CASE("fixed channels are never pruned", "[channel_selection]") {
  for (const ChannelSpec& spec : channel_specs({1, 2, 7, 16})) {
    ChannelScores scores = random_scores(spec);
    for (const Index n_fixed : {Index{0}, Index{1}, spec.d / 3, spec.d - 1, spec.d}) {
      scores.fixed = random_channels(spec.d, n_fixed, spec.seed);
      for (const std::string& name : all_rule_names())
        for (const Index n : {Index{0}, Index{1}, spec.d / 2, spec.d - 1, spec.d}) {
          INFO(name_of(spec) << ", " << name << ", fixed " << n_fixed << ", " << n << " asked for");
          const Channels found = pruned_by(name, scores, n);
          CHECK(std::none_of(found.begin(), found.end(), [&](Index c) { return holds(scores.fixed, c); }));
          const auto size = std::ssize(found);
          if (rule_of(name).needs_rope())
            CHECK(size <= std::min(n, free_channels(scores)));
          else
            CHECK(size == std::min(n, free_channels(scores)));
          for (const Index c : channel_order(rule_of(name), scores)) CHECK_FALSE(holds(scores.fixed, c));
        }
    }
  }
}

TEST_CASE("rotation pairs are pruned whole", "[channel_selection]") {
  for (const ChannelSpec& spec : channel_specs({2, 7, 16})) {
    ChannelScores scores = random_scores(spec);
    scores.fixed = random_channels(spec.d, spec.d / 5, spec.seed);
    const Channels order = channel_order(rule_of("rope_pairs"), scores);
    for (Index n = 0; n <= spec.d; ++n) {
      INFO(name_of(spec) << ", " << n);
      const Channels found = pruned_by("rope_pairs", scores, n);
      for (const Index c : found) {
        const Index other = scores.rope_partner[c];
        CHECK((other < 0 || std::binary_search(found.begin(), found.end(), other)));
      }
      CHECK(found == first(order, std::ssize(found)));
      CHECK(std::ssize(found) >= std::min(n, std::ssize(order)) - 1);
    }
  }
}

TEST_CASE("magnitude and think sort", "[channel_selection]") {
  for (const ChannelSpec& spec : channel_specs({1, 3, 16, 33})) {
    ChannelScores scores = random_scores(spec);
    if (spec.d > 2) {
      scores.key_sq[0] = scores.key_sq[2];  // ties
      scores.logits(1, 1) = scores.diagonal[1] = scores.diagonal[0];
    }
    for (const Index n_fixed : {Index{0}, spec.d / 4}) {
      scores.fixed = random_channels(spec.d, n_fixed, 11);
      INFO(name_of(spec));
      const Channels by_norm = naive_sort(scores.key_sq, scores.fixed),
                     by_H = naive_sort(scores.logits.diagonal(), scores.fixed);
      CHECK(channel_order(rule_of("magnitude"), scores) == by_norm);
      CHECK(channel_order(rule_of("think"), scores) == by_H);
      for (const Index n : {Index{1}, spec.d / 2, spec.d}) {
        CHECK(pruned_by("magnitude", scores, n) == first(by_norm, n));
        CHECK(pruned_by("think", scores, n) == first(by_H, n));
      }
    }
  }
}

TEST_CASE("what does not interact is pruned alike by think, iap, exchange and convex",
          "[channel_selection]") {
  for (const Index d : {1, 6, 16, 33}) {
    ChannelScores scores = random_scores({.d = d, .seed = 9});
    scores.logits = Matrix<double>(scores.logits.diagonal().asDiagonal());
    CHECK(channel_order(rule_of("iap"), scores) == channel_order(rule_of("think"), scores));
    for (const Index n : {Index{0}, Index{1}, d / 2, d}) {
      const Channels think = pruned_by("think", scores, n);
      for (const char* name : {"iap", "exchange", "exchange+magnitude", "exchange+output", "convex"}) {
        INFO("d " << d << ", " << n << ", " << name);
        CHECK(pruned_by(name, scores, n) == think);
      }
    }
  }
}

TEST_CASE("searches end no worse than they start", "[channel_selection]") {
  int exchanged = 0, better_than_exchange = 0;
  for (const ChannelSpec& spec : channel_specs({7, 16, 21})) {
    ChannelScores scores = random_scores(spec);
    for (const Index n_fixed : {Index{0}, spec.d / 4}) {
      scores.fixed = random_channels(spec.d, n_fixed, spec.seed);
      for (const Index n : {spec.d / 4, spec.d / 2}) {
        INFO(name_of(spec) << ", fixed " << n_fixed << ", " << n);
        const auto error = [&](const std::string& name) {
          return naive_error(scores.logits, pruned_by(name, scores, n));
        };
        const double rounding = 1e-12 * scores.logits.cwiseAbs().sum();
        const ChannelSelection convex = select("convex", scores, n);
        const double best = naive_error(scores.logits, members(convex.pruned));
        REQUIRE(convex.lower_bound.has_value());
        CHECK(*convex.lower_bound >= 0);
        CHECK(*convex.lower_bound <= best + rounding);
        CHECK(error("exchange") == error("exchange+iap"));
        for (const char* start : {"magnitude", "think", "iap", "output"}) {
          const std::string name = std::string("exchange+") + start;
          INFO(name);
          CHECK(error(name) <= error(start) + rounding);
          if (name == "exchange+iap") CHECK(best <= error(name) + rounding);
          exchanged += pruned_by(name, scores, n) != pruned_by(start, scores, n);
          better_than_exchange += best < error(name) - rounding;
        }
        // by M, output is no worse than its greedy start
        CHECK(naive_error(scores.outputs, pruned_by("output", scores, n)) <=
              naive_error(scores.outputs, first(channel_order(rule_of("output"), scores), n)) +
                  1e-12 * scores.outputs.cwiseAbs().sum());
      }
    }
  }
  CHECK(exchanged > 60);
  CHECK(better_than_exchange > 5);
}

TEST_CASE("what is pruned at a smaller ratio stays pruned by the greedy methods", "[channel_selection]") {
  const ChannelScores scores = random_scores({.d = 16, .mean = 1});
  for (const char* name : {"magnitude", "think", "iap", "rope_pairs"}) {
    Channels before;
    for (Index n = 0; n <= 16; ++n) {
      INFO(name << " " << n);
      const Channels now = pruned_by(name, scores, n);
      CHECK(std::includes(now.begin(), now.end(), before.begin(), before.end()));
      CHECK(now == first(channel_order(rule_of(name), scores), std::ssize(now)));
      before = now;
    }
  }
}
