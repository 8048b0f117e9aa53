#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

// Predicted losses in results: from a dump's gradients to tables, maps and ranks of tokens.

using namespace kvreplay::test;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

const std::string kBudgets = "layer,kv_head,order,method,sigma,budget,loss,output_error,layer_output_error";
const std::vector<std::string> kSums{"loss_row", "loss_head", "dnll"};

std::string dump_with_gradients(const TempDir& temp, const std::string& samples = "3") {
  const std::string dump = temp / "d";
  make_small_dump(dump, {"--gradients", samples});
  return dump;
}

bool summary_says(const std::string& folder, const std::string& text) {
  return contains(Json::parse(file_text(folder + "/summary.json")).dump(), text);
}

}  // namespace

TEST_CASE("a dump without gradients has no losses, and says why", "[loss]") {
  const TempDir temp;
  const std::string dump = temp / "d";
  make_small_dump(dump);
  succeed({"analyze", dump, "--out", temp / "r"});
  const Json left_out = Json::parse(file_text(temp / "r/summary.json")).at("left_out");
  CHECK(std::count_if(left_out.begin(), left_out.end(), [](const Json& left) {
          return left.at("what") == "loss_row, loss_head, loss_layer, loss_step, loss_joint, dnll";
        }) == 1);
  CHECK(summary_says(temp / "r", "it needs gradients of the outputs, and the dump has none"));
  CHECK_FALSE(contains(file_text(temp / "r/evictions.csv"), "loss_row"));
  CHECK_FALSE(contains(file_text(temp / "r/channels.csv"), "loss_row"));
  CHECK_FALSE(csv_rows(temp / "r/budgets.csv", kBudgets).empty());
  CHECK_FALSE(fs::exists(temp / "r/layer_00/tokens/exact_loss.npy"));
  for (const std::string metric : {"exact_loss", "oracle_loss"})
    CHECK(contains(refusal({"tokens", dump, "--metrics", metric}, temp / "n"),
                   metric + " is unavailable: it needs gradients of the outputs, and the dump has none"));
  CHECK(contains(refusal({"evict", dump, "--policy", "h2o+exact_loss"}, temp / "n"),
                 "h2o+exact_loss is unavailable: it needs gradients of the outputs"));
}

TEST_CASE("losses add up over heads and layers; samples add up before they are squared", "[loss]") {
  const TempDir temp;
  const std::string dump = dump_with_gradients(temp);
  succeed({"evict", dump, "--out", temp / "r", "--policy", "snapkv,streaming", "--keep", "50%,61", "--phase",
           "prefill,decode", "--precision", "f64"});
  const Evictions found(temp / "r");
  for (const std::string phase : {"prefill", "decode"})
    for (const std::string rows : {"window", "future"})
      for (const std::string& metric : kSums) {
        const std::string which = "snapkv,paper," + phase + ",0.5";
        INFO(which << " " << rows << " " << metric);
        const bool there = (phase == "prefill" || rows == "future") && (metric != "dnll" || rows == "future");
        REQUIRE(found.has(",", which, rows, metric) == there);
        if (!there) continue;
        double model = 0;
        for (const std::string layer : {"0", "1"}) {
          const double whole = found.at(layer + ",", which, rows, metric);
          CHECK(whole == Approx(found.at(layer + ",0", which, rows, metric) +
                                found.at(layer + ",1", which, rows, metric))
                             .epsilon(1e-12));
          model += whole;
        }
        CHECK(found.at(",", which, rows, metric) == Approx(model).epsilon(1e-12));
        CHECK(model != 0);
        if (metric != "dnll") CHECK(model > 0);
      }
  const std::string half = "snapkv,paper,prefill,0.5";
  CHECK(found.at(",", half, "future", "loss_joint") > 0);
  CHECK_FALSE(found.has("0,", half, "future", "loss_joint"));
  CHECK_FALSE(found.has("0,0", half, "future", "loss_joint"));
  CHECK_FALSE(found.has("0,0", half, "future", "loss_step"));
  CHECK_FALSE(found.has("0,0", half, "future", "loss_layer"));
  succeed({"evict", dump, "--out", temp / "second", "--policy", "snapkv", "--keep", "50%", "--layers", "1",
           "--precision", "f64"});
  const Evictions second(temp / "second");
  for (const std::string rows : {"window", "future"}) {
    CHECK(found.at(",", half, rows, "loss_step") > 0);
    CHECK(found.at("1,", half, rows, "loss_step") ==
          Approx(second.at(",", half, rows, "loss_step")).epsilon(1e-12));
    CHECK(found.at(",", half, rows, "loss_layer") ==
          Approx(found.at("0,", half, rows, "loss_layer") + found.at("1,", half, rows, "loss_layer"))
              .epsilon(1e-12));
  }
  for (const CsvRow& row : found.rows())
    if (row.at("kept_share") == "1" && row.at("phase") == "prefill" && contains(row.at("metric"), "loss_"))
      CHECK(row.at("value") == "0");
  for (const std::string metric : {"loss_row", "loss_head"})
    for (const std::string rows : {"window", "future"})
      CHECK(fs::exists(temp / fmt::format("r/maps/snapkv-paper-prefill-31~{}~{}.npy", rows, metric)));
  CHECK_FALSE(fs::exists(temp / "r/maps/snapkv-paper-prefill-31~future~loss_joint.npy"));
}

TEST_CASE("one sample: the joint loss is that of the sum of all heads' sums", "[loss]") {
  const TempDir temp;
  const std::string dump = temp / "d";
  make_small_dump(dump, {"--gradients", "1", "--layers", "1", "--q-heads", "1", "--kv-heads", "1"});
  succeed(
      {"evict", dump, "--out", temp / "r", "--policy", "streaming", "--keep", "30%", "--precision", "f64"});
  const Evictions found(temp / "r");
  const std::string which = "streaming,paper,prefill,0.7";
  CHECK(found.at(",", which, "future", "loss_joint") ==
        Approx(found.at("0,0", which, "future", "loss_head")).epsilon(1e-12));
  CHECK(found.at(",", which, "future", "loss_layer") ==
        Approx(found.at("0,0", which, "future", "loss_head")).epsilon(1e-12));
  CHECK(found.at(",", which, "future", "loss_step") ==
        Approx(found.at("0,0", which, "future", "loss_row")).epsilon(1e-12));
  CHECK(found.at(",", which, "future", "loss_head") != found.at(",", which, "future", "loss_row"));
}

TEST_CASE("one query head and one step: head by head is row by row", "[loss]") {
  const TempDir temp;
  const std::string dump = temp / "d";
  make_small_dump(dump, {"--gradients", "5", "--q-heads", "2", "--kv-heads", "2", "--decode", "1"});
  succeed(
      {"evict", dump, "--out", temp / "r", "--policy", "streaming", "--keep", "30%", "--precision", "f64"});
  const Evictions found(temp / "r");
  const std::string which = "streaming,paper,prefill,0.7";
  for (const std::string scope : {"0,0", "1,1", "0,", ","}) {
    const double head = found.at(scope, which, "future", "loss_head");
    CHECK(head > 0);
    CHECK(head == Approx(found.at(scope, which, "future", "loss_row")).epsilon(1e-12));
  }
  CHECK(found.at(",", which, "future", "loss_step") ==
        Approx(found.at(",", which, "future", "loss_joint")).epsilon(1e-12));
  CHECK(found.at(",", which, "future", "loss_layer") != found.at(",", which, "future", "loss_step"));
}

TEST_CASE("losses are the same in shards, and with a cache a query head where there is one a group",
          "[loss]") {
  const TempDir temp;
  const std::string dump = dump_with_gradients(temp);
  const std::vector<std::string> options{"--policy", "snapkv", "--keep", "40%", "--precision", "f64"};
  const auto evict = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"evict", dump, "--out", temp / out};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    succeed(arguments);
  };
  evict("whole", {});
  evict("1", {"--shard", "1/2"});
  evict("2", {"--shard", "2/2"});
  succeed({"merge", temp / "1", temp / "2", "--out", temp / "merged"});
  CHECK(file_text(temp / "merged/evictions.csv") == file_text(temp / "whole/evictions.csv"));
  CHECK(contains(file_text(temp / "whole/evictions.csv"), "loss_step"));
  evict("heads", {"--per-query-head"});
  CHECK(Evictions(temp / "heads").at(",", "snapkv,paper,prefill,0.6", "future", "loss_row") > 0);
}

TEST_CASE("budgets, pruned channels and quantized caches have losses too", "[loss]") {
  const TempDir temp;
  const std::string dump = dump_with_gradients(temp);
  succeed({"budget", dump, "--out", temp / "b", "--precision", "f64"});
  double largest = 0;
  for (const CsvRow& row : csv_rows(temp / "b/budgets.csv",
                                    kBudgets + ",loss_row,loss_head,loss_layer,loss_step,loss_joint,dnll")) {
    INFO(row.at("layer") << " " << row.at("kv_head"));
    largest = std::max(largest, std::stod(row.at("loss_row")));
    CHECK(std::stod(row.at("loss_head")) >= 0);
    CHECK_FALSE(row.at("dnll").empty());
    CHECK(row.at("loss_joint").empty() != row.at("layer").empty());
    CHECK(row.at("loss_step").empty() != row.at("kv_head").empty());
    CHECK(row.at("loss_layer").empty() != row.at("kv_head").empty());
  }
  CHECK(largest > 0);
  succeed({"channels", dump, "--out", temp / "c", "--method", "think", "--ratio", "0,0.5"});
  for (const std::string figure :
       {"loss_row,", "loss_head,", "loss_layer,", "loss_step,", "loss_joint,", "dnll,"})
    CHECK(contains(file_text(temp / "c/channels.csv"), "future," + figure));
  CHECK(contains(file_text(temp / "c/channels.csv"), ",,think,paper,0,32,0,future,loss_joint,0\n"));
  succeed({"evict", dump, "--out", temp / "q", "--policy", "none", "--bits", "2", "--group", "8",
           "--residual", "8"});
  CHECK(Evictions(temp / "q").at(",", "none,paper,prefill,", "future", "loss_head") > 0);
}

TEST_CASE("losses rank tokens as any score does", "[loss]") {
  const TempDir temp;
  const std::string dump = dump_with_gradients(temp);
  succeed({"tokens", dump, "--out", temp / "t", "--metrics",
           "exact_remove,exact_loss,oracle_future,oracle_loss"});
  const std::string agreement = file_text(temp / "t/agreement.csv");
  CHECK(contains(agreement, "exact_loss,oracle_loss,future,32,0,rel_l1,"));
  CHECK(contains(agreement, "exact_remove,oracle_loss,future,32,0,spearman,"));
  CHECK_FALSE(contains(agreement, "exact_remove,oracle_loss,future,32,0,rel_l1,"));
  succeed({"evict", dump, "--out", temp / "e", "--policy",
           "h2o+exact_loss,snapkv+exact_loss,score:oracle_loss,streaming", "--keep", "40%", "--semantics",
           "kvpress", "--precision", "f64"});
  const Evictions found(temp / "e");
  const auto loss = [&](const std::string& policy) {
    return found.at(",", policy + ",kvpress,prefill,0.6", "future", "loss_row");
  };
  CHECK(loss("score:oracle_loss") < loss("streaming"));
  CHECK(loss("h2o+exact_loss") > 0);
  succeed({"evict", dump, "--out", temp / "p", "--policy", "h2o+exact_loss,h2o", "--phase",
           "blockwise:16,decode"});
  CHECK(summary_says(temp / "p", "its gradients are those of the prompt's last rows"));
}

TEST_CASE("rows without gradients are named; a window beyond them is cut to them", "[loss]") {
  const TempDir temp;
  const std::string dump = dump_with_gradients(temp);
  succeed(
      {"evict", dump, "--out", temp / "r", "--policy", "h2o+exact_loss", "--keep", "40%", "--window", "40"});
  CHECK(summary_says(
      temp / "r",
      "losses on window rows are of 32 of the 40 measured, those that the dump has gradients of"));
  CHECK(summary_says(temp / "r",
                     "h2o+exact_loss: window 40 clipped to 32: the dump holds the gradients of 32"));
  remove_tensor(dump, "g_window");
  succeed({"evict", dump, "--out", temp / "f", "--policy", "streaming", "--keep", "40%"});
  CHECK(summary_says(temp / "f", "it needs the gradients g_window.npy, and the dump has none"));
  const Evictions found(temp / "f");
  CHECK(found.has(",", "streaming,paper,prefill,0.6", "future", "loss_row"));
  CHECK_FALSE(found.has(",", "streaming,paper,prefill,0.6", "window", "loss_row"));
}

TEST_CASE("another prompt length takes the gradients of no other rows", "[loss]") {
  const TempDir temp;
  const std::string dump = dump_with_gradients(temp);
  succeed(
      {"evict", dump, "--out", temp / "r", "--policy", "streaming", "--keep", "40%", "--prompt-len", "50"});
  CHECK(summary_says(temp / "r", "g_window.npy has those of positions 29-60"));
  const Evictions found(temp / "r");
  CHECK_FALSE(found.has(",", "streaming,paper,prefill,0.6", "window", "loss_row"));
  CHECK(found.has(",", "streaming,paper,prefill,0.6", "future", "loss_row"));
  CHECK(summary_says(temp / "r", "losses on future rows are of 9 of the 20 measured"));
}

TEST_CASE("info says what gradients there are", "[loss]") {
  const TempDir temp;
  const std::string dump = dump_with_gradients(temp);
  const std::string text = succeed({"info", dump, "--values"}).out;
  CHECK(contains(text,
                 "gradients   3 samples, labels random, seed 1; g_future on positions 61-69; "
                 "g_window on positions 29-60; g_nll on positions 61-69"));
  CHECK(contains(text, "[4, 3, 32, 8]"));
  const Json json = Json::parse(succeed({"info", dump, "--json"}).out);
  CHECK(json.at("gradients").at("samples") == 3);
  CHECK(json.at("gradients").at("labels") == "random");
}

TEST_CASE("results of other gradients are not resumed", "[loss]") {
  const TempDir temp;
  const std::string dump = dump_with_gradients(temp);
  const std::vector<std::string> evict{"evict",    dump,        "--out",   temp / "r",
                                       "--policy", "streaming", "--resume"};
  succeed(evict);
  succeed(evict);
  const fs::path file = fs::path(dump) / "layer_01/g_future.npy";
  std::string bytes = file_text(file);
  bytes[bytes.size() - 3] ^= 1;
  write_file(file, bytes);
  CHECK(contains(complaint(evict), "cannot resume: layer 1 of the dump was another when it was computed"));
  remove_tensor(dump, "g_future");
  CHECK(contains(complaint(evict), "cannot resume: dump.fingerprint was"));
}
