#include "data/atomic_file.hpp"
#include "data/dump.hpp"
#include "data/json_fields.hpp"
#include "data/manifest.hpp"
#include "data/npy_header.hpp"
#include "data/npy_write.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/data/npy_builder.hpp"
#include "tests/data/small_dump.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Names that other tools write: of keys, element types, files and axes. Each is read as what it means, or
// named.

namespace kvreplay {
namespace {

using test::expect_error;
using test::SmallDump;
using test::TempDir;

Manifest parsed(const std::string& text) { return parse_manifest(text, "m.json"); }

NpyHeader header_of(const std::string& descr) {
  const std::string bytes = test::NpyBuilder{descr, "(1,)", "False", 1, std::string(8, '\0')}.bytes();
  return parse_npy_declaration(test::as_span(bytes).first(bytes.size() - 8), "a.npy", NpyElements::any);
}

void write_array(const std::filesystem::path& path, const std::vector<std::size_t>& shape) {
  std::size_t count = 1;
  for (const std::size_t extent : shape) count *= extent;
  write_npy_as(path, Dtype::f32, shape, std::vector<float>(count, 0.5F));
}

/// The shapes of a dump of one layer, [heads, positions, d].
struct OneLayer {
  std::vector<std::size_t> q, k, v, o = {};
};

/// Opens a dump of these shapes with the given number of labels.
Dump open_layer(const OneLayer& shapes, const std::string& manifest = "{}", std::size_t labels = 0) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "layer_00");
  write_array(dir / "layer_00/q.npy", shapes.q);
  write_array(dir / "layer_00/k.npy", shapes.k);
  write_array(dir / "layer_00/v.npy", shapes.v);
  if (!shapes.o.empty()) write_array(dir / "layer_00/o.npy", shapes.o);
  write_file(dir / "manifest.json", manifest);
  if (labels > 0)
    write_file(dir / "tokens.json", Json{{"text", std::vector<std::string>(labels, "a")}}.dump());
  return Dump::open(dir.path());
}

Dump open_shapes(const std::vector<std::size_t>& q, const std::vector<std::size_t>& kv,
                 const std::string& manifest = "{}") {
  return open_layer({q, kv, kv}, manifest);
}

}  // namespace

TEST_CASE("tokens.json may have a text that says whose tokens they are, and nothing else", "[manifest]") {
  expect_error([] { parse_tokens(R"({"input_ids": [1, 2]})", "t.json"); },
               {"t.json: unknown key \"input_ids\"", "ids, text"});
  CHECK(parse_tokens(R"({"ids": [1, 2], "tokenizer": "a"})", "t.json").ids.size() == 2);
}

TEST_CASE("names of Hugging Face's configurations that mean the same are read", "[manifest]") {
  const Manifest manifest = parsed(
      R"({"attn_logit_softcapping": 30, "is_causal": false, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 1})");
  CHECK(manifest.logit_softcap == 30);
  CHECK(manifest.causal == false);
  CHECK(manifest.n_layers == 2);
  CHECK(manifest.n_q_heads == 4);
  CHECK(manifest.n_kv_heads == 1);
  CHECK(manifest.other_keys.empty());
  CHECK(parsed(R"({"is_causal": true, "causal": true, "attn_logit_softcapping": null})").causal == true);
}

TEST_CASE("keys that say nothing of attention are listed, and noted unless they hold a text", "[manifest]") {
  const Manifest manifest =
      parsed(R"({"licence": "MIT", "source_commit": "ab", "weights_origin": "x", "tool": {"version": 2}})");
  CHECK(manifest.other_keys ==
        std::vector<std::string>{"licence", "source_commit", "weights_origin", "tool"});
  REQUIRE(manifest.notes.size() == 1);
  CHECK(manifest.notes.front() == "manifest.json has keys that are not used: \"tool\"");
  CHECK(parsed(R"({"mask_kind": "prefix"})").notes.size() == 1);
}

TEST_CASE("what others call otherwise is refused by our name, at every level", "[manifest]") {
  for (const auto& [theirs, ours] : {std::pair{R"("residual_multiplier": 0.22)", "output_multiplier"},
                                     {R"("attention_out_multiplier": 2)", "output_multiplier"},
                                     {R"("num_kv_shared_layers": 10)", "cache_of"},
                                     {R"("two_sided": true)", "sliding_window_two_sided"},
                                     {R"("local_attention": 128)", "sliding_window"},
                                     {R"("Window": 8)", "sliding_window"},
                                     {R"("s_aux": [[1, 2]])", "sink_logit"},
                                     {R"("query_pre_attn_scalar": 256)", "1 / sqrt"},
                                     {R"("rope": {"style": "half", "base": 100})", "theta"},
                                     {R"("rope": {"style": "half", "theta": 100, "dim": 4})", "rotary_dim"}})
    expect_error([&, text = "{" + std::string(theirs) + "}"] { parsed(text); },
                 {"m.json", "unknown key", "the key for it is", ours});
  for (const auto& [slip, ours] :
       {std::pair{R"("Causal": false)", "'causal'"},
        {R"("sliding_windows": 8)", "'sliding_window'"},
        {R"("prompt-len": 8)", "'prompt_len'"},
        {R"("cache_off": [0])", "'cache_of'"},
        {R"("rope": {"style": "half", "theta": 100, "rotary-dim": 4})", "'rotary_dim'"},
        {R"("gradients": {"sample": 3})", "'samples'"},
        {R"("reference_rows": {"kinds": "repeat"})", "'kind'"}})
    expect_error([&, text = "{" + std::string(slip) + "}"] { parsed(text); },
                 {"m.json", "unknown key", "did you mean", ours});
  for (const char* twice :
       {R"({"scale": 1, "scale": 2})", R"({"rope": {"theta": 1, "style": "half", "theta": 2}})",
        R"({"gradients": {"seed": 1, "seed": 1}})"})
    expect_error([&] { parsed(twice); }, {"m.json: expected every key once", "twice"});
}

TEST_CASE("dtypes of the manifest have the names of Python's libraries", "[manifest]") {
  for (const char* name : {"bfloat16", "torch.bfloat16", "bf16"})
    CHECK(parsed(R"({"dtype": ")" + std::string(name) + "\"}").dtype == Dtype::bf16);
  for (const char* name : {"float16", "torch.float16", "fp16", "half", "torch.half"})
    CHECK(parsed(R"({"dtype": ")" + std::string(name) + "\"}").dtype == Dtype::f16);
  for (const char* name : {"float32", "float", "fp32", "torch.float"})
    CHECK(parsed(R"({"dtype": ")" + std::string(name) + "\"}").dtype == Dtype::f32);
  for (const char* name : {"float8_e4m3fn", "int8", "torch.int8", "", "Half"})
    expect_error([&] { parsed(R"({"dtype": ")" + std::string(name) + "\"}"); },
                 {"m.json: dtype: expected float16, bfloat16, float32 or float64", name});
}

TEST_CASE("an encoder's window is one-sided unless the manifest says otherwise, which is noted",
          "[manifest]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  const auto noted = [&](const std::string& manifest) {
    write_file(dir / "manifest.json", manifest);
    const Dump dump = Dump::open(dir.path());
    bool found = false;
    for (const std::string& note : dump.notes())
      found = found || note.find("sliding_window_two_sided") != std::string::npos;
    return found;
  };
  CHECK(noted(R"({"causal": false, "sliding_window": 2})"));
  CHECK_FALSE(noted(R"({"causal": false, "sliding_window": 2, "sliding_window_two_sided": false})"));
  CHECK_FALSE(noted(R"({"causal": false, "sliding_window": 2, "sliding_window_two_sided": true})"));
  CHECK(Dump::open(dir.path()).rule(0).two_sided);
  CHECK_FALSE(noted(R"({"sliding_window": 2})"));
}

TEST_CASE("element types are read under every name that NumPy reads", "[npy]") {
  for (const char* descr : {"<f4", "=f4", "|f4", "f4", "float32", "single"})
    CHECK(header_of(descr).dtype == Dtype::f32);
  for (const char* descr : {"<f2", "f2", "float16", "half"}) CHECK(header_of(descr).dtype == Dtype::f16);
  for (const char* descr : {"<f8", "=f8", "float64", "double"}) CHECK(header_of(descr).dtype == Dtype::f64);
  for (const char* descr : {"|V2", "<V2", "bfloat16"}) CHECK(header_of(descr).dtype == Dtype::bf16);
  CHECK(header_of(">f4").big_endian);
  CHECK_FALSE(header_of("f4").big_endian);
  CHECK(header_of("int64").integer->bytes == 8);
  CHECK_FALSE(header_of("=u2").integer->is_signed);
  CHECK(header_of("bool").boolean);
  for (const char* descr : {"<g2", "float8_e4m3fn", ">V2", "complex64", "<float32", "f3", ""})
    expect_error([&] { header_of(descr); }, {"a.npy: expected float16 ('<f2')", "bfloat16 ('|V2')", descr});
}

TEST_CASE("what was passed over is named where nothing else is found", "[dump]") {
  const SmallDump small;
  const TempDir dir;
  small.write(dir.path());
  for (const char* name : {"q", "k", "v"})
    std::filesystem::rename(dir / ("layer_01/" + std::string(name) + ".npy"),
                            dir / ("layer_01/" + std::string(name) + "_proj.npy"));
  expect_error([&] { Dump::open(dir.path()); },
               {"for each of 2 layers", "not used", "layer_01/k_proj.npy and 2 more"});
  const TempDir upper;
  std::filesystem::create_directory(upper / "layer_00");
  write_array(upper / "layer_00/Q.npy", {2, 4, 8});
  expect_error([&] { Dump::open(upper.path()); },
               {"no array with a name of a dump's", "layer_00/Q.npy, whose name is"});
  write_array(upper / "q.npy", {2, 4, 8});
  expect_error([&] { Dump::open(upper.path()); },
               {"q.npy: expected shape [layers, n_q, T_q, d]", "layer_00/q.npy"});
}

TEST_CASE("axes that may be swapped are asked for", "[dump]") {
  expect_error(
      [] {
        open_shapes({96, 4, 8}, {96, 4, 8});
      },
      {"q.npy: expected axes [heads, positions, d]", "96 heads of 4 positions", "prompt_len"});
  expect_error([] { open_shapes({1, 96, 4, 8}, {1, 96, 4, 8}); }, {"axes [heads, positions, d]"});
  expect_error([] { open_shapes({96, 8, 8}, {96, 2, 8}); }, {"8 queries", "[positions, heads, d]"});
  expect_error(
      [] {
        open_shapes({96, 4, 8}, {96, 4, 8}, R"({"prompt_len": 80})");
      },
      {"prompt_len", "at most the 4 positions", "look like [positions, heads, d]: swap the first two"});
  CHECK_NOTHROW(open_shapes({96, 4, 8}, {96, 4, 8}, R"({"n_kv_heads": 96})"));
  CHECK_NOTHROW(open_shapes({96, 4, 8}, {96, 4, 8}, R"({"total_len": 4})"));
  CHECK_NOTHROW(open_shapes({4, 96, 8}, {4, 96, 8}));
  CHECK_NOTHROW(open_shapes({4, 1, 8}, {4, 1, 8}));
}

TEST_CASE("positions behind the channels are refused where something contradicts them", "[dump]") {
  const auto refuse = [](const std::function<void()>& open, const std::string& of = "") {
    expect_error(open, {fmt::format("the axes {}look like [heads, d, positions]: swap the last two", of)});
  };
  // Positions are the last axis of all tensors: 100 positions, heads of 64 channels.
  for (const char* stated : {R"({"head_dim": 64})", R"({"total_len": 100})", R"({"prompt_len": 80})"})
    refuse([&] { open_shapes({4, 64, 100}, {2, 64, 100}, stated); });
  refuse([] { open_shapes({4, 64, 10}, {2, 64, 100}); });  // queries of the last 10 positions only
  refuse([] { open_shapes({4, 9, 8}, {2, 8, 9}); }, "of k, v or of q ");
  for (const auto& [shapes, of] : {std::pair{OneLayer{{4, 9, 8}, {2, 8, 9}, {2, 9, 8}}, "k"},
                                   {OneLayer{{4, 9, 8}, {2, 9, 8}, {2, 8, 9}}, "v"},
                                   {OneLayer{{4, 8, 6}, {2, 9, 8}, {2, 9, 8}}, "q"},
                                   {OneLayer{{4, 9, 8}, {2, 9, 8}, {2, 9, 8}, {4, 8, 9}}, "o or of q, k, v"},
                                   {OneLayer{{4, 8, 9}, {2, 9, 8}, {2, 9, 8}}, "k, v or of q"},
                                   {OneLayer{{4, 8, 9}, {2, 8, 9}, {2, 8, 9}, {4, 9, 8}}, "o or of q, k, v"}})
    refuse([&layer = shapes] { open_layer(layer); }, fmt::format("of {} ", of));
  // Keys of 12 channels, values of 8.
  refuse([] { open_layer({{4, 12, 9}, {2, 12, 9}, {2, 8, 9}}); });
  // There must be one label for each position.
  refuse([] { open_layer({{4, 8, 9}, {2, 8, 9}, {2, 8, 9}}, "{}", 9); });
  CHECK_NOTHROW(open_layer({{4, 8, 9}, {2, 8, 9}, {2, 8, 9}}, "{}", 8));
  expect_error(
      [] {
        open_layer({{4, 8, 9}, {2, 8, 9}, {2, 8, 9}}, "{}", 7);
      },
      {"expected 8 entries, one a position, found 7"});
  expect_error([] { open_layer({{4, 9, 8}, {2, 7, 8}, {2, 9, 8}}); }, {"v.npy: expected shape [2, 7, 8]"});
}

TEST_CASE("more channels than positions are asked for or noted where nothing is stated", "[dump]") {
  const auto noted = [](const Dump& dump) {
    return std::ranges::any_of(dump.notes(), [](const std::string& note) {
      return note.find("head_dim or total_len in manifest.json would tell") != std::string::npos;
    });
  };
  // Heads of 100 channels are rare; heads of 64 are common.
  expect_error(
      [] {
        open_shapes({4, 64, 100}, {2, 64, 100});
      },
      {"q.npy: expected axes [heads, positions, d]", "100 channels and 64 positions, or 64 channels",
       "head_dim, total_len or prompt_len"});
  CHECK(noted(open_shapes({4, 64, 100}, {2, 64, 100}, R"({"prompt_len": 60})")));
  CHECK(noted(open_shapes({4, 64, 128}, {2, 64, 128})));  // a short prompt, or heads of 64
  for (const char* stated : {R"({"head_dim": 100})", R"({"total_len": 64})"})
    CHECK_FALSE(noted(open_shapes({4, 64, 100}, {2, 64, 100}, stated)));
  CHECK_FALSE(noted(open_layer({{4, 64, 100}, {2, 64, 100}, {2, 64, 100}}, "{}", 64)));
  CHECK_FALSE(noted(open_shapes({4, 100, 64}, {2, 100, 64})));
  CHECK_FALSE(noted(open_shapes({4, 1, 64}, {2, 1, 64})));
  CHECK_FALSE(
      noted(open_shapes({4, 8, 64}, {2, 16, 64})));  // queries of the last 8: the other order fits nothing
}

TEST_CASE("a folder that is no dump is named by what lies in it", "[dump]") {
  const TempDir dir;
  const auto found = [&](const std::filesystem::path& path, std::initializer_list<std::string_view> parts) {
    expect_error([&] { Dump::open(path); }, parts);
  };
  found(dir.path(), {"expected q, k and v for each layer, found no array with a name of a dump's"});
  const SmallDump small;
  for (const char* name : {"one", "runs/a", "runs/b", "runs/c", "runs/d"}) {
    std::filesystem::create_directories(dir / name);
    small.write(dir / name);
  }
  found(dir / "runs",
        {"a folder above dumps, which are named one by one: ", "runs/a, ", "runs/c and 1 more"});
  found(dir.path(), {"a folder above dumps", "one, "});
  std::filesystem::remove_all(dir / "runs");
  found(dir.path(), {"a folder above a dump: ", "/one"});
  found(dir / "one/layer_00", {"layer_00 is one layer of the dump "});
  found(dir / "one/layer_00/q.npy", {"found one array; a dump is the folder"});
  std::filesystem::create_directory(dir / "results");
  write_file(dir / "results/summary.json", "{}");
  found(dir / "results", {"found results"});
}

TEST_CASE("files of other formats are named with how they are converted", "[dump]") {
  for (const auto& [ending, kind] : {std::pair{".pt", "PyTorch"},
                                     {".pth", "PyTorch"},
                                     {".safetensors", "safetensors"},
                                     {".h5", "HDF5"},
                                     {".pkl", "pickle"}}) {
    const TempDir dir;
    INFO(ending);
    std::filesystem::create_directory(dir / "layer_00");
    for (const char* name : {"q", "k", "v"})
      write_file(dir / (std::string("layer_00/") + name + ending), "x");
    expect_error(
        [&] { Dump::open(dir.path()); },
        {"q, k and v for each layer", std::string("layer_00/k") + ending, "and 2 more", kind, "numpy.save"});
    expect_error([&, end = ending] { Dump::open(dir / (std::string("layer_00/k") + end)); },
                 {kind, "numpy.save"});
    for (const char* name : {"q", "k"})
      write_array(dir / (std::string("layer_00/") + name + ".npy"), {2, 9, 8});
    std::filesystem::remove(dir / (std::string("layer_00/q") + ending));
    std::filesystem::remove(dir / (std::string("layer_00/k") + ending));
    expect_error([&] { Dump::open(dir.path()); },
                 {"that layer 0 has no v", std::string("layer_00/v") + ending + " is a " + kind + " file"});
  }
  const TempDir dir;
  write_file(dir / "model.gguf", "GGUF");
  expect_error([&] { Dump::open(dir / "model.gguf"); }, {"found a model: ", "--gguf"});
  write_file(dir / "notes.txt", "x");
  expect_error([&] { Dump::open(dir / "notes.txt"); },
               {"expected a dump folder or an .npz file, found neither"});
}

TEST_CASE("a null pointer is no path", "[dump]") {
  const char* const none = nullptr;
  expect_error([&] { Dump::open(none); }, {"expected the path of a dump, found a null pointer"});
  expect_error([] { Dump::open(nullptr); }, {"a null pointer"});
}

TEST_CASE("layers of another shape are refused with the way out", "[dump]") {
  const auto second = [](const std::vector<std::size_t>& q, const std::vector<std::size_t>& kv) {
    const TempDir dir;
    for (const char* layer : {"layer_00", "layer_01"}) {
      const bool last = std::string_view(layer) == "layer_01";
      std::filesystem::create_directory(dir / layer);
      write_array(dir / layer / "q.npy", last ? q : std::vector<std::size_t>{4, 9, 8});
      for (const char* name : {"k.npy", "v.npy"})
        write_array(dir / layer / name, last ? kv : std::vector<std::size_t>{2, 9, 8});
    }
    Dump::open(dir.path());
  };
  expect_error([&] { second({4, 9, 16}, {2, 9, 16}); }, {"layer_01/q.npy", "a dump of their own", "layers"});
  expect_error([&] { second({4, 9, 8}, {1, 9, 8}); }, {"layer_01/k.npy", "a dump of their own"});
  expect_error([&] { second({4, 9, 8}, {2, 3, 8}); }, {"layer_01/k.npy", "cut to its window"});
}

TEST_CASE("what Windows' editors write before a text is no part of it", "[json]") {
  const std::string bom = "\xEF\xBB\xBF";
  CHECK(parsed(bom + R"({"scale": 0.5})").scale == 0.5);
  CHECK(parse_tokens(bom + "{\"text\": [\"a\", \"" + bom + "\"]}", "t.json").text.back() == bom);
  CHECK(parsed(bom + " {}").other_keys.empty());
  expect_error([&] { parsed(bom + bom + "{}"); }, {"m.json: expected JSON", "line 1, column 4"});
  expect_error([&] { parsed(bom); }, {"m.json: expected JSON"});
  expect_error([] { parsed(std::string("\xFF\xFE{\0}\0", 6)); }, {"m.json: expected JSON", "zero byte"});
}

TEST_CASE("JSON of any size and content ends in one line", "[json]") {
  expect_error([] { parse_json_object(R"({"a": {"scale": 1e999}})", "m.json"); },
               {"m.json: scale: expected numbers within float64's range"});
  const auto text = [](const char* json) {
    return parse_json_object(json, "m.json").at("a").get<std::string>();
  };
  CHECK(text(R"({"a": "x\udc80y"})") == "x\xef\xbf\xbdy");
  CHECK(text(R"({"a": "\ud83d"})") == "\xef\xbf\xbd");
  CHECK(text(R"({"a": "\ud83d\ud83d\ude00"})") == "\xef\xbf\xbd\xf0\x9f\x98\x80");
  CHECK(text(R"({"a": "\\udc80"})") == "\\udc80");
  const TempDir dir;
  {
    const SmallDump small;
    small.write(dir.path());
    write_file(dir / "manifest.json", "{}");
    std::filesystem::resize_file(dir / "manifest.json", std::uintmax_t{1} << 40);  // a hole
    expect_error([&] { Dump::open(dir.path()); },
                 {"manifest.json: expected at most 67108864 bytes, found 1099511627776"});
  }
}

}  // namespace kvreplay
