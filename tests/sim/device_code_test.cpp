#include "sim/backend/backend_cuda.hpp"
#include "sim/cuda/runtime.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cuda_devices.hpp"

#include <algorithm>

using namespace kvreplay;
using namespace kvreplay::test;

TEST_CASE("each device tells which of this build's code it runs", "[cuda]") {
  on_devices([] {
    const cuda::DeviceCode code = cuda::device_code();
    CHECK(code.architecture >= 80);
    CHECK(code.architecture <= cuda::capability());
    CHECK(code.from_ptx == (code.architecture / 10 < cuda::capability() / 10));
    const std::vector<int> built = cuda::built_architectures();
    CHECK((built.empty() || std::count(built.begin(), built.end(), code.architecture) == 1));
    CHECK(cuda::versions().runtime >= 110);
    CHECK(cuda::versions().driver >= 110);
  });
}

TEST_CASE("what is said of a device is what the runtime says", "[cuda]") {
  for (const cuda::DeviceInfo& device : all_devices()) {
    const std::vector<ComputeDevice> all = cuda_devices();
    const auto of = std::ranges::find(all, device.index, &ComputeDevice::number);
    REQUIRE(of != all.end());
    CHECK(of->name == device.name);
    CHECK(of->memory == device.memory);
    CHECK(of->why_not == "");
    cuda::use_device(device.index);
    CHECK(of->code == cuda::device_code().architecture);
    const auto backend = cuda_backend(false, Products::f32, {.number = device.index});
    REQUIRE(backend->devices().size() == 1);
    CHECK(backend->devices()[0].number == device.index);
    CHECK(backend->failure() == "");
  }
}
