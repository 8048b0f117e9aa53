#include "sim/cuda/transfer.hpp"

#include "tests/support/catch.hpp"
#include "tests/support/cuda_devices.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

std::vector<std::uint32_t> counting(std::size_t n, std::uint32_t from) {
  std::vector<std::uint32_t> numbers(n);
  std::iota(numbers.begin(), numbers.end(), from);
  return numbers;
}

constexpr std::size_t kMiB = std::size_t{1} << 18;  // in numbers of 4 bytes

}  // namespace

TEST_CASE("arrays of any size come back as they went", "[cuda][transfer]") {
  for (const cuda::DeviceInfo& device : all_devices()) {
    cuda::use_device(device.index);
    const cuda::Stream stream;
    for (const std::size_t n : {std::size_t{0}, std::size_t{1}, kMiB / 4 - 1, kMiB / 4, 4 * kMiB - 1,
                                4 * kMiB, 4 * kMiB + 1, 8 * kMiB, 13 * kMiB + 5}) {
      INFO(device.name << ": " << n);
      std::vector<std::uint32_t> numbers = counting(n, 7);
      cuda::DeviceArrays arrays(stream);
      const std::uint32_t* const there = arrays.copy_of<std::uint32_t>(numbers);
      std::fill(numbers.begin(), numbers.end(), 0U);  // they were read
      CHECK((cuda::downloaded(there, n, stream) == counting(n, 7)));
      if (n < 2) continue;
      // Not from the start, and to memory that is there already.
      std::vector<std::uint32_t> part(n, 1U);
      cuda::copy(part.data() + 1, there + 1, n - 2, stream);
      stream.synchronize();
      CHECK(part.front() == 1U);
      CHECK(part.back() == 1U);
      CHECK((std::equal(part.begin() + 1, part.end() - 1, counting(n, 7).begin() + 1)));
    }
  }
}

TEST_CASE("copies follow what the stream had to do before", "[cuda][transfer]") {
  for (const cuda::DeviceInfo& device : all_devices()) {
    cuda::use_device(device.index);
    const cuda::Stream stream;
    const std::size_t n = 9 * kMiB;
    const cuda::Buffer<std::uint32_t> there(n), second(n);
    for (std::uint32_t round = 0; round < 3; ++round) {
      cuda::copy(there.data(), static_cast<const std::uint32_t*>(counting(n, round).data()), n, stream);
      cuda::copy(second.data(), static_cast<const std::uint32_t*>(there.data()), n, stream);
      cuda::fill_zero(there, stream);
      CHECK((cuda::downloaded(second.data(), n, stream) == counting(n, round)));
      CHECK((cuda::downloaded(there.data(), n, stream) == std::vector<std::uint32_t>(n)));
    }
  }
}

TEST_CASE("pinned host memory is copied to and from", "[cuda][transfer]") {
  for (const cuda::DeviceInfo& device : all_devices()) {
    cuda::use_device(device.index);
    const cuda::Stream stream;
    const std::size_t n = 5 * kMiB;
    const cuda::PinnedBuffer<std::uint32_t> here(n), back(n);
    CHECK_FALSE(cuda::is_pageable(here.data()));
    CHECK_FALSE(cuda::is_pageable(here.data() + n - 1));
    const std::vector<std::uint32_t> numbers = counting(n, 3);
    CHECK(cuda::is_pageable(numbers.data()));
    std::copy(numbers.begin(), numbers.end(), here.data());
    const cuda::Buffer<std::uint32_t> there(n);
    CHECK_FALSE(cuda::is_pageable(there.data()));
    cuda::copy(there.data(), static_cast<const std::uint32_t*>(here.data()), n, stream);
    cuda::copy(back.data(), static_cast<const std::uint32_t*>(there.data()), n, stream);
    stream.synchronize();
    CHECK((std::equal(numbers.begin(), numbers.end(), back.data())));
  }
}

TEST_CASE("many threads copy at once", "[cuda][transfer]") {
  for (const cuda::DeviceInfo& device : all_devices()) {
    std::vector<int> same(12, 0);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < same.size(); ++t)
      threads.emplace_back([&, t] {
        cuda::use_device(device.index);
        const cuda::Stream stream;
        const std::vector<std::uint32_t> numbers = counting(6 * kMiB, static_cast<std::uint32_t>(t) << 24U);
        for (int round = 0; round < 2; ++round) {
          cuda::DeviceArrays arrays(stream);
          const std::uint32_t* const there = arrays.copy_of<std::uint32_t>(numbers);
          same[t] += cuda::downloaded(there, numbers.size(), stream) == numbers ? 1 : 0;
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(same == std::vector<int>(12, 2));
  }
}
