#include "tests/bench/cuda_timing.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace kvreplay::bench {
namespace {

constexpr std::array<Way, 4> kWays{{{Input::f32, Products::f32},
                                    {Input::f16, Products::f32},
                                    {Input::f32, Products::tensor},
                                    {Input::f16, Products::tensor}}};

std::string described(Way way) {
  return name_of(way.input).append(" inputs, ").append(name_of(way.products)).append(" products: ");
}

}  // namespace

double element_bytes(Input input) { return input == Input::f16 ? 2 : 4; }
std::string name_of(Input input) { return input == Input::f16 ? "float16" : "float32"; }
std::string name_of(Products products) { return products == Products::tensor ? "tensor" : "f32"; }
Quality quality_of(Products products) {
  return products == Products::tensor ? Quality::half : Quality::float32;
}

void for_each_way(Bench& bench, const std::function<void(Way)>& body) {
  for (const Way way : kWays) {
    try {
      body(way);
    } catch (const cuda::OutOfDeviceMemory& error) {
      bench.report.note(described(way) + error.what());
    }
  }
}

HeadGroup<float> normal_group(const PassShape& shape, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](HeadMatrix<float>& m, Index rows, float scale) {
    m.resize(rows, shape.d);
    for (Index i = 0; i < m.size(); ++i) m.data()[i] = scale * normal(engine);
  };
  HeadGroup<float> group;
  group.l = shape.l;
  group.rule.scale = 1 / std::sqrt(static_cast<double>(shape.d));
  group.q.resize(shape.G);
  for (HeadMatrix<float>& q : group.q) fill(q, shape.w, 2);
  fill(group.k, shape.l, 1);
  fill(group.v, shape.l, 1);
  return group;
}

Copies::Copies(const Bench& bench, const PassShape& shape, const HeadGroup<float>& group, Way way,
               const cuda::Stream& stream) {
  const double bytes = shape.input_bytes(element_bytes(way.input));
  const auto n = static_cast<std::size_t>(2 * static_cast<double>(bench.facts.l2_bytes) / bytes) + 1;
  const HostNumbers numbers(group, way.input);
  for (std::size_t i = 0; i < n; ++i) {
    groups_.emplace_back(group, numbers.stored(), way.products, stream);
    runs_.emplace_back(groups_.back().group, rows_at(group, numbers.stored(), rows_of(shape)),
                       shape.outputs ? ColumnSet::window : ColumnSet::weights);
  }
}

double median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

double median_seconds(const Bench& bench, const Copies& copies, const cuda::Stream& stream,
                      void (ColumnRun::*launch)() const) {
  constexpr int kWarmUp = 2;
  const BenchOptions& options = bench.options;
  cuda::Event begin, end;
  std::vector<double> seconds;
  double total = 0;
  for (int n = -kWarmUp; n < options.repeats || (total < options.least_seconds && n < 10 * options.repeats);
       ++n) {
    begin.record(stream);
    for (const ColumnRun& run : copies.runs()) (run.*launch)();
    end.record(stream);
    const double sample = 1e-3 * cuda::Event::milliseconds(begin, end);
    if (n < 0) continue;
    total += sample;
    seconds.push_back(sample / static_cast<double>(copies.runs().size()));
  }
  return median(std::move(seconds));
}

}  // namespace kvreplay::bench
