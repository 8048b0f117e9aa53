#include "tests/analysis/channel_runs.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iterator>
#include <sstream>

// `kvreplay evict --channels METHOD:RATIO --bits N`: what caches cost whose keys lose channels and whose
// numbers are quantized.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kTokens = 61;
const std::vector<std::string> kScopes = {"0,0", "0,1", "0,", "1,0", "1,1", "1,", ","};
const std::string kNone = "none,paper,prefill,";  // a run of --policy none

Evictions evict(const std::string& dump, const std::string& out, const std::vector<std::string>& more) {
  run_command("evict", dump, out, more);
  return Evictions(out);
}

/// A table without the columns that name the run.
std::vector<CsvRow> figures_of(const Evictions& csv, const std::string& policy) {
  std::vector<CsvRow> rows;
  for (CsvRow row : csv.rows())
    if (row.at("policy") == policy) {
      for (const char* name : {"policy", "semantics", "phase", "budget"}) row.erase(name);
      rows.push_back(std::move(row));
    }
  return rows;
}

}  // namespace

TEST_CASE("fewer bits cost more and weigh less", "[cli][compress]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  const std::vector<std::string> none = {"--policy", "none", "--residual", "8", "--group", "4"};
  std::map<int, Evictions> by_bits;
  for (const int bits : {2, 4, 8})
    by_bits.emplace(
        bits, evict(dump, temp / fmt::format("{}", bits), joined(none, {"--bits", fmt::format("{}", bits)})));
  const auto at = [&](int bits, const std::string& scope, const std::string& rows,
                      const std::string& metric) { return by_bits.at(bits).at(scope, kNone, rows, metric); };
  for (const std::string& scope : kScopes) {
    INFO(scope);
    for (const char* rows : {"window", "future"}) {
      CHECK(at(8, scope, rows, "output_error") > 0);
      CHECK(at(8, scope, rows, "output_error") < at(4, scope, rows, "output_error"));
      CHECK(at(4, scope, rows, "output_error") < at(2, scope, rows, "output_error"));
      if (scope == "0," || scope == "1,") {
        CHECK(at(8, scope, rows, "layer_output_error") < at(4, scope, rows, "layer_output_error"));
        CHECK(at(4, scope, rows, "layer_output_error") < at(2, scope, rows, "layer_output_error"));
      }
    }
    // nothing was evicted
    CHECK(at(2, scope, "future", "eviction_loss") == 0.0);
    CHECK(at(2, scope, "future", "oracle_recall") == 1.0);
  }
  // 53 of 61 tokens are beyond the residual: 52 keys in 13 groups a channel, 53 values in 2 groups a token
  for (const int bits : {2, 4, 8}) {
    const double keys = 52 * 8 * bits / 8.0 + 13 * 8 * 2 * 2 + 9 * 8 * 2,
                 values = 53 * 8 * bits / 8.0 + 53 * 2 * 2 * 2 + 8 * 8 * 2;
    CHECK(at(bits, "0,1", "", "bytes") == keys + values);
    CHECK(at(bits, "1,", "", "bytes") == 2 * (keys + values));
    CHECK(at(bits, ",", "", "bytes") == 4 * (keys + values));
  }
  for (const CsvRow& row : by_bits.at(4).rows()) {
    CHECK(row.at("kept") == "61");
    CHECK(row.at("budget").empty());
  }
  const Npy kept = npy_file(temp / "4/layer_01/kept/none-paper-prefill-61.npy");
  CHECK(kept.data == std::string(2 * kTokens, '\x01'));
  const Json options = Json::parse(file_text(temp / "4/summary.json"))["options"]["evict"];
  CHECK(options["bits"] == 4);
  CHECK(options["group"] == 4);
  CHECK(options["residual"] == 8);
  // the defaults
  const Json usual = (evict(dump, temp / "u", {"--policy", "none", "--bits", "4"}),
                      Json::parse(file_text(temp / "u/summary.json"))["options"]["evict"]);
  CHECK(usual["group"] == 32);
  CHECK(usual["residual"] == 128);
}

TEST_CASE("what is not quantized loses nothing", "[cli][compress]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  for (const auto& [name, options] :
       {std::pair<const char*, std::vector<std::string>>{"residual", {"--residual", "61"}},
        {"default residual", {}},
        {"channels", {"--channels", "iap:0"}}}) {
    const Evictions csv =
        evict(temp / "dump", temp / name, joined({"--policy", "none", "--bits", "2"}, options));
    for (const std::string& scope : kScopes) {
      INFO(name << " " << scope);
      for (const char* rows : {"window", "future"}) CHECK(csv.at(scope, kNone, rows, "output_error") == 0.0);
    }
    CHECK(csv.at(",", kNone, "", "bytes") == 4 * kTokens * 16 * 2);  // 16 bits, whatever the dump's
  }
}

TEST_CASE("a budget of the whole prompt is no eviction", "[cli][compress]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const Evictions csv = evict(temp / "dump", temp / "r",
                              {"--policy", "h2o,streaming,none", "--budget", "61", "--channels", "iap:0.5",
                               "--bits", "4", "--residual", "8"});
  const std::vector<CsvRow> none = figures_of(csv, "none");
  REQUIRE_FALSE(none.empty());
  CHECK(figures_of(csv, "h2o") == none);
  CHECK(figures_of(csv, "streaming") == none);
}

TEST_CASE("pruning no channels changes nothing", "[cli][compress]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::vector<std::string> options = {"--policy", "h2o,snapkv,exchange", "--budget", "20,50",
                                            "--phase",  "prefill,blockwise:16"};
  const Evictions plain = evict(temp / "dump", temp / "plain", options),
                  zero = evict(temp / "dump", temp / "zero", joined(options, {"--channels", "iap:0"}));
  REQUIRE(plain.rows().size() == zero.rows().size());
  for (std::size_t r = 0; r < plain.rows().size(); ++r) {
    CsvRow a = plain.rows()[r], b = zero.rows()[r];
    CHECK(std::stod(a["value"]) == Approx(std::stod(b["value"])).epsilon(1e-12).margin(1e-15));
    a.erase("value");
    b.erase("value");
    CHECK(a == b);
  }
  for (const char* layer : {"layer_00", "layer_01"}) {
    CHECK(names_in(temp / "plain" / layer) == std::set<std::string>{"kept"});
    CHECK(names_in(temp / "zero" / layer) == std::set<std::string>{"kept", "pruned"});
    CHECK(difference(temp / "plain" / layer / "kept", temp / "zero" / layer / "kept") == "");
  }
}

TEST_CASE("channels and bits leave the kept sets alone", "[cli][compress]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::vector<std::string> options = {"--policy", "h2o,keydiff", "--budget", "20,50"};
  const Evictions plain = evict(temp / "dump", temp / "plain", options),
                  both = evict(temp / "dump", temp / "both",
                               joined(options, {"--channels", "think:0.5", "--bits", "4", "--residual", "4",
                                                "--group", "4"}));
  for (const char* layer : {"layer_00", "layer_01"})
    CHECK(difference(temp / "plain" / layer / "kept", temp / "both" / layer / "kept") == "");
  for (const char* policy : {"h2o", "keydiff"})
    for (const char* budget : {"20", "50"}) {
      const std::string run = fmt::format("{},paper,prefill,{}", policy, budget);
      for (const std::string& scope : kScopes) {
        INFO(run << " " << scope);
        for (const char* metric : {"eviction_loss", "optimality_gap", "oracle_recall"})
          CHECK(both.at(scope, run, "future", metric) == plain.at(scope, run, "future", metric));
        CHECK(both.at(scope, run, "", "bytes") < plain.at(scope, run, "", "bytes"));
        CHECK(both.at(scope, run, "window", "output_error") !=
              plain.at(scope, run, "window", "output_error"));
      }
    }
}

TEST_CASE("of few kept tokens no keys lose channels", "[cli][compress]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::vector<std::string> options = {"--policy", "h2o", "--budget", "32,33"};
  const Evictions plain = evict(temp / "dump", temp / "plain", options),
                  pruned = evict(temp / "dump", temp / "r", joined(options, {"--channels", "output:0.5"}));
  for (const std::string& scope : {std::string("0,0"), std::string("1,"), std::string(",")}) {
    const double selections = scope == "," ? 4 : scope == "1," ? 2 : 1;
    const auto lost = [&](const std::string& run) {
      return plain.at(scope, run, "", "bytes") - pruned.at(scope, run, "", "bytes");
    };
    CHECK(lost("h2o,paper,prefill,32") == 0.0);  // the last 32 stay whole
    CHECK(lost("h2o,paper,prefill,33") == selections * 4 * 2);
    for (const char* rows : {"window", "future"})
      CHECK(pruned.at(scope, "h2o,paper,prefill,32", rows, "output_error") ==
            Approx(plain.at(scope, "h2o,paper,prefill,32", rows, "output_error")).epsilon(1e-12));
  }
}

TEST_CASE("the whole prompt without channels is what the command channels measures", "[cli][compress]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::string methods = "magnitude,think,iap,exchange,output,convex,rope_pairs,exchange+think";
  run_command("channels", temp / "dump", temp / "c", {"--method", methods, "--ratio", "0.5"});
  const ChannelFigures channels(temp / "c");
  for (const char* method :
       {"magnitude", "think", "iap", "output", "convex", "rope_pairs", "exchange+think"}) {
    const std::string which = fmt::format("{}-0.5", method);
    const Evictions csv = evict(temp / "dump", temp / method,
                                {"--policy", "none", "--channels", fmt::format("{}:0.5", method)});
    for (const std::string& scope : kScopes) {
      INFO(method << " " << scope);
      for (const char* rows : {"window", "future"}) {
        CHECK(csv.at(scope, kNone, rows, "output_error") == channels.at(scope, which, rows, "output_error"));
        if (scope == "0," || scope == "1,")
          CHECK(csv.at(scope, kNone, rows, "layer_output_error") ==
                channels.at(scope, which, rows, "layer_output_error"));
      }
      CHECK(csv.at(scope, kNone, "", "bytes") == channels.at(scope, which, "", "bytes"));
    }
  }
}

TEST_CASE("protected channels and recent keys are those of the command channels", "[cli][compress]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::vector<std::string> setting = {"--protect", "20:40", "--recent", "6"};
  run_command("channels", temp / "dump", temp / "c",
              joined({"--method", "think,iap", "--ratio", "0.5"}, setting));
  const ChannelFigures channels(temp / "c");
  for (const char* method : {"think", "iap"}) {
    const std::string which = fmt::format("{}-0.5", method);
    const std::vector<std::string> none = {"--policy", "none", "--channels", fmt::format("{}:0.5", method)};
    const Evictions csv = evict(temp / "dump", temp / method, joined(none, setting)),
                    usual = evict(temp / "dump", temp / (which + "-usual"), none);
    for (const char* layer : {"layer_00", "layer_01"})
      CHECK(file_text(temp / method / layer / "pruned" / "none-paper-prefill-61.npy") ==
            file_text(temp / "c" / layer / "channels" / (which + ".npy")));
    for (const std::string& scope : kScopes)
      CHECK(csv.at(scope, kNone, "future", "output_error") ==
            channels.at(scope, which, "future", "output_error"));
    CHECK(csv.at(",", kNone, "future", "output_error") != usual.at(",", kNone, "future", "output_error"));
  }
}

TEST_CASE("evict prunes channels in the setting of its semantics", "[cli][compress]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  const std::vector<std::string> options = {"--policy", "none", "--channels", "think:0.5"};
  const Evictions both = evict(dump, temp / "d", joined(options, {"--diff", "paper,official,kvpress"}));
  std::map<std::string, double> bytes;
  for (const char* semantics : {"paper", "official", "kvpress"}) {
    INFO(semantics);
    const std::string run = fmt::format("none,{},prefill,", semantics);
    const Evictions one = evict(dump, temp / semantics, joined(options, {"--semantics", semantics})),
                    each = evict(dump, temp / fmt::format("{}-q", semantics),
                                 joined(options, {"--semantics", semantics, "--per-query-head"}));
    run_command("channels", dump, temp / fmt::format("{}-c", semantics),
                {"--method", "think", "--ratio", "0.5", "--semantics", semantics});
    const ChannelFigures channels(temp / fmt::format("{}-c", semantics));
    // ThinK's code chooses for every query head, as evict does with --per-query-head
    const Evictions& alike = semantics == std::string("official") ? each : one;
    for (const std::string& scope : kScopes) {
      for (const char* rows : {"window", "future"}) {
        CHECK(both.at(scope, run, rows, "output_error") == one.at(scope, run, rows, "output_error"));
        CHECK(alike.at(scope, run, rows, "output_error") ==
              Approx(channels.at(scope, "think-0.5", rows, "output_error")).epsilon(1e-12));
      }
      CHECK(alike.at(scope, run, "", "bytes") == channels.at(scope, "think-0.5", "", "bytes"));
    }
    bytes[semantics] = one.at(",", run, "", "bytes");
  }
  CHECK(bytes["official"] == bytes["paper"]);
  CHECK(bytes["kvpress"] == bytes["paper"] - 4 * 32 * 4 * 2);  // every key loses channels
}

TEST_CASE("a kept set of the user's is compressed like a policy's", "[cli][compress]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::vector<std::string> options = {"--policy", "keydiff", "--budget", "50",         "--channels",
                                            "iap:0.5",  "--bits",  "4",        "--residual", "8"};
  evict(temp / "dump", temp / "p", options);
  Npy mine = npy_file(temp / "p/layer_00/kept/keydiff-paper-prefill-50.npy");
  mine.data += npy_file(temp / "p/layer_01/kept/keydiff-paper-prefill-50.npy").data;
  mine.shape.insert(mine.shape.begin(), 2);
  write_file(temp / "mine.npy", mine.bytes());
  const Evictions csv =
      evict(temp / "dump", temp / "r", joined(options, {"--kept", "mine=" + (temp / "mine.npy").string()}));
  CHECK_FALSE(figures_of(csv, "mine").empty());
  CHECK(figures_of(csv, "mine") == figures_of(csv, "keydiff"));
}

TEST_CASE("compressed caches have the same bytes for any number of threads, and in parts",
          "[cli][compress]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--prompt", "150", "--head-dim", "24"});
  const std::vector<std::string> options = {
      "--policy", "h2o,exchange,none", "--sigma", "0.5",     "--channels", "output:0.4", "--bits",
      "2",        "--residual",        "16",      "--group", "10"};
  const Evictions whole = evict(temp / "dump", temp / "1", joined(options, {"--threads", "1"}));
  evict(temp / "dump", temp / "3", joined(options, {"--threads", "3"}));
  CHECK(difference(temp / "1", temp / "3") == "");
  const Evictions part = evict(temp / "dump", temp / "p", joined(options, {"--layers", "1"}));
  CHECK(difference(temp / "1/layer_01", temp / "p/layer_01") == "");
  std::size_t compared = 0;
  for (const CsvRow& row : part.rows())
    if (!row.at("layer").empty()) {
      CHECK(std::find(whole.rows().begin(), whole.rows().end(), row) != whole.rows().end());
      ++compared;
    }
  CHECK(compared > 30);
  // and float32 measures the same, to its digits
  const Evictions single = evict(temp / "dump", temp / "32", joined(options, {"--precision", "f32"}));
  for (const char* run : {"none,paper,prefill,", "h2o,paper,prefill,0.5"}) {
    CHECK(single.at(",", run, "future", "output_error") ==
          Approx(whole.at(",", run, "future", "output_error")).epsilon(1e-3));
    CHECK(single.at(",", run, "", "bytes") == whole.at(",", run, "", "bytes"));
  }
}

TEST_CASE("several formats in one run are the runs of each", "[cli][compress]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  succeed({"synth", dump, "--layers", "3", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "32",
           "--prompt", "61", "--decode", "9"});
  const std::vector<std::string> rest = {"--policy", "none,h2o", "--budget", "40", "--residual", "4"};
  const Evictions all = evict(
      dump, temp / "all",
      joined(rest, {"--bits", "k4v2,8;0,last:k16v4,q4_0,kfp8vnvfp4,tq3", "--rotate", "none,hadamard,v:16"}));
  const std::vector<std::string> formats = {"k4v2", "8;0,last:k16v4", "q4_0", "kfp8vnvfp4", "tq3"};
  for (const std::string& format : formats)
    for (const char* rotation : {"none", "hadamard", "v:16"}) {
      fs::remove_all(temp / "one");
      const Evictions one =
          evict(dump, temp / "one", joined(rest, {"--bits", "'" + format + "'", "--rotate", rotation}));
      const std::string named = rotation == std::string("none") ? format : format + "+" + rotation;
      for (const CsvRow& row : one.rows()) {
        const std::string run = fmt::format(",{},{},{}", row.at("semantics"), row.at("phase"),
                                            row.at("budget")),
                          scope = row.at("layer") + "," + row.at("kv_head");
        INFO(named << " " << scope << " " << row.at("policy") << run << " " << row.at("metric"));
        CHECK(std::stod(row.at("value")) ==
              all.at(scope, row.at("policy") + "~" + named + run, row.at("rows"), row.at("metric")));
      }
    }
  const auto error = [&](const std::string& scope, const std::string& format) {
    return all.at(scope, "none~" + format + ",paper,prefill,", "future", "output_error");
  };
  // Layers of their own format: the first and the last lose by their values alone.
  const Evictions plain = evict(dump, temp / "plain", joined(rest, {"--bits", "8,k16v4"}));
  const auto of_plain = [&](const std::string& scope, const std::string& format) {
    return plain.at(scope, "none~" + format + ",paper,prefill,", "future", "output_error");
  };
  CHECK(error("0,", "8;0,last:k16v4") == of_plain("0,", "k16v4"));
  CHECK(error("1,", "8;0,last:k16v4") == of_plain("1,", "8"));
  CHECK(error("2,", "8;0,last:k16v4") == of_plain("2,", "k16v4"));
  // 57 of 61 tokens are beyond the residual; a 16-bit scale for 32 numbers of key and value.
  const double q4_0 = 57 * 2 * (32 * 0.5 + 2) + 4 * 2 * 32 * 2;
  CHECK(all.at("0,0", "none~q4_0,paper,prefill,", "", "bytes") == q4_0);
  CHECK(all.at(",", "none~q4_0+hadamard,paper,prefill,", "", "bytes") == 6 * q4_0);
  CHECK(all.at("0,0", "none~kfp8vnvfp4,paper,prefill,", "", "bytes") == 57 * (32 + 16 + 2) + 4 * 2 * 32 * 2);
  CHECK(all.at("0,0", "none~tq3,paper,prefill,", "", "bytes") == 57 * 2 * (12 + 2) + 4 * 2 * 32 * 2);
  // Costs of key channels are written if nothing is evicted and keys are stored in fewer bits.
  const auto costs = [&](int layer, const std::string& name) {
    return temp / fmt::format("all/layer_0{}/key_costs/{}-paper-prefill-61.npy", layer, name);
  };
  const Npy of_q4_0 = npy_file(costs(0, "none~q4_0"));
  CHECK(of_q4_0.shape == std::vector<std::size_t>{2, 32});
  for (const double cost : of_q4_0.as<double>()) CHECK(cost > 0);
  CHECK(fs::exists(costs(1, "none~8;0,last_k16v4")));
  CHECK_FALSE(fs::exists(costs(0, "none~8;0,last_k16v4")));
  CHECK_FALSE(fs::exists(temp / "all/layer_00/key_costs/h2o~q4_0-paper-prefill-40.npy"));
  const Json stored = Json::parse(file_text(temp / "all/summary.json"))["options"]["evict"]["stored"];
  CHECK(stored.size() == 15);
  CHECK(stored["8;0,last:k16v4+hadamard"][1] == Json({{"k", "8"},
                                                      {"v", "8"},
                                                      {"keys", "channel"},
                                                      {"turned", {32, 32}},
                                                      {"group", 32},
                                                      {"residual", 4}}));
  CHECK(stored["8;0,last:k16v4+hadamard"][2]["k"] == "16");
  CHECK(stored["8;0,last:k16v4+hadamard"][2]["turned"] == Json({0, 32}));
}

TEST_CASE("centered keys are a format of their own, and cost the outputs no bias", "[cli][compress]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  succeed({"synth", dump, "--layers", "1", "--q-heads", "2", "--kv-heads", "1", "--head-dim", "32",
           "--prompt", "61", "--decode", "9"});
  const fs::path keys = fs::path(dump) / "layer_00/k.npy";
  Npy k = npy_file(keys);
  std::vector<float> biased = k.as<float>();
  for (std::size_t i = 5; i < biased.size(); i += 32) biased[i] += 30;
  write_file(keys, npy("<f4", k.shape, biased).bytes());
  const Evictions all = evict(dump, temp / "all",
                              {"--policy", "none", "--bits", "k4v16,kq4_0v16", "--residual", "0", "--rotate",
                               "none,hadamard", "--center", "none,k,k:4", "--keys", "token"});
  const auto value = [&](const std::string& format, const char* rows, const char* metric) {
    return all.at(",", "none~" + format + ",paper,prefill,", rows, metric);
  };
  for (const std::string format : {"k4v16", "kq4_0v16", "k4v16+hadamard", "kq4_0v16+hadamard"}) {
    INFO(format);
    CHECK(value(format + "+center", "future", "output_error") <
          0.2 * value(format, "future", "output_error"));
    CHECK(value(format + "+center:4", "future", "output_error") <
          0.5 * value(format, "future", "output_error"));
    CHECK(value(format + "+center", "", "bytes") == value(format, "", "bytes") + 32 * 2);
  }
  const Json stored = Json::parse(file_text(temp / "all/summary.json"))["options"]["evict"]["stored"];
  CHECK(stored["kq4_0v16+hadamard+center:4"][0]["centered"] == 4);
  CHECK_FALSE(stored["kq4_0v16+hadamard"][0].contains("centered"));
  const auto refused = [&](const std::vector<std::string>& more) {
    return complaint(joined({"evict", dump, "--out", temp / "x"}, more));
  };
  CHECK(contains(
      refused({"--policy", "none", "--bits", "4", "--center", "v"}),
      "--center: expected none, k, k:N for the mean without the first N tokens, or FILE.npy, found 'v'"));
  CHECK(contains(refused({"--policy", "none", "--bits", "vllm", "--center", "k"}), "no rotation, centering"));
  CHECK(contains(refused({"--policy", "h2o", "--center", "k"}), "--center requires --bits"));
  CHECK(contains(refused({"--policy", "none", "--bits", "4", "--channels", "think:0.5", "--center", "k"}),
                 "nothing turns or centers"));
}

TEST_CASE("keys are centered around the vectors of a file", "[cli][compress]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  succeed({"synth", dump, "--layers", "2", "--q-heads", "4", "--kv-heads", "2", "--head-dim", "32",
           "--prompt", "61", "--decode", "9"});
  std::vector<double> means;
  for (const char* layer : {"layer_00/k.npy", "layer_01/k.npy"}) {
    const Npy k = npy_file(fs::path(dump) / layer);
    const std::vector<float> keys = k.as<float>();
    for (std::size_t head = 0; head < 2; ++head)
      for (std::size_t c = 0; c < 32; ++c) {
        double sum = 0;
        for (std::size_t p = 0; p < 61; ++p) sum += static_cast<double>(keys[(head * 70 + p) * 32 + c]);
        means.push_back(sum / 61);
      }
  }
  write_file(temp / "own-means.npy", npy<double>("<f8", {2, 2, 32}, means).bytes());
  const std::string file = temp / "own-means.npy";
  const Evictions all =
      evict(dump, temp / "all",
            {"--policy", "none,h2o", "--keep", "50%", "--bits", "kq4_0v16", "--center", "k," + file});
  for (const std::string policy : {"none", "h2o"})
    for (const char* metric : {"output_error", "bytes"}) {
      const std::string rows = metric == std::string("bytes") ? "" : "future",
                        budget = policy == "none" ? "" : "0.5";
      const auto value = [&](const char* center) {
        return all.at(",", policy + "~kq4_0v16+center" + center + ",paper,prefill," + budget, rows, metric);
      };
      CHECK(value(":own_means") == Approx(value("")).epsilon(1e-6));
      CHECK(value("") > 0);
    }
  const Json options = Json::parse(file_text(temp / "all/summary.json"))["options"]["evict"];
  CHECK(options["stored"]["kq4_0v16+center:own_means"][1]["centered"] == file);
  CHECK(options["centers"].contains(file));
  // As a recipe has it.
  const Json layer = {{"sigma", {0, 0}}, {"stored", options["stored"]["kq4_0v16+center:own_means"][0]}};
  write_file(temp / "recipe.json",
             Json{{"kind", "recipe"}, {"schema", 1}, {"layers", {layer, layer}}}.dump());
  const Evictions recipe = evict(dump, temp / "recipe", {"--recipe", temp / "recipe.json"});
  CHECK(recipe.at(",", "recipe~recipe,given,prefill,", "future", "output_error") ==
        all.at(",", "none~kq4_0v16+center:own_means,paper,prefill,", "future", "output_error"));
  write_file(temp / "short.npy", npy<double>("<f8", {2, 2, 16}, std::vector<double>(64)).bytes());
  CHECK(contains(complaint({"evict", dump, "--out", temp / "x", "--policy", "none", "--bits", "kq4_0v16",
                            "--center", temp / "short.npy"}),
                 "short.npy: expected shape [2, 2, 32]"));
}

namespace {

/// A safetensors file of tensors of one number each, in float32.
std::string safetensors(const std::vector<std::pair<std::string, float>>& numbers) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, number] : numbers) {
    header[name] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {data.size(), data.size() + 4}}};
    data.append(reinterpret_cast<const char*>(&number), 4);
  }
  const std::string text = header.dump();
  std::string size;
  for (std::size_t b = 0; b < 8; ++b) size += static_cast<char>(text.size() >> (8 * b) & 0xffU);
  return size + text + data;
}

}  // namespace

TEST_CASE("fp8 and int8 have the scales of a checkpoint", "[cli][compress]") {
  const TempDir temp;
  const std::string dump = temp / "dump", file = temp / "kv-scales.safetensors";
  succeed({"synth", dump, "--layers", "2", "--q-heads", "2", "--kv-heads", "1", "--head-dim", "32",
           "--prompt", "61", "--decode", "9"});
  const auto name = [](int layer, char side) {
    return fmt::format("model.layers.{}.self_attn.{}_scale", layer, side);
  };
  std::vector<std::pair<std::string, float>> scales{{"lm_head.input_scale", 7.0F}};
  const fs::path values = fs::path(dump) / "layer_00/v.npy";
  Npy v = npy_file(values);
  std::vector<float> large = v.as<float>();
  for (float& x : large) x = 1000 + 100 * x;
  write_file(values, npy("<f4", v.shape, large).bytes());
  for (const int layer : {1, 0}) {
    scales.emplace_back(name(layer, 'k'), 0.125F);
    scales.emplace_back(name(layer, 'v'), layer == 0 ? 16.0F : 0.0625F);
  }
  write_file(file, safetensors(scales));
  const Evictions all = evict(dump, temp / "all",
                              {"--policy", "none", "--bits", "fp8,int8,kfp8v16,q8_0", "--residual", "0",
                               "--scales", "none," + file, "--rotate", "none,k"});
  const auto value = [&](const std::string& format, const char* metric = "output_error") {
    return all.at(",", "none~" + format + ",paper,prefill,", metric[0] == 'b' ? "" : "future", metric);
  };
  // Without a scale, values beyond 448 and 127 are cut off, and int8 has no numbers between 0 and 1.
  for (const std::string format : {"fp8", "int8"}) {
    INFO(format);
    CHECK(value(format + "+scales:kv_scales") < 0.1 * value(format));
    CHECK(value(format + "+scales:kv_scales", "bytes") == value(format, "bytes"));
  }
  const Json stored = Json::parse(file_text(temp / "all/summary.json"))["options"]["evict"]["stored"];
  CHECK(stored["fp8+scales:kv_scales"][0]["scales"] == Json({0.125, 16.0}));
  CHECK(stored["fp8+k+scales:kv_scales"][1]["scales"] == Json({0.125, 0.0625}));
  CHECK(stored["kfp8v16+scales:kv_scales"][0]["scales"] == Json({0.125, 1.0}));
  CHECK_FALSE(stored["fp8"][0].contains("scales"));
  CHECK(stored.contains("q8_0"));
  CHECK_FALSE(stored.contains("q8_0+scales:kv_scales"));
  // As a recipe has it.
  Json recipe = {{"kind", "recipe"}, {"schema", 1}, {"layers", Json::array()}};
  for (const Json& layer : stored["int8+scales:kv_scales"])
    recipe["layers"].push_back({{"sigma", {0}}, {"stored", layer}});
  write_file(temp / "recipe.json", recipe.dump());
  CHECK(evict(dump, temp / "recipe", {"--recipe", temp / "recipe.json"})
            .at(",", "recipe~recipe,given,prefill,", "future", "output_error") ==
        value("int8+scales:kv_scales"));
  const auto refused = [&](const std::string& contents) {
    write_file(file, contents);
    return complaint(
        {"evict", dump, "--out", temp / "x", "--policy", "none", "--bits", "fp8", "--scales", file});
  };
  const std::string whole = safetensors(scales);
  CHECK(contains(refused("none"), "kv-scales.safetensors: expected a safetensors file"));
  CHECK(contains(refused(whole.substr(0, whole.size() - 1)), "v_scale: expected its number in the file"));
  CHECK(contains(refused(safetensors({{name(0, 'k'), 1.0F}})), "expected layers.0. ... v_scale, found none"));
  CHECK(contains(refused(safetensors({{name(2, 'k'), 1.0F}})), "expected layers 0 to 1"));
  CHECK(
      contains(refused(safetensors({{name(0, 'k'), -1.0F}})), "expected a finite number above 0, found -1"));
  CHECK(contains(
      complaint({"evict", dump, "--out", temp / "x", "--policy", "none", "--bits", "fp8", "--scales", "0.5"}),
      "--scales: expected none or FILE.safetensors, found '0.5'"));
}

TEST_CASE("layers that lose most are spared", "[cli][compress]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  succeed({"synth", dump, "--layers", "4", "--q-heads", "2", "--kv-heads", "1", "--head-dim", "32",
           "--prompt", "61", "--decode", "9", "--gradients", "4"});
  for (const auto& [layer, bias] : {std::pair("layer_02", 60.0F), std::pair("layer_01", 20.0F)}) {
    const fs::path keys = fs::path(dump) / layer / "k.npy";
    Npy k = npy_file(keys);
    std::vector<float> biased = k.as<float>();
    for (std::size_t i = 5; i < biased.size(); i += 32) biased[i] += bias;
    write_file(keys, npy("<f4", k.shape, biased).bytes());
  }
  const std::vector<std::string> usual{"--policy", "none", "--residual", "0", "--keys", "token"};
  for (const bool gradients : {true, false}) {
    if (!gradients)
      for (const auto& entry : fs::recursive_directory_iterator(dump))
        if (entry.path().filename().string().starts_with("g_")) fs::remove(entry.path());
    const std::string out = gradients ? "with" : "without";
    const Evictions found =
        evict(dump, temp / out,
              joined(usual, {"--bits", "k4v16;auto:1,k4v16;auto:2:k16v16,k4v16;1,2:16,k4v16", "--rotate",
                             "none,hadamard"}));
    const auto error = [&](const std::string& name) {
      return found.at(",", "none~" + name + ",paper,prefill,", "future", "output_error");
    };
    CHECK(error("k4v16;2:k8v16") < 0.5 * error("k4v16"));
    CHECK(error("k4v16;1,2:16") < error("k4v16;2:k8v16"));  // chosen, and given, under one name
    CHECK(found.has(",", "none~k4v16;2:k8v16+hadamard,paper,prefill,", "future", "output_error") !=
          found.has(",", "none~k4v16;1:k8v16+hadamard,paper,prefill,", "future", "output_error"));
  }
  const auto refused = [&](const std::string& bits) {
    return complaint(joined({"evict", dump, "--out", temp / "x", "--bits", bits}, usual));
  };
  CHECK(contains(refused("4;auto:5"), "--bits 4;auto:5: expected at most 4 layers to spare, found 5"));
  CHECK(contains(refused("4;0:16;auto:4"), "expected at most 3 layers to spare"));
  CHECK(contains(refused("4;auto:0"), "--bits: expected"));
  CHECK(contains(refused("4;auto:1;auto:2"), "--bits: expected"));
}

TEST_CASE("of several formats and budgets each format has a line and each budget a column",
          "[cli][compress]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  const std::string said = succeed({"evict", dump, "--out", temp / "r", "--policy", "h2o,tova", "--bits",
                                    "16,4", "--residual", "0", "--keep", "50%,20%,6"})
                               .out;
  const Evictions csv(temp / "r");
  std::istringstream text(said);
  std::string line;
  const auto fields = [](const std::string& of) {
    std::istringstream words(of);
    return std::vector<std::string>(std::istream_iterator<std::string>(words), {});
  };
  while (std::getline(text, line) && !line.starts_with("policy")) {
  }
  CHECK(contains(line, "kept 50 %"));
  CHECK(contains(line, "kept 20 %"));
  CHECK(line.ends_with("kept 6 tokens (9.8 %)"));
  for (const char* policy : {"h2o~16", "h2o~4", "tova~16", "tova~4"}) {
    REQUIRE(std::getline(text, line));
    INFO(line);
    // Columns: policy, semantics, phase; then for every budget: error / median (recall), bytes, %.
    const std::vector<std::string> found = fields(line);
    REQUIRE(found.size() == 3 + 3 * 6);
    CHECK(found[0] == policy);
    for (const auto& [column, budget] : {std::pair(3, "0.5"), {9, "0.8"}, {15, "6"}})
      CHECK(found[column] ==
            fmt::format("{:.3g}", csv.at(",", fmt::format("{},paper,prefill,{}", policy, budget), "future",
                                         "output_error")));
  }
}

TEST_CASE("keys share a step along channels where it is asked for", "[cli][compress]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  const std::vector<std::string> options = {"--policy",   "none", "--bits",  "k4v16",
                                            "--residual", "0",    "--group", "4"};
  const Evictions channel = evict(dump, temp / "channel", options),
                  token = evict(dump, temp / "token", joined(options, {"--keys", "token"}));
  // Synthetic keys have channels of large norm, which take the range of their neighbours.
  CHECK(token.at(",", kNone, "future", "output_error") > channel.at(",", kNone, "future", "output_error"));
  CHECK(token.at("0,0", kNone, "", "bytes") == 61 * (8 * 0.5 + 2 * 4) + 61 * 8 * 2);
  CHECK(channel.at("0,0", kNone, "", "bytes") == 60 * 8 * 0.5 + 15 * 8 * 4 + 8 * 2 + 61 * 8 * 2);
}
