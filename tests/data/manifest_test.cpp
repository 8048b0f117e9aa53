#include "data/manifest.hpp"

#include "tests/data/expect_error.hpp"
#include "tests/support/catch.hpp"

#include <cmath>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

using test::expect_error;

const DumpShape shape{
    .layers = 2, .n_q = 4, .n_kv = 2, .d = 8, .d_v = 8, .d_model = 0, .T = 10, .T_q = 10, .l = 10};

Manifest load(const std::string& text) {
  Manifest manifest = parse_manifest(text, "m.json");
  check_manifest(manifest, shape);
  return manifest;
}

void refuse(const std::string& text, std::initializer_list<std::string_view> parts) {
  INFO(text);
  expect_error([&] { load(text); }, parts);
}

}  // namespace

TEST_CASE("an empty manifest states nothing", "[manifest]") {
  for (const char* text :
       {"{}",
        R"({"prompt_len": null, "scale": null, "sliding_window": null, "rope": null, "model": null})"}) {
    const Manifest manifest = load(text);
    CHECK_FALSE(manifest.model.has_value());
    CHECK_FALSE(manifest.prompt_len.has_value());
    CHECK_FALSE(manifest.rope.has_value());
    CHECK(manifest.rope_note == "the manifest has no rope");
    CHECK(attention_rule(manifest, shape, 0).scale == 1.0 / std::sqrt(8.0));
  }
}

TEST_CASE("broken JSON is refused with line and column", "[manifest]") {
  refuse("", {"m.json: expected JSON, found an empty file"});
  refuse("{\n \"model\": oops}", {"m.json: expected JSON, found a syntax error at line 2, column"});
  refuse("{\"scale\": NaN}", {"expected JSON, found a syntax error at line 1"});
  refuse("{\"model\": \"\xff\"}", {"expected JSON, found a syntax error at line 1"});
  refuse("{\"scale\": 1e999}", {"m.json: scale: expected numbers within float64's range"});
  refuse("[1, 2]", {"m.json: expected a JSON object, found [1,2]"});
  refuse("{} {}", {"expected JSON, found a syntax error"});
}

TEST_CASE("values of the wrong type or range are refused by key", "[manifest]") {
  for (const char* key : {"prompt_len", "n_layers", "n_q_heads", "n_kv_heads", "head_dim", "total_len"}) {
    for (const char* bad : {"0", "-3", "2.5", "2.0", "\"2\"", "true", "[2]", "18446744073709551615"}) {
      refuse(std::string("{\"") + key + "\": " + bad + "}",
             {"m.json: ", key, "expected a whole number of at least 1", "found", bad});
    }
  }
  for (const char* key : {"scale", "logit_softcap"}) {
    for (const char* bad : {"0", "-0.5", "\"0.5\"", "[]", "false"}) {
      refuse(std::string("{\"") + key + "\": " + bad + "}",
             {"m.json: ", key, "expected a finite number above 0", "found", bad});
    }
  }
  refuse(R"({"model": 3})", {"m.json: model: expected a string, found 3"});
  refuse(R"({"causal": 1})", {"m.json: causal: expected true or false, found 1"});
  refuse(R"({"dtype": "int8"})",
         {"m.json: dtype: expected float16, bfloat16, float32 or float64, found \"int8\""});
  refuse(R"({"dtype": 16})", {"m.json: dtype: expected a string"});
  refuse(R"({"sliding_window": 0})", {"sliding_window: expected a whole number of at least 1, found 0"});
  refuse(R"({"sliding_window": "4"})", {"sliding_window: expected a whole number"});
  refuse(R"({"sliding_window": [4, -1]})", {"sliding_window: expected null or a whole number", "-1 in it"});
  refuse(R"({"sink_logit": 1})", {"sink_logit: expected a list of lists"});
  refuse(R"({"sink_logit": []})", {"sink_logit: expected a list of lists"});
  refuse(R"({"sink_logit": [[], []]})", {"sink_logit: expected null or n_q numbers"});
  refuse(R"({"sink_logit": [1, 2]})", {"sink_logit: expected a list of finite numbers, found 1"});
  refuse(R"({"sink_logit": [["x", 1, 2, 3], null]})",
         {"sink_logit: expected a list of finite numbers, found \"x\" in it"});
  for (const char* bad : {"2", "[0, -1]", "[1, 1]", "[2, 0]", "[0.5, 1]", "[0, \"1\"]", "[null, 1]"})
    refuse(std::string("{\"layers\": ") + bad + "}",
           {"m.json: layers: expected the model's numbers of the layers, ascending from at least 0, found"});
  refuse(R"({"scale": {"very": "long"}})", {"scale", "found an object of 1 keys"});
}

TEST_CASE("what contradicts the files is refused", "[manifest]") {
  CHECK_NOTHROW(load(
      R"({"n_layers": 2, "n_q_heads": 4, "n_kv_heads": 2, "head_dim": 8, "total_len": 10, "prompt_len": 10})"));
  refuse(R"({"n_layers": 3})", {"m.json: n_layers: expected 2, as the files have, found 3"});
  refuse(R"({"n_q_heads": 2})", {"m.json: n_q_heads: expected 4, as the files have, found 2"});
  refuse(R"({"n_kv_heads": 4})", {"m.json: n_kv_heads: expected 2"});
  refuse(R"({"head_dim": 64})", {"m.json: head_dim: expected 8"});
  refuse(R"({"total_len": 9})", {"m.json: total_len: expected 10"});
  refuse(R"({"prompt_len": 11})",
         {"m.json: prompt_len: expected at most the 10 positions in the files, found 11"});
  refuse(R"({"sliding_window": [4]})", {"sliding_window: expected one entry for each of 2 layers, found 1"});
  refuse(R"({"sliding_window": []})", {"sliding_window: expected one entry for each of 2 layers, found 0"});
  CHECK(load(R"({"layers": [0, 7]})").layers == std::vector<Index>{0, 7});
  refuse(R"({"layers": [7]})", {"layers: expected one entry for each of 2 layers, found 1"});
  refuse(R"({"sink_logit": [[1, 2, 3, 4]]})",
         {"sink_logit: expected one entry for each of 2 layers, found 1"});
  refuse(R"({"sink_logit": [null, [1, 2]]})", {"sink_logit: expected 4 query heads in each layer, found 2"});
}

TEST_CASE("sliding windows and sink logits, one or one a layer", "[manifest]") {
  const Manifest one = load(R"({"sliding_window": 4, "sink_logit": [[1, 2, 3, 4], [5, 6, 7, 8.5]]})");
  CHECK(attention_rule(one, shape, 0).sliding_window == 4);
  CHECK(attention_rule(one, shape, 1).sliding_window == 4);
  CHECK(attention_rule(one, shape, 1).sink_logit == std::vector<double>{5, 6, 7, 8.5});
  const Manifest each = load(R"({"sliding_window": [3, null]})");
  CHECK(attention_rule(each, shape, 0).sliding_window == 3);
  CHECK_FALSE(attention_rule(each, shape, 1).sliding_window.has_value());

  // sys.maxsize, a common way to say none
  const Manifest none = load(R"({"sliding_window": 9223372036854775807})");
  const Index longest = *attention_rule(none, shape, 0).sliding_window;
  CHECK(longest > 1'000'000'000'000);
  CHECK(longest + longest > longest);
}

TEST_CASE("rope", "[manifest]") {
  SECTION("theta, over the whole head") {
    const auto rope = layer_rope(load(R"({"rope": {"style": "half", "theta": 10000}})"), shape, 1);
    REQUIRE(rope.has_value());
    CHECK(rope->style == Rope::Style::half);
    CHECK(rope->rotary_dim == 8);
    REQUIRE(rope->inv_freq.size() == 4);
    for (std::size_t i = 0; i < 4; ++i)
      CHECK(rope->inv_freq[i] == Approx(std::pow(10.0, -static_cast<double>(i))).epsilon(1e-15));
  }
  SECTION("inv_freq, part of the head") {
    const auto rope = layer_rope(
        load(R"({"rope": {"style": "interleaved", "inv_freq": [1, 0.5, 0], "attention_factor": 1.25,
                                          "scaling": {"rope_type": "yarn"}}})"),
        shape, 0);
    REQUIRE(rope.has_value());
    CHECK(rope->style == Rope::Style::interleaved);
    CHECK(rope->rotary_dim == 6);
    CHECK(rope->inv_freq == std::vector<double>{1, 0.5, 0});
    CHECK(rope->attention_factor == 1.25);
  }
  SECTION("inv_freq per layer") {
    const Manifest manifest =
        load(R"({"rope": {"style": "half", "rotary_dim": 4, "inv_freq": [[1, 0.5], [0.25, 0.125]]}})");
    CHECK(layer_rope(manifest, shape, 0)->inv_freq == std::vector<double>{1, 0.5});
    CHECK(layer_rope(manifest, shape, 1)->inv_freq == std::vector<double>{0.25, 0.125});
  }
  SECTION("scaling that changes nothing") {
    CHECK(load(R"({"rope": {"style": "half", "theta": 5, "scaling": null}})").rope.has_value());
    CHECK(
        load(R"({"rope": {"style": "half", "theta": 5, "scaling": {"type": "default"}}})").rope.has_value());
  }
  SECTION("scaling that is not understood makes rope unavailable, and says why") {
    for (const char* scaling :
         {R"({"rope_type": "llama3", "factor": 8})", R"({"type": "llama3"})", R"("llama3")"}) {
      const Manifest manifest =
          load(std::string(R"({"rope": {"style": "half", "theta": 5, "scaling": )") + scaling + "}}");
      CHECK_FALSE(layer_rope(manifest, shape, 0).has_value());
      CHECK(manifest.rope_note.find("\"llama3\"") != std::string::npos);
    }
    CHECK_FALSE(
        load(R"({"rope": {"style": "half", "theta": 5, "scaling": {"factor": 2}}})").rope.has_value());
  }
  SECTION("faults") {
    refuse(R"({"rope": "half"})", {"m.json: rope: expected an object, found \"half\""});
    refuse(R"({"rope": {"theta": 5}})",
           {"m.json: rope: style: expected \"half\" or \"interleaved\", found null"});
    refuse(R"({"rope": {"style": "neox", "theta": 5}})", {"m.json: rope: style: expected", "found \"neox\""});
    refuse(R"({"rope": {"style": "half"}})", {"m.json: rope: expected theta or inv_freq, found neither"});
    refuse(R"({"rope": {"style": "half", "theta": -1}})",
           {"m.json: rope: theta: expected a finite number above 0"});
    refuse(R"({"rope": {"style": "half", "theta": 5, "rotary_dim": 3}})",
           {"rotary_dim: expected an even number from 2 to head_dim 8, found 3"});
    refuse(R"({"rope": {"style": "half", "theta": 5, "rotary_dim": 10}})",
           {"rotary_dim: expected an even number from 2 to head_dim 8, found 10"});
    refuse(R"({"rope": {"style": "half", "inv_freq": []}})",
           {"rotary_dim: expected an even number", "found 0"});
    refuse(R"({"rope": {"style": "half", "inv_freq": [1, 2, 3, 4, 5]}})",
           {"rotary_dim: expected an even number", "found 10"});
    refuse(R"({"rope": {"style": "half", "inv_freq": [1, 2], "rotary_dim": 8}})",
           {"inv_freq: expected 4 frequencies for rotary_dim 8, found 2"});
    refuse(R"({"rope": {"style": "half", "inv_freq": [1, "x"]}})",
           {"inv_freq: expected a list of finite numbers of at least 0, found \"x\" in it"});
    refuse(R"({"rope": {"style": "half", "inv_freq": [1, -2]}})",
           {"inv_freq: expected a list of finite numbers of at least 0, found -2"});
    refuse(R"({"rope": {"style": "half", "inv_freq": 3}})", {"inv_freq: expected a list"});
    refuse(R"({"rope": {"style": "half", "inv_freq": [[1, 2]]}})",
           {"inv_freq: expected one entry for each of 2 layers, found 1"});
    refuse(R"({"rope": {"style": "half", "inv_freq": [[1, 2], [1]]}})",
           {"inv_freq: expected 2 frequencies", "found 1"});
    refuse(R"({"rope": {"style": "half", "theta": 5, "attention_factor": 0}})",
           {"attention_factor: expected a finite number above 0"});
  }
}

TEST_CASE("tokens", "[manifest]") {
  const TokenLabels both = parse_tokens(R"({"ids": [1, 2], "text": ["a", "b"]})", "t.json", 2);
  CHECK(both.ids == std::vector<std::int64_t>{1, 2});
  CHECK(both.text == std::vector<std::string>{"a", "b"});
  CHECK(parse_tokens(R"({"ids": [1, 2]})", "t.json", 2).text.empty());
  CHECK(parse_tokens(R"({"text": ["a", "b"], "ids": []})", "t.json", 2).ids.empty());
  const auto refuse_tokens = [](const char* text, std::initializer_list<std::string_view> parts) {
    INFO(text);
    expect_error([&] { parse_tokens(text, "t.json", 2); }, parts);
  };
  refuse_tokens("", {"t.json: expected JSON, found an empty file"});
  refuse_tokens(R"(["a", "b"])", {"t.json: expected a JSON object"});
  refuse_tokens(R"({"ids": [1, 2, 3]})", {"t.json: ids: expected 2 entries, one a position, found 3"});
  refuse_tokens(R"({"text": ["a"]})", {"t.json: text: expected 2 entries, one a position, found 1"});
  refuse_tokens(R"({"ids": [1, 2.5]})", {"t.json: ids: expected whole numbers, found 2.5"});
  refuse_tokens(R"({"text": ["a", 2]})", {"t.json: text: expected strings, found 2"});
  refuse_tokens(R"({"text": "ab"})", {"t.json: text: expected a list, found \"ab\""});
}

}  // namespace kvreplay
