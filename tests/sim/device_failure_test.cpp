// What fails on a device, and code that it does not have, played.

#include "sim/cuda/runtime.hpp"
#include "sim/cuda/runtime_emulated.hpp"
#include "tests/sim/backend_calls.hpp"
#include "tests/support/catch.hpp"

using namespace kvreplay;
using namespace kvreplay::test;

TEST_CASE("after a device's first failure everything is the CPU's, or the failure goes out",
          "[cuda][backend]") {
  using cuda::DeviceCall;
  std::vector<std::pair<std::string, Numbers>> all = callers();
  for (const Dispatched& what : dispatched()) all.emplace_back(what.name, what.single);
  for (const DeviceCall call :
       {DeviceCall::allocate, DeviceCall::copy, DeviceCall::launch, DeviceCall::synchronize})
    for (const auto& [name, numbers_of] : all) {
      INFO(name << ", call of kind " << static_cast<int>(call));
      const auto strict = cuda_backend(false), lenient = cuda_backend(true);
      const Matrix<double> on_cpu = numbers_of(cpu_backend());
      CHECK(lenient->failure() == "");
      {
        const cuda::EmulatedFailure failure(call);
        CHECK_THROWS_AS(numbers_of(*strict), cuda::DeviceError);
        CHECK(same_bytes(numbers_of(*lenient), on_cpu));
        CHECK(lenient->failure().find("CUDA: the emulated device fails at ") == 0);
      }
      // It is not asked again, though it would answer.
      const cuda::DeviceRequests before = cuda::emulated_requests();
      CHECK(same_bytes(numbers_of(*lenient), on_cpu));
      const cuda::DeviceRequests since = cuda::emulated_requests() - before;
      CHECK(since.launches + since.uploads + since.fills == 0);
      CHECK(lenient->fell_back() == 0);
    }
}

TEST_CASE("a device that fails in the middle of a call leaves whole results", "[cuda][backend]") {
  const Matrix<double> on_cpu = metrics_of<float>(cpu_backend());
  const cuda::DeviceRequests before = cuda::emulated_requests();
  metrics_of<float>(*cuda_backend(false));
  const auto launches = static_cast<int>((cuda::emulated_requests() - before).launches);
  REQUIRE(launches > 3);
  for (const int nth : {2, launches / 2, launches}) {
    INFO("launch " << nth << " of " << launches);
    const auto lenient = cuda_backend(true);
    const cuda::EmulatedFailure failure(cuda::DeviceCall::launch, nth);
    CHECK(same_bytes(metrics_of<float>(*lenient), on_cpu));
    CHECK_FALSE(lenient->failure().empty());
  }
  const auto lenient = cuda_backend(true);
  const cuda::EmulatedFailure failure(cuda::DeviceCall::launch, launches + 1);
  CHECK(mismatch("on the device", on_cpu, metrics_of<float>(*lenient), kBackends) == "");
  CHECK(lenient->failure().empty());
  CHECK(same_bytes(metrics_of<float>(*lenient), on_cpu));
}

TEST_CASE("a backend takes the most capable devices that this build has code for", "[cuda][backend]") {
  const auto numbers_taken = [](const Backend& backend) {
    std::vector<int> found;
    for (const ComputeDevice& device : backend.devices()) found.push_back(device.number);
    return found;
  };
  CHECK(cpu_backend().devices().empty());
  const ComputeDevice best = cuda_backend(false)->devices().at(0);
  CHECK(best.number == 1);
  CHECK(best.name == "the processor, as a GPU");
  CHECK(best.capability == 90);
  CHECK(best.code == 90);
  CHECK_FALSE(best.from_ptx);
  CHECK(best.driver == 130);
  CHECK(best.runtime == 124);
  CHECK(numbers_taken(*cuda_backend(false, Products::f32, {.number = 0})) == std::vector{0});
  CHECK(numbers_taken(*cuda_backend(false, Products::f32, {.share = 3})) == std::vector{1});
  CHECK_THROWS_WITH(cuda_backend(true, Products::f32, {.number = 2}),
                    "GPU 2 is none of those that there are");
  CHECK(why_no_cuda() == "");
  {
    const cuda::EmulatedCode ptx(1, 80);
    CHECK(cuda_backend(false)->devices().at(0).from_ptx);
  }

  const cuda::EmulatedCode none(1, 0);
  CHECK(numbers_taken(*cuda_backend(false)) == std::vector{0});
  const Matrix<double> got = metrics_of<float>(*cuda_backend(false));
  cuda::use_device(0);
  CHECK(same_bytes(got, dispatched()[0].twin()));
  const std::vector<ComputeDevice> all = cuda_devices();
  REQUIRE(all.size() == 2);
  CHECK(all[0].why_not == "");
  CHECK(all[1].code == 0);
  CHECK(all[1].why_not == "GPU 1 has no code here");
  CHECK_THROWS_WITH(cuda_backend(true, Products::f32, {.number = 1}), "GPU 1 has no code here");
}

TEST_CASE("without a device that works there is no CUDA backend", "[cuda][backend]") {
  for (const auto call : {cuda::DeviceCall::find, cuda::DeviceCall::code}) {
    const cuda::EmulatedFailure failure(call);
    CHECK_THROWS_AS(cuda_backend(true), cuda::DeviceError);
    CHECK(why_no_cuda().find("CUDA: the emulated device fails at ") == 0);
  }
}
