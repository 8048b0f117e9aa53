// Times the CUDA path as a ratio to its floor, measured in the same run, and prints tables for RESULTS.md:
//   cuda_bench [--quick] [--only NAME ...] [--json FILE]

#include "sim/freed_memory.hpp"
#include "tests/bench/cuda_sections.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <regex>
#include <stdexcept>

namespace {

using namespace kvreplay;
using namespace kvreplay::bench;

struct Section {
  const char* name;
  void (*run)(Bench&);
};
constexpr Section kSections[] = {{"window", window_section},
                                 {"rows", rows_section},
                                 {"weights", weights_section},
                                 {"transfer", transfer_section},
                                 {"long", long_section}};

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof(text), "%F", std::gmtime(&now));
  return text;
}

/// 13000 is 13.0.
std::string version(int cuda) { return std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10); }

/// The kernel module's, such as 580.95.05; empty where it does not say.
std::string driver_release() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::smatch match;
  return std::regex_search(line, match, std::regex(R"(\d+\.\d+(\.\d+)?)")) ? match.str() : std::string();
}

void print_about(const nlohmann::json& about, const Bench& bench) {
  const cuda::DeviceInfo& device = bench.device;
  std::printf("## GPU, %s, %s\n\n", about["date"].get<std::string>().c_str(), device.name.c_str());
  std::printf(
      "Capability %d.%d, %d multiprocessors, %s GiB, L2 %s MiB; driver %s (CUDA %s), built with CUDA "
      "%s.\n`%s`\n",
      device.capability / 10, device.capability % 10, device.multiprocessors,
      readable(static_cast<double>(device.memory) / (1 << 30)).c_str(),
      readable(static_cast<double>(bench.facts.l2_bytes) / (1 << 20)).c_str(),
      about["driver"].get<std::string>().c_str(), version(bench.facts.driver_cuda).c_str(),
      version(bench.facts.runtime_cuda).c_str(), about["command"].get<std::string>().c_str());
}

void floor_table(Bench& bench) {
  const DeviceFloor& floor = bench.floor;
  bench.report.table("floor",
                     "Floors, best of several runs (tiles of 128 x 256 x 128 from shared memory; registers: "
                     "the same instructions alone)",
                     {"what", "tiles", "registers", "unit"});
  const auto products = [&](const char* what, double ProductRates::*rate) {
    if (floor.tiles.*rate > 0)
      bench.report.row({what, floor.tiles.*rate / 1e12, floor.registers.*rate / 1e12, "Tflop/s"});
  };
  products("float16 products, float32 sums (mma.sync)", &ProductRates::half);
  products("TF32 products (mma.sync)", &ProductRates::tf32);
  products("float32 multiply-adds", &ProductRates::fma);
  bench.report.row({"f32 floor: the best of multiply-adds and a third of the others",
                    floor.flops(Quality::float32) / 1e12, "", "Tflop/s"});
  bench.report.row({"device memory, read", floor.read_bytes / 1e9, "", "GB/s"});
  bench.report.row({"pinned host memory to device", floor.upload_bytes / 1e9, "", "GB/s"});
}

int run(int argc, char** argv) {
  CLI::App app("Times the CUDA path beside its floor; prints Markdown.");
  bool quick = false;
  BenchOptions options;
  std::vector<std::string> only, names;
  for (const Section& section : kSections) names.emplace_back(section.name);
  std::string json_file;
  std::size_t index = 0;
  app.add_flag("--quick", quick, "a short prompt and few runs: to see that it runs, not to measure");
  auto* tokens = app.add_option("--tokens", options.tokens, "l (32768); four times as many where it is long")
                     ->check(CLI::Range(1, 1 << 22));
  auto* repeats = app.add_option("--repeats", options.repeats, "samples of a median, at least (10)")
                      ->check(CLI::Range(1, 1000));
  app.add_option("--only", only, "parts to run (the floors always are)")->check(CLI::IsMember(names));
  app.add_option("--json", json_file, "writes the figures there too");
  app.add_option("--device", index, "which device (0)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (quick && tokens->count() == 0) options.tokens = 2048;
  if (quick && repeats->count() == 0) options.repeats = 3;
  if (quick) options.least_seconds = 0;

  const cuda::Devices devices = cuda::find_devices();
  if (index >= devices.found.size()) {
    const std::string why =
        devices.found.empty() ? devices.why_none : "there is no device " + std::to_string(index);
    std::fprintf(stderr, "cuda_bench: %s\n", why.c_str());
    return 2;
  }
  std::string command = "cuda_bench";
  for (int i = 1; i < argc; ++i) command.append(" ").append(argv[i]);
  const cuda::DeviceInfo device = devices.found[index];
  cuda::use_device(device.index);
  const cuda::DeviceCode code = cuda::device_code();  // or why there is none
  const DeviceFacts facts = device_facts();
  const std::string release = driver_release();
  Report report({{"date", today()},
                 {"command", command},
                 {"device", device.name},
                 {"capability", device.capability},
                 {"code", code.architecture},
                 {"multiprocessors", device.multiprocessors},
                 {"memory", device.memory},
                 {"l2", facts.l2_bytes},
                 {"driver", release.empty() ? "of unknown release" : release},
                 {"driver_cuda", version(facts.driver_cuda)},
                 {"runtime_cuda", version(facts.runtime_cuda)}});
  Bench bench{options, device, facts, {}, report};
  print_about(report.json(), bench);

  FloorEffort effort;
  if (quick) effort = {std::size_t{16} << 20, std::size_t{4} << 20, 0, 1};
  bench.floor = measure_floor(effort, device.multiprocessors);
  floor_table(bench);
  check_section(bench);
  for (const Section& section : kSections)
    if (only.empty() || std::find(only.begin(), only.end(), section.name) != only.end()) section.run(bench);
  report.end_table();
  if (!json_file.empty()) {
    std::ofstream file(json_file);
    file << report.json().dump(2) << '\n';
    if (!file) throw std::runtime_error("cannot write " + json_file);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  kvreplay::keep_freed_memory();  // as the program does
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cuda_bench: %s\n", error.what());
    return 1;
  }
}
