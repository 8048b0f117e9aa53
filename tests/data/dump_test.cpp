#include "data/dump.hpp"

#include "data/atomic_file.hpp"
#include "data/npy_write.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/data/small_dump.hpp"
#include "tests/data/zip_file.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace kvreplay {
namespace {

using test::expect_error;
using test::SmallDump;
using test::TempDir;

bool mentions(const std::vector<std::string>& notes, std::string_view text) {
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("without a manifest everything is inferred, and said", "[dump]") {
  SmallDump small;
  small.T_q = 3;
  const TempDir dir;
  small.write(dir.path(), false);
  const Dump dump = Dump::open(dir.path() / "");  // a trailing slash is no part of the name
  const DumpShape& shape = dump.shape();
  CHECK(shape.layers == 2);
  CHECK(shape.n_q == 4);
  CHECK(shape.n_kv == 2);
  CHECK(shape.d == 6);
  CHECK(shape.d_v == 3);
  CHECK(shape.d_model == 0);
  CHECK(shape.T == 5);
  CHECK(shape.T_q == 3);
  CHECK(shape.l == 5);
  CHECK(shape.first_query() == 2);
  CHECK(shape.group() == 2);
  CHECK_FALSE(dump.has(Tensor::wo));
  CHECK_FALSE(dump.has(Tensor::o));
  CHECK(dump.model() == dir.path().filename().string());
  CHECK_FALSE(dump.tokens().has_value());
  CHECK_FALSE(dump.rope(0).has_value());
  CHECK_FALSE(dump.rope_note().empty());
  const AttentionRule rule = dump.rule(1);
  CHECK(rule.scale == 1.0 / std::sqrt(6.0));
  CHECK(rule.causal);
  CHECK_FALSE(rule.sliding_window.has_value());
  CHECK_FALSE(rule.softcap.has_value());
  CHECK(rule.sink_logit.empty());
  for (const char* text : {"no manifest.json", "prompt_len", "scale", "model", "rotation", "causal"}) {
    INFO(text);
    CHECK(mentions(dump.notes(), text));
  }
  CHECK(small.count_wrong(dump) == 0);
}

TEST_CASE("the manifest's values arrive", "[dump]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  write_file(dir / "manifest.json",
             R"({"model": "a model", "prompt_len": 3, "total_len": 5, "n_layers": 2, "n_q_heads": 4,
    "n_kv_heads": 2, "head_dim": 6, "scale": 0.25, "causal": false, "sliding_window": [null, 4], "logit_softcap": 50,
    "sink_logit": [[0, 1, 2, 3], null], "dtype": "float32", "rope": {"style": "interleaved", "theta": 100, "rotary_dim": 4},
    "sliding_window_two_sided": false, "tool": "anything else"})");
  write_file(dir / "tokens.json", R"({"ids": [7, 8, 9, 10, -1], "text": ["a", "\u00e9", "", "d", "e"]})");
  const Dump dump = Dump::open(dir.path());
  CHECK(dump.model() == "a model");
  CHECK(dump.shape().l == 3);
  CHECK(dump.notes().empty());
  CHECK(dump.rope_note().empty());
  const AttentionRule first = dump.rule(0), second = dump.rule(1);
  CHECK(first.scale == 0.25);
  CHECK_FALSE(first.causal);
  CHECK_FALSE(first.sliding_window.has_value());
  CHECK(second.sliding_window == 4);
  CHECK(first.softcap == 50.0);
  CHECK(first.sink_logit == std::vector<double>{0, 1, 2, 3});
  CHECK(second.sink_logit.empty());
  const auto rope = dump.rope(1);
  REQUIRE(rope.has_value());
  CHECK(rope->style == Rope::Style::interleaved);
  CHECK(rope->rotary_dim == 4);
  CHECK(rope->inv_freq == std::vector<double>{1.0, 0.1});
  CHECK(rope->attention_factor == 1.0);
  REQUIRE(dump.tokens().has_value());
  CHECK(dump.tokens()->ids.back() == -1);
  CHECK(dump.tokens()->text[1] == "\xc3\xa9");
}

TEST_CASE("uint16 bits are bfloat16 where the manifest says so", "[dump]") {
  SmallDump small;
  small.layers = 1;
  const TempDir dir;
  small.write(dir.path(), false);
  test::NpyBuilder npy{"<u2", "(2, 5, 6)", "False", 1, ""};
  for (int i = 0; i < 60; ++i)
    test::append_bits(npy.data, static_cast<std::uint16_t>(i == 7 ? 0x4049 : 0x3f80));
  write_file(dir / "layer_00/k.npy", npy.bytes());
  expect_error([&] { Dump::open(dir.path()); },
               {"layer_00/k.npy", "\"dtype\": \"bfloat16\"", "found dtype '<u2'"});
  write_file(dir / "manifest.json", R"({"dtype": "float16"})");
  expect_error([&] { Dump::open(dir.path()); },
               {"layer_00/k.npy", "\"dtype\": \"bfloat16\"", "found dtype '<u2'"});
  write_file(dir / "manifest.json", R"({"dtype": "bfloat16"})");
  const Dump dump = Dump::open(dir.path());
  CHECK(mentions(dump.notes(), "holds float32"));
  float k[30];
  dump.read(Tensor::k, 0, 0, k);
  CHECK(k[0] == 1.0f);
  CHECK(k[7] == 3.140625f);
}

TEST_CASE("|V2 contradicts a manifest that names another dtype", "[dump]") {
  SmallDump small;
  small.layers = 1;
  const TempDir dir;
  small.write(dir.path(), false);
  write_npy_as(dir / "layer_00/k.npy", Dtype::bf16, small.shape(Tensor::k), small.elements(Tensor::k, 0));
  CHECK_NOTHROW(Dump::open(dir.path()));
  write_file(dir / "manifest.json", R"({"dtype": "float16"})");
  expect_error([&] { Dump::open(dir.path()); },
               {"k.npy: expected float16", "found dtype '|V2', which is bfloat16"});
}

TEST_CASE("a prompt can end where the manifest has a name for it", "[dump]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  write_file(
      dir / "manifest.json",
      R"({"prompt_len": 3, "prompt_ends": {"context": 3, "question": 4, "beyond": 9}, "task": {"name": "vt"}})");
  CHECK(Dump::open(dir.path()).shape().l == 3);
  CHECK(Dump::open(dir.path(), {.prompt_len = PromptEnd{"question"}}).shape().l == 4);
  expect_error(
      [&] { Dump::open(dir.path(), {.prompt_len = PromptEnd{"answer"}}); },
      {"prompt length: expected a number, or an end that prompt_ends names", "question", "found 'answer'"});
  expect_error([&] { Dump::open(dir.path(), {.prompt_len = PromptEnd{"beyond"}}); },
               {"expected 1 to 5", "found 9"});
  write_file(dir / "manifest.json", R"({"prompt_len": 3})");
  expect_error(
      [&] { Dump::open(dir.path(), {.prompt_len = PromptEnd{"question"}}); },
      {"prompt length: expected a number: prompt_ends of manifest.json names no end", "found 'question'"});
  for (const char* bad :
       {R"("prompt_ends": 4)", R"("prompt_ends": {"question": "4"})", R"("prompt_ends": {"question": 0})"}) {
    write_file(dir / "manifest.json", std::string("{") + bad + "}");
    expect_error([&] { Dump::open(dir.path()); }, {"prompt_ends"});
  }
}

TEST_CASE("a dump of a question says where it stands", "[dump]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  const auto with = [&](const std::string& task) {
    write_file(dir / "manifest.json", R"({"task": )" + task + "}");
  };
  with(R"({"name": "vt", "question": "Which?", "answer": " 7", "references": ["7"],
           "spans": {"needles": [[0, 2], [2, 3]], "question": [3, 4], "prefix": [4, 4], "answer": [4, 5]}})");
  const Dump dump = Dump::open(dir.path());
  REQUIRE(dump.question());
  const QuestionFacts& question = *dump.question();
  CHECK(question.task == "vt");
  CHECK(question.text == "Which?");
  CHECK(question.answer == " 7");
  REQUIRE(question.needles.size() == 2);
  CHECK(question.needles[0].contains(1));
  CHECK_FALSE(question.needles[0].contains(2));
  CHECK(question.asked.contains(3));
  CHECK(question.answered.begin == 4);
  CHECK(question.answered.end == 5);
  for (const char* other : {R"("qa")", R"({"name": "vt"})", "null"}) {
    with(other);
    CHECK_FALSE(Dump::open(dir.path()).question());
  }
  const auto spans = [&](const std::string& needles, const std::string& answer) {
    with(R"({"spans": {"needles": )" + needles + R"(, "question": [3, 4], "answer": )" + answer + "}}");
  };
  for (const char* bad :
       {"[[2, 2]]", "[[3, 2]]", "[[-1, 2]]", "[[0, 1, 2]]", "[1]", "4", "[[0.5, 2]]", "null"}) {
    INFO(bad);
    spans(bad, "[4, 5]");
    expect_error([&] { Dump::open(dir.path()); }, {"task: spans: needles: expected"});
  }
  spans("[]", "[4, 6]");
  expect_error([&] { Dump::open(dir.path()); }, {"task: spans: expected positions up to 5", "found 6"});
  spans("[]", "[4, 5]");
  CHECK(Dump::open(dir.path()).question()->needles.empty());
}

TEST_CASE("the prompt length can be given instead", "[dump]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  write_file(dir / "manifest.json", R"({"prompt_len": 3})");
  CHECK(Dump::open(dir.path()).shape().l == 3);
  CHECK(Dump::open(dir.path(), {.prompt_len = 1}).shape().l == 1);
  CHECK(Dump::open(dir.path(), {.prompt_len = 5}).shape().l == 5);
  for (const Index bad : {-1, 0, 6}) {
    expect_error([&] { Dump::open(dir.path(), {.prompt_len = bad}); },
                 {"prompt length: expected 1 to 5", "found " + std::to_string(bad)});
  }
}

TEST_CASE("shapes that do not fit each other are refused before anything is read", "[dump]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  const auto zeros = [&](const char* name, std::vector<std::size_t> shape) {
    std::size_t count = 1;
    for (const std::size_t extent : shape) count *= extent;
    write_npy(dir / name, shape, std::vector<float>(count));
  };
  const auto refuse = [&](std::initializer_list<std::string_view> parts) {
    expect_error([&] { Dump::open(dir.path()); }, parts);
  };
  SECTION("d of k") {
    zeros("layer_00/k.npy", {2, 5, 7});
    refuse({"layer_00/k.npy: expected shape [2, 5, 6] (n_kv, T, d) as",
            "layer_00/q.npy implies, found shape [2, 5, 7]"});
  }
  SECTION("T of v") {
    zeros("layer_00/v.npy", {2, 4, 3});
    refuse({"layer_00/v.npy: expected shape [2, 5, 3] (n_kv, T, d_v)", "layer_00/k.npy",
            "found shape [2, 4, 3]"});
  }
  SECTION("heads of v") {
    zeros("layer_00/v.npy", {1, 5, 3});
    refuse({"layer_00/v.npy: expected shape [2, 5, 3]", "found shape [1, 5, 3]"});
  }
  SECTION("d_v of wo") {
    zeros("layer_00/wo.npy", {4, 2, 8});
    refuse(
        {"layer_00/wo.npy: expected shape [4, 3, 8] (n_q, d_v, d_model)", "v.npy", "found shape [4, 2, 8]"});
  }
  SECTION("rows of o") {
    zeros("layer_01/o.npy", {4, 4, 3});
    refuse({"layer_01/o.npy: expected shape [4, 5, 3] (n_q, T_q, d_v)", "found shape [4, 4, 3]"});
  }
  SECTION("positions of residual_norm") {
    zeros("layer_00/residual_norm.npy", {5});
    zeros("layer_01/residual_norm.npy", {4});
    refuse({"layer_01/residual_norm.npy: expected shape [5] (T) as", "layer_00/k.npy", "found shape [4]"});
  }
  SECTION("axes of residual_norm") {
    zeros("layer_00/residual_norm.npy", {5, 2});
    refuse(
        {"layer_00/residual_norm.npy: expected shape [T], or with a leading batch of 1, found shape [5, 2]"});
  }
  SECTION("residual_norm of one layer alone") {
    zeros("layer_00/residual_norm.npy", {5});
    refuse({"expected residual_norm for each of 2 layers", "found that layer 1 has no residual_norm"});
  }
  SECTION("another layer") {
    zeros("layer_01/q.npy", {4, 4, 6});
    refuse({"layer_01/q.npy: expected shape [4, 5, 6] (n_q, T_q, d) as", "layer_00/q.npy",
            "found shape [4, 4, 6]"});
  }
  SECTION("query heads no multiple of KV heads") {
    for (const char* name : {"layer_00/k.npy", "layer_01/k.npy"}) zeros(name, {3, 5, 6});
    for (const char* name : {"layer_00/v.npy", "layer_01/v.npy"}) zeros(name, {3, 5, 3});
    refuse({"layer_00/q.npy: expected a multiple of the 3 KV heads", "found 4 query heads"});
  }
  SECTION("more queries than positions") {
    for (const char* name : {"layer_00/q.npy", "layer_01/q.npy"}) zeros(name, {4, 6, 6});
    for (const char* name : {"layer_00/o.npy", "layer_01/o.npy"}) zeros(name, {4, 6, 3});
    refuse({"layer_00/q.npy: expected queries for at most the 5 positions", "found 6 queries"});
  }
  SECTION("two axes") {
    zeros("layer_00/q.npy", {5, 6});
    refuse(
        {"layer_00/q.npy: expected shape [n_q, T_q, d], or with a leading batch of 1", "found shape [5, 6]"});
  }
  SECTION("a batch of 2") {
    zeros("layer_00/q.npy", {2, 4, 5, 6});
    refuse({"expected shape [n_q, T_q, d], or with a leading batch of 1", "found shape [2, 4, 5, 6]"});
  }
  SECTION("stacked layers of another number") {
    for (const char* layer : {"layer_00/o.npy", "layer_01/o.npy"}) std::filesystem::remove(dir / layer);
    zeros("o.npy", {3, 4, 5, 3});
    refuse({"expected q for each of 3 layers", "layer 2 has no q"});
  }
  SECTION("a stacked array without layers") {
    for (const char* layer : {"layer_00/o.npy", "layer_01/o.npy"}) std::filesystem::remove(dir / layer);
    zeros("o.npy", {4, 5, 3});
    refuse({"o.npy: expected shape [layers, n_q, T_q, d_v]", "found shape [4, 5, 3]"});
  }
  SECTION("truncated") {
    std::filesystem::resize_file(dir / "layer_01/k.npy", 300);
    refuse({"layer_01/k.npy: expected 60 elements of 4 bytes", "bytes behind the header"});
  }
  SECTION("empty") {
    std::filesystem::resize_file(dir / "layer_01/k.npy", 0);
    refuse({"layer_01/k.npy: expected a .npy array, found an empty file"});
  }
  SECTION("a folder in a file's place") {
    std::filesystem::remove(dir / "layer_01/k.npy");
    std::filesystem::create_directory(dir / "layer_01/k.npy");
    refuse({"layer_01/k.npy: expected a regular file, found a folder"});
  }
  SECTION("a file in a folder's place") {
    std::filesystem::remove_all(dir / "layer_01");
    write_file(dir / "layer_01", "");
    refuse({"layer_01: expected a readable folder"});
  }
}

TEST_CASE("norms of the residual stream are a row of positions, alone or all layers in one file", "[dump]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  CHECK_FALSE(Dump::open(dir.path()).has(Tensor::residual_norm));
  const std::vector<float> norms{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const auto read = [&] {
    const Dump dump = Dump::open(dir.path());
    for (const std::string& note : dump.notes()) CHECK(note.find("residual_norm") == std::string::npos);
    std::vector<double> found(10);
    for (const Index layer : {0, 1}) dump.read(Tensor::residual_norm, layer, 0, found.data() + 5 * layer);
    return found;
  };
  const std::vector<double> expected(norms.begin(), norms.end());
  const std::size_t stacked[] = {2, 5};
  write_npy(dir / "residual_norm.npy", stacked, norms);
  CHECK(read() == expected);
  std::filesystem::remove(dir / "residual_norm.npy");
  const std::size_t one[] = {5};
  for (const std::size_t layer : {0, 1})
    write_npy(dir / ("layer_0" + std::to_string(layer)) / "residual_norm.npy", one,
              std::vector<float>(norms.begin() + 5 * layer, norms.begin() + 5 * layer + 5));
  CHECK(read() == expected);
}

TEST_CASE("a shape has every tensor's extents, and how many matrices it is", "[dump]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  const DumpShape shape = Dump::open(dir.path()).shape();
  for (const Tensor tensor : test::all_tensors) {
    const std::vector<std::size_t> want = small.shape(tensor);
    CHECK(shape.extents(tensor) == std::vector<Index>(want.begin(), want.end()));
    CHECK(shape.heads(tensor) == shape.extents(tensor)[0]);
    CHECK(shape.head_size(tensor) == shape.extents(tensor)[1] * shape.extents(tensor)[2]);
  }
  CHECK(shape.extents(Tensor::residual_norm) == std::vector<Index>{5});
  CHECK(shape.heads(Tensor::residual_norm) == 1);
  CHECK(shape.head_size(Tensor::residual_norm) == 5);
  for (const TensorFacts& tensor : kTensors) CHECK(axes_of(tensor.id).size() == tensor.axis_count());
}

TEST_CASE("what is no dump at all is refused", "[dump]") {
  const TempDir dir;
  expect_error([&] { Dump::open(dir / "nothing"); }, {"nothing: expected a dump folder", "no such file"});
  expect_error([&] { Dump::open(dir.path()); }, {dir.path().string(), "expected q, k and v for each layer"});
  write_file(dir / "file.txt", "x");
  expect_error([&] { Dump::open(dir / "file.txt"); }, {"file.txt: expected a dump folder or an .npz file"});
  write_file(dir / "file.npz", "x");
  expect_error([&] { Dump::open(dir / "file.npz"); }, {"file.npz: expected an .npz (zip) archive, found"});
}

TEST_CASE("a norm of the heads' outputs stands before wo, and beside no gate", "[dump]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  const Dump plain = Dump::open(dir.path());
  CHECK_FALSE(plain.output_norm().has_value());
  CHECK(plain.projects_values());
  write_file(dir / "manifest.json", R"({"output_norm": {"kind": "rms", "eps": 1e-5}})");
  const Dump normed = Dump::open(dir.path());
  CHECK(normed.output_norm() == 1e-5);
  CHECK(normed.has(Tensor::wo));
  CHECK_FALSE(normed.projects_heads());
  CHECK_FALSE(normed.projects_values());
  CHECK(mentions(normed.notes(), "a norm of all heads' outputs stands before wo: oracle_importance and"));
  for (const char* layer : {"layer_00", "layer_01"})
    write_npy(dir / layer / "gate.npy", small.shape(Tensor::o), small.elements(Tensor::o, 0));
  expect_error([&] { Dump::open(dir.path()); },
               {"manifest.json: output_norm: expected null beside gate, found a norm"});
  for (const char* layer : {"layer_00", "layer_01"}) {
    std::filesystem::remove(dir / layer / "gate.npy");
    std::filesystem::remove(dir / layer / "wo.npy");
  }
  CHECK(mentions(Dump::open(dir.path()).notes(), "output_norm is not used: there is no wo behind it"));
}

TEST_CASE("NaN and infinity are named by layer, head and position", "[dump]") {
  SmallDump small;
  small.T_q = 3;  // row 1 of q is position 3
  const TempDir dir;
  small.write(dir.path());
  const auto spoil = [&](Tensor tensor, const char* name, Index head, Index row, Index col, float value) {
    const auto shape = small.shape(tensor);
    auto values = small.elements(tensor, 1);
    values[(static_cast<std::size_t>(head) * shape[1] + static_cast<std::size_t>(row)) * shape[2] +
           static_cast<std::size_t>(col)] = value;
    write_npy(dir / name, shape, values);
  };
  spoil(Tensor::q, "layer_01/q.npy", 2, 1, 4, std::nanf(""));
  spoil(Tensor::k, "layer_01/k.npy", 1, 4, 0, std::numeric_limits<float>::infinity());
  spoil(Tensor::wo, "layer_01/wo.npy", 3, 2, 7, -std::numeric_limits<float>::infinity());
  const Dump dump = Dump::open(dir.path());
  std::vector<double> out(64);
  const auto read = [&](Tensor tensor, Index head) {
    return [&, tensor, head] { dump.read(tensor, 1, head, out.data()); };
  };
  CHECK_NOTHROW(read(Tensor::q, 1)());
  CHECK_NOTHROW(read(Tensor::k, 0)());
  expect_error(
      read(Tensor::q, 2),
      {"layer_01/q.npy: expected finite values, found NaN at layer 1, query head 2, position 3, channel 4"});
  expect_error(read(Tensor::k, 1),
               {"layer_01/k.npy", "found infinity", "layer 1, KV head 1, position 4, channel 0"});
  expect_error(read(Tensor::wo, 3),
               {"layer_01/wo.npy", "infinity", "layer 1, query head 3, row 2, column 7"});

  // Rows that are left out are not looked at, and those behind keep their places.
  CHECK_NOTHROW(dump.read(Tensor::q, 1, 2, out.data(), 2));
  CHECK(out[0] == SmallDump::element(Tensor::q, 1, 2, 2, 0));
  expect_error([&] { dump.read(Tensor::q, 1, 2, out.data(), 1); }, {"position 3, channel 4"});
}

TEST_CASE("a file cut short after opening is an error, not a crash", "[dump]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  const Dump dump = Dump::open(dir.path());
  std::filesystem::resize_file(dir / "layer_01/k.npy", 200);
  std::filesystem::remove(dir / "layer_01/v.npy");
  float out[64];
  expect_error([&] { dump.read(Tensor::k, 1, 1, out); },
               {"layer_01/k.npy: expected", "as when it was opened", "found 200 bytes"});
  expect_error([&] { dump.read(Tensor::v, 1, 1, out); },
               {"layer_01/v.npy: expected a readable file, found No such file"});
}

TEST_CASE("many threads read one dump", "[dump][threads]") {
  SmallDump small;
  small.T = small.T_q = 40;
  small.d_model = 64;
  const TempDir dir;
  const int kind = GENERATE(0, 1, 2);
  CAPTURE(kind);
  if (kind == 0) {
    small.write(dir.path());
  } else {
    std::vector<std::pair<std::string, std::string>> members;
    for (Index layer = 0; layer < small.layers; ++layer) {
      for (const Tensor tensor : test::all_tensors) {
        members.emplace_back(fmt::format("layer_{}_{}.npy", layer, name_of(tensor)),
                             small.npy(tensor, layer));
      }
    }
    test::write_zip(dir / "dump.npz", members, kind == 2);
  }
  const Dump dump = Dump::open(dir.path());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { wrong += small.count_wrong(dump); });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace kvreplay
