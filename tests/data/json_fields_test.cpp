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
  for (const std::size_t depth : {std::size_t{65}, deep}) {
    test::expect_error(
        [&] { parse_json_object(std::string(depth, '[') + std::string(depth, ']'), "m.json"); },
        {"m.json: expected JSON nested at most 64 deep, found deeper nesting"});
    std::string objects;
    for (std::size_t i = 0; i < depth; ++i) objects += "{\"a\":";
    test::expect_error([&] { parse_json(objects, "m.json"); },
                       {"m.json: expected JSON nested at most 64 deep, found deeper nesting"});
  }
  test::expect_error([] { parse_json_object(std::string(64, '[') + std::string(64, ']'), "m.json"); },
                     {"m.json: expected a JSON object, found a list of 1 values"});
  test::expect_error([] { parse_json_object(std::string(64, '['), "m.json"); },
                     {"m.json: expected JSON, found a syntax error"});
}

TEST_CASE("an object says everything once", "[json]") {
  test::expect_error([] { parse_json_object(R"({"scale": 0.1, "scale": 0.2})", "m.json"); },
                     {"m.json: expected every key once, found \"scale\" twice"});
  test::expect_error([] { parse_json_object(R"({"a": [{"b": 1}, {"b": 1, "c": 2, "b": 3}]})", "m.json"); },
                     {"found \"b\" twice"});
  std::string many = "{\"k\": 0";
  for (int i = 0; i < 10000; ++i) many += ", \"k" + std::to_string(i) + "\": 0";
  test::expect_error([&] { parse_json_object(many + "}", "m.json"); },
                     {"m.json: expected objects of at most 10000 keys, found more"});
  CHECK(parse_json_object(R"({"a": {"b": 1}, "b": {"b": 2}})", "m.json")["b"]["b"] == 2);
}

TEST_CASE("numbers that JSON has not are named", "[json]") {
  for (const auto& [text, found] : {std::pair{R"({"scale": NaN})", "NaN at line 1, column 11"},
                                    {"{\"a\":\n [0, -Infinity]}", "Infinity at line 2, column 7"},
                                    {R"(Infinity)", "Infinity at line 1, column 1"}})
    test::expect_error([&input = text] { parse_json(input, "m.json"); },
                       {std::string("m.json: expected JSON, whose numbers are finite, found ") + found});
}

TEST_CASE("nothing stands behind the end of a file", "[json]") {
  using namespace std::string_literals;
  test::expect_error([] { parse_json_object("{}\n\0 {\"scale\": 2}"s, "m.json"); },
                     {"m.json: expected JSON, found a zero byte at line 2, column 1"});
  test::expect_error([] { parse_json_object("{} {}", "m.json"); },
                     {"m.json: expected JSON, found a syntax error at line 1, column 4"});
}

}  // namespace kvreplay
