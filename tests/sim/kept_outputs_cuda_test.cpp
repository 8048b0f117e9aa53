#include "data/error.hpp"
#include "sim/head_group.hpp"
#include "tests/sim/kept_outputs_cases.hpp"
#include "tests/sim/kept_outputs_rows.hpp"
#include "tests/support/cuda_devices.hpp"

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

OutputChanges<float> on_device(const HeadGroup<float>& group, RowRange rows, std::span<const KeptSet> sets,
                               bool with_vectors, Workers& workers) {
  return output_changes_cuda(group, rows, caches_of<float>({sets.begin(), sets.end()}), with_vectors,
                             workers);
}

RowRange all_rows(const HeadGroup<float>& group) { return {group.first_query(), group.T_all()}; }

double total_sq(const PanelRows<float>& heads) {
  double sum = 0;
  for (const std::vector<float>& head : heads)
    for (const float x : head) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}

/// The change's distance from the judge's, as a share of the full outputs' norm.
double distance(const PanelRows<float>& got, const OutputChangeReference& want) {
  double sum = 0;
  for (std::size_t g = 0; g < want.change.size(); ++g)
    for (Index r = 0; r < want.change[g].rows(); ++r)
      sum += (row_of(got[g], want.change[g].cols(), r).cast<double>() - want.change[g].row(r).transpose())
                 .squaredNorm();
  return want.full_sq > 0 ? std::sqrt(sum / want.full_sq) : std::sqrt(sum);
}

void check_same(const OutputChanges<float>& got, const OutputChanges<float>& want) {
  CHECK(got.full_sq == want.full_sq);
  CHECK(got.change_sq == want.change_sq);
  CHECK(got.full == want.full);
  CHECK(got.change == want.change);
}

}  // namespace

TEST_CASE("output changes on a device agree with brute force", "[cuda]") {
  on_devices([] { check_against_reference<float>(on_device, kFloatTolerance); });
}

TEST_CASE("errors on a device at a sink of value 0 are right however much of a row it holds", "[cuda]") {
  on_devices([] {
    check_worthless_sinks<float>(on_device, 1e-9);
    check_no_outputs<float>(on_device);
  });
}

TEST_CASE("the device's vectors are each row's output and its change, and 0 in the padding", "[cuda]") {
  on_devices([] {
    Workers workers(1);
    for (const KeptCase& c : kept_cases()) {
      const HeadGroup<float> group = converted<float>(random_group(c.spec));
      const HeadGroup<double> judged = converted<double>(group);
      const std::vector<KeptSet> sets = kept_sets(c.spec);
      const RowRange rows = all_rows(group);
      const OutputChanges<float> got = on_device(group, rows, sets, true, workers);
      REQUIRE(got.full.size() == group.q.size());
      REQUIRE(got.change.size() == sets.size());
      const auto size = static_cast<std::size_t>((rows.count() + 31) / 32 * 32 * group.d_v());
      // Squares of all entries make up the sums: the padding adds nothing.
      // Where outputs vanish the sums are of float64 vectors, which are then rounded.
      const double rounding = got.full_sq < 1e-3 ? 1e-6 : 1e-12;
      CHECK(total_sq(got.full) == Approx(got.full_sq).epsilon(rounding).margin(1e-290));
      for (std::size_t s = 0; s < sets.size(); ++s) {
        INFO(c.name << ", set " << s);
        REQUIRE(got.change[s].size() == group.q.size());
        CHECK(total_sq(got.change[s]) == Approx(got.change_sq[s]).epsilon(rounding).margin(1e-290));
        for (std::size_t g = 0; g < group.q.size(); ++g) {
          REQUIRE(got.full[g].size() == size);
          REQUIRE(got.change[s][g].size() == size);
        }
        CHECK(distance(got.change[s], output_change_reference(judged, rows, sets[s])) <= kFloatTolerance);
      }
      double off = 0;
      for (Index g = 0; g < group.G(); ++g)
        for (Index i = rows.begin; i < rows.end; ++i) {
          const Vector<double> want = output_of(judged, g, i, every(group.l, 1, 0));
          off += (row_of(got.full[g], group.d_v(), i - rows.begin) - want).squaredNorm();
        }
      INFO(c.name);
      CHECK(std::sqrt(off) <= kFloatTolerance * std::sqrt(got.full_sq));
    }
  });
}

TEST_CASE("on a device neither the sets beside one nor the room they have change a bit", "[cuda]") {
  on_devices([] {
    Workers workers(1);
    for (const GroupSpec& spec :
         {GroupSpec{.l = 60, .T = 100, .G = 3, .d_v = 5, .sink_logit = 1.0},
          GroupSpec{.l = 300, .T = 330, .T_q = 70, .G = 1, .sliding_window = 260},
          GroupSpec{.l = 270, .T = 290, .T_q = 70, .G = 1, .logit_std = 3.0, .causal = false},
          GroupSpec{.l = 270, .T = 290, .G = 1, .causal = false, .sliding_window = 70, .two_sided = true}}) {
      INFO("l = " << spec.l);
      const HeadGroup<float> group = converted<float>(random_group(spec));
      const std::vector<KeptSet> sets = kept_sets(spec);
      const RowRange rows = all_rows(group);
      const OutputChanges<float> want = on_device(group, rows, sets, true, workers);
      check_same(on_device(group, rows, sets, true, workers), want);
      // One block of 64 rows and one set at a time; some of each.
      for (const std::size_t workspace : {std::size_t{0}, std::size_t{200'000}})
        check_same(output_changes_cuda(group, rows, caches_of<float>(sets), true, workers, workspace), want);
      const OutputChanges<float> alone = on_device(group, rows, std::span(&sets[4], 1), true, workers);
      CHECK(alone.change_sq[0] == want.change_sq[4]);
      CHECK(alone.change[0] == want.change[4]);
      CHECK(on_device(group, rows, {}, false, workers).full_sq == want.full_sq);
    }
  });
}

// 20 segments a row, and more channels than a block takes at once.
TEST_CASE("long rows are cut and merged on a device", "[cuda]") {
  on_devices([] {
    Workers workers(1);
    for (const GroupSpec& spec :
         {GroupSpec{.l = 5000, .T = 5002, .T_q = 3, .G = 1, .d_v = 130, .logit_std = 4.0, .sink_logit = 2.0},
          GroupSpec{.l = 5000, .T = 5002, .T_q = 3, .G = 1, .d = 33, .attention_sink = 700}}) {
      const HeadGroup<float> group = converted<float>(random_group(spec));
      const std::vector<KeptSet> sets = kept_sets(spec);
      const RowRange rows = all_rows(group);
      const OutputChanges<float> got = on_device(group, rows, sets, true, workers);
      CHECK(got.change_sq[0] == 0.0);
      for (std::size_t s = 0; s < sets.size(); ++s) {
        INFO("d_v = " << spec.d_v << ", set " << s);
        const OutputChangeReference want = output_change_reference(converted<double>(group), rows, sets[s]);
        CHECK(distance(got.change[s], want) <= 1e-5);  // logits of about 10
        CHECK(got.full_sq == Approx(want.full_sq).epsilon(1e-5));
      }
    }
  });
}

TEST_CASE("pruned and quantized caches on a device agree with brute force, beside those that only evict",
          "[cuda]") {
  on_devices([] {
    Workers workers(1);
    for (const KeptCase& c : kept_cases()) {
      const HeadGroup<float> group = converted<float>(random_group(c.spec));
      const HeadGroup<double> judged = converted<double>(group);
      const Index l = group.l, d = group.d();
      const KeptSet all = every(l, 1, 0), odd = every(l, 2, 1), none(static_cast<std::size_t>(l), 0);
      const ChannelSet channels = every(d, 2, 0);
      std::vector<Cache<float>> caches = {
          compressed_cache<float>(group, {all, {}, {}, Quantization::kivi(4, 8, 3)}),
          {odd},
          compressed_cache<float>(group, {all, channels, odd}),
          compressed_cache<float>(group, {none, channels, none, Quantization::kivi(2, 4, 0)}),
          {all},
          compressed_cache<float>(group,
                                  {odd, channels, without_recent(odd, 3), Quantization::kivi(2, 4, 5)}),
          {all, {}, {}, group.k, group.v},  // as it was, but of its own
      };
      for (Index p = 0; p < l; ++p) {  // nobody looks at what an evicted token's rows hold
        if (caches[5].kept[p] != 0) continue;
        caches[5].k.row(p).setConstant(std::numeric_limits<float>::quiet_NaN());
        caches[5].v.row(p).setConstant(std::numeric_limits<float>::quiet_NaN());
      }
      const RowRange rows = all_rows(group);
      const OutputChanges<float> got = output_changes_cuda(group, rows, caches, true, workers);
      for (std::size_t n = 0; n < caches.size(); ++n) {
        INFO(c.name << ", cache " << n);
        const OutputChangeReference want =
            output_change_reference(judged, rows, converted<double>(caches[n]));
        CHECK(distance(got.change[n], want) <=
              kFloatTolerance * (1 + std::sqrt(want.change_sq / (want.full_sq > 0 ? want.full_sq : 1))));
      }
      CHECK(got.change_sq[4] == 0);
      CHECK(got.change_sq[6] == 0);
      check_same(output_changes_cuda(group, rows, caches, true, workers, 0), got);
      const OutputChanges<float> alone =
          output_changes_cuda(group, rows, std::span(&caches[2], 1), true, workers);
      CHECK(alone.change[0] == got.change[2]);
      CHECK(alone.full == got.full);
    }
  });
}

// Rows of a cache stand apart in the model's sequence, which a sliding window counts in.
TEST_CASE("a device knows where a cache's tokens stand", "[cuda]") {
  on_devices([] {
    Workers workers(1);
    const HeadGroup<float> whole =
        converted<float>(random_group({.l = 180, .T = 200, .sliding_window = 90, .sink_logit = 0.0}));
    std::vector<Index> tokens = range(0, 180, 3);
    for (Index p = 180; p < 200; ++p) tokens.push_back(p);
    const HeadGroup<float> cache = cache_group(whole, tokens, 20);
    REQUIRE(!cache.position.empty());
    const std::vector<KeptSet> sets{every(cache.l, 1, 0), every(cache.l, 2, 0), every(cache.l, 1, 50)};
    const OutputChanges<float> got = on_device(cache, all_rows(cache), sets, true, workers);
    CHECK(got.change_sq[0] == 0.0);
    for (std::size_t s = 0; s < sets.size(); ++s) {
      const OutputChangeReference want =
          output_change_reference(converted<double>(cache), all_rows(cache), sets[s]);
      CHECK(distance(got.change[s], want) <= 1e-5);
      CHECK(got.change_sq[s] == Approx(want.change_sq).epsilon(1e-4));
    }
  });
}

TEST_CASE("logits and outputs beyond float32 are an input error on a device too", "[cuda]") {
  on_devices([] {
    Workers workers(1);
    const auto changes = [&](const HeadGroup<double>& group) {
      const std::vector<KeptSet> sets{every(group.l, 2, 0)};
      return on_device(converted<float>(group), {group.l - 8, group.l}, sets, false, workers);
    };
    HeadGroup<double> group = random_group({});
    CHECK_NOTHROW(changes(group));
    // Logits of +inf, and of -inf in a whole row.
    for (const double sign : {1.0, -1.0}) {
      INFO("sign " << sign);
      group = random_group({.G = 1, .d = 2});
      group.q[0].setConstant(1e30);
      group.k.setConstant(sign * 1e30);
      CHECK_THROWS_AS(changes(group), InputError);
    }
    // Within one logit they may cancel: an error, or the right number.
    group = random_group({.G = 1, .d = 2});
    group.q[0].col(0).setConstant(1e30);
    group.q[0].col(1).setConstant(-1e30);
    group.k.setZero();
    group.k.row(35).setConstant(1e30);
    try {
      const OutputChanges<float> right = changes(group);
      const HeadGroup<double> judged = converted<double>(converted<float>(group));
      const OutputChangeReference want = output_change_reference(judged, {32, 40}, every(40, 2, 0));
      CHECK(right.full_sq == Approx(want.full_sq).epsilon(1e-5));
      CHECK(right.change_sq[0] == Approx(want.change_sq).epsilon(1e-5));
    } catch (const InputError& error) {
      CHECK(std::string(error.what()).find("position 35") != std::string::npos);
    }
    group = random_group({});
    group.v *= 1e38;
    CHECK_THROWS_AS(changes(group), InputError);
    group = random_group({.sink_logit = 1e39});
    CHECK_THROWS_AS(changes(group), InputError);
    // The first row that sees what overflows is named.
    group = random_group({});
    group.q[1].row(36).setConstant(1e30);
    group.k.row(34).setConstant(1e30);
    std::string message;
    try {
      changes(group);
    } catch (const InputError& error) {
      message = error.what();
    }
    INFO(message);
    CHECK(message.find("query head 1, position 36") != std::string::npos);
    check_harmless_overflows(changes);
  });
}

TEST_CASE("output changes on a device stop where they are asked to", "[cuda]") {
  Workers stopped(2);
  stopped.stop();
  const std::vector<KeptSet> sets{every(40, 2, 0)};
  CHECK_THROWS_AS(on_device(converted<float>(random_group({})), {32, 40}, sets, false, stopped), Interrupted);
}
