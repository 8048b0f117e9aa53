#include "tests/analysis/channel_runs.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <csignal>

// Input of `channels`: dumps that lack something, runs in parts or cut short, mistakes.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::string left_out(const fs::path& folder) {
  return Json::parse(file_text(folder / "summary.json"))["left_out"].dump();
}

/// Changes the manifest of a dump.
template <class Change>
void edit_manifest(const std::string& dump, const Change& change) {
  Json json = Json::parse(file_text(dump + "/manifest.json"));
  change(json);
  write_file(dump + "/manifest.json", json.dump());
}

/// Drops the last channel of queries and keys.
void drop_channel(const std::string& dump) {
  for (const char* layer : {"layer_00", "layer_01"})
    for (const char* name : {"q.npy", "k.npy"}) {
      const fs::path path = fs::path(dump) / layer / name;
      Npy all = npy_file(path);
      const std::size_t d = all.shape.back();
      std::string less;
      for (std::size_t row = 0; row * d * sizeof(float) < all.data.size(); ++row)
        less += all.data.substr(row * d * sizeof(float), (d - 1) * sizeof(float));
      all.data = less;
      all.shape.back() = d - 1;
      write_file(path, all.bytes());
      fs::remove(fs::path(dump) / layer / "o.npy");
    }
  edit_manifest(dump, [](Json& json) {
    json["head_dim"] = 7;
    json["rope"]["rotary_dim"] = 6;
  });
}

/// Seven channels, the last without a partner: of three, rope_pairs prunes 3 where it costs nothing (KV head
/// 0), and 2 where it costs more than all others (KV head 1).
void uneven_pairs(const std::string& dump) {
  make_small_dump(dump);
  drop_channel(dump);
  for (const char* layer : {"layer_00", "layer_01"}) {
    const fs::path path = fs::path(dump) / layer / "k.npy";
    const Npy k = npy_file(path);
    std::vector<float> values = k.as<float>();
    for (std::size_t row = 0; row < values.size() / 7; ++row)
      values[row * 7 + 6] = row < values.size() / 14 ? 0.0F : 1000.0F;
    write_file(path, npy("<f4", k.shape, values).bytes());
  }
}

}  // namespace

TEST_CASE("channels without something in the dump", "[cli][channels]") {
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "r";
  make_small_dump(dump);
  const auto table = [&] { return file_text(out + "/channels.csv"); };
  SECTION("no rotation") {
    edit_manifest(dump, [](Json& json) { json.erase("rope"); });
    for (const char* method : {"rope_pairs", "exchange+rope_pairs"}) {
      CHECK(contains(refusal({"channels", dump, "--method", method}, out),
                     fmt::format("--method: {} is unavailable: the manifest has no rope", method)));
      CHECK(contains(
          refusal({"evict", dump, "--policy", "none", "--channels", method + std::string(":0.5")}, out),
          fmt::format("--channels: {} is unavailable: the manifest has no rope", method)));
    }
    const ProcessResult done = run_command("channels", dump, out);
    CHECK(contains(done.out, "left out: rope_pair_share (the manifest has no rope)"));
    CHECK(contains(left_out(out), "\"rope_pair_share\""));
    CHECK_FALSE(contains(table(), "rope_pair_share"));
    CHECK_FALSE(fs::exists(out + "/maps/rope_pair_share.npy"));
    CHECK_FALSE(fs::exists(out + "/layer_00/channels/rope_pair.npy"));
    CHECK(contains(table(), "off_diagonal_share"));
  }
  SECTION("no output projection") {
    remove_tensor(dump, "wo");
    run_command("channels", dump, out);
    CHECK(contains(left_out(out), "\"layer_output_error\""));
    CHECK_FALSE(contains(table(), "layer_output_error"));
    CHECK(contains(table(), ",output,"));  // the method asks for values, not for W_O
  }
  SECTION("no decoding steps") {
    make_small_dump(temp / "prompt", {"--decode", "0"});
    const ProcessResult done = run_command("channels", temp / "prompt", out);
    CHECK(contains(done.out, "output error over all heads / of the median head on the window rows"));
    CHECK(contains(left_out(out), "the metrics on future rows"));
    const ChannelFigures csv(out);
    for (const CsvRow& row : csv.rows()) CHECK(row.at("rows") != "future");
    for (const std::string& name : names_in(out + "/layer_00/channels"))
      CHECK_FALSE(contains(name, "future"));
    for (const std::string& name : names_in(out + "/maps")) CHECK_FALSE(contains(name, "future"));
    const Json totals = Json::parse(file_text(out + "/summary.json"))["totals"];
    CHECK(totals["future_rows"] == 0);
    CHECK(totals["channel_errors"]["iap-0.5"] == csv.at(",", "iap-0.5", "window", "output_error"));
  }
  SECTION("queries of the window and the decoding steps only") {
    run_command("channels", dump, temp / "whole", {"--window", "16"});
    keep_late_queries(dump, 16 + 9);
    run_command("channels", dump, out, {"--window", "16"});
    CHECK(file_text(temp / "whole/channels.csv") == table());
    run_command("channels", dump, temp / "more");
    CHECK(contains(file_text(temp / "more/summary.json"), "window 32 clipped to 16"));
    CHECK(Json::parse(file_text(temp / "more/summary.json"))["totals"]["channel_window_rows"] == 16);
    CHECK(file_text(temp / "more/channels.csv") == table());
  }
  SECTION("queries of the decoding steps only") {
    keep_late_queries(dump, 9);
    const std::string why = "channels are ranked by queries of the prompt, and the dump has none";
    CHECK(contains(refusal({"channels", dump}, out), why));
    CHECK(contains(refusal({"analyze", dump, "--only", "channels"}, out), why));
    CHECK(contains(refusal({"evict", dump, "--policy", "none", "--channels", "think:0.5"}, out), why));
    run_command("analyze", dump, out);
    CHECK(contains(left_out(out), why));
    CHECK_FALSE(fs::exists(out + "/channels.csv"));
  }
  SECTION("a prompt no longer than what stays whole") {
    make_small_dump(temp / "short", {"--prompt", "32", "--layers", "1"});
    const std::string why = "the last 32 keys stay whole, and the prompt has 32";
    CHECK(contains(refusal({"channels", temp / "short"}, out), why));
    run_command("channels", temp / "short", temp / "shorter", {"--recent", "31"});
    run_command("channels", temp / "short", temp / "kvpress", {"--semantics", "kvpress"});
    run_command("analyze", temp / "short", out);
    CHECK(contains(left_out(out), why));
  }
  SECTION("an odd number of channels, some of them not rotated") {
    drop_channel(dump);
    run_command("channels", dump, out,
                {"--method", "magnitude,iap,convex,output,rope_pairs", "--ratio", "0.5,0.9"});
    CHECK(channel_array(out, 0, "rope_pair").as<std::int32_t>() ==
          std::vector<std::int32_t>{3, 4, 5, 0, 1, 2, -1});
    const Npy order = channel_array(out, 1, "rope_pairs_order");
    CHECK(order.shape == std::vector<std::size_t>{2, 7});
    for (const std::size_t head : {0, 1}) {
      std::vector<std::int32_t> channels = row_of<std::int32_t>(order, head);
      std::sort(channels.begin(), channels.end());
      CHECK(channels == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6});
      CHECK(marked(row_of<char>(channel_array(out, 1, "iap-0.5"), head)) == 3);
      CHECK(marked(row_of<char>(channel_array(out, 1, "iap-0.9"), head)) == 6);
      const std::size_t pairs = marked(row_of<char>(channel_array(out, 1, "rope_pairs-0.5"), head));
      CHECK((pairs == 2 || pairs == 3));  // 3 where channel 6 goes first
    }
  }
  SECTION("one query head to a KV head") {
    make_small_dump(temp / "mha", {"--q-heads", "2"});
    run_command("channels", temp / "mha", out, {"--semantics", "official"});
    CHECK(channel_array(out, 0, "interaction").shape == std::vector<std::size_t>{2, 8, 8});
    CHECK(channel_array(out, 0, "query_window_mean").shape == std::vector<std::size_t>{2, 8});
  }
}

TEST_CASE("heads that prune different numbers share no count", "[cli][channels]") {
  const TempDir temp;
  uneven_pairs(temp / "dump");
  run_command("channels", temp / "dump", temp / "r", {"--method", "think,rope_pairs", "--ratio", "0.5"});
  const ChannelFigures csv(temp / "r");
  for (const CsvRow& row : csv.rows())
    if (row.at("method") == "rope_pairs")
      CHECK(row.at("pruned") == (row.at("kv_head") == "0" ? "3" : row.at("kv_head") == "1" ? "2" : ""));
  // sets of different sizes have no gain over each other
  for (const char* metric : {"reconstruction_gain", "output_gain"})
    for (const char* rows : {"window", "future"}) {
      INFO(metric << " " << rows);
      CHECK(csv.has("0,0", "rope_pairs-0.5", rows, metric));
      for (const char* scope : {"0,1", "0,", ","})
        CHECK_FALSE(csv.has(scope, "rope_pairs-0.5", rows, metric));
    }
}

TEST_CASE("a map of gains has an entry for every head, nan where there is none", "[cli][channels]") {
  const TempDir temp;
  uneven_pairs(temp / "dump");
  run_command("channels", temp / "dump", temp / "r", {"--method", "think,rope_pairs", "--ratio", "0.5"});
  const ChannelFigures csv(temp / "r");
  for (const char* metric : {"reconstruction_gain", "output_gain"}) {
    const Npy map = npy_file(temp / fmt::format("r/maps/rope_pairs-0.5~window~{}.npy", metric));
    CHECK(map.shape == std::vector<std::size_t>{2, 2});
    const std::vector<double> values = map.as<double>();
    REQUIRE(values.size() == 4);
    for (const std::size_t layer : {0, 1}) {
      CHECK(values[2 * layer] == csv.at(fmt::format("{},0", layer), "rope_pairs-0.5", "window", metric));
      CHECK(std::isnan(values[2 * layer + 1]));
    }
  }
}

TEST_CASE("names and ratios that are given twice count once", "[cli][channels]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  run_command("channels", temp / "dump", temp / "once", {"--method", "think,exchange", "--ratio", "0,0.5"});
  run_command("channels", temp / "dump", temp / "twice",
              {"--method", "think,exchange,think", "--ratio", "-0,0.50,0.5,0"});
  CHECK(difference(temp / "once", temp / "twice") == "");
}

TEST_CASE("an existing result of channels is kept unless told otherwise", "[cli][channels]") {
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "r";
  make_small_dump(dump);
  const std::vector<std::string> small = {"--method", "think", "--ratio", "0.5"};
  run_command("channels", dump, out, small);
  const auto before = contents(out);
  CHECK(contains(complaint({"channels", dump, "--out", out}), "--force"));
  CHECK(contents(out) == before);
  // another question may not go on where this one stopped
  CHECK(contains(complaint(joined({"channels", dump, "--out", out, "--resume"}, {"--method", "iap"})), out));
  CHECK(contents(out) == before);
  CHECK(contains(run_command("channels", dump, out, joined(small, {"--resume"})).out, "already finished"));
  run_command("channels", dump, out, {"--force", "--method", "iap", "--ratio", "0.5"});
  run_command("channels", dump, temp / "iap", {"--method", "iap", "--ratio", "0.5"});
  CHECK(difference(out, temp / "iap") == "");  // nothing of the first is left
}

TEST_CASE("channels have the same bytes for any number of threads, and after an interruption",
          "[cli][channels][interrupt]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump, {"--layers", "6", "--prompt", "300", "--head-dim", "16"});
  const std::vector<std::string> options = {"--method",    "think,iap,exchange+magnitude,output,rope_pairs",
                                            "--ratio",     "0.4,0.7",
                                            "--semantics", "official"};
  run_command("channels", dump, temp / "1", joined(options, {"--threads", "1"}));
  run_command("channels", dump, temp / "3", joined(options, {"--threads", "3"}));
  CHECK(difference(temp / "1", temp / "3") == "");

  const std::vector<std::string> resumed = joined(
      joined({"channels", dump, "--out", temp / "r", "--precision", "f64", "--resume", "--quiet"}, options),
      {"--threads", "2"});
  {
    Process process(kvreplay_command(resumed));
    REQUIRE(wait_for(temp / "r/.kvreplay/layers/layer_00.figures", process));
    process.send(SIGINT);
    const ProcessResult stopped = process.wait();
    INFO(stopped.err);
    CHECK(stopped.code == 130);
    CHECK_FALSE(fs::exists(temp / "r/summary.json"));
    CHECK_FALSE(has_half_written(temp / "r"));
  }
  CHECK(run_kvreplay(resumed).code == 0);
  CHECK(difference(temp / "1", temp / "r") == "");
}

TEST_CASE("some layers of channels are those of the whole", "[cli][channels]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump, {"--layers", "4"});
  const std::vector<std::string> options = {"--method", "think,iap,output", "--ratio", "0.5"};
  run_command("channels", dump, temp / "all", options);
  run_command("channels", dump, temp / "13", joined(options, {"--layers", "1,3"}));
  run_command("channels", dump, temp / "2of2", joined(options, {"--shard", "2/2"}));
  run_command("channels", dump, temp / "5of5", joined(options, {"--shard", "5/5"}));
  const ChannelFigures all(temp / "all"), some(temp / "13"), shard(temp / "2of2");
  const auto layer_files = [&](const std::string& out) {
    std::map<std::string, std::string> files;
    for (auto& [name, bytes] : contents(temp / out))
      if (name.starts_with("layer_01") || name.starts_with("layer_03")) files[name] = bytes;
    return files;
  };
  CHECK(layer_files("13").size() > 20);
  CHECK(layer_files("13") == layer_files("all"));
  CHECK(layer_files("2of2") == layer_files("all"));  // layers are dealt out in turn
  for (const char* out : {"13", "2of2"})
    for (const char* layer : {"layer_00", "layer_02"}) CHECK_FALSE(fs::exists(temp / out / layer));
  std::size_t compared = 0;
  for (const CsvRow& row : some.rows()) {
    if (row.at("layer").empty()) continue;
    CHECK(std::find(all.rows().begin(), all.rows().end(), row) != all.rows().end());
    ++compared;
  }
  CHECK(compared ==
        all.rows().size() - compared - (some.rows().size() - compared));  // half of all layers' rows
  CHECK(some.rows() == shard.rows());
  const Npy map = npy_file(temp / "13/maps/iap-0.5~window~output_error.npy");
  CHECK(map.shape == std::vector<std::size_t>{2, 2});
  CHECK(map.as<double>()[2] == all.at("3,0", "iap-0.5", "window", "output_error"));
  CHECK(some.at(",", "iap-0.5", "window", "reconstruction_error") ==
        Approx(all.at("1,", "iap-0.5", "window", "reconstruction_error") +
               all.at("3,", "iap-0.5", "window", "reconstruction_error")));
  CHECK(lines(file_text(temp / "5of5/channels.csv")) == 1);  // more parts than layers
  CHECK(Json::parse(file_text(temp / "2of2/summary.json"))["shard"] == "2/2");
}
