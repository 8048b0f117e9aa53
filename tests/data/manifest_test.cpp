#include "data/manifest.hpp"

#include "tests/data/broken_inputs.hpp"
#include "tests/support/catch.hpp"

#include <cmath>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

using test::expect_error;

const DumpShape shape{
    .layers = 2, .n_q = 4, .n_kv = 2, .d = 8, .d_v = 8, .d_model = 0, .T = 48, .T_q = 48, .l = 48};

Manifest load(const std::string& text) {
  Manifest manifest = parse_manifest(text, "manifest.json");
  check_manifest(manifest, shape);
  return manifest;
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

TEST_CASE("what is no manifest of the dump is refused by key, or with line and column", "[manifest]") {
  test::check_broken_inputs("manifest", "manifest.json", load);
}

TEST_CASE("what the files say, and layers of a larger model, may be stated", "[manifest]") {
  CHECK_NOTHROW(load(
      R"({"n_layers": 2, "n_q_heads": 4, "n_kv_heads": 2, "head_dim": 8, "total_len": 48, "prompt_len": 48})"));
  CHECK(load(R"({"layers": [0, 7]})").layers == std::vector<Index>{0, 7});
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
  for (const char* none : {R"({"sliding_window": 9223372036854775807})", R"({"sliding_window": 2147483647})"})
    CHECK_FALSE(attention_rule(load(none), shape, 0).sliding_window.has_value());
  CHECK(attention_rule(load(R"({"sliding_window": 2147483646})"), shape, 0).sliding_window == 2147483646);
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
  SECTION("the order of llama.cpp's channels") {
    const auto in_ggml = [&](const std::string& styles) {
      return layer_rope(load(R"({"rope": {"theta": 5, )" + styles + "}}"), shape, 0)->interleaved_in_ggml;
    };
    CHECK(in_ggml(R"("style": "half", "ggml_style": "interleaved")"));
    CHECK_FALSE(in_ggml(R"("style": "half", "ggml_style": "half")"));
    CHECK_FALSE(in_ggml(R"("style": "half")"));
    CHECK_FALSE(in_ggml(R"("style": "interleaved", "ggml_style": "interleaved")"));
    expect_error([&] { in_ggml(R"("style": "interleaved", "ggml_style": "half")"); },
                 {"rope: ggml_style: expected \"interleaved\", as style, found \"half\""});
    expect_error([&] { in_ggml(R"("style": "half", "ggml_style": "norm")"); },
                 {"rope: ggml_style: expected \"half\" or \"interleaved\", found \"norm\""});
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
}

TEST_CASE("tokens", "[manifest]") {
  const TokenLabels both = parse_tokens(R"({"ids": [1, 2], "text": ["a", "b"]})", "t.json");
  CHECK(both.ids == std::vector<std::int64_t>{1, 2});
  CHECK(both.text == std::vector<std::string>{"a", "b"});
  CHECK(parse_tokens(R"({"ids": [1, 2]})", "t.json").text.empty());
  CHECK(parse_tokens(R"({"text": ["a", "b"], "ids": []})", "t.json").ids.empty());
  const auto refuse_tokens = [](const char* text, std::initializer_list<std::string_view> parts) {
    INFO(text);
    expect_error([&] { check_tokens(parse_tokens(text, "t.json"), "t.json", 2); }, parts);
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
