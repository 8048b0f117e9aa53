#include "tests/bench/cuda_sections.hpp"

#include "sim/freed_memory.hpp"
#include "tests/bench/cuda_timing.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace kvreplay::bench {
namespace {

const std::vector<std::string> kPassColumns{"what",     "l",        "w",         "G",        "inputs",
                                            "products", "time, ms", "floor, ms", "of floor", "of pass one"};

void pass_rows(Bench& bench, const PassShape& shape, Way way, const HeadGroup<float>& group) {
  const cuda::Stream stream;
  const Copies copies(bench, shape, group, way, stream);
  const double both = median_seconds(bench, copies, stream, &ColumnRun::launch),
               one = median_seconds(bench, copies, stream, &ColumnRun::launch_pass_one),
               two = median_seconds(bench, copies, stream, &ColumnRun::launch_pass_two);
  const double size = element_bytes(way.input);
  const auto row = [&](const char* what, double seconds, const Work& work) {
    const double floor = bench.floor.seconds(quality_of(way.products), work.flops, work.bytes);
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
double wall_seconds(const Bench& bench, const std::vector<HeadGroup<float>>& groups,
                    const std::vector<HostNumbers>& numbers, const PassShape& shape, Way way,
                    Workers& workers) {
  std::atomic<std::size_t> next{0};
  const auto start = std::chrono::steady_clock::now();
  workers.parallel_for(workers.threads(), [&](std::ptrdiff_t) {
    cuda::use_device(bench.device.index);
    const cuda::Stream stream;
    for (std::size_t i = next++; i < groups.size(); i = next++) {
      const OnDevice on_device(groups[i], numbers[i].stored(), way.products, stream);
      const ColumnRun run(on_device.group, rows_at(groups[i], numbers[i].stored(), rows_of(shape)),
                          ColumnSet::window);
      run.launch();
      run.totals();
    }
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

constexpr int kWorthPinning = 1 << 20;  // bytes

/// What is worth pinning shares no page with anything else meanwhile: no page is pinned twice.
class OwnPages {
 public:
#if defined(__GLIBC__)
  OwnPages() { mallopt(M_MMAP_THRESHOLD, kWorthPinning); }
#else
  OwnPages() {}
#endif
  ~OwnPages() { keep_freed_memory(); }
  OwnPages(const OwnPages&) = delete;
  OwnPages& operator=(const OwnPages&) = delete;
};

void transfer_row(Bench& bench, const PassShape& shape, Way way,
                  const std::vector<HeadGroup<float>>& groups) {
  Workers workers(3);
  std::vector<HostNumbers> numbers;
  {
    const OwnPages own_pages;
    for (const HeadGroup<float>& group : groups) numbers.emplace_back(group, way.input);
  }
  std::vector<Pinned> pinned;
  for (const HostNumbers& own : numbers)
    for (const auto& [memory, bytes] : own.memory())
      if (bytes >= kWorthPinning) pinned.emplace_back(memory, bytes);
  wall_seconds(bench, groups, numbers, shape, way, workers);  // warm-up
  std::vector<double> walls;
  for (int n = 0; n < std::max(3, bench.options.repeats / 2); ++n)
    walls.push_back(wall_seconds(bench, groups, numbers, shape, way, workers));
  const double wall = median(std::move(walls)), n = static_cast<double>(groups.size());
  const cuda::Stream stream;
  const Copies copies(bench, shape, groups.front(), way, stream);
  const double kernels = n * median_seconds(bench, copies, stream, &ColumnRun::launch),
               upload = n * shape.input_bytes(element_bytes(way.input)) / bench.floor.upload_bytes;
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
  const PassShape shape{300, 50, 2};
  const HeadGroup<float> group = normal_group(shape, 5);
  Workers workers;
  const auto want =
      column_totals(group, prepare_values(group, workers), rows_of(shape), ColumnSet::window, workers);
  for_each_way(bench, [&](Way way) {
    const cuda::Stream stream;
    const HostNumbers numbers(group, way.input);
    const OnDevice on_device(group, numbers.stored(), way.products, stream);
    const ColumnRun run(on_device.group, rows_at(group, numbers.stored(), rows_of(shape)), ColumnSet::window);
    run.launch();
    const auto got = run.totals();
    double attn = 0, joint = 0, remove = 0;
    for (std::size_t g = 0; g < want.size(); ++g) {
      attn = std::max(attn, distance(got[g][RowScore::attention], want[g][RowScore::attention]));
      joint = std::max(joint, distance(got[g][RowScore::joint], want[g][RowScore::joint]));
      remove = std::max(remove, distance(got[g][RowScore::exact_remove], want[g][RowScore::exact_remove]));
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

void weights_section(Bench& bench) {
  const Index l = bench.options.tokens, w = std::min<Index>(32, l);
  pass_table(bench, "weights", "The window's weights alone (H2O, SnapKV, CAOTE), d = 128",
             {{l, l, 1, 128, false}, {l, w, 4, 128, false}});
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
    std::vector<HeadGroup<float>> groups;
    {
      const OwnPages own_pages;
      for (unsigned i = 0; i < kGroups; ++i) groups.push_back(normal_group(shape, i));
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
      const HostNumbers numbers(group, way.input);
      const OnDevice on_device(group, numbers.stored(), way.products, stream);
      const ColumnRun run(on_device.group, rows_at(group, numbers.stored(), rows_of(shape)),
                          ColumnSet::window);
      free.note();
      run.launch();
      run.totals();
      taken = free.taken();
    }
    const Copies copies(bench, shape, group, way, stream);
    const double seconds = median_seconds(bench, copies, stream, &ColumnRun::launch),
                 size = element_bytes(way.input);
    const Work work = shape.both(size);
    const double floor = bench.floor.seconds(quality_of(way.products), work.flops, work.bytes);
    bench.report.row({std::to_string(shape.l), std::to_string(shape.w), std::to_string(shape.G),
                      name_of(way.input), name_of(way.products), 1e3 * seconds, 1e3 * floor, floor / seconds,
                      taken / kMiB, shape.input_bytes(size) / kMiB});
  });
}

}  // namespace kvreplay::bench
