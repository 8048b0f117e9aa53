#include "viewer/questions/entry_tiles.hpp"

#include "sim/head_group.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/random_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;
using namespace kvreplay::viewer;
using namespace std::chrono_literals;
using Against = EntryView::Against;

namespace {

EntryMap<float> map_of(const GroupSpec& spec) {
  Workers workers(1);
  return {std::make_shared<const HeadGroup<float>>(to_float(random_group(spec))), workers};
}

/// Runs a job to its end, as panels do.
template <class F>
auto answer_of(F compute) {
  using R = std::invoke_result_t<F, JobControl&>;
  JobQueue queue({1, std::size_t{1} << 30, {}});
  JobRequest request;
  request.key = request.title = "tile";
  queue.ask<R>(request, compute);
  REQUIRE(queue.wait_idle(10min));
  const Answer<R> answer = queue.ask<R>(request, compute);
  if (!answer.error.empty()) FAIL(answer.error);
  REQUIRE(answer);
  return *answer;
}

Tile tile_of(const EntryMap<float>& map, const EntryView& view, const TileKey& key, RowCache& rows) {
  return answer_of([&](JobControl& job) { return entry_tile(map, view, key, rows, job); });
}

/// The whole matrix of the view, [T_q, T], from single entries.
Matrix<float> matrix_of(const EntryMap<float>& map, const EntryView& view) {
  const HeadGroup<float>& group = map.group();
  Workers workers(1);
  const RowRange all{group.first_query(), group.T_all()};
  const auto sum = [&](EntryTerm entry) {
    Matrix<float> total = Matrix<float>::Zero(group.T_q(), group.T_all()), term = total;
    Index heads = 0;
    for (Index g = 0; g < group.G(); ++g) {
      if (view.query_head.value_or(g) != g) continue;
      map.entries(map.rows(g, all, workers), entry, all, 0, group.T_all(), term.data());
      total += term;
      ++heads;
    }
    return entry == EntryTerm::logit ? Matrix<float>(total / static_cast<float>(heads)) : total;
  };
  const Matrix<float> shown = sum(view.shown);
  if (view.against == Against::nothing) return shown;
  const Matrix<float> other = sum(view.other);
  if (view.against == Against::rank) {
    Matrix<float> places = shown, of_other = other;
    for (Index r = 0; r < places.rows(); ++r)
      for (Matrix<float>* matrix : {&places, &of_other})
        rank_shares(std::span(matrix->row(r).data(), static_cast<std::size_t>(matrix->cols())));
    return places - of_other;
  }
  return view.against == Against::difference ? Matrix<float>(shown - other)
                                             : Matrix<float>((shown - other).array() / other.array());
}

/// Pooled cell by cell.
Tile pooled_tile(const Matrix<float>& cells, const TileKey& key) {
  Tile tile;
  const Index a_texel = Index{1} << key.level, first_row = key.row * kTileSize * a_texel,
              first_column = key.column * kTileSize * a_texel;
  const auto texels_along = [&](Index n, Index first) {
    return std::clamp<Index>((n - first + a_texel - 1) / a_texel, 0, kTileSize);
  };
  tile.rows = texels_along(cells.rows(), first_row);
  tile.columns = texels_along(cells.cols(), first_column);
  for (Index r = 0; r < tile.rows; ++r)
    for (Index c = 0; c < tile.columns; ++c) {
      float best = std::numeric_limits<float>::quiet_NaN();
      for (Index i = first_row + r * a_texel; i < std::min(first_row + (r + 1) * a_texel, cells.rows()); ++i)
        for (Index p = first_column + c * a_texel;
             p < std::min(first_column + (c + 1) * a_texel, cells.cols()); ++p) {
          const float x = cells(i, p);
          ++tile.stats.cells;
          if (std::isnan(best) || std::abs(x) > std::abs(best)) best = x;
          if (!std::isfinite(x)) continue;
          ++tile.stats.finite;
          tile.stats.min = std::min(tile.stats.min, x);
          tile.stats.max = std::max(tile.stats.max, x);
          if (x > 0) tile.stats.least_positive = std::min(tile.stats.least_positive, x);
        }
      tile.values.push_back(best);
    }
  return tile;
}

bool same_values(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

std::string differences(const std::string& name, const Tile& want, const Tile& got) {
  if (want.rows != got.rows || want.columns != got.columns)
    return fmt::format("{}: want {} x {} texels, got {} x {}", name, want.rows, want.columns, got.rows,
                       got.columns);
  if (!same_values(want.values, got.values)) return name + ": texels";
  if (want.stats.min != got.stats.min || want.stats.max != got.stats.max ||
      want.stats.least_positive != got.stats.least_positive)
    return fmt::format("{}: range: want {} .. {}, least positive {}, got {} .. {}, {}", name, want.stats.min,
                       want.stats.max, want.stats.least_positive, got.stats.min, got.stats.max,
                       got.stats.least_positive);
  if (want.stats.cells != got.stats.cells || want.stats.finite != got.stats.finite)
    return fmt::format("{}: want {} of {} cells finite, got {} of {}", name, want.stats.finite,
                       want.stats.cells, got.stats.finite, got.stats.cells);
  return "";
}

struct Named {
  std::string name;
  GroupSpec spec;
};
std::vector<Named> groups() {
  return {
      {"plain", {.l = 600, .T = 610, .seed = 1}},
      {"queries of the end only", {.l = 600, .T = 610, .T_q = 301, .G = 3, .d = 5, .d_v = 3, .seed = 2}},
      {"sliding window", {.l = 530, .T = 600, .G = 1, .sliding_window = 70, .seed = 3}},
      {"non-causal, sink logit", {.l = 270, .T = 300, .causal = false, .sink_logit = 1.0, .seed = 4}},
      {"one row", {.l = 300, .T = 300, .T_q = 1, .seed = 5}},
      {"one token", {.l = 1, .T = 1, .seed = 6}},
      {"a sink", {.l = 257, .T = 257, .attention_sink = 3, .softcap = 30.0, .seed = 7}},
  };
}

std::vector<EntryView> views() {
  EntryView sum, one, logit, difference, relative, rank;
  sum.shown = EntryTerm::exact_joint;
  one.query_head = 0;
  logit.shown = EntryTerm::logit;
  difference.shown = EntryTerm::joint;
  difference.against = Against::difference;
  difference.other = EntryTerm::exact_joint;
  relative = difference;
  relative.against = Against::relative;
  relative.query_head = 0;
  rank = difference;
  rank.against = Against::rank;
  rank.other = EntryTerm::attn;
  return {sum, one, logit, difference, relative, rank};
}

}  // namespace

TEST_CASE("tiles of entries pool the matrix of entries", "[entry_tiles]") {
  for (const Named& named : groups()) {
    const EntryMap<float> map = map_of(named.spec);
    const MatrixSize size = entry_map_size(map.group());
    CHECK(size == MatrixSize{map.group().T_q(), map.group().T_all()});
    RowCache rows(std::size_t{1} << 30);
    for (const EntryView& view : views()) {
      const Matrix<float> matrix = matrix_of(map, view);
      for (int level = 0; level <= 3; ++level)
        for (Index r = 0; r <= (size.rows - 1) >> (kTileBits + level); ++r)
          for (Index c = 0; c <= (size.columns - 1) >> (kTileBits + level); ++c) {
            const TileKey key{level, r, c};
            const std::string name =
                fmt::format("{}, {} {} {}, level {}, tile {} {}", named.name, name_of(view.shown),
                            static_cast<int>(view.against), name_of(view.other), level, r, c);
            Tile want = pooled_tile(matrix, key), got = tile_of(map, view, key, rows);
            // Of two places of opposite signs that are equally far either may speak for a texel.
            if (view.against == Against::rank)
              for (Tile* tile : {&want, &got})
                for (float& x : tile->values) x = std::abs(x);
            CHECK(differences(name, want, got) == "");
          }
    }
  }
}

TEST_CASE("of two runs' maps, cells are subtracted before they are pooled", "[entry_tiles]") {
  for (const Named& named : groups()) {
    GroupSpec other_spec = named.spec;
    other_spec.seed += 1000;
    const EntryMap<float> map = map_of(named.spec), minus = map_of(other_spec);
    RowCache rows(std::size_t{1} << 30);
    for (const EntryView& view : views()) {
      const Matrix<float> difference = matrix_of(map, view) - matrix_of(minus, view);
      for (int level = 0; level <= 2; ++level) {
        const TileKey key{level, 0, 0};
        const std::string name = fmt::format("{}, {} {}, level {}", named.name, name_of(view.shown),
                                             static_cast<int>(view.against), level);
        Tile want = pooled_tile(difference, key);
        const auto tile = [&](const EntryMap<float>* of) {
          return answer_of([&](JobControl& job) { return entry_tile(map, view, key, rows, job, of); });
        };
        Tile got = tile(&minus);
        // Weights add up to one: of two tokens the differences are opposite, and either may speak for a
        // texel.
        for (Tile* one : {&want, &got})
          for (float& x : one->values) x = std::abs(x);
        CHECK(differences(name, want, got) == "");
        // Less itself nothing is left, where there is a cell.
        for (const float x : tile(&map).values) CHECK((std::isnan(x) || x == 0));
      }
    }
  }
}

TEST_CASE("cells of the token map are what the reference says", "[entry_tiles]") {
  for (const Named& named : groups()) {
    const EntryMap<float> map = map_of(named.spec);
    const HeadGroup<double> group = converted<double>(map.group());
    RowCache rows(std::size_t{1} << 30);
    for (const EntryView& view : views()) {
      // The quotient of two errors has no digits to compare, and nearly equal cells change places.
      if (view.against == Against::relative || view.against == Against::rank) continue;
      const Tile tile = tile_of(map, view, {0, 0, 0}, rows);
      const double largest = tile.stats.largest_magnitude();
      for (Index r = 0; r < tile.rows; r += 17)
        for (Index c = 0; c < tile.columns; c += 13) {
          const double want = entry_exact(group, view, group.first_query() + r, c);
          const auto got = static_cast<double>(tile.values[r * tile.columns + c]);
          INFO(named.name << ", " << name_of(view.shown) << ", row " << r << ", token " << c);
          CHECK(std::isnan(want) == std::isnan(got));
          if (!std::isnan(want)) CHECK(std::abs(want - got) <= 1e-5 * largest);
        }
    }
  }
}

// Two tokens of weight 1/2 and logit 0: key is 0, so is exact_key; value is 2.25 and 0.25 (see
// entry_map_test).
TEST_CASE("differences and relative differences, zeros among them", "[entry_tiles]") {
  HeadGroup<double> group;
  group.l = 2;
  group.rule.scale = 1;
  group.k = Matrix<double>::Zero(2, 1);
  group.v.resize(2, 1);
  group.v << 3, -1;
  group.q = {Matrix<double>::Ones(2, 1), Matrix<double>::Ones(2, 1)};
  Workers workers(1);
  const EntryMap<float> map(std::make_shared<const HeadGroup<float>>(to_float(group)), workers);
  RowCache rows(std::size_t{1} << 20);
  const auto cells = [&](EntryTerm shown, Against against, EntryTerm other, std::optional<Index> head) {
    EntryView view;
    view.shown = shown;
    view.against = against;
    view.other = other;
    view.query_head = head;
    const Tile tile = tile_of(map, view, {0, 0, 0}, rows);
    for (Index token = 0; token < 2; ++token) {
      const double exact = entry_exact(group, view, 1, token);
      const float got = tile.values[2 + token];
      if (std::isfinite(exact)) CHECK(static_cast<double>(got) == Approx(exact));
      CHECK(std::isnan(exact) == std::isnan(got));
      CHECK(std::isinf(exact) == std::isinf(got));
    }
    return tile.values;
  };
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  using Values = std::vector<float>;
  CHECK(same_values(cells(EntryTerm::value, Against::nothing, EntryTerm::attn, 1),
                    Values{9, kNaN, 2.25, 0.25}));
  CHECK(same_values(cells(EntryTerm::value, Against::nothing, EntryTerm::attn, {}),
                    Values{18, kNaN, 4.5, 0.5}));
  CHECK(same_values(cells(EntryTerm::attn, Against::nothing, EntryTerm::attn, {}), Values{2, kNaN, 1, 1}));
  CHECK(same_values(cells(EntryTerm::logit, Against::nothing, EntryTerm::attn, {}), Values{0, kNaN, 0, 0}));
  CHECK(same_values(cells(EntryTerm::value, Against::difference, EntryTerm::exact_remove, {}),
                    Values{0, kNaN, -3.5, -7.5}));
  CHECK(same_values(cells(EntryTerm::value, Against::relative, EntryTerm::attn, {}),
                    Values{8, kNaN, 3.5, -0.5}));
  CHECK(same_values(cells(EntryTerm::attn, Against::relative, EntryTerm::key, {}),
                    Values{kInfinity, kNaN, kInfinity, kInfinity}));
  CHECK(same_values(cells(EntryTerm::key, Against::relative, EntryTerm::exact_key, {}),
                    Values{kNaN, kNaN, kNaN, kNaN}));
  CHECK(same_values(cells(EntryTerm::key, Against::relative, EntryTerm::attn, {}), Values{-1, kNaN, -1, -1}));
  // The value of the first is the larger, the weights are equal: 1 - 1/2 and 0 - 1/2. One token has one
  // place.
  CHECK(
      same_values(cells(EntryTerm::value, Against::rank, EntryTerm::attn, {}), Values{0, kNaN, 0.5F, -0.5F}));
}

TEST_CASE("places are shares of those that are there, and equal values share theirs", "[entry_tiles]") {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto places = [](std::vector<float> values) {
    rank_shares(std::span(values));
    return values;
  };
  using Values = std::vector<float>;
  CHECK(same_values(places({5, -1, kNaN, 7}), Values{0.5F, 0, kNaN, 1}));
  CHECK(same_values(places({2, 2, 2, 9, -kInfinity}), Values{0.5F, 0.5F, 0.5F, 1, 0}));
  CHECK(same_values(places({3}), Values{0}));
  CHECK(same_values(places({kNaN}), Values{kNaN}));
  CHECK(places({}).empty());
}

TEST_CASE("a difference or ratio of different units is refused, and says why", "[entry_tiles]") {
  EntryView view;
  view.shown = EntryTerm::exact_remove;
  view.other = EntryTerm::attn;
  const auto refused = [&](Against against) {
    view.against = against;
    return why_not(view);
  };
  CHECK(refused(Against::nothing) == "");
  CHECK(refused(Against::rank) == "");
  CHECK(refused(Against::difference) ==
        "exact_remove is in another unit (squared output) than attn (attention weight): their difference "
        "means nothing. Their ranks can be compared.");
  CHECK(refused(Against::relative).find("their ratio means nothing") != std::string::npos);
  view.other = EntryTerm::joint;  // a squared output too
  CHECK(refused(Against::difference) == "");
  CHECK(refused(Against::relative) == "");
}

TEST_CASE("wholly hidden tiles need no softmax", "[entry_tiles]") {
  const EntryMap<float> map = map_of({.l = 700, .T = 700, .seed = 8});
  RowCache rows(std::size_t{1} << 30);
  const Tile hidden = tile_of(map, {}, {0, 0, 1}, rows);
  CHECK(rows.bytes() == 0);
  CHECK(hidden.stats.cells == 256 * 256);
  CHECK(hidden.stats.finite == 0);
  CHECK(std::all_of(hidden.values.begin(), hidden.values.end(), [](float x) { return std::isnan(x); }));
  tile_of(map, {}, {0, 1, 0}, rows);
  CHECK(rows.bytes() > 0);
}

TEST_CASE("the row cache computes blocks once and keeps to its limit", "[entry_tiles]") {
  const EntryMap<float> map = map_of({.l = 700, .T = 700, .seed = 9}), other = map_of({.l = 700, .T = 700});
  CHECK(map.id() != other.id());
  RowCache rows(std::size_t{1} << 30);
  answer_of([&](JobControl& job) {
    const auto first = rows.get(map, 0, 0, job);
    const std::size_t a_block = rows.bytes();
    CHECK(a_block == first->bytes());
    CHECK(rows.get(map, 0, 0, job) == first);
    CHECK(rows.get(other, 0, 0, job) != first);
    CHECK(rows.get(map, 1, 0, job) != first);
    CHECK(rows.bytes() == 3 * a_block);
    CHECK(rows.get(map, 0, 0, job) == first);  // now the one used last
    rows.set_limit(a_block);
    CHECK(rows.bytes() == a_block);
    CHECK(rows.get(map, 0, 0, job) == first);
    rows.set_limit(0);
    CHECK(rows.bytes() == 0);
    CHECK(rows.get(map, 0, 2, job)->rows.begin == 512);
    CHECK(rows.get(map, 0, 2, job)->rows.end == 700);
    CHECK(rows.bytes() == 0);
    return 1;
  });

  // Asked for by many at once; a failure is told to all and leaves nothing behind.
  JobQueue queue({3, std::size_t{1} << 30, {}});
  RowCache shared(std::size_t{1} << 30);
  const HeadGroup<float> bad = [&] {
    HeadGroup<float> group = map.group();
    group.k *= 1e20F;
    for (HeadMatrix<float>& q : group.q) q *= 1e20F;
    return group;
  }();
  Workers workers(1);
  const EntryMap<float> bad_map(std::make_shared<const HeadGroup<float>>(bad), workers);
  const auto ask = [&](const std::string& key, const EntryMap<float>& of) {
    JobRequest request;
    request.key = request.title = key;
    return queue.ask<int>(request, [&shared, &of](JobControl& job) {
      return static_cast<int>(shared.get(of, 0, 1, job)->count());
    });
  };
  for (const std::string key : {"a", "b", "c", "d"}) {
    ask("good " + key, map);
    ask("bad " + key, bad_map);
  }
  REQUIRE(queue.wait_idle(10min));
  for (const std::string key : {"a", "b", "c", "d"}) {
    const Answer<int> good = ask("good " + key, map), failed = ask("bad " + key, bad_map);
    REQUIRE(good);
    CHECK(*good == 256);
    CHECK(failed.error.find("overflow") != std::string::npos);
  }
  CHECK(shared.bytes() == answer_of([&](JobControl& job) { return shared.get(map, 0, 1, job)->bytes(); }));
}

TEST_CASE("a preview shows cells of the tile and nothing that is hidden", "[entry_tiles]") {
  EntryView view;
  view.shown = EntryTerm::exact_remove;
  for (const Named& named : groups()) {
    const EntryMap<float> map = map_of(named.spec);
    RowCache rows(std::size_t{1} << 30);
    const MatrixSize size = entry_map_size(map.group());
    for (int level = 0; level <= 2; ++level)
      for (Index r = 0; r <= (size.rows - 1) >> (kTileBits + level); ++r)
        for (Index c = 0; c <= (size.columns - 1) >> (kTileBits + level); ++c) {
          const TileKey key{level, r, c};
          const Tile preview = answer_of([&](JobControl& job) { return entry_preview(map, view, key, job); });
          // Small enough to be taken whole.
          CHECK(differences(named.name, tile_of(map, view, key, rows), preview) == "");
        }
  }
}

TEST_CASE("a preview of a few rows of a tile fills in the others", "[entry_tiles]") {
  EntryView view;
  view.shown = EntryTerm::exact_remove;
  struct Large {
    GroupSpec spec;
    TileKey key;
  };
  const GroupSpec wide{.l = 8192, .T = 8192, .T_q = 512, .G = 4, .d = 256, .d_v = 256, .seed = 10};
  GroupSpec window = wide;
  window.sliding_window = 6000;
  const GroupSpec tall{.l = 8192, .T = 8192, .G = 2, .d = 64, .d_v = 64, .seed = 11};
  // On the diagonal, on the window's edge (row 7936 sees tokens from 1937 on), and the whole matrix.
  for (const Large& large : {Large{wide, {0, 1, 31}}, Large{window, {0, 1, 8}}, Large{tall, {5, 0, 0}}}) {
    const EntryMap<float> map = map_of(large.spec);
    RowCache rows(std::size_t{1} << 30);
    const Tile preview = answer_of([&](JobControl& job) { return entry_preview(map, view, large.key, job); });
    const Tile whole = tile_of(map, view, large.key, rows);
    REQUIRE(preview.values.size() == whole.values.size());
    CHECK(preview.stats.cells == whole.stats.cells);
    CHECK(preview.stats.finite < whole.stats.finite / 2);  // or nothing would be filled in
    CHECK(preview.stats.max <= whole.stats.max);
    CHECK(preview.stats.min >= whole.stats.min);
    Index invented = 0, too_large = 0, filled = 0, visible = 0, exact = 0;
    for (std::size_t i = 0; i < whole.values.size(); ++i) {
      const float shown = preview.values[i], full = whole.values[i];
      visible += std::isnan(full) ? 0 : 1;
      filled += std::isnan(shown) ? 0 : 1;
      exact += shown == full ? 1 : 0;
      invented += std::isnan(full) && !std::isnan(shown) ? 1 : 0;
      too_large += std::abs(shown) > whole.stats.max ? 1 : 0;
    }
    INFO("level " << large.key.level << ", tile " << large.key.row << " " << large.key.column);
    CHECK(visible < tile_extent(entry_map_size(map.group()), large.key).rows * preview.columns);
    CHECK(invented == 0);
    CHECK(too_large == 0);
    CHECK(exact > 0);
    CHECK(static_cast<double>(filled) > 0.9 * static_cast<double>(visible));
  }
}

TEST_CASE("a cancelled tile ends soon, wherever it is", "[entry_tiles]") {
  const EntryMap<float> map = map_of({.l = 4096, .T = 4096, .G = 1, .d = 64, .d_v = 64, .seed = 12});
  EntryView view;
  view.shown = EntryTerm::joint;
  view.against = Against::relative;
  view.other = EntryTerm::exact_joint;
  using Seconds = std::chrono::duration<double>;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  // How long the whole tile takes, or what follows once it is cancelled after so many seconds.
  const auto seconds = [&](double until) {
    JobQueue queue({1, std::size_t{1} << 30, {}});
    RowCache rows(std::size_t{1} << 30);
    JobRequest request;
    request.key = request.title = "whole map";
    std::atomic<bool> runs = false;
    auto start = now();
    queue.ask<Tile>(request, [&](JobControl& job) {
      return runs = true, entry_tile(map, view, {4, 0, 0}, rows, job);
    });
    if (until > 0) {
      while (!runs) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(Seconds(until));
      start = now();
      queue.cancel("whole map");
    }
    REQUIRE(queue.wait_idle(10min));
    return Seconds(now() - start).count();
  };
  const double whole = seconds(0);
  for (const double share : {0.05, 0.3, 0.6}) {
    // The fastest of some: other programs may hold the processor.
    double fastest = whole;
    for (int attempt = 0; attempt < 10 && fastest > 0.1 * whole; ++attempt)
      fastest = std::min(fastest, seconds(share * whole));
    INFO("cancelled at " << share << " of " << whole << " s, ended after " << fastest);
    CHECK(fastest <= 0.1 * whole);
  }
}
