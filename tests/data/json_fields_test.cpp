#include "data/json_fields.hpp"

#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"

#include <string>

namespace kvreplay {

TEST_CASE("JSON values are shown short and on one line", "[json]") {
  CHECK(json_text(nlohmann::json::parse("[1, \"a\\nb\", null]")) == R"([1,"a\nb",null])");
  CHECK(json_text(nlohmann::json::parse("[[1], [2]]")) == "a list of 2 values");
  CHECK(json_text(nlohmann::json::parse("[1,2,3,4,5,6,7,8,9]")) == "a list of 9 values");
  CHECK(json_text(nlohmann::json::parse("{\"a\": [1]}")) == "an object of 1 keys");
}

TEST_CASE("a file of brackets is an error, however deep", "[json]") {
  constexpr std::size_t deep = 300000;
  test::expect_error([&] { parse_json_object(std::string(deep, '[') + std::string(deep, ']'), "m.json"); },
                     {"m.json: expected a JSON object, found a list of 1 values"});
  test::expect_error([&] { parse_json_object(std::string(deep, '['), "m.json"); },
                     {"m.json: expected JSON, found a syntax error"});
}

}  // namespace kvreplay
