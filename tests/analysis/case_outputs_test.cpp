#include "analysis/measure/case_outputs.hpp"

#include "analysis/measure/measured_columns.hpp"
#include "sim/simd/panel.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/random_group.hpp"

#include <fmt/format.h>

#include <cmath>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

const GroupSpec kSpec{.l = 60, .T = 70, .d = 8, .d_v = 8};

void check_each_alone(const std::vector<CacheCase>& cases) {
  Workers workers(2);
  const Compute compute(workers);
  const HeadGroup<float> group = converted<float>(random_group(kSpec));
  const RowRange window{40, 60}, future{60, 70};
  const CaseOutputs<float> all = case_outputs(group, window, future, cases, true, compute);
  for (std::size_t c = 0; c < cases.size(); ++c) {
    INFO("case " << c);
    const CaseOutputs<float> one =
        case_outputs(group, window, future, std::span(&cases[c], 1), true, compute);
    CHECK(all.window.change_sq.at(c) == one.window.change_sq[0]);
    CHECK(all.future.change_sq.at(c) == one.future.change_sq[0]);
    CHECK(all.window.change.at(c) == one.window.change[0]);
    CHECK(all.future.change.at(c) == one.future.change[0]);
  }
}

/// The sums of squares of a layer behind a norm and W_O: of the outputs, then of each case's change.
using LayerSums = std::vector<double>;

/// Outputs of a layer and their changes, as heads return them: [head][row][channel].
using HeadOutputs = std::vector<std::vector<std::vector<double>>>;

constexpr Index kHeads = 3, kRows = 37, kChannels = 3, kModel = 4;  // an odd number of outputs in a row

template <class T>
PanelRows<T> panels_of_head(const std::vector<std::vector<double>>& rows) {
  PanelRows<T> panels(1);
  panels[0].assign(panels_of<T>(kRows) * kPanelWidth<T> * kChannels, T{0});
  for (Index r = 0; r < kRows; ++r)
    for (Index c = 0; c < kChannels; ++c)
      panels[0][panel_entry<T>(c, r, kChannels)] = static_cast<T>(rows[r][c]);
  return panels;
}

/// The sums that MeasuredLayer computes from these outputs and changes; wo [n_q, d_v, d_model].
template <class T>
LayerSums measured_sums(const HeadOutputs& outputs, const std::vector<HeadOutputs>& changes,
                        const std::vector<double>& wo, const std::string& manifest) {
  const std::vector<double> rows((kRows + 1) * kChannels, 1.0);
  std::vector<double> all;
  for (Index h = 0; h < kHeads; ++h) all.insert(all.end(), rows.begin(), rows.end());
  const auto array = [](Tensor tensor, const double* numbers, std::vector<Index> extents) {
    return MemoryArray{tensor, Dtype::f64, numbers, extents, {extents[1] * extents[2], extents[2], 1}};
  };
  const std::vector<Index> extents = {kHeads, kRows + 1, kChannels};
  const Dump dump = Dump::of_memory(
      {array(Tensor::q, all.data(), extents), array(Tensor::k, all.data(), extents),
       array(Tensor::v, all.data(), extents), array(Tensor::wo, wo.data(), {kHeads, kChannels, kModel})},
      manifest, {1});
  const RowRange future{1, kRows + 1};
  const MeasureColumns columns = MeasureColumns::alone(changes.size(), RowSet::future, {});
  Matrix<double> figures = Matrix<double>::Zero(kHeads, columns.end());
  Workers workers(2);
  MeasuredLayer layer(dump, sizeof(T) == 4 ? Precision::f32 : Precision::f64, columns);
  layer.begin();
  for (Index h = 0; h < kHeads; ++h) {
    CaseOutputs<T> found;
    found.future.full = panels_of_head<T>(outputs[h]);
    for (const HeadOutputs& change : changes) {
      found.future.change.push_back(panels_of_head<T>(change[h]));
      found.future.change_sq.push_back(1);
    }
    layer.add(std::move(found), load_head_group<T>(dump, 0, h), {}, future, h,
              std::span(figures.data() + h * figures.cols(), static_cast<std::size_t>(figures.cols())),
              workers);
  }
  layer.end(0, workers, {figures, {}});
  LayerSums sums = {figures(0, columns.future.layer_full)};
  for (const Index column : columns.future.layer_change) sums.push_back(figures(0, column));
  return sums;
}

/// The same from the definition, of numbers as T has them.
template <class T>
LayerSums expected_sums(const HeadOutputs& outputs, const std::vector<HeadOutputs>& changes,
                        const std::vector<double>& wo, double eps) {
  const auto number = [](double x) { return static_cast<long double>(static_cast<T>(x)); };
  const auto projected = [&](const HeadOutputs* change, Index r) {
    std::vector<long double> o, y(kModel, 0.0L);
    for (Index h = 0; h < kHeads; ++h)
      for (Index c = 0; c < kChannels; ++c)
        o.push_back(number(outputs[h][r][c]) + (change ? number((*change)[h][r][c]) : 0.0L));
    long double sq = 0;
    for (const long double x : o) sq += x * x;
    const long double rms = std::sqrt(sq / static_cast<long double>(o.size()) + eps);
    for (std::size_t at = 0; at < o.size(); ++at)
      for (std::size_t m = 0; m < y.size(); ++m) y[m] += o[at] / rms * number(wo[at * kModel + m]);
    return y;
  };
  LayerSums sums(1 + changes.size(), 0.0);
  for (Index r = 0; r < kRows; ++r) {
    const std::vector<long double> full = projected(nullptr, r);
    for (const long double y : full) sums[0] += static_cast<double>(y * y);
    for (std::size_t c = 0; c < changes.size(); ++c) {
      const std::vector<long double> changed = projected(&changes[c], r);
      for (std::size_t m = 0; m < full.size(); ++m)
        sums[1 + c] += static_cast<double>((changed[m] - full[m]) * (changed[m] - full[m]));
    }
  }
  return sums;
}

template <class T>
void check_norm(double eps, const std::vector<double>& magnitudes, double tolerance) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  std::vector<double> wo(kHeads * kChannels * kModel);
  for (double& x : wo) x = normal(random);
  const auto drawn = [&](const auto& size_of) {
    HeadOutputs drawn(kHeads, {kRows, std::vector<double>(kChannels)});
    for (auto& head : drawn)
      for (Index r = 0; r < kRows; ++r)
        for (double& x : head[r]) x = size_of(r) * normal(random);
    return drawn;
  };
  const auto size = [&](Index r) { return magnitudes[r % magnitudes.size()]; };
  const HeadOutputs outputs = drawn(size);
  HeadOutputs all_go = outputs, none_go = outputs, small = outputs;
  for (HeadOutputs* heads : {&all_go, &none_go, &small})
    for (auto& head : *heads)
      for (auto& row : head)
        for (double& x : row) x *= heads == &all_go ? -1.0 : heads == &none_go ? 0.0 : 1e-6 * normal(random);
  const std::vector<HeadOutputs> changes = {all_go, none_go, small, drawn(size),
                                            drawn([&](Index r) { return r == 1 ? 1.0 : 0.0; })};
  const LayerSums found = measured_sums<T>(
      outputs, changes, wo, fmt::format(R"({{"output_norm": {{"kind": "rms", "eps": {}}}}})", eps));
  const LayerSums expected = expected_sums<T>(outputs, changes, wo, eps);
  REQUIRE(found.size() == expected.size());
  for (std::size_t c = 0; c < found.size(); ++c) {
    INFO("eps " << eps << ", case " << c);
    CHECK(found[c] == Approx(expected[c]).epsilon(tolerance).margin(0));
  }
  CHECK(found[1] == found[0]);  // outputs of 0 are 0 behind a norm
  CHECK(found[2] == 0);
}

}  // namespace

TEST_CASE("behind a norm, W_O multiplies rows that all heads divide, with an output's changes in it",
          "[case_outputs]") {
  for (const double eps : {1e-5, 1.0, 1e-30}) {
    check_norm<float>(eps, {1}, 2e-6);
    check_norm<float>(eps, {0, 1, 1e-3, 1e18, 1e-15, 300}, 2e-6);
    check_norm<double>(eps, {1}, 1e-13);
    check_norm<double>(eps, {0, 1, 1e-3, 1e150, 1e-140, 300}, 1e-13);
  }
}

TEST_CASE("cases that equal an earlier one, or differ in one thing, have figures of their own",
          "[case_outputs]") {
  const KeptSet all = every(kSpec.l, 1, 0), half = every(kSpec.l, 2, 0), third = every(kSpec.l, 3, 0);
  check_each_alone({{half}, {third}, {half}, {half}, {all}, {third}});

  const ChannelSet first{1, 1, 0, 0, 0, 0, 0, 0}, last{0, 0, 0, 0, 0, 0, 1, 1};
  const Quantization four = Quantization::kivi(4, 8, 4), two = Quantization::kivi(2, 8, 4);
  check_each_alone({{all, first, half},
                    {all, last, half},
                    {all, first, half},
                    {all, first, third},
                    {half, first, half},
                    {all, last, half, four},
                    {all, last, half, two},
                    {all, last, half},
                    {all, last, half, four}});
}
