#include "tests/bench/cuda_sections.hpp"

#include "tests/bench/column_run.hpp"
#include "tests/bench/cuda_work.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <random>
#include <stdexcept>
#include <thread>

namespace kvreplay::bench {
namespace {

struct Way {
  Input input;
  Products products;
};
constexpr std::array<Way, 4> kWays{{{Input::f32, Products::f32},
                                    {Input::f16, Products::f32},
                                    {Input::f32, Products::tensor},
                                    {Input::f16, Products::tensor}}};

double element(Input input) { return input == Input::f16 ? 2 : 4; }
std::string name_of(Input input) { return input == Input::f16 ? "float16" : "float32"; }
std::string name_of(Products products) { return products == Products::tensor ? "tensor" : "f32"; }
Quality quality(Products products) { return products == Products::tensor ? Quality::half : Quality::float32; }

/// Calls body for what this build can run, and says in one line each what it cannot.
void for_each_way(Bench& bench, const std::function<void(Way)>& body) {
  for (const Way way : kWays) {
    if (const auto why = why_not(way.input, way.products)) {
      bench.report.note(name_of(way.input) + " inputs, " + name_of(way.products) + " products: not run, " +
                        *why);
      continue;
    }
    try {
      body(way);
    } catch (const cuda::OutOfDeviceMemory& error) {
      bench.report.note(name_of(way.input) + " inputs, " + name_of(way.products) +
                        " products: " + error.what());
    }
  }
}

/// Normal queries (of deviation 2), keys and values; only the rows have queries.
HeadGroup<float> normal_group(const PassShape& shape, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](Matrix<float>& m, Index rows, float scale) {
    m.resize(rows, shape.d);
    for (Index i = 0; i < m.size(); ++i) m.data()[i] = scale * normal(engine);
  };
  HeadGroup<float> group;
  group.l = shape.l;
  group.rule.scale = 1 / std::sqrt(static_cast<double>(shape.d));
  group.q.resize(static_cast<std::size_t>(shape.G));
  for (Matrix<float>& q : group.q) fill(q, shape.w, 2);
  fill(group.k, shape.l, 1);
  fill(group.v, shape.l, 1);
  return group;
}

Rows rows_of(const PassShape& shape) { return {shape.l - shape.w, shape.l}; }

/// The same inputs in several places of device memory, so that none of them is found in L2.
class Copies {
 public:
  Copies(const Bench& bench, const PassShape& shape, const HeadGroup<float>& group, Way way,
         const cuda::Stream& stream) {
    const double bytes = shape.input_bytes(element(way.input));
    const auto n = static_cast<std::size_t>(2 * static_cast<double>(bench.facts.l2_bytes) / bytes) + 1;
    for (std::size_t i = 0; i < n; ++i) {
      groups_.push_back(device_group(group, way.input, way.products, stream));
      runs_.emplace_back(groups_.back(), rows_of(shape), ColumnSet::window);
    }
  }
  const std::deque<ColumnRun>& runs() const { return runs_; }

 private:
  std::deque<DeviceGroup> groups_;
  std::deque<ColumnRun> runs_;
};

double median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

/// Median seconds of one launch, of samples that go through all copies once.
double median_seconds(const Bench& bench, const Copies& copies, const cuda::Stream& stream,
                      void (ColumnRun::*launch)() const) {
  cuda::Event begin, end;
  std::vector<double> seconds;
  const int warm_up = 2;
  double total = 0;
  for (int n = 0; n < warm_up + bench.options.repeats || (total < 0.2 && n < 10 * bench.options.repeats);
       ++n) {
    begin.record(stream);
    for (const ColumnRun& run : copies.runs()) (run.*launch)();
    end.record(stream);
    const double sample = 1e-3 * cuda::Event::milliseconds(begin, end);
    if (n < warm_up) continue;
    total += sample;
    seconds.push_back(sample / static_cast<double>(copies.runs().size()));
  }
  return median(std::move(seconds));
}

const std::vector<std::string> kPassColumns{"what",     "l",        "w",         "G",        "inputs",
                                            "products", "time, ms", "floor, ms", "of floor", "of pass one"};

void pass_rows(Bench& bench, const PassShape& shape, Way way, const HeadGroup<float>& group) {
  const cuda::Stream stream;
  const Copies copies(bench, shape, group, way, stream);
  const double both = median_seconds(bench, copies, stream, &ColumnRun::launch),
               one = median_seconds(bench, copies, stream, &ColumnRun::launch_pass_one),
               two = median_seconds(bench, copies, stream, &ColumnRun::launch_pass_two);
  const double size = element(way.input);
  const auto row = [&](const char* what, double seconds, const Work& work) {
    const double floor = bench.floor.seconds(quality(way.products), work.flops, work.bytes);
    bench.report.row({what, std::to_string(shape.l), std::to_string(shape.w), std::to_string(shape.G),
                      name_of(way.input), name_of(way.products), 1e3 * seconds, 1e3 * floor, floor / seconds,
                      seconds / one});
  };
  row("pass one", one, shape.pass_one(size));
  row("pass two", two, shape.pass_two(size));
  row("both", both, shape.both(size));
}

void pass_table(Bench& bench, const std::string& name, const std::string& title,
                const std::vector<PassShape>& shapes) {
  bench.report.table(name, title, kPassColumns);
  std::vector<HeadGroup<float>> groups;
  for (const PassShape& shape : shapes) groups.push_back(normal_group(shape, 1));
  for_each_way(bench, [&](Way way) {
    for (std::size_t i = 0; i < shapes.size(); ++i) pass_rows(bench, shapes[i], way, groups[i]);
  });
}

/// The least memory that was free on a device while it lives.
class LeastFree {
 public:
  explicit LeastFree(int device)
      : before_(cuda::free_memory()), least_(before_), watch_([this, device] {
          cuda::use_device(device);
          while (!done_) {
            note();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }) {}
  ~LeastFree() {
    done_ = true;
    watch_.join();
  }
  void note() {
    const std::size_t now = cuda::free_memory();
    std::size_t least = least_;
    while (now < least && !least_.compare_exchange_weak(least, now)) {
    }
  }
  double taken() const { return static_cast<double>(before_ - least_); }

 private:
  const std::size_t before_;
  std::atomic<std::size_t> least_;
  std::atomic<bool> done_ = false;
  std::thread watch_;
};

/// Times a run of different groups, several on their way at once, as the program does it.
double wall_seconds(const Bench& bench, const std::vector<HeadGroup<float>>& groups, const PassShape& shape,
                    Way way, Workers& workers) {
  std::atomic<std::size_t> next{0};
  const auto start = std::chrono::steady_clock::now();
  workers.parallel_for(workers.threads(), [&](std::ptrdiff_t) {
    cuda::use_device(bench.device.index);
    const cuda::Stream stream;
    for (std::size_t i = next++; i < groups.size(); i = next++) {
      const DeviceGroup group = device_group(groups[i], way.input, way.products, stream);
      const ColumnRun run(group, rows_of(shape), ColumnSet::window);
      run.launch();
      run.totals();
    }
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void transfer_row(Bench& bench, const PassShape& shape, Way way,
                  const std::vector<HeadGroup<float>>& groups) {
  Workers workers(3);
  wall_seconds(bench, groups, shape, way, workers);  // warm-up
  std::vector<double> walls;
  for (int n = 0; n < std::max(3, bench.options.repeats / 2); ++n)
    walls.push_back(wall_seconds(bench, groups, shape, way, workers));
  const double wall = median(std::move(walls)), n = static_cast<double>(groups.size());
  const cuda::Stream stream;
  const Copies copies(bench, shape, groups.front(), way, stream);
  const double kernels = n * median_seconds(bench, copies, stream, &ColumnRun::launch),
               upload = n * shape.input_bytes(element(way.input)) / bench.floor.upload_bytes;
  bench.report.row({std::to_string(shape.l), std::to_string(shape.w), std::to_string(shape.G),
                    std::to_string(groups.size()), name_of(way.input), name_of(way.products), 1e3 * wall,
                    1e3 * kernels, 1e3 * upload, std::max(kernels, upload) / wall});
}

double distance(const Vector<double>& got, const Vector<double>& want) {
  return (got - want).norm() / want.norm();
}

}  // namespace

void check_section(Bench& bench) {
  bench.report.table(
      "check", "Column sums of one small group, their distance from the CPU's float32 as a share of the norm",
      {"inputs", "products", "attn", "joint", "exact_remove"});
  const PassShape shape{300, 80, 2};
  const HeadGroup<float> group = normal_group(shape, 5);
  Workers workers;
  const auto want =
      column_totals(group, prepare_values(group, workers), rows_of(shape), ColumnSet::window, workers);
  for_each_way(bench, [&](Way way) {
    const cuda::Stream stream;
    const DeviceGroup on_device = device_group(group, way.input, way.products, stream);
    const ColumnRun run(on_device, rows_of(shape), ColumnSet::window);
    run.launch();
    const auto got = run.totals();
    double attn = 0, joint = 0, remove = 0;
    for (std::size_t g = 0; g < want.size(); ++g) {
      attn = std::max(attn, distance(got[g].attn, want[g].attn));
      joint = std::max(joint, distance(got[g].joint, want[g].joint));
      remove = std::max(remove, distance(got[g].exact_remove, want[g].exact_remove));
    }
    bench.report.row({name_of(way.input), name_of(way.products), attn, joint, remove});
    // float16 keeps 11 bits: logits of a few units are off by some 1e-3.
    const double most = way.input == Input::f32 && way.products == Products::f32 ? 1e-4 : 3e-2;
    if (!(attn < most && joint < most && remove < most))
      throw std::runtime_error("the device's column sums are not the CPU's: nothing is timed");
  });
}

void window_section(Bench& bench) {
  pass_table(bench, "window", "All eleven window metrics, every row (causal), d = 128",
             {{bench.options.tokens, bench.options.tokens, 1}});
}

void rows_section(Bench& bench) {
  const Index l = bench.options.tokens, w = std::min<Index>(32, l);
  pass_table(bench, "rows", "All eleven window metrics, the last rows only, d = 128",
             {{l, w, 1}, {l, w, 4}, {4 * l, w, 1}, {4 * l, w, 4}});
}

void transfer_section(Bench& bench) {
  bench.report.table(
      "transfer",
      "A run of head groups from pinned host memory to column sums on the host, 3 at once "
      "(of larger: the larger of kernels and upload, divided by wall)",
      {"l", "w", "G", "groups", "inputs", "products", "wall, ms", "kernels, ms", "upload, ms", "of larger"});
  const Index l = bench.options.tokens;
  for (const PassShape& shape : {PassShape{l, std::min<Index>(32, l), 4}, PassShape{l, l, 1}}) {
    constexpr unsigned kGroups = 8;
    constexpr std::size_t kWorthPinning = std::size_t{1} << 20;
    std::vector<HeadGroup<float>> groups;
    for (unsigned i = 0; i < kGroups; ++i) groups.push_back(normal_group(shape, i));
    std::vector<Pinned> pinned;
    const auto pin = [&](const Matrix<float>& m) {
      const auto bytes = static_cast<std::size_t>(m.size()) * sizeof(float);
      if (bytes >= kWorthPinning) pinned.emplace_back(m.data(), bytes);
    };
    for (const HeadGroup<float>& group : groups) {
      std::for_each(group.q.begin(), group.q.end(), pin);
      pin(group.k);
      pin(group.v);
    }
    for_each_way(bench, [&](Way way) { transfer_row(bench, shape, way, groups); });
  }
}

void long_section(Bench& bench) {
  constexpr double kMiB = 1 << 20;
  bench.report.table("long", "The longest prompt, every row (causal), d = 128",
                     {"l", "w", "G", "inputs", "products", "time, ms", "floor, ms", "of floor",
                      "device memory, MiB", "of which inputs, MiB"});
  const Index l = 4 * bench.options.tokens;
  const PassShape shape{l, l, 4};
  const HeadGroup<float> group = normal_group(shape, 1);
  for_each_way(bench, [&](Way way) {
    const cuda::Stream stream;
    double taken = 0;
    {
      LeastFree free(bench.device.index);
      const DeviceGroup on_device = device_group(group, way.input, way.products, stream);
      const ColumnRun run(on_device, rows_of(shape), ColumnSet::window);
      free.note();
      run.launch();
      run.totals();
      taken = free.taken();
    }
    const Copies copies(bench, shape, group, way, stream);
    const double seconds = median_seconds(bench, copies, stream, &ColumnRun::launch),
                 size = element(way.input);
    const Work work = shape.both(size);
    const double floor = bench.floor.seconds(quality(way.products), work.flops, work.bytes);
    bench.report.row({std::to_string(shape.l), std::to_string(shape.w), std::to_string(shape.G),
                      name_of(way.input), name_of(way.products), 1e3 * seconds, 1e3 * floor, floor / seconds,
                      taken / kMiB, shape.input_bytes(size) / kMiB});
  });
}

}  // namespace kvreplay::bench
