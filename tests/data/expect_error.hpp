#pragma once

#include "data/error.hpp"
#include "tests/support/catch.hpp"

#include <initializer_list>
#include <string>
#include <string_view>

namespace kvreplay::test {

/// Requires that `f` throws an InputError of one line that mentions all of `parts`, in that order.
template <class F, class Parts = std::initializer_list<std::string_view>>
void expect_error(F&& f, const Parts& parts) {
  std::string message;
  try {
    f();
  } catch (const InputError& error) {
    message = error.what();
  }
  INFO("message: " << message);
  REQUIRE_FALSE(message.empty());
  CHECK(message.find('\n') == std::string::npos);
  std::size_t at = 0;
  for (const std::string_view part : parts) {
    INFO("part: " << part);
    at = message.find(part, at);
    REQUIRE(at != std::string::npos);
    at += part.size();
  }
}

}  // namespace kvreplay::test
