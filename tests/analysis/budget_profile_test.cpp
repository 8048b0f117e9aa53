#include "analysis/budgets/allocation.hpp"
#include "data/error.hpp"
#include "data/npy_write.hpp"
#include "tests/analysis/budget_cases.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <array>
#include <cmath>
#include <fstream>
#include <numeric>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

constexpr std::array<std::size_t, 3> kShape = {99, 2, 3};

std::vector<float> ratios(float value) { return std::vector<float>(99 * 6, value); }

void write(const TempDir& folder, const std::vector<float>& values) {
  write_npy(folder / "p.npy", kShape, std::span<const float>(values));
}

}  // namespace

TEST_CASE("a profile gives back the budgets it was made of", "[budgets]") {
  Draw draw(12);
  const TempDir folder;
  for (const std::string& kind : gain_kinds())
    for (Index lower : {0, 3}) {
      const LossCurves curves = random_curves(kind, 6, 211, draw);
      const BudgetFrame any = frame_of(2, 3, 211, 0, lower);
      save_profile(folder / "budget_curves.npy", lu_profile(any, curves, HullGreedy(curves, any.lower)));
      const BudgetProfile profile = load_profile(folder / "budget_curves.npy", 2, 3);
      for (Index row = 0; row < 99; ++row) {
        const BudgetFrame frame = budget_frame(2, 3, 211, BudgetProfile::sigma(row), lower);
        const Budgets budgets = HullGreedy(curves, frame.lower).budgets(frame.total);
        CAPTURE(kind, lower, row, budgets);
        REQUIRE(profile_budgets(profile, frame) == budgets);
      }
    }
}

TEST_CASE("a profile between its rows, and beyond them", "[budgets]") {
  BudgetProfile profile{1, 2, {}};
  for (Index row = 0; row < 99; ++row) {
    const double sigma = BudgetProfile::sigma(row);
    profile.pruned.push_back(sigma * sigma);
    profile.pruned.push_back(2 * sigma - sigma * sigma);
  }
  Draw draw(13);
  for (int round = 0; round < 300; ++round) {
    const BudgetFrame frame = budget_frame(1, 2, 100000, draw.unit());
    const Budgets budgets = profile_budgets(profile, frame);
    CAPTURE(frame.sigma, budgets);
    REQUIRE(fits(frame, budgets));
    REQUIRE(std::abs(static_cast<double>(budgets[0]) - 1e5 * (1 - frame.sigma * frame.sigma)) < 5);
  }
  CHECK(profile_budgets(profile, budget_frame(1, 2, 1000, 0)) == Budgets{1000, 1000});
  CHECK(profile_budgets(profile, budget_frame(1, 2, 1000, 1)) == Budgets{0, 0});
  CHECK(profile_budgets(profile, budget_frame(1, 2, 1000, 0.005)) ==
        Budgets{1000, 990});  // 999.5 (1000), 990.05
}

TEST_CASE("a profile for another length is scaled", "[budgets]") {
  const BudgetProfile profile =
      make_profile(frame_of(2, 2, 100, 0), [](const BudgetFrame& frame) { return pyramid(frame); });
  for (const double sigma : {0.03, 0.5, 0.777, 0.98})
    for (Index l : {1, 37, 4096}) {
      const BudgetFrame frame = budget_frame(2, 2, l, sigma, 2);
      CHECK(fits(frame, profile_budgets(profile, frame)));
    }
  // sigma 0.8: 39 and 1 of 100
  CHECK(profile_budgets(profile, budget_frame(2, 2, 1000, 0.8)) == Budgets{390, 390, 10, 10});
}

TEST_CASE("the mean of profiles", "[budgets]") {
  const BudgetProfile a{1, 1, std::vector<double>(99, 0.25)}, b{1, 1, std::vector<double>(99, 0.75)};
  CHECK(mean_profile(std::vector{a, b}).pruned == std::vector<double>(99, 0.5));
  CHECK(mean_profile(std::vector{a}).pruned == a.pruned);
}

TEST_CASE("a profile prunes what sigma says", "[budgets]") {
  Draw draw(14);
  const LossCurves curves = random_curves("heavy", 6, 1000, draw);
  const BudgetProfile profile = lu_profile(frame_of(2, 3, 1000, 0), curves, HullGreedy(curves, 0));
  REQUIRE(profile.pruned.size() == 99 * 6);
  for (std::size_t row = 0; row < 99; ++row) {
    const double* first = profile.pruned.data() + row * 6;
    CHECK(std::accumulate(first, first + 6, 0.0) / 6 ==
          Approx(static_cast<double>(row + 1) / 100).epsilon(1e-12));
  }
}

TEST_CASE("kvpress reads a profile layer by layer", "[budgets]") {
  BudgetProfile profile{2, 2, std::vector<double>(99 * 4, 1.0)};
  const auto set = [&](Index row, std::array<double, 4> values) {
    std::copy(values.begin(), values.end(), profile.pruned.begin() + row * 4);
  };
  set(49, {0.25, 0.745, 0.4, 0.6});
  // keep 7.5 and 2.55 of 10: sum 10.05, floors 9, one left to 0.55; keep 6 and 4
  CHECK(kvpress_profile_budgets(profile, 0.5, 10) == Budgets{7, 3, 6, 4});
  CHECK(kvpress_profile_budgets(profile, 0.504, 10) == Budgets{7, 3, 6, 4});  // the nearest row
  CHECK(kvpress_profile_budgets(profile, 0.495, 10) == Budgets{7, 3, 6, 4});  // 49.5 rounds to even
  CHECK(kvpress_profile_budgets(profile, 0.48, 10) == Budgets{1, 1, 1, 1});   // all pruned: one stays
  CHECK(kvpress_profile_budgets(profile, 0, 10) == Budgets{10, 10, 10, 10});
  set(98, {0, 0, 0, 0});
  CHECK(kvpress_profile_budgets(profile, 0.999, 10) == Budgets{10, 10, 10, 10});  // row 99 at most
}

TEST_CASE("profile files that are something else are refused", "[budgets]") {
  const TempDir folder;
  const auto load = [&] { return load_profile(folder / "p.npy", 2, 3); };
  write(folder, ratios(0.5f));
  CHECK(load().pruned == std::vector<double>(99 * 6, 0.5));
  CHECK_THROWS_AS(load_profile(folder / "p.npy", 3, 2), InputError);
  CHECK_THROWS_AS(load_profile(folder / "p.npy", 2, 4), InputError);
  CHECK_THROWS_AS(load_profile(folder / "none.npy", 2, 3), InputError);
  for (const float bad : {-0.001f, 1.001f, std::nanf(""), INFINITY}) {
    auto values = ratios(0.5f);
    values[7 * 6 + 4] = bad;
    write(folder, values);
    try {
      load();
      FAIL("taken");
    } catch (const InputError& error) {
      CHECK(std::string(error.what()).find("[7, 1, 1]") != std::string::npos);
      CHECK(std::string(error.what()).find("p.npy") != std::string::npos);
    }
  }
  const std::array<std::size_t, 2> flat = {99, 6};
  write_npy(folder / "p.npy", flat, std::span<const float>(ratios(0.5f)));
  CHECK_THROWS_AS(load(), InputError);
  write_npy_as(folder / "p.npy", Dtype::f16, kShape, ratios(0.5f));
  CHECK_THROWS_AS(load(), InputError);
  write_npy(folder / "p.npy", kShape, std::span<const std::int32_t>(std::vector<std::int32_t>(99 * 6, 1)));
  CHECK_THROWS_AS(load(), InputError);
  std::ofstream(folder / "p.npy") << "not an array";
  CHECK_THROWS_AS(load(), InputError);
  write_npy(folder / "p.npy", kShape, std::span<const double>(std::vector<double>(99 * 6, 0.1)));
  CHECK(load().pruned[5] == 0.1);  // float64 is not rounded
}

TEST_CASE("a profile in Fortran order", "[budgets]") {
  const TempDir folder;
  std::vector<double> values(99 * 6);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) / 1000;
  std::string header = "{'descr': '<f8', 'fortran_order': True, 'shape': (99, 2, 3), }";
  header.resize(117, ' ');
  header += '\n';
  std::ofstream out(folder / "p.npy", std::ios::binary);
  out << std::string("\x93NUMPY\x01\x00\x76\x00", 10) << header;
  for (std::size_t head = 0; head < 3; ++head)
    for (std::size_t layer = 0; layer < 2; ++layer)
      for (std::size_t row = 0; row < 99; ++row)
        out.write(reinterpret_cast<const char*>(&values[(row * 2 + layer) * 3 + head]), sizeof(double));
  out.close();
  CHECK(load_profile(folder / "p.npy", 2, 3).pruned == values);
}
