#include "analysis/capture/architectures.hpp"
#include "analysis/capture/conversation.hpp"
#include "analysis/capture/dump_writer.hpp"
#include "data/error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

using namespace kvreplay;
using kvreplay::test::TempDir;
namespace fs = std::filesystem;

namespace {

constexpr Index kLayers = 2, kHeads = 2, kWidth = 4, kPositions = 5;

float number(Tensor tensor, Index layer, Index row, Index at) {
  return std::sin(static_cast<float>(1 + 7 * static_cast<int>(tensor) + 31 * layer + 3 * row + at));
}

/// Rows first .. last - 1 of [n, heads, width].
std::vector<float> rows(Tensor tensor, Index layer, Index first, Index last) {
  std::vector<float> values;
  for (Index row = first; row < last; ++row)
    for (Index at = 0; at < kHeads * kWidth; ++at) values.push_back(number(tensor, layer, row, at));
  round_to(Dtype::f16, values, "rows");
  return values;
}

void append_all(DumpWriter& writer, Index first, Index last) {
  for (Index layer = 0; layer < kLayers; ++layer)
    for (const Tensor tensor : {Tensor::q, Tensor::k, Tensor::v, Tensor::o})
      writer.append(tensor, layer, kHeads, kWidth, rows(tensor, layer, first, last));
}

const Json kManifest = {{"prompt_len", 3}, {"total_len", kPositions}};
const Json kTokens = {{"text", Json::array({"a", "\xff", "b", "c", "d"})}};

}  // namespace

TEST_CASE("a dump that fills in chunks holds every row of every head", "[capture]") {
  const TempDir temp;
  const fs::path folder = temp.path() / "dump";
  DumpWriter writer(folder, false, Dtype::f16, kLayers, kPositions);
  append_all(writer, 0, 3);
  append_all(writer, 3, 4);
  CHECK_THROWS_AS(writer.finish(kManifest, kTokens), InputError);
  append_all(writer, 4, 5);
  const fs::path unchecked = writer.finish(kManifest, kTokens);
  CHECK_FALSE(fs::exists(folder));
  writer.commit();
  CHECK_FALSE(fs::exists(unchecked));
  const Dump dump = Dump::open(folder);
  CHECK(dump.shape().l == 3);
  std::vector<float> head(kPositions * kWidth);
  for (const Tensor tensor : {Tensor::q, Tensor::k, Tensor::v, Tensor::o}) {
    dump.read(tensor, 1, 1, head.data());
    for (Index row = 0; row < kPositions; ++row)
      for (Index c = 0; c < kWidth; ++c)
        CHECK(head[row * kWidth + c] == rows(tensor, 1, row, row + 1)[kWidth + c]);
  }
}

TEST_CASE("a capture that does not end leaves no dump", "[capture]") {
  const TempDir temp;
  const fs::path folder = temp.path() / "dump";
  {
    DumpWriter writer(folder, false, Dtype::f16, kLayers, kPositions);
    append_all(writer, 0, 3);
    CHECK_THROWS_AS(Dump::open(temp.path() / "dump.capturing"), InputError);
    CHECK_THROWS_AS(writer.append(Tensor::k, 1, kHeads, kWidth - 2, rows(Tensor::k, 1, 3, 4)), InputError);
  }
  CHECK(fs::is_empty(temp.path()));
}

TEST_CASE("a capture replaces a dump and nothing else", "[capture]") {
  const TempDir temp;
  const fs::path folder = temp.path() / "dump";
  for (const bool force : {false, true}) {
    DumpWriter writer(folder, force, Dtype::f16, kLayers, kPositions);
    append_all(writer, 0, 5);
    writer.finish(kManifest, kTokens);
    writer.commit();
  }
  CHECK_THROWS_AS(DumpWriter(folder, false, Dtype::f16, 1, 1), InputError);
  std::ofstream(folder / "layer_00" / "notes.txt") << "mine";
  CHECK_THROWS_AS(DumpWriter(folder, true, Dtype::f16, 1, 1), InputError);
  CHECK(fs::exists(folder / "layer_00" / "notes.txt"));
}

TEST_CASE("outputs that are not attention over the files are seen", "[capture]") {
  const TempDir temp;
  Workers workers(1);
  // One position: attention returns its value. The second dump's output is off in layer 1.
  for (const float off : {0.0F, 0.25F}) {
    DumpWriter writer(temp.path() / "dump", true, Dtype::f32, kLayers, 1);
    for (Index layer = 0; layer < kLayers; ++layer) {
      std::vector<float> values(kHeads * kWidth, 2);
      for (const Tensor tensor : {Tensor::q, Tensor::k, Tensor::v})
        writer.append(tensor, layer, kHeads, kWidth, values);
      if (layer == 1) values.back() += off;
      writer.append(Tensor::o, layer, kHeads, kWidth, values);
    }
    writer.finish({{"prompt_len", 1}}, Json::object());
    writer.commit();
    const auto [apart, layer] = largest_deviation(Dump::open(temp.path() / "dump"), workers);
    CHECK((apart > most_deviation(Dtype::f32)) == (off > 0));
    CHECK((off == 0 || layer == 1));
  }
}

TEST_CASE("float16 has no larger number than 65504", "[capture]") {
  std::vector<float> values = {1.0F / 3, 65504};
  round_to(Dtype::f16, values, "q");
  CHECK(values == std::vector<float>{0.333251953125F, 65504});
  values[0] = 70000;
  CHECK_THROWS_AS(round_to(Dtype::f16, values, "q"), InputError);
  CHECK_NOTHROW(round_to(Dtype::f32, values, "q"));
}

TEST_CASE("architectures are found by their GGUF's name", "[capture]") {
  static_assert(is_captured("qwen2") && !is_captured("mamba"));
  CHECK(architecture_names() == "llama, qwen2, qwen3, gemma2, gemma3, phi3, gpt-oss");
}

TEST_CASE("conversations come as messages, as requests, and one per line", "[capture]") {
  const TempDir temp;
  const fs::path file = temp.path() / "chat.json";
  const auto read = [&](const std::string& text) {
    std::ofstream(file) << text;
    return read_conversations(file);
  };
  const std::string list = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  for (const std::string& one :
       {list, R"({"messages": )" + list + "}", R"({"body": {"messages": )" + list + "}}"}) {
    for (const auto& [text, count] :
         {std::pair(one, 1U), {"[" + one + "," + one + "]", 2U}, {one + "\n\n" + one, 2U}}) {
      const auto all = read(text);
      REQUIRE(all.size() == count);
      REQUIRE(all.back().size() == 2);
      CHECK((all.back()[1].role == "assistant" && all.back()[1].content == "b"));
    }
  }
  const auto parts = read(
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])");
  CHECK(parts[0][0].content == "a\nb");
  for (const char* const bad :
       {"", "[]", "3", "[{", R"({"a": 1})", R"([{"role": 1}])", R"([{"role": "user"}])",
        R"([{"role": "user", "content": [{"type": "image"}]}])",
        R"({"messages": [{"role": "user", "content": "a"}], "tools": [{}]})",
        R"([{"role": "assistant", "content": "", "tool_calls": [{}]}])"})
    CHECK_THROWS_AS(read(bad), InputError);
}
