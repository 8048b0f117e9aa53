#include "analysis/findings/findings.hpp"
#include "data/console.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>
#include <vector>

// Findings on the sample, checked against its tables, and the places where they are shown.

namespace kvreplay {
namespace {

using test::contains;
using test::csv_rows;
using test::CsvRow;
using test::succeed;
using test::TempDir;
namespace fs = std::filesystem;

constexpr const char* kEvictions =
    "layer,kv_head,policy,semantics,phase,budget,kept,kept_share,rows,metric,value";
constexpr const char* kAgreement = "layer,kv_head,score,reference,rows,window,reserve,metric,value";

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

double number(const CsvRow& row) { return std::stod(row.at("value")); }

/// The sample's results and what the program said of them, made once.
struct Sample {
  TempDir temp;
  nlohmann::json said;
  Sample() {
    const test::ProcessResult result =
        succeed({"analyze", test::sample_dump(), "--out", temp / "r", "--json"});
    said = nlohmann::json::parse(result.out);
  }
};
const Sample& sample() {
  static const Sample made;
  return made;
}

std::string sentence(const std::string& kind) {
  for (const auto& one : sample().said["findings"])
    if (one["kind"] == kind) return one["text"];
  return "";
}

}  // namespace

TEST_CASE("the sample's findings are what its tables say", "[findings]") {
  const fs::path folder = sample().temp / "r";
  std::vector<std::string> kinds;
  for (const auto& one : sample().said["findings"]) kinds.push_back(one["kind"]);
  CHECK(kinds == std::vector<std::string>{"future", "head", "layer", "policy", "channels"});

  std::map<std::string, std::vector<double>> recall, rho;
  std::vector<CsvRow> attn;
  for (const CsvRow& row : csv_rows(folder / "agreement.csv", kAgreement)) {
    if (row.at("reference") == "oracle_future" && row.at("metric") == "recall@10%")
      recall[row.at("score")].push_back(number(row));
    if (row.at("reference") != "exact_remove" || row.at("metric") != "spearman") continue;
    rho[row.at("score")].push_back(number(row));
    if (row.at("score") == "attn") attn.push_back(row);
  }
  double found = 0, ranked = -1;
  for (const auto& [score, values] : recall)
    if (!score.starts_with("exact_")) found = std::max(found, middle(values));
  for (const auto& [score, values] : rho)
    if (!score.starts_with("exact_")) ranked = std::max(ranked, middle(values));
  CHECK(contains(sentence("future"), fmt::format("{:.0f} % of the tenth of tokens", 100 * found)));
  CHECK(contains(sentence("future"),
                 fmt::format("cost on the window {:.0f} %", 100 * middle(recall["exact_remove"]))));
  CHECK(contains(sentence("future"), fmt::format("rank correlation {:.3g} (median head)", ranked)));

  const CsvRow worst = *std::min_element(
      attn.begin(), attn.end(), [](const CsvRow& a, const CsvRow& b) { return number(a) < number(b); });
  CHECK(contains(
      sentence("head"),
      fmt::format("{:.2f} is the lowest rank correlation of attn with the exact cost (exact_remove): "
                  "layer {} head {}; the median head has {:.2f}",
                  number(worst), worst.at("layer"), worst.at("kv_head"), middle(rho["attn"]))));
  // The token, by sorting anew.
  const fs::path tokens = folder / fmt::format("layer_0{}", worst.at("layer")) / "tokens";
  const auto head = std::stoul(worst.at("kv_head"));
  const auto order_of = [&](const char* metric) {
    const std::vector<float> all = test::npy_file(tokens / fmt::format("{}.npy", metric)).as<float>();
    std::vector<std::size_t> order(896);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return all[head * 896 + a] > all[head * 896 + b]; });
    return order;
  };
  const std::vector<std::size_t> real = order_of("exact_remove"), guessed = order_of("attn");
  const auto place = [&](std::size_t token) {
    return std::find(guessed.begin(), guessed.end(), token) - guessed.begin();
  };
  const auto fall = [&](std::size_t token) {
    const auto rank = std::find(real.begin(), real.end(), token) - real.begin() + 1;
    return static_cast<double>(place(token) + 1) / static_cast<double>(rank);
  };
  const auto missed = std::max_element(real.begin(), real.end(),
                                       [&](std::size_t a, std::size_t b) { return fall(a) < fall(b); });
  const auto text =
      nlohmann::json::parse(test::file_text(fs::path(test::sample_dump()) / "tokens.json"))["text"];
  INFO(sentence("head"));
  CHECK(contains(sentence("head"), fmt::format("; token {}, '{}', is {}th by cost and {}th by attn.", *missed,
                                               displayable(text[*missed].get<std::string>()),
                                               missed - real.begin() + 1, place(*missed) + 1)));

  std::map<std::string, double> model;
  std::vector<double> layers, heads;
  for (const CsvRow& row : csv_rows(folder / "evictions.csv", kEvictions))
    if (row.at("budget") == "0.8" && row.at("rows") == "future" && row.at("metric") == "output_error") {
      if (!row.at("kv_head").empty() && row.at("policy") == "snapkv+joint") heads.push_back(number(row));
      if (row.at("layer").empty()) model[row.at("policy")] = number(row);
      if (row.at("kv_head").empty() && !row.at("layer").empty() && row.at("policy") == "snapkv+joint")
        layers.push_back(number(row));
    }
  const double oracle = std::min(model.at("oracle"), model.at("oracle_exact"));
  model.erase("oracle"), model.erase("oracle_exact");
  const auto least = *std::min_element(model.begin(), model.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto near = std::count_if(model.begin(), model.end(), [&](const auto& one) {
    return one.first != least.first && one.second < 1.5 * least.second;
  });
  CHECK(least.first == "snapkv+joint");
  CHECK(contains(
      sentence("policy"),
      fmt::format(
          "{:.3g} is the lowest output error of {} policies, that of snapkv+joint (kept 20 %, decoding "
          "steps; median head {:.3g}), {:.2g} times that of oracle_exact",
          least.second, model.size(), middle(heads), least.second / oracle)));
  CHECK(contains(sentence("policy"), fmt::format("; {} of the others within 1.5 times", near)));
  const double most = *std::max_element(layers.begin(), layers.end());
  REQUIRE(layers.size() == 6);
  CHECK(contains(sentence("layer"), fmt::format("{:.3g} is the output error of layer", most)));
  CHECK(contains(sentence("layer"), fmt::format("{:.2g} times the median layer's {:.3g} (",
                                                most / middle(layers), middle(layers))));
}

TEST_CASE("findings are the same every time, on a terminal, in JSON and on the page", "[findings][report]") {
  const fs::path folder = sample().temp / "r";
  const std::vector<Finding> found = findings_of(ResultReader(folder));
  CHECK(nlohmann::json::parse(json_of(found).dump()) == sample().said["findings"]);
  CHECK(text_of(found) == text_of(findings_of(ResultReader(folder))));

  const std::string page = test::report_of(folder);
  const std::size_t worth = page.find("<div class=\"worth\">");
  REQUIRE(worth < page.find("<dl class=\"facts\">"));
  std::size_t links = 0;
  for (std::size_t at = page.find("<li>", worth); at < page.find("</div>", worth);
       at = page.find("<li>", at + 1)) {
    const std::size_t begin = page.find("href=\"#", at) + 7, end = page.find('"', begin);
    CHECK(contains(page, fmt::format(" id=\"{}\"", page.substr(begin, end - begin))));
    // The link opens the head of the sentence, if that head is one of a list's.
    if (const Finding& one = found[links]; one.place.token) {
      const std::string picks = page.substr(end, page.find('>', end) - end);
      const std::string head = fmt::format("layer {}, head {}", *one.place.layer, *one.place.kv_head);
      CHECK(contains(picks, fmt::format("data-head=\"{}.{}\"", *one.place.layer, *one.place.kv_head)));
      CHECK(contains(picks, R"("score":"attn","exact error":"exact_remove")"));
      CHECK(contains(page.substr(page.find(" id=\"scatter\"")), fmt::format("<option value=\"{}\">", head)));
    }
    ++links;
  }
  CHECK(links == found.size());
}

TEST_CASE("runs end with what is worth knowing, unless they are to be quiet", "[findings]") {
  const TempDir temp;
  test::make_small_dump(temp / "dump");
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--out", temp / "r", "--force"});
    const test::ProcessResult result = succeed(std::move(arguments));
    return result.out;
  };
  const std::string text =
      run({"evict", temp / "dump", "--policy", "h2o,streaming,oracle", "--budget", "20"});
  const std::string expected = text_of(findings_of(ResultReader(fs::path(temp / "r"))));
  CHECK(expected.starts_with("Worth knowing:\n- "));
  CHECK(contains(text, "\n\n" + expected + "\nresults: "));
  CHECK(run({"evict", temp / "dump", "--policy", "h2o,streaming", "--budget", "20", "--quiet"}).empty());
  CHECK(contains(run({"tokens", temp / "dump", "--metrics", "attn,exact_remove,oracle_future"}),
                 "lowest rank correlation of attn"));
  // One policy, nothing beside it: nothing to say.
  CHECK_FALSE(
      contains(run({"evict", temp / "dump", "--policy", "h2o", "--budget", "20", "--layers", "0"}), "Worth"));
  // A part of a run is not the dump.
  CHECK_FALSE(contains(run({"evict", temp / "dump", "--policy", "h2o,oracle", "--shard", "1/2"}), "Worth"));
}

}  // namespace kvreplay
