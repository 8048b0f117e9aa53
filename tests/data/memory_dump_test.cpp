#include "data/dump.hpp"
#include "data/error.hpp"
#include "tests/support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

using namespace kvreplay;

namespace {

/// Numbers 0, 1, 2, ... of a layer of one query head and one KV head, 6 positions of 4 channels.
struct Numbers {
  Numbers() { std::iota(all.begin(), all.end(), 0.0F); }
  alignas(16) std::vector<float> all = std::vector<float>(96);

  MemoryArray array(Tensor tensor, std::vector<Index> shape = {1, 6, 4},
                    std::vector<Index> strides = {24, 4, 1}, Index first = 0) const {
    return {tensor, Dtype::f32, all.data() + first, std::move(shape), std::move(strides)};
  }
  std::vector<MemoryArray> with(MemoryArray k) const {
    return {array(Tensor::q), std::move(k), array(Tensor::v)};
  }
};

std::vector<double> read(const Dump& dump, Tensor tensor) {
  std::vector<double> values(24);
  dump.read(tensor, 0, 0, values.data());
  return values;
}

}  // namespace

TEST_CASE("a layer in memory is a dump, and its numbers are seen where they lie", "[dump][memory]") {
  const Numbers numbers;
  const Dump dump = Dump::of_memory(numbers.with(numbers.array(Tensor::k)), R"({"scale": 0.5})", {4});
  CHECK(dump.shape().l == 4);
  CHECK(dump.shape().T == 6);
  CHECK(dump.rule(0).scale == 0.5);
  CHECK(dump.in_memory<float>(Tensor::k, 0, 0) == numbers.all.data());
  CHECK(dump.in_memory<double>(Tensor::k, 0, 0) == nullptr);
  CHECK(read(dump, Tensor::k)[5] == 5);
}

TEST_CASE("numbers that lie otherwise in memory are read in order", "[dump][memory]") {
  const Numbers numbers;
  const auto k_of = [&](std::vector<Index> shape, std::vector<Index> strides, Index first) {
    const Dump dump =
        Dump::of_memory(numbers.with(numbers.array(Tensor::k, std::move(shape), std::move(strides), first)));
    const float* const seen = dump.in_memory<float>(Tensor::k, 0, 0);  // a copy of the dump's own, or none
    CHECK((seen < numbers.all.data() || seen >= numbers.all.data() + numbers.all.size()));
    return read(dump, Tensor::k);
  };
  const std::vector<double> backwards = k_of({1, 6, 4}, {24, -4, -1}, 23),
                            apart = k_of({1, 6, 4}, {0, 8, 2}, 0), turned = k_of({1, 6, 4}, {24, 1, 6}, 0),
                            shifted = k_of({1, 1, 6, 4}, {7, 7, 4, 1}, 1);
  for (Index n = 0; n < 24; ++n) {
    CHECK(backwards[n] == 23 - n);
    CHECK(apart[n] == 8 * (n / 4) + 2 * (n % 4));
    CHECK(turned[n] == n / 4 + 6 * (n % 4));
    CHECK(shifted[n] == n + 1);
  }
}

TEST_CASE("a layer in memory is refused as files are", "[dump][memory]") {
  Numbers numbers;
  const auto refused = [&](MemoryArray k) -> std::string {
    try {
      const Dump dump = Dump::of_memory(numbers.with(std::move(k)));
      static_cast<void>(dump.in_memory<float>(Tensor::k, 0, 0));
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refused(numbers.array(Tensor::k)) == "");
  CHECK(refused(numbers.array(Tensor::k, {1, 5, 4})) ==
        "v: expected shape [1, 5, 4] (n_kv, T, d_v) as k implies, found shape [1, 6, 4]");
  CHECK(refused(numbers.array(Tensor::k, {1, 0, 4})) ==
        "k: expected extents of at least 1, found shape [1, 0, 4]");
  CHECK(refused(numbers.array(Tensor::k, {6, 4}, {4, 1})) ==
        "k: expected shape [n_kv, T, d], or with a leading batch of 1, found shape [6, 4]");
  numbers.all[9] = std::numeric_limits<float>::quiet_NaN();
  CHECK(refused(numbers.array(Tensor::k)) ==
        "k: expected finite values, found NaN at layer 0, KV head 0, position 2, channel 1");
}

TEST_CASE("gradients of a window in memory end with the prompt that is given", "[dump][memory]") {
  const Numbers numbers;
  std::vector<MemoryArray> arrays = numbers.with(numbers.array(Tensor::k));
  arrays.push_back(numbers.array(Tensor::g_window, {1, 1, 2, 4}, {8, 8, 4, 1}));
  CHECK(Dump::of_memory(arrays, "{}", {4}).shape().first_row(Tensor::g_window) == 2);
  CHECK(Dump::of_memory(arrays).shape().first_row(Tensor::g_window) == 4);
  for (const Index prompt_len : {0, 7})
    CHECK_THROWS_WITH(Dump::of_memory(arrays, "{}", {prompt_len}),
                      Catch::Matchers::StartsWith("prompt length: expected 1 to 6"));
}

TEST_CASE("positions of keys ascend, and those with a query are adjacent", "[dump][memory]") {
  const Numbers numbers;
  const std::vector<MemoryArray> arrays{numbers.array(Tensor::q, {1, 2, 4}, {8, 4, 1}),
                                        numbers.array(Tensor::k), numbers.array(Tensor::v)};
  const auto taken = [&](std::vector<Index> position) {
    return Dump::of_memory(arrays, "{}", {}, std::move(position)).position().size();
  };
  CHECK(taken({}) == 0);
  CHECK(taken({0, 2, 3, 7, 9, 10}) == 6);
  CHECK_THROWS_AS(taken({0, 2, 3, 7, 9, 11}), InputError);
  CHECK_THROWS_AS(taken({0, 2, 2, 7, 9, 10}), InputError);
  CHECK_THROWS_AS(taken({-1, 2, 3, 7, 9, 10}), InputError);
  CHECK_THROWS_AS(taken({0, 1}), InputError);
}
