#pragma once

#include "data/error.hpp"
#include "tests/support/catch.hpp"
#include "viewer/questions/job_queue.hpp"

#include <chrono>
#include <string>
#include <utility>

namespace kvreplay::test {

/// What a job on a queue of two threads answers; fails the test with the job's line where it throws.
template <class F>
auto on_queue(F compute) {
  using R = std::invoke_result_t<F, viewer::JobControl&>;
  viewer::JobQueue queue({2, std::size_t{1} << 30, {}});
  viewer::JobRequest request;
  request.key = request.title = "test";
  request.all_cores = true;
  const auto ask = [&] { return queue.ask<R>(request, compute); };
  ask();
  REQUIRE(queue.wait_idle(std::chrono::minutes(10)));
  const viewer::Answer<R> answer = ask();
  INFO(answer.error);
  REQUIRE(answer);
  return *answer;
}

/// What is said where `make` throws InputError; empty where it does not.
template <class F>
std::string refusal_of(F make) {
  try {
    make();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace kvreplay::test
