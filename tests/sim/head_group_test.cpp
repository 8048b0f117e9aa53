#include "sim/head_group.hpp"

#include "data/dtype.hpp"
#include "data/error.hpp"
#include "data/npy_write.hpp"
#include "data/synth.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"
#include "tests/support/temp_dir.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr Index kLayers = 2, kQueryHeads = 6, kKvHeads = 2, kT = 9, kD = 4, kDv = 3, kDModel = 5;

/// Every element tells which tensor (by `tensor`), layer, head, row and column it is.
float element(int tensor, Index layer, Index head, Index row, Index column) {
  return static_cast<float>((((tensor * kLayers + layer) * 8 + head) * 16 + row) * 8 + column) / 64.0f;
}

void write_tensor(const std::filesystem::path& path, int tensor, Index layer, Index heads, Index rows,
                  Index columns) {
  std::vector<float> values;
  for (Index h = 0; h < heads; ++h) {
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < columns; ++c) values.push_back(element(tensor, layer, h, r, c));
    }
  }
  const std::size_t shape[] = {static_cast<std::size_t>(heads), static_cast<std::size_t>(rows),
                               static_cast<std::size_t>(columns)};
  write_npy(path, shape, values);
}

void write_dump(const std::filesystem::path& folder, Index T_q, bool with_wo, const std::string& manifest) {
  for (Index layer = 0; layer < kLayers; ++layer) {
    const std::filesystem::path at = folder / ("layer_0" + std::to_string(layer));
    std::filesystem::create_directories(at);
    write_tensor(at / "q.npy", 0, layer, kQueryHeads, T_q, kD);
    write_tensor(at / "k.npy", 1, layer, kKvHeads, kT, kD);
    write_tensor(at / "v.npy", 2, layer, kKvHeads, kT, kDv);
    if (with_wo) write_tensor(at / "wo.npy", 3, layer, kQueryHeads, kDv, kDModel);
  }
  std::ofstream(folder / "manifest.json") << manifest;
}

template <class M>
bool holds(const M& matrix, int tensor, Index layer, Index head, Index rows, Index columns) {
  if (matrix.rows() != rows || matrix.cols() != columns) return false;
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) {
      if (matrix(r, c) != static_cast<typename M::Scalar>(element(tensor, layer, head, r, c))) return false;
    }
  }
  return true;
}

template <class T>
void check_groups(const Dump& dump, Index T_q) {
  for (Index layer = 0; layer < kLayers; ++layer) {
    for (Index kv_head = 0; kv_head < kKvHeads; ++kv_head) {
      const HeadGroup<T> group = load_head_group<T>(dump, layer, kv_head);
      CHECK(group.layer == layer);
      CHECK(group.kv_head == kv_head);
      CHECK(group.l == 6);
      CHECK(group.G() == 3);
      CHECK(group.T_all() == kT);
      CHECK(group.T_q() == T_q);
      CHECK(group.first_query() == kT - T_q);
      CHECK(holds(group.k, 1, layer, kv_head, kT, kD));
      CHECK(holds(group.v, 2, layer, kv_head, kT, kDv));
      REQUIRE(group.wo.size() == (dump.has(Tensor::wo) ? 3 : 0));
      for (std::size_t g = 0; g < 3; ++g) {
        const Index head = kv_head * 3 + static_cast<Index>(g);
        CHECK(holds(group.q[g], 0, layer, head, T_q, kD));
        if (!group.wo.empty()) CHECK(holds(group.wo[g], 3, layer, head, kDv, kDModel));
      }
    }
  }
}

bool available(TokenMetric metric, const Dump& dump) { return !why_unavailable(metric, dump); }

}  // namespace

TEST_CASE("a head group holds its KV head, the query heads that read it and their rule", "[head_group]") {
  const TempDir folder;
  write_dump(folder.path(), kT, true,
             R"({"prompt_len": 6, "scale": 0.25, "causal": true, "sliding_window": [null, 4],
                 "logit_softcap": 30.0, "sink_logit": [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]],
                 "rope": {"style": "interleaved", "theta": 100.0, "rotary_dim": 2}})");
  const Dump dump = Dump::open(folder.path());
  check_groups<float>(dump, kT);
  check_groups<double>(dump, kT);

  const HeadGroup<float> group = load_head_group<float>(dump, 1, 1);
  CHECK(group.rule.scale == 0.25);
  CHECK(group.rule.softcap == 30.0);
  CHECK(group.rule.sliding_window == 4);
  CHECK(group.rule.sink_logit == std::vector<double>{9, 10, 11});
  CHECK(load_head_group<float>(dump, 0, 0).rule.sink_logit == std::vector<double>{0, 1, 2});
  CHECK(!load_head_group<float>(dump, 0, 0).rule.sliding_window);
  REQUIRE(group.rope);
  CHECK(group.rope->style == Rope::Style::interleaved);
  CHECK(group.rope->rotary_dim == 2);

  CHECK(head_group_bytes(dump.shape(), true, 4) ==
        4u * static_cast<unsigned>(3 * kT * kD + kT * kD + kT * kDv + 3 * kDv * kDModel));
  CHECK(head_group_bytes(dump.shape(), false, 8) ==
        8u * static_cast<unsigned>(3 * kT * kD + kT * kD + kT * kDv));
  CHECK(bytes_of(group) == head_group_bytes(dump.shape(), true, 4));
  CHECK(bytes_of(converted<double>(group)) == head_group_bytes(dump.shape(), true, 8));
}

TEST_CASE("a gate is that of the decoding steps that have a query", "[head_group]") {
  const TempDir folder;
  for (const auto& [T_q, l, rows] : {std::array<Index, 3>{kT, 6, 3}, {kT, 2, 7}, {2, 6, 2}, {5, 9, 0}}) {
    write_dump(folder.path(), T_q, true, R"({"prompt_len": )" + std::to_string(l) + "}");
    for (Index layer = 0; layer < kLayers; ++layer)
      write_tensor(folder.path() / ("layer_0" + std::to_string(layer)) / "gate.npy", 4, layer, kQueryHeads,
                   T_q, kDv);
    const Dump dump = Dump::open(folder.path());
    for (const Index first_row : {0, 5, 8}) {
      const HeadGroup<double> group = load_head_group<double>(dump, 1, 1, {.first_row = first_row});
      REQUIRE(group.gate.size() == 3);
      for (Index g = 0; g < 3; ++g) {
        REQUIRE((group.gate[g].rows() == rows && group.gate[g].cols() == kDv));
        for (Index r = 0; r < rows; ++r)
          for (Index c = 0; c < kDv; ++c) {
            CHECK(group.gate[g](r, c) == element(4, 1, 3 + g, T_q - rows + r, c));
            CHECK(group.gate_row(g, kT - rows + r)[c] == group.gate[g](r, c));
          }
      }
    }
    CHECK(bytes_of(load_head_group<float>(dump, 1, 1)) == head_group_bytes(dump, 4));
    CHECK(load_head_group<float>(dump, 1, 1, {.others = false}).gate.empty());
    for (Index layer = 0; layer < kLayers; ++layer)  // nothing behind it
      std::filesystem::remove(folder.path() / ("layer_0" + std::to_string(layer)) / "wo.npy");
    const Dump without = Dump::open(folder.path());
    CHECK(load_head_group<float>(without, 1, 1).gate.empty());
    CHECK(bytes_of(load_head_group<float>(without, 1, 1)) == head_group_bytes(without, 4));
    CHECK(without.notes().back() == "gate is not used: there is no wo behind it");
  }
}

TEST_CASE("fewer queries, no output projection, no sink logits, no RoPE", "[head_group]") {
  const TempDir folder;
  write_dump(folder.path(), 5, false, R"({"prompt_len": 6})");
  const Dump dump = Dump::open(folder.path());
  check_groups<float>(dump, 5);
  const HeadGroup<double> group = load_head_group<double>(dump, 0, 1);
  CHECK(group.rule.sink_logit.empty());
  CHECK(group.rule.scale == Approx(0.5));
  CHECK(!group.rope);
}

TEST_CASE("a group may go without the queries of early rows", "[head_group]") {
  const TempDir folder;
  write_dump(folder.path(), 5, true, R"({"prompt_len": 6})");
  const Dump dump = Dump::open(folder.path());
  for (const auto& [first_row, T_q] : {std::pair<Index, Index>{0, 5}, {4, 5}, {6, 3}, {8, 1}, {9, 1}}) {
    const HeadGroup<double> whole = load_head_group<double>(dump, 1, 1),
                            group = load_head_group<double>(dump, 1, 1, {.first_row = first_row});
    CHECK(group.T_q() == T_q);
    CHECK(group.k == whole.k);
    for (std::size_t g = 0; g < 3; ++g) CHECK(group.q[g] == whole.q[g].bottomRows(T_q));
  }
}

TEST_CASE("a metric is the same to the bit without what it does not look at", "[head_group]") {
  const TempDir temp;
  write_synthetic_dump(temp / "dump",
                       {.q_heads = 4, .head_dim = 8, .prompt = 33, .decode = 4, .seed = 7, .gradients = 2});
  const Dump dump = Dump::open(temp / "dump");
  Workers workers(1);
  int fewer = 0;
  for (const TokenMetric metric : kTokenMetrics.all()) {
    if (!available(metric, dump)) continue;
    for (const Index window : {1, 8, 33, 50}) {
      const HeadParts parts = parts_of(metric, dump.shape(), window);
      const auto found = [&](const HeadParts& of) {
        const HeadGroup<float> group = load_head_group<float>(dump, 0, 1, of);
        return token_metrics_cpu(group, {.window = window, .metrics = {metric}}, workers)[metric];
      };
      INFO(name_of(metric) << ", window " << window);
      CHECK(found(parts) == found({}));
      fewer += parts.first_row > 0 ? 1 : 0;
    }
  }
  CHECK(fewer > 30);
}

TEST_CASE("a group has no more than is asked for", "[head_group]") {
  const TempDir temp;
  write_synthetic_dump(temp / "dump",
                       {.q_heads = 4, .head_dim = 8, .prompt = 33, .decode = 4, .seed = 7, .gradients = 2});
  const Dump dump = Dump::open(temp / "dump");
  const auto group = load_head_group<float>(dump, 0, 1, {.values = false, .others = false});
  CHECK((group.v.rows() == 0 && group.d_v() == 8 && group.wo.empty() && group.g_window.g.empty()));
  CHECK(group.k == load_head_group<float>(dump, 0, 1).k);
  CHECK(cache_group(group, {1, 2, 30, 31, 32}, 2).v.rows() == 0);
}

TEST_CASE("keys that nobody looked at first do not go unnoticed", "[head_group]") {
  Workers workers(2);
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    HeadGroup<double> group = random_group({.l = 40, .T = 40, .G = 2, .d = 6});
    group.rule.softcap = 20;
    for (HeadMatrix<double>& q : group.q) q = q.cwiseAbs();  // -infinity: a weight of 0 in every row
    group.k(17, 3) = bad;
    const DumpShape shape{.n_q = 2, .n_kv = 1, .d = 6, .d_v = group.d_v(), .T = 40, .T_q = 40, .l = 40};
    int noticed = 0;
    for (const TokenMetric metric : kTokenMetrics.all())
      for (const Index window : {1, 8}) {
        if (parts_of(metric, shape, window).checked_keys) continue;
        const TokenOptions options{.window = window, .metrics = {metric}};
        CHECK_THROWS_AS(token_metrics_cpu(group, options, workers), InputError);
        CHECK_THROWS_AS(token_metrics_cpu(to_float(group), options, workers), InputError);
        ++noticed;
      }
    CHECK(noticed == 6);  // knorm and keydiff, attn and attn_sq of one row
    const ChannelSetting setting{Semantics::kvpress, 0, 8, std::nullopt};
    CHECK_THROWS_AS(channel_diagonal(group, KeptSet(40, 1), setting, workers), InputError);
    CHECK_THROWS_AS(channel_diagonal(to_float(group), KeptSet(40, 1), setting, workers), InputError);
  }
}

TEST_CASE("a dump's 16-bit numbers are a head group's own", "[head_group]") {
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    const TempDir temp;
    write_synthetic_dump(temp / "dump",
                         {.q_heads = 6, .head_dim = 8, .prompt = 21, .decode = 3, .dtype = dtype});
    const Dump dump = Dump::open(temp / "dump");
    const HeadGroup<float> group = load_head_group<float>(dump, 1, 1);
    const auto stored = load_stored_group(dump, 1, 1);
    REQUIRE(stored);
    CHECK(stored->dtype == dtype);
    const auto same = [&](const Matrix<float>& want, const std::byte* bytes) {
      std::vector<std::uint16_t> bits(want.size());
      std::memcpy(bits.data(), bytes, 2 * bits.size());
      const auto widen = dtype == Dtype::f16 ? half_to_float : bfloat_to_float;
      return std::equal(bits.begin(), bits.end(), want.data(),
                        [&](std::uint16_t b, float x) { return widen(b) == x; });
    };
    CHECK(same(group.k, stored->k.get()));
    CHECK(same(group.v, stored->v.get()));
    REQUIRE(stored->q.size() == group.q.size());
    for (std::size_t g = 0; g < group.q.size(); ++g) CHECK(same(group.q[g], stored->q[g].get()));

    const auto last = load_stored_group(dump, 1, 1, {.first_row = 19, .values = false});
    REQUIRE(last);
    CHECK(last->first_query == 19);
    CHECK_FALSE(last->v);
    for (std::size_t g = 0; g < group.q.size(); ++g) CHECK(same(group.q[g].bottomRows(5), last->q[g].get()));
    CHECK(load_stored_group(dump, 1, 1, {.first_row = -100})->first_query == 0);
    CHECK(load_stored_group(dump, 1, 1, {.first_row = 100})->first_query == 24);
  }
}

TEST_CASE("numbers of other widths, or of several, are no stored group", "[head_group]") {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const TempDir temp;
    write_synthetic_dump(temp / "dump", {.head_dim = 8, .prompt = 21, .decode = 3, .dtype = dtype});
    CHECK_FALSE(load_stored_group(Dump::open(temp / "dump"), 0, 0));
  }
  const TempDir temp;
  write_synthetic_dump(temp / "dump", {.head_dim = 8, .prompt = 21, .decode = 3, .dtype = Dtype::f16});
  const std::size_t shape[] = {2, 24, 8};
  for (const char* tensor : {"k", "v"}) {
    const std::filesystem::path file = temp / "dump" / "layer_00" / (std::string(tensor) + ".npy");
    const std::vector<float> zeros(2 * 24 * 8);
    write_npy_as(file, Dtype::f32, shape, zeros);
    const Dump mixed = Dump::open(temp / "dump");
    CHECK_FALSE(load_stored_group(mixed, 0, 0));
    CHECK(load_stored_group(mixed, 1, 0));
    write_npy_as(file, Dtype::f16, shape, zeros);
    CHECK(load_stored_group(Dump::open(temp / "dump"), 0, 0));
  }
}

TEST_CASE("which positions a query sees", "[head_group]") {
  HeadGroup<float> group;
  group.k = Matrix<float>::Zero(9, 2);
  CHECK(group.first_visible(5) == 0);
  CHECK(group.end_visible(5) == 6);
  group.rule.sliding_window = 3;
  CHECK(group.first_visible(5) == 3);
  CHECK(group.first_visible(2) == 0);
  CHECK(group.first_visible(1) == 0);
  group.rule.sliding_window = 1;
  CHECK(group.first_visible(5) == 5);
  CHECK(group.first_visible(0) == 0);
  group.rule.causal = false;
  CHECK(group.end_visible(5) == 9);
}

namespace {

/// The metrics that need neither gradients nor a second reading.
std::vector<TokenMetric> of_attention() {
  std::vector<TokenMetric> metrics;
  for (const TokenMetricFacts& facts : kTokenMetrics)
    if (!facts.of_gradients && facts.rows != MetricRows::repeat) metrics.push_back(facts.id);
  return metrics;
}

}  // namespace

TEST_CASE("a metric that a dump cannot give says why", "[token_metrics]") {
  const TempDir folder;
  const std::string rope = R"("rope": {"style": "half", "theta": 10000.0})";
  const auto reopen = [&](Index T_q, const std::string& manifest) {
    write_dump(folder.path(), T_q, false, manifest);
    return Dump::open(folder.path());
  };
  {
    const Dump dump = reopen(kT, R"({"prompt_len": 6, )" + rope + "}");
    for (TokenMetric metric : of_attention()) CHECK(available(metric, dump));
  }
  {
    const Dump dump = reopen(kT, R"({"prompt_len": 6})");
    for (TokenMetric metric : of_attention()) {
      CHECK(available(metric, dump) == (kTokenMetrics[metric].rows != MetricRows::prompt));
    }
    const std::string why = why_unavailable(TokenMetric::expected_attention, dump).value();
    CHECK(why.find(dump.rope_note()) != std::string::npos);
    CHECK(!dump.rope_note().empty());
  }
  {
    const Dump dump = reopen(kT, "{" + rope + "}");  // no decoding steps
    for (TokenMetric metric : of_attention()) {
      CHECK(available(metric, dump) == (kTokenMetrics[metric].kind != MetricKind::oracle));
    }
    CHECK(why_unavailable(TokenMetric::oracle_next, dump).value().find("decoding steps") !=
          std::string::npos);
  }
  {
    const Dump dump = reopen(kT, R"({"prompt_len": 4, )" + rope + "}");
    CHECK(!available(TokenMetric::expected_attention, dump));
    CHECK(available(TokenMetric::oracle_future, dump));
  }
  {
    const Dump dump = reopen(8, R"({"prompt_len": 6, )" + rope + "}");  // queries 1..8
    CHECK(!available(TokenMetric::expected_attention, dump));
    CHECK(available(TokenMetric::exact_key, dump));
    CHECK(available(TokenMetric::oracle_next, dump));
  }
  {
    const Dump dump = reopen(3, R"({"prompt_len": 6, )" + rope + "}");  // queries 6..8: decoding steps only
    for (TokenMetric metric : of_attention()) {
      CHECK(available(metric, dump) == (kTokenMetrics[metric].kind == MetricKind::oracle ||
                                        kTokenMetrics[metric].rows == MetricRows::none));
    }
  }
  {
    const Dump dump = reopen(2, R"({"prompt_len": 6, )" + rope + "}");  // queries 7..8
    for (TokenMetric metric : of_attention()) {
      CHECK(available(metric, dump) ==
            (kTokenMetrics[metric].rows == MetricRows::none || metric == TokenMetric::oracle_future ||
             metric == TokenMetric::oracle_importance));
    }
    CHECK(why_unavailable(TokenMetric::oracle_next, dump).value().find('6') != std::string::npos);
  }
}
