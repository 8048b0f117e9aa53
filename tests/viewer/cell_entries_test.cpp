#include "sim/channels/channel_basis.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/exact_head.hpp"
#include "viewer/questions/inspector_facts.hpp"

#include <cmath>

using namespace kvreplay;
using namespace kvreplay::test;
using namespace kvreplay::viewer;

namespace {

CellEntries entries_of(const HeadGroup<double>& group, const Cell& cell) {
  return on_queue([&](JobControl& job) { return cell_entries(group, cell, job); });
}

/// A softmax written out: the row's weight of the token, by the definition.
double weight(const HeadGroup<double>& group, Index g, Index row, Index token) {
  double sum = 0, own = 0;
  for (Index p = 0; p <= row; ++p) {
    const double e =
        std::exp(group.rule.scale * group.q[g].row(row - group.first_query()).dot(group.k.row(p)));
    sum += e;
    if (p == token) own = e;
  }
  return own / sum;
}

}  // namespace

TEST_CASE("cell entries are the definitions' numbers") {
  const HeadGroup<double> group = random_group({.l = 20, .T = 25, .T_q = 20, .G = 2, .d = 4, .d_v = 4});
  const Index row = 21, token = 6;
  for (const Index g : {Index{0}, Index{1}}) {
    const CellEntries entries = entries_of(group, {0, 0, g, row, token});
    const double a = weight(group, g, row, token);
    CHECK_FALSE(entries.hidden);
    CHECK(entries[EntryTerm::attn] == Approx(a).epsilon(1e-12));
    CHECK(entries[EntryTerm::attn_sq] == Approx(a * a).epsilon(1e-12));
    CHECK(entries[EntryTerm::value] == Approx(a * a * group.v.row(token).squaredNorm()).epsilon(1e-12));
    CHECK(entries[EntryTerm::exact_value] == Approx(entries[EntryTerm::value]).epsilon(1e-9));
    CHECK(entries[EntryTerm::logit] ==
          Approx(group.rule.scale * group.q[g].row(row - 5).dot(group.k.row(token))).epsilon(1e-12));
  }
}

TEST_CASE("cell entries of a group are sums over its heads, the logit their mean") {
  const HeadGroup<double> group = random_group({.l = 20, .T = 25, .G = 3, .seed = 4});
  const CellEntries all = entries_of(group, {0, 0, {}, 17, 3});
  for (const EntryTerm entry : kEntries.all()) {
    double sum = 0;
    for (Index g = 0; g < 3; ++g) sum += entries_of(group, {0, 0, g, 17, 3})[entry];
    INFO(name_of(entry));
    CHECK(all[entry] == Approx(entry == EntryTerm::logit ? sum / 3 : sum).epsilon(1e-12));
  }
}

TEST_CASE("cell entries of a hidden token are none") {
  const auto check = [](const GroupSpec& spec, Index row, Index token, bool hidden) {
    const CellEntries entries = entries_of(random_group(spec), {0, 0, {}, row, token});
    INFO("row " << row << ", token " << token);
    CHECK(entries.hidden == hidden);
    for (const EntryTerm entry : kEntries.all()) CHECK(std::isnan(entries[entry]) == hidden);
  };
  check({}, 10, 11, true);
  check({}, 10, 10, false);
  check({}, 0, 0, false);  // the only token that the row sees
  check({.causal = false}, 10, 11, false);
  check({.sliding_window = 4}, 10, 6, true);
  check({.sliding_window = 4}, 10, 7, false);
}

TEST_CASE("a shape says why it has no such cell") {
  const DumpShape shape{2, 8, 4, 16, 16, 0, 48, 10, 40};
  const auto why = [&](const Cell& cell) { return why_no_cell(shape, cell).value_or(""); };
  CHECK(why({1, 3, 1, 38, 0}).empty());
  CHECK(why({1, 3, {}, 47, 47}).empty());
  CHECK(why({2, 0, {}, 40, 0}) == "no layer 2");
  CHECK(why({-1, 0, {}, 40, 0}) == "no layer -1");
  CHECK(why({0, 4, {}, 40, 0}) == "no KV head 4");
  CHECK(why({0, 0, 2, 40, 0}) == "no query head 2");
  CHECK(why({0, 0, {}, 48, 0}) == "no query 48");
  CHECK(why({0, 0, {}, 37, 0}) == "no query at 37");
  CHECK(why({0, 0, {}, 40, 48}) == "no token 48");
}

TEST_CASE("channel interaction is the entry of the matrix that selections look at") {
  const HeadGroup<double> group = random_group({.l = 40, .T = 48, .T_q = 20, .G = 2, .d = 6, .seed = 9});
  ChannelSetting setting;
  setting.recent = 7;
  setting.window = 9;
  Workers workers(1);
  const ChannelBasis basis = channel_basis(group, KeptSet(40, 1), setting, false, workers);
  for (Index c = 0; c < 6; ++c)
    for (Index e = 0; e < 6; ++e)
      CHECK(channel_interaction(group, {c, e}, 7, 9) == Approx(basis.window(c, e)).epsilon(1e-10));
  // Nothing to prune, no query in the window.
  CHECK(channel_interaction(group, {0, 1}, 99, 9) == 0);
  CHECK(channel_interaction(random_group({.l = 40, .T = 48, .T_q = 3}), {0, 1}, 7, 9) == 0);
}

TEST_CASE("the bytes of a head in float64 are those of its matrices") {
  const GroupSpec spec{.l = 40, .T = 48, .G = 2, .d = 8, .d_v = 6};
  const ExactHead head{std::make_shared<const HeadGroup<double>>(random_group(spec))};
  CHECK(bytes_of(head) >= 8U * 48 * (2 * 8 + 8 + 6));
  CHECK(bytes_of(head) < 8U * 48 * (2 * 8 + 8 + 6) + 1024);
  CHECK(bytes_of(ExactHead{}) < 1024);
}
