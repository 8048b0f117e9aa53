#include "tests/bench/cuda_floor.hpp"

#include "sim/cuda/transfer.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>

namespace kvreplay::bench {
namespace {

using cuda::Buffer, cuda::Stream;

/// A chunk of A (kTileRows) or B (kTileTokens), as numbers and as the device takes them.
struct Chunk {
  std::vector<float> numbers;  ///< [rows][kTileDepth / chunks_of()]
  std::vector<unsigned char> bytes;
};

Chunk chunk_of(Product product, int rows, const std::function<float()>& number) {
  Chunk chunk;
  const auto size = static_cast<std::size_t>(rows * kTileDepth / chunks_of(product));
  for (std::size_t i = 0; i < size; ++i) chunk.numbers.push_back(number());
  chunk.bytes.resize(static_cast<std::size_t>(rows) * kChunkBytes);
  if (product == Product::half) {
    for (std::size_t i = 0; i < size; ++i) {
      const Eigen::half half(chunk.numbers[i]);
      std::memcpy(chunk.bytes.data() + 2 * i, &half, 2);
    }
  } else {
    std::memcpy(chunk.bytes.data(), chunk.numbers.data(), chunk.bytes.size());
  }
  return chunk;
}

/// Products of small integers are exact in every precision.
void check_tile(Product product, const char* name, const Stream& stream) {
  constexpr int kRepeats = 2;
  std::mt19937 engine(3);
  const auto integer = [&] { return static_cast<float>(static_cast<int>(engine() % 9) - 4); };
  const Chunk a = chunk_of(product, kTileRows, integer), b = chunk_of(product, kTileTokens, integer);
  cuda::DeviceArrays arrays(stream);
  auto* const device_a = arrays.copy_of<unsigned char>(a.bytes);
  auto* const device_b = arrays.copy_of<unsigned char>(b.bytes);
  float* const c = arrays.make<float>(kTileEntries);
  tile_products(product, device_a, device_b, c, kRepeats, 1, stream);
  const std::vector<float> got = cuda::downloaded(c, kTileEntries, stream);
  using Chunks = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const int depth = kTileDepth / chunks_of(product);
  const Chunks want = static_cast<float>(kRepeats * chunks_of(product)) *
                      Eigen::Map<const Chunks>(a.numbers.data(), kTileRows, depth) *
                      Eigen::Map<const Chunks>(b.numbers.data(), kTileTokens, depth).transpose();
  if (!std::equal(got.begin(), got.end(), want.data()))
    throw std::runtime_error("the floor's " + std::string(name) + " product is wrong on this device");
}

/// amount / seconds at best, `run` repeated as often within a measurement as fills effort.run_seconds.
double best_rate(const FloorEffort& effort, double amount, const Stream& stream,
                 const std::function<void(int)>& run) {
  cuda::Event begin, end;
  const auto seconds = [&](int repeats) {
    begin.record(stream);
    run(repeats);
    end.record(stream);
    return 1e-3 * cuda::Event::milliseconds(begin, end);
  };
  int repeats = 1;
  for (int round = 0; round < 3 && effort.run_seconds > 0; ++round) {  // the first is of a cold device
    const double each = std::max(seconds(repeats) / repeats, 1e-9);
    repeats = std::max(1, static_cast<int>(std::min(effort.run_seconds / each, 1e6)));
  }
  double best = 0;
  for (int n = 0; n < effort.runs; ++n) best = std::max(best, amount * repeats / seconds(repeats));
  return best;
}

double tile_rate(Product product, const FloorEffort& effort, unsigned blocks, const Stream& stream) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  const auto number = [&] { return normal(engine); };
  cuda::DeviceArrays arrays(stream);
  auto* const a = arrays.copy_of<unsigned char>(chunk_of(product, kTileRows, number).bytes);
  auto* const b = arrays.copy_of<unsigned char>(chunk_of(product, kTileTokens, number).bytes);
  float* const c = arrays.make<float>(std::size_t{kTileEntries} * blocks);
  return best_rate(effort, kTileFlops * blocks, stream,
                   [&](int repeats) { tile_products(product, a, b, c, repeats, blocks, stream); });
}

double register_rate(Product product, const FloorEffort& effort, unsigned blocks, const Stream& stream) {
  std::mt19937 engine(2);
  std::normal_distribution<float> normal(0, 0.5F);
  cuda::DeviceArrays arrays(stream);
  auto* const factors =
      arrays.copy_of<unsigned char>(chunk_of(product, 1, [&] { return normal(engine); }).bytes);
  const Buffer<float> out(std::size_t{kRateThreads} * blocks);
  return best_rate(effort, register_flops(product) * blocks, stream, [&](int repeats) {
    register_products(product, factors, out.data(), repeats, blocks, stream);
  });
}

double read_rate(const FloorEffort& effort, unsigned blocks, const Stream& stream) {
  const std::size_t bytes = std::min(effort.read_bytes, cuda::free_memory() / 4);
  const std::size_t n = std::max<std::size_t>(bytes / sizeof(float) / kReadStep, 1) * kReadStep;
  const Buffer<float> memory(n), out(std::size_t{kRateThreads} * blocks);
  std::vector<float> some(std::min<std::size_t>(n, std::size_t{1} << 20));
  std::mt19937 engine(4);
  for (float& x : some) x = static_cast<float>(engine()) * 0x1p-32F;
  for (std::size_t at = 0; at < n; at += some.size())
    cuda::copy(memory.data() + at, static_cast<const float*>(some.data()), std::min(some.size(), n - at),
               stream);
  stream.synchronize();
  return best_rate(effort, static_cast<double>(n * sizeof(float)), stream, [&](int repeats) {
    for (int i = 0; i < repeats; ++i)
      read_memory(memory.data(), static_cast<std::ptrdiff_t>(n), out.data(), blocks, stream);
  });
}

double upload_rate(const FloorEffort& effort, const Stream& stream) {
  const cuda::PinnedBuffer<unsigned char> from(effort.upload_bytes);
  const Buffer<unsigned char> to(effort.upload_bytes);
  std::memset(from.data(), 1, from.size());
  return best_rate(effort, static_cast<double>(from.size()), stream, [&](int repeats) {
    for (int i = 0; i < repeats; ++i)
      cuda::copy(to.data(), static_cast<const unsigned char*>(from.data()), from.size(), stream);
  });
}

}  // namespace

double DeviceFloor::flops(Quality quality) const {
  return quality == Quality::half ? tiles.half : std::max({tiles.fma, tiles.half / 3, tiles.tf32 / 3});
}

double DeviceFloor::seconds(Quality quality, double work_flops, double work_bytes) const {
  return std::max(work_flops / flops(quality), work_bytes / read_bytes);
}

DeviceFloor measure_floor(const FloorEffort& effort, int multiprocessors) {
  const Stream stream;
  DeviceFloor floor;
  struct Kind {
    Product product;
    const char* name;
    double ProductRates::*rate;
  };
  const auto all = static_cast<unsigned>(multiprocessors);
  for (const Kind& kind : {Kind{Product::half, "half precision", &ProductRates::half},
                           Kind{Product::tf32, "TF32", &ProductRates::tf32},
                           Kind{Product::fma, "float32", &ProductRates::fma}}) {
    if (kind.product == Product::tf32 && cuda::device_code().architecture < 80) continue;
    check_tile(kind.product, kind.name, stream);
    // A multiprocessor takes one such block at a time, or two: whole rounds of either.
    floor.tiles.*kind.rate = tile_rate(kind.product, effort, 2 * all, stream);
    floor.registers.*kind.rate = register_rate(kind.product, effort, 4 * all, stream);
  }
  floor.read_bytes = read_rate(effort, 8 * all, stream);
  floor.upload_bytes = upload_rate(effort, stream);
  return floor;
}

}  // namespace kvreplay::bench
