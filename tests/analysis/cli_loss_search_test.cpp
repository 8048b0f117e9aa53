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

// Methods that choose by predicted losses: searches, and head budgets.

using namespace kvreplay::test;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

/// evict --precision f64, a tenth and half of the tokens kept.
Evictions evict(const std::string& dump, const std::string& out, const std::string& policies,
                const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments{"evict",  dump,          "--out", out,      "--policy",
                                     policies, "--precision", "f64",   "--keep", "6,30"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  succeed(arguments);
  return Evictions(out);
}

std::string dump_with_gradients(const TempDir& temp, const std::string& name = "d",
                                const std::vector<std::string>& more = {}) {
  const std::string dump = temp / name;
  std::vector<std::string> options{"--gradients", "3"};
  options.insert(options.end(), more.begin(), more.end());
  make_small_dump(dump, options);
  return dump;
}

std::string notes_of(const fs::path& results) {
  const Json summary = Json::parse(file_text(results / "summary.json"));
  return summary.at("notes").dump() + summary.at("left_out").dump();
}

std::string kept_bytes(const fs::path& results, const std::string& name) {
  return npy_file(results / "layer_00/kept" / (name + ".npy")).data +
         npy_file(results / "layer_01/kept" / (name + ".npy")).data;
}

const std::vector<std::string> kHeads{"0,0", "0,1", "1,0", "1,1"};

}  // namespace

TEST_CASE("searches by loss make loss_row small on the rows that they look at", "[loss]") {
  const TempDir temp;
  const std::string dump = dump_with_gradients(temp);
  const std::string policies =
      "greedy_loss,exchange[by=loss],exchange+snapkv[by=loss],exchange+greedy_exact[by=loss],exchange,"
      "greedy_exact,snapkv,oracle_loss";
  for (const std::string rows : {"window", "future"}) {
    const Evictions found = evict(dump, temp / rows, policies, {"--on", rows});
    for (const std::string& head : kHeads)
      for (const std::string kept : {"6", "30"}) {
        const auto loss = [&](const std::string& policy) {
          return found.at(head, policy + ",paper,prefill," + kept, rows, "loss_row");
        };
        INFO(rows << " " << head << " " << kept);
        CHECK(loss("exchange[by=loss]") <= loss("greedy_loss") * (1 + 1e-9));
        CHECK(loss("exchange+snapkv[by=loss]") < loss("snapkv"));
        CHECK(loss("exchange+greedy_exact[by=loss]") <= loss("greedy_exact") * (1 + 1e-9));
        CHECK(loss("greedy_loss") < loss("snapkv"));
        const auto error = [&](const std::string& policy) {
          return found.at(head, policy + ",paper,prefill," + kept, rows, "output_error");
        };
        CHECK(found.at(head, "greedy_loss,paper,prefill," + kept, rows, "excess_over_exchange") ==
              Approx(error("greedy_loss") - error("exchange")).margin(1e-15));
      }
  }
  // A choice made for the decoding steps costs them less.
  const Evictions window(temp / "window"), future(temp / "future");
  for (const std::string kept : {"6", "30"}) {
    const std::string which = "greedy_loss,paper,prefill," + kept;
    CHECK(future.at(",", which, "future", "loss_row") < window.at(",", which, "future", "loss_row"));
    CHECK(window.at(",", "greedy_exact,paper,prefill," + kept, "window", "output_error") <
          window.at(",", which, "window", "output_error"));
    CHECK(window.at(",", "oracle_loss,paper,prefill," + kept, "future", "loss_row") <
          window.at(",", "snapkv,paper,prefill," + kept, "future", "loss_row"));
  }
}

TEST_CASE("the option by is that of all, brackets are one policy's", "[loss]") {
  const TempDir temp;
  const std::string dump = dump_with_gradients(temp);
  const Evictions all = evict(dump, temp / "all", "exchange,exchange[by=error]", {"--by", "loss"});
  evict(dump, temp / "one", "exchange[by=loss],exchange");
  CHECK(kept_bytes(temp / "all", "exchange-paper-prefill-30") ==
        kept_bytes(temp / "one", "exchange[by=loss]-paper-prefill-30"));
  CHECK(kept_bytes(temp / "all", "exchange[by=error]-paper-prefill-30") ==
        kept_bytes(temp / "one", "exchange-paper-prefill-30"));
  CHECK(Json::parse(file_text(temp / "all/summary.json")).at("options").at("evict").at("by") == "loss");
  CHECK_FALSE(Json::parse(file_text(temp / "one/summary.json")).at("options").at("evict").contains("by"));
  // Errors are held against the exchange that is by error.
  CHECK(all.at(",", "exchange,paper,prefill,30", "window", "excess_over_exchange") > 0);
  evict(dump, temp / "none", "snapkv,greedy_loss", {"--by", "loss"});
  CHECK(contains(notes_of(temp / "none"), "--by has no effect: exchange is not among the policies"));
  evict(dump, temp / "leverage", "greedy_leverage", {"--on", "future"});
  CHECK(contains(notes_of(temp / "leverage"), "--on has no effect: neither greedy_exact nor"));
  const auto refused = [&](const std::string& policy, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"evict", dump, "--policy", policy};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return refusal(arguments, temp / "x");
  };
  CHECK(contains(refused("snapkv[by=loss]"), "by has no effect: it does not search"));
  CHECK(contains(refused("greedy_loss[by=error]"), "by has no effect: its name says what it makes small"));
  CHECK(contains(refused("exchange[by=value]"), "expected error or loss, found 'value'"));
  CHECK(contains(refused("exchange", {"--by", "nats"}), "expected error or loss, found 'nats'"));
}

TEST_CASE("searches by loss look at the last rows that have gradients", "[loss]") {
  const TempDir temp;
  const std::string dump = dump_with_gradients(temp);
  const std::string name = "greedy_loss-paper-prefill-30";
  evict(dump, temp / "8", "greedy_loss", {"--window", "8"});
  evict(dump, temp / "32", "greedy_loss");
  evict(dump, temp / "40", "greedy_loss", {"--window", "40"});
  CHECK(kept_bytes(temp / "32", name) == kept_bytes(temp / "40", name));
  CHECK(kept_bytes(temp / "32", name) != kept_bytes(temp / "8", name));
  CHECK(contains(notes_of(temp / "40"), "losses on window rows are of 32 of the 40 measured"));
  evict(dump, temp / "heads", "greedy_loss", {"--per-query-head"});
  CHECK(contains(complaint({"evict", dump, "--out", temp / "b", "--policy", "greedy_loss", "--phase",
                            "decode,blockwise:16"}),
                 "nothing to simulate"));
  evict(dump, temp / "p", "greedy_loss,oracle_loss,snapkv", {"--phase", "decode,blockwise:16"});
  for (const std::string policy : {"greedy_loss", "oracle_loss"})
    for (const std::string phase : {"decode", "blockwise:16"})
      CHECK(contains(notes_of(temp / "p"), fmt::format("{} (paper) in phase {}", policy, phase)));
}

TEST_CASE("without gradients nothing chooses by loss, and nothing else changes", "[loss]") {
  const TempDir temp;
  make_small_dump(temp / "d");
  const std::string dump = temp / "d", with = dump_with_gradients(temp, "g");
  const std::string why = " is unavailable: it needs gradients of the outputs, and the dump has none";
  const auto refused = [&](const std::string& policy) {
    return refusal({"evict", dump, "--policy", policy}, temp / "x");
  };
  for (const std::string policy : {"greedy_loss", "exchange[by=loss]", "exchange+snapkv[by=loss]",
                                   "exchange+greedy_loss", "oracle_loss", "tova+exact_loss"})
    CHECK(contains(refused(policy), policy + why));
  CHECK(contains(refusal({"evict", dump, "--policy", "exchange", "--by", "loss"}, temp / "x"),
                 "exchange" + why));
  CHECK(contains(refusal({"budget", dump, "--loss", "row"}, temp / "x"), "--loss row: oracle_loss" + why));
  const std::string policies = "snapkv,greedy_exact,exchange,exchange+snapkv";
  evict(dump, temp / "a", policies);
  evict(with, temp / "b", policies);
  for (const std::string policy : {"snapkv", "greedy_exact", "exchange", "exchange+snapkv"})
    CHECK(kept_bytes(temp / "a", policy + "-paper-prefill-30") ==
          kept_bytes(temp / "b", policy + "-paper-prefill-30"));
  // Gradients of other rows are none.
  remove_tensor(with, "g_window");
  CHECK(contains(refusal({"evict", with, "--policy", "greedy_loss"}, temp / "x"),
                 "greedy_loss is unavailable: it needs the gradients g_window.npy, and the dump has none"));
  CHECK(evict(with, temp / "f", "greedy_loss", {"--on", "future"})
            .at(",", "greedy_loss,paper,prefill,30", "future", "loss_row") > 0);
}

TEST_CASE("budgets from curves in nats", "[loss]") {
  const TempDir temp;
  const std::string dump = dump_with_gradients(temp);
  const std::vector<std::string> options{"budget",  dump,          "--order", "snapkv,oracle_loss", "--sigma",
                                         "0.5,0.9", "--precision", "f64",     "--semantics",        "raw"};
  const auto budget = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = options;
    arguments.insert(arguments.end(), {"--out", temp / out});
    arguments.insert(arguments.end(), more.begin(), more.end());
    succeed(arguments);
    const std::string text = file_text(temp / out / "budgets.csv");
    return csv_rows(temp / out / "budgets.csv", text.substr(0, text.find('\n')));
  };
  const std::vector<CsvRow> rows = budget("row", {"--loss", "row"});
  const auto loss = [](const std::vector<CsvRow>& all, const std::string& order, const std::string& method,
                       const std::string& sigma) {
    for (const CsvRow& row : all)
      if (row.at("layer").empty() && row.at("order") == order && row.at("method") == method &&
          row.at("sigma") == sigma)
        return std::stod(row.at("loss"));
    FAIL("no such row");
    return 0.0;
  };
  // A curve begins with all that there is to lose: the tokens' oracle_loss.
  succeed({"tokens", dump, "--out", temp / "t", "--metrics", "exact_loss,oracle_loss", "--precision", "f64"});
  const std::vector<double> curves = npy_file(temp / "row/curves/snapkv.npy").as<double>();
  for (std::size_t head = 0; head < 4; ++head) {
    const std::vector<double> tokens =
        npy_file(temp / fmt::format("t/layer_0{}/tokens/oracle_loss.npy", head / 2)).as<double>();
    double sum = 0;
    for (std::size_t p = 0; p < 61; ++p) sum += tokens[head % 2 * 61 + p];
    CHECK(curves[head * 62] == Approx(sum).epsilon(1e-12));
    CHECK(curves[head * 62 + 61] == 0);
  }
  for (const std::string order : {"snapkv", "oracle_loss"})
    for (const std::string sigma : {"0.5", "0.9"}) {
      for (const std::string method : {"uniform", "pyramid", "ada", "lu"})
        CHECK(loss(rows, order, "optimal", sigma) <= loss(rows, order, method, sigma) * (1 + 1e-12));
      CHECK(loss(rows, order, "optimal", sigma) < loss(rows, order, "uniform", sigma));
      CHECK(loss(rows, "oracle_loss", "optimal", sigma) <= loss(rows, "snapkv", "optimal", sigma));
    }
  CHECK(Json::parse(file_text(temp / "row/summary.json")).at("options").at("budget").at("loss") == "row");
  // uniform does not look at curves: it keeps what it kept, worth something else.
  const std::vector<CsvRow> usual = budget("usual", {});
  CHECK_FALSE(
      Json::parse(file_text(temp / "usual/summary.json")).at("options").at("budget").contains("loss"));
  CHECK(kept_bytes(temp / "row", "snapkv-uniform-0.5") == kept_bytes(temp / "usual", "snapkv-uniform-0.5"));
  CHECK(kept_bytes(temp / "row", "snapkv-lu-0.5") != kept_bytes(temp / "usual", "snapkv-lu-0.5"));
  CHECK(loss(rows, "snapkv", "uniform", "0.5") != loss(usual, "snapkv", "uniform", "0.5"));
  budget("importance", {"--loss", "importance"});
  CHECK(file_text(temp / "importance/budgets.csv") == file_text(temp / "usual/budgets.csv"));
  CHECK(contains(refusal({"budget", dump, "--loss", "rows"}, temp / "x"),
                 "expected importance or row, found 'rows'"));
}

TEST_CASE("profiles of other prompts are of curves in nats where budgets are", "[loss]") {
  const TempDir temp;
  const std::string a = dump_with_gradients(temp, "a"),
                    b = dump_with_gradients(temp, "b", {"--seed", "2", "--prompt", "47"});
  succeed({"budget", a, b, "--out", temp / "r", "--loss", "row", "--order", "snapkv", "--sigma", "0.5"});
  succeed({"budget", b, "--out", temp / "alone", "--loss", "row", "--order", "snapkv", "--sigma", "0.5"});
  const std::string profile = "curves/snapkv~lu.npy";
  CHECK(npy_file(temp / "r/b" / profile).data == npy_file(temp / "alone" / profile).data);
  succeed({"budget", a, "--out", temp / "hand", "--loss", "row", "--order", "snapkv", "--sigma", "0.5",
           "--method", "uniform", "--profile", temp / "alone/curves/{order}~lu.npy"});
  CHECK(kept_bytes(temp / "r/leave_one_out/a", "snapkv-profile-0.5") ==
        kept_bytes(temp / "hand", "snapkv-profile-0.5"));
}
