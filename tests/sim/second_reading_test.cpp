#include "data/error.hpp"
#include "data/npy_write.hpp"
#include "data/synth.hpp"
#include "sim/least_squares/reference_rows.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/random_group.hpp"
#include "tests/support/temp_dir.hpp"

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

// Queries of a second reading of the prompt: what of them reaches a head group, what they see, and kvzip.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr TokenMetric kKvzip = TokenMetric::kvzip;

Matrix<double> kvzip_of(const HeadGroup<double>& group, bool per_query_head = false) {
  return token_metrics_reference(group, {8, per_query_head, {kKvzip}})[kKvzip];
}

/// kvzip of the fast twin in both precisions against the reference.
void check_twins(const std::string& name, const HeadGroup<double>& exact) {
  const HeadGroup<float> narrow = to_float(exact);
  const HeadGroup<double> group = to_double(narrow);
  for (const bool per_query_head : {false, true}) {
    const TokenOptions options{8, per_query_head, {kKvzip}};
    const Matrix<double> want = kvzip_of(group, per_query_head);
    for (const int threads : {1, 3}) {
      Workers workers(threads);
      CHECK(mismatch(name + ", float64", want, token_metrics_cpu(group, options, workers)[kKvzip], kDouble) ==
            "");
      CHECK(mismatch(name + ", float32", want, token_metrics_cpu(narrow, options, workers)[kKvzip],
                     kSingle) == "");
    }
  }
}

/// A synthetic dump of 2 layers, 6 query heads on 2 KV heads of 8 channels, 21 + 3 positions, with 30 rows of
/// a second reading: numbers 0, 1, 2, ... of which layer 1 has twice as much.
void write_dump(const TempDir& temp) {
  write_synthetic_dump(temp / "dump", {.q_heads = 6, .head_dim = 8, .prompt = 21, .decode = 3});
  const std::size_t shape[] = {6, 30, 8};
  std::vector<float> values(6 * 30 * 8);
  std::iota(values.begin(), values.end(), 0.0f);
  write_npy(temp / "dump/layer_00/q_ref.npy", shape, values);
  for (float& value : values) value *= 2;
  write_npy(temp / "dump/layer_01/q_ref.npy", shape, values);
}

}  // namespace

TEST_CASE("a head group has its heads' queries of the second reading", "[second_reading]") {
  const TempDir temp;
  write_dump(temp);
  const Dump dump = Dump::open(temp / "dump");
  CHECK(!why_no_second_reading(dump));
  CHECK(!why_unavailable(kKvzip, dump));
  CHECK(first_row_of(kKvzip, dump.shape(), 8) == dump.shape().T);
  for (const Index first_row : {0, 23}) {
    const HeadGroup<double> group = load_head_group<double>(dump, 1, 1, {.first_row = first_row});
    REQUIRE(group.q_ref.size() == 3);
    CHECK(group.R_ref() == 30);
    for (Index g = 0; g < 3; ++g)
      for (Index r = 0; r < 30; ++r)
        CHECK(group.q_ref[g](r, 5) == 2.0 * static_cast<double>(((3 + g) * 30 + r) * 8 + 5));
    CHECK(query_head_group(group, 2).q_ref == std::vector<HeadMatrix<double>>{group.q_ref[2]});
    CHECK(converted<float>(group).q_ref[1](29, 7) == static_cast<float>(group.q_ref[1](29, 7)));
  }
  CHECK(head_group_bytes(dump.shape(), false, 4) ==
        4u * static_cast<unsigned>(3 * (24 + 30) * 8 + 24 * (8 + 8)));

  const Dump shorter = Dump::open(temp / "dump", {.prompt_len = 20});
  CHECK(load_head_group<float>(shorter, 0, 0).R_ref() == 0);
  CHECK(why_unavailable(kKvzip, shorter).value().find("a prompt of 21 tokens") != std::string::npos);
  CHECK(why_no_reference(shorter, Reference::repeat) == why_unavailable(kKvzip, shorter));
  CHECK(!why_no_reference(dump, Reference::repeat));
  std::filesystem::remove(temp / "dump/layer_00/q_ref.npy");
  std::filesystem::remove(temp / "dump/layer_01/q_ref.npy");
  CHECK(why_unavailable(kKvzip, Dump::open(temp / "dump")) == "the dump has no queries of a second reading");
}

TEST_CASE("a second reading in memory is seen where it lies", "[second_reading]") {
  const HeadGroup<double> source = random_group({.l = 10, .T = 10, .G = 1, .repeat = 3});
  const auto array = [](Tensor tensor, const HeadMatrix<double>& m) {
    return MemoryArray{tensor, Dtype::f64, m.data(), {1, m.rows(), m.cols()}, {m.size(), m.cols(), 1}};
  };
  const Dump dump = Dump::of_memory({array(Tensor::q, source.q[0]), array(Tensor::k, source.k),
                                     array(Tensor::v, source.v), array(Tensor::q_ref, source.q_ref[0])},
                                    "{}", {8});
  const HeadGroup<double> group = load_head_group<double>(dump, 0, 0);
  CHECK(group.l == 8);
  REQUIRE(group.R_ref() == 3);
  CHECK(group.q_ref[0].data() == source.q_ref[0].data());
}

TEST_CASE("what a query of the second reading sees", "[second_reading]") {
  HeadGroup<float> group;
  group.l = 6;
  group.k = Matrix<float>::Zero(9, 2);
  const auto sees = [&](Index r, Index begin) {
    const RowRange rows = group.repeat_visible(r);
    CHECK(rows.begin == begin);
    CHECK(rows.end == 6);
  };
  sees(0, 0);
  sees(500, 0);
  group.rule.sliding_window = 4;  // the row at position 6 sees 3, 4, 5 and itself
  sees(0, 3);
  sees(2, 5);
  sees(3, 6);
  sees(500, 6);
  group.rule.sliding_window = 100;
  sees(0, 0);
  group.rule.sliding_window = 4;
  group.position = {0, 2, 3, 7, 8, 9, 10, 11, 12};  // row 0 at 10
  sees(0, 3);
  sees(2, 5);
  sees(3, 6);
}

TEST_CASE("kvzip is the largest weight of the second reading's rows, one by one", "[second_reading]") {
  const HeadGroup<double> group = random_group({.l = 12, .T = 15, .G = 3, .d = 5, .repeat = 4});
  const Matrix<double> found = kvzip_of(group, true);
  for (Index g = 0; g < 3; ++g) {
    Vector<double> want = Vector<double>::Zero(12);
    for (Index r = 0; r < 4; ++r) {
      const Vector<double> e =
          (group.rule.scale * (group.k.topRows(12) * group.q_ref[g].row(r).transpose())).array().exp();
      want = want.cwiseMax(e / e.sum());
    }
    CHECK((found.row(g).transpose() - want).cwiseAbs().maxCoeff() < 1e-14);
  }
  CHECK(kvzip_of(group) == found.colwise().maxCoeff());
}

TEST_CASE("laws of kvzip", "[second_reading]") {
  const HeadGroup<double> group = random_group({.repeat = 9});
  const Matrix<double> all = kvzip_of(group);
  CHECK(all.minCoeff() > 0);
  CHECK(all.maxCoeff() <= 1);

  HeadGroup<double> other = group;  // one row's weights add up to 1, less what a sink column takes
  for (HeadMatrix<double>& q : other.q_ref) q = group.q_ref[0].topRows(1);
  CHECK(kvzip_of(other).sum() == Approx(1).epsilon(1e-13));
  CHECK((kvzip_of(other).array() <= all.array()).all());
  other.rule.sink_logit = {1e4, 1e4};
  CHECK(kvzip_of(other).maxCoeff() < 1e-300);

  other = group;  // rows and what stands behind the prompt in any order, values of any kind
  for (HeadMatrix<double>& q : other.q_ref) q = Matrix<double>(q.colwise().reverse());
  other.k.bottomRows(8).setConstant(9);
  other.v *= -7;
  CHECK((kvzip_of(other) - all).cwiseAbs().maxCoeff() < 1e-15);

  other = group;  // a row twice changes nothing
  for (HeadMatrix<double>& q : other.q_ref) {
    Matrix<double> twice(18, group.d());
    twice << q, q;
    q = twice;
  }
  CHECK(kvzip_of(other) == all);

  other = group;  // rows beyond the reach of a sliding window see nothing
  other.rule.sliding_window = 3;
  const Matrix<double> near = kvzip_of(other);
  CHECK(near.leftCols(38).maxCoeff() == 0);
  CHECK(near.rightCols(2).minCoeff() > 0);
  other.rule.sliding_window = 1;
  CHECK(kvzip_of(other).maxCoeff() == 0);

  other = group;
  other.l = 1;
  CHECK(kvzip_of(other)(0, 0) == 1);
  other.q_ref.clear();
  CHECK(kvzip_of(other).size() == 0);
}

TEST_CASE("the fast kvzip agrees with the reference", "[second_reading]") {
  for (const Index rows : {1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 600})
    check_twins(std::to_string(rows) + " rows", random_group({.repeat = rows, .seed = 77}));
  for (const Index l : {1, 2, 63, 64, 65, 300})
    check_twins("l = " + std::to_string(l), random_group({.l = l, .T = l + 2, .repeat = 40, .seed = 78}));
  const std::vector<std::pair<std::string, GroupSpec>> specs{
      {"d = 1", {.d = 1, .d_v = 1}},
      {"odd d", {.G = 3, .d = 7, .d_v = 5}},
      {"logits + 200", {.logit_shift = 200.0}},
      {"logits - 200", {.logit_shift = -200.0}},
      {"logits times 60", {.logit_std = 60.0}},
      {"sink", {.attention_sink = 0}},
      {"sink, logits - 200", {.logit_shift = -200.0, .attention_sink = 0}},
      {"worthless sink", {.attention_sink = 3, .worthless_by = 60.0}},
      {"sink logit", {.sink_logit = 2.0}},
      {"sink logit far above", {.sink_logit = 80.0}},
      {"soft cap", {.logit_std = 20.0, .softcap = 15.0}},
      {"soft cap, logits - 200", {.logit_shift = -200.0, .softcap = 50.0}},
      {"sliding window 1", {.sliding_window = 1}},
      {"sliding window 2", {.sliding_window = 2}},
      {"sliding window 17", {.sliding_window = 17}},
      {"sliding window 60", {.sliding_window = 60, .sink_logit = -1.0}},
      {"non-causal", {.causal = false}}};
  for (const auto& [name, spec] : specs)
    for (const Index rows : {1, 70}) {
      GroupSpec with_rows = spec;
      with_rows.repeat = rows;
      check_twins(name, random_group(with_rows));
    }
}

TEST_CASE("positions of a cache count for a sliding window's second reading", "[second_reading]") {
  HeadGroup<double> group = random_group({.l = 30, .T = 34, .sliding_window = 25, .repeat = 20});
  for (Index p = 0; p < 34; ++p) group.position.push_back(p < 12 ? 2 * p : p + 12);
  check_twins("positions", group);
  CHECK(kvzip_of(group)(0, 8) == 0);  // position 16; row 0 stands at 42 and sees from 18 on
  CHECK(kvzip_of(group)(0, 9) > 0);
  CHECK(kvzip_of(group)(0, 29) > 0);
}

TEST_CASE("logits of a second reading beyond the type are an input error", "[second_reading]") {
  Workers workers(1);
  HeadGroup<double> group = random_group({.G = 2, .d = 2, .repeat = 3});
  const TokenOptions options{8, false, {kKvzip}};
  group.q_ref[1](2, 0) = 1e25;
  group.k(17, 0) = 1e20;
  CHECK_NOTHROW(token_metrics_cpu(group, options, workers));
  CHECK_THROWS_AS(token_metrics_cpu(converted<float>(group), options, workers), InputError);
  group.rule.softcap = 30;
  CHECK_THROWS_AS(token_metrics_cpu(converted<float>(group), options, workers), InputError);
  group.rule.sliding_window = 10;  // row 0 sees position 31 and later
  CHECK_NOTHROW(token_metrics_cpu(converted<float>(group), options, workers));
  group.rule.sliding_window = {};
  group.q_ref[1].row(2) << 1e30, -1e30;
  group.k.row(17).setConstant(1e30);
  CHECK_THROWS_AS(token_metrics_cpu(converted<float>(group), options, workers), InputError);
}

TEST_CASE("reference rows of a second reading are those of kvzip", "[second_reading]") {
  Workers workers(2);
  for (const GroupSpec& spec : {GroupSpec{.repeat = 50}, GroupSpec{.G = 3, .sink_logit = 1.0, .repeat = 7},
                                GroupSpec{.sliding_window = 30, .softcap = 5.0, .repeat = 45}}) {
    HeadGroup<double> group = random_group(spec);
    const QueryRows<double> rows = reference_queries(group, {.kind = Reference::repeat});
    REQUIRE(rows.count() == group.G() * spec.repeat);
    const RowLogits<double> logits = row_logits(group, rows, workers);
    const KeptWeights kept = kept_weights(logits, 0, rows.count(), range(0, group.l), Vector<double>());
    Matrix<double> largest = Matrix<double>::Zero(1, group.l);
    for (Index r = 0; r < rows.count(); ++r) {
      CHECK(rows.q.row(r) == group.q_ref[rows.head[r]].row(r % spec.repeat));
      largest = largest.cwiseMax(kept.e.row(r) * kept.unscale[r]);
    }
    CHECK((largest - kvzip_of(group)).cwiseAbs().maxCoeff() < 1e-13);

    const QueryRows<double> few = reference_queries(group, {.kind = Reference::repeat, .most = 5});
    REQUIRE(few.count() == group.G() * 5);
    for (Index r = 0; r < few.count(); ++r)
      CHECK(few.q.row(r) == group.q_ref[few.head[r]].row(r % 5 * spec.repeat / 5));
  }
}
