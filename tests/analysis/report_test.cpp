#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/analysis/xml_check.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <set>

// `kvreplay report`: what stands in the page and beside it, against the tables that it is made from.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char* kAgreement = "layer,kv_head,score,reference,rows,window,reserve,metric,value";

void results_of(const std::string& command, const std::string& dump, const std::string& out,
                const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {command, dump, "--out", out, "--quiet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  succeed(arguments);
}

void replace_in(const fs::path& path, const std::string& what, const std::string& with) {
  std::string text = file_text(path);
  const std::size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  write_file(path, text.replace(at, what.size(), with));
}

/// Rows of a CSV by their first fields, the last one the number.
std::map<std::string, double> numbers_in(const fs::path& csv) {
  std::map<std::string, double> numbers;
  const std::string text = file_text(csv);
  for (std::size_t at = text.find('\n') + 1; at < text.size(); at = text.find('\n', at) + 1) {
    const std::string line = text.substr(at, text.find('\n', at) - at);
    const std::size_t comma = line.rfind(',');
    numbers[line.substr(0, comma)] = std::strtod(line.c_str() + comma + 1, nullptr);
  }
  return numbers;
}

double median(std::vector<double> values) {
  values.erase(std::remove_if(values.begin(), values.end(), [](double v) { return std::isnan(v); }),
               values.end());
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n == 0 ? std::nan("") : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/// The JSON of the figure of this id.
Json data_of(const std::string& html, const std::string& figure) {
  const std::size_t begin = html.find("<figure id=\"" + figure + "\"");
  REQUIRE(begin != std::string::npos);
  constexpr std::string_view open = "<script type=\"application/json\">";
  const std::size_t at = html.find(open, begin) + open.size();
  return Json::parse(html.substr(at, html.find("</script>", at) - at));
}

/// One result folder of everything, made once.
const std::string& whole_results() {
  static const TempDir temp;
  static const std::string folder = [] {
    make_small_dump(temp / "dump");
    results_of("analyze", temp / "dump", temp / "all");
    return temp / "all";
  }();
  return folder;
}

}  // namespace

TEST_CASE("a report is one page that refers to nothing elsewhere, with pictures that are well-formed",
          "[report]") {
  const std::string html = report_of(whole_results());
  CHECK(html.starts_with("<!DOCTYPE html>"));
  std::string without = html;
  for (const char* allowed : {"http://www.w3.org/2000/svg"})
    for (std::size_t at; (at = without.find(allowed)) != std::string::npos;)
      without.erase(at, std::string(allowed).size());
  CHECK_FALSE(contains(without, "http://"));
  CHECK_FALSE(contains(without, "https://"));
  CHECK_FALSE(contains(without, "@import"));
  CHECK_FALSE(contains(without, "src="));
  CHECK_FALSE(contains(without, "<link"));
  CHECK(html.size() < 3'000'000);

  const std::vector<std::string> pictures = pictures_in(html);
  CHECK(pictures.size() > 30);
  for (const std::string& picture : pictures) {
    INFO(picture.substr(0, 400));
    REQUIRE(xml_fault(picture).empty());
    REQUIRE_FALSE(std::regex_search(picture, std::regex(" d=\"[^\"]*(nan|inf)")));
  }
  // Ids are unique, and every section and figure has its words.
  CHECK(repeated_ids(html).empty());
  for (const char* figure :
       {"scores", "policies", "shares", "pruning", "head-map", "recall", "scatter", "error-by-budget",
        "error-by-layer", "loss-by-sigma", "budget-by-layer", "shared-budget", "allocation", "loss-curves",
        "error-by-ratio", "selection-by-layer", "query-channels", "interaction"})
    CHECK(contains(html, fmt::format("<figure id=\"{}\">", figure)));
}

TEST_CASE("every figure also stands beside the page, as a picture and as its numbers", "[report]") {
  report_of(whole_results());
  const fs::path figures = fs::path(whole_results()) / "report" / "figures";
  const auto list = csv_rows(figures / "figures.csv", "figure,file");
  std::map<std::string, std::set<std::string>> kinds;
  for (const CsvRow& row : list) {
    const fs::path file = figures / row.at("file");
    INFO(file);
    REQUIRE(fs::file_size(file) > 0);
    kinds[row.at("figure")].insert(file.extension().string());
    if (file.extension() == ".svg") CHECK(xml_fault(file_text(file)).empty());
  }
  CHECK(kinds.size() == 20);
  for (const auto& [figure, of] : kinds) {
    INFO(figure);
    CHECK(of.contains(".csv"));
    const bool words = figure == "papers-claims" || figure == "text";
    CHECK((of.contains(".svg") || of.contains(".png")) != words);
  }
  CHECK(list.size() + 1 == static_cast<std::size_t>(std::distance(fs::directory_iterator(figures), {})));
}

TEST_CASE("the first screen's numbers are those of the tables", "[report]") {
  const std::string html = report_of(whole_results());
  const fs::path folder = whole_results(), figures = folder / "report" / "figures";
  std::map<std::string, std::vector<double>> spearman, recall;
  for (const CsvRow& row : csv_rows(folder / "agreement.csv", kAgreement))
    if (row.at("reference") == "exact_remove") {
      if (row.at("metric") == "spearman") spearman[row.at("score")].push_back(std::stod(row.at("value")));
      if (row.at("metric") == "recall@10%") recall[row.at("score")].push_back(std::stod(row.at("value")));
    }
  const auto scores = numbers_in(figures / "scores.csv");
  REQUIRE(spearman.size() == 13);
  CHECK(scores.size() == 4 * spearman.size());
  for (const auto& [score, values] : spearman) {
    INFO(score);
    CHECK(scores.at(score + ",rho median") == Approx(median(values)).epsilon(1e-14));
    CHECK(scores.at(score + ",rho worst") == *std::min_element(values.begin(), values.end()));
    CHECK(scores.at(score + ",recall median") == Approx(median(recall[score])).epsilon(1e-14));
    CHECK(contains(html, fmt::format(">{:.3g}</text>", median(values))));
  }
  const Evictions evictions(folder);
  const auto policies = numbers_in(figures / "policies.csv");
  for (const auto& [budget, kept] : std::map<std::string, std::string>{
           {"0.5", "kept 50 % (31)"}, {"0.8", "kept 20 % (12)"}, {"0.9", "kept 10 % (6)"}})
    for (const char* policy : {"h2o", "snapkv+caote", "oracle_exact"}) {
      const double error =
          evictions.at(",", fmt::format("{},paper,prefill,{}", policy, budget), "future", "output_error");
      INFO(policy << " " << budget);
      CHECK(policies.at(fmt::format("{},{}", policy, kept)) == error);
      CHECK(contains(html, fmt::format(">{:.3g}</text>", error)));
    }
}

TEST_CASE("recall curves pass through the figures of agreement.csv", "[report]") {
  report_of(whole_results());
  const fs::path folder = whole_results();
  const auto recall = numbers_in(folder / "report" / "figures" / "recall.csv");
  // 61 candidates: 10 % are 6, 20 % are 12.
  const std::map<std::string, std::string> k = {
      {"recall@10%", "6"}, {"recall@20%", "12"}, {"recall@40", "40"}};
  std::size_t compared = 0;
  for (const CsvRow& row : csv_rows(folder / "agreement.csv", kAgreement)) {
    const auto found = k.find(row.at("metric"));
    if (found == k.end() || row.at("value").empty()) continue;
    const std::string key = fmt::format("\"layer {}, head {}\",{},{},{}", row.at("layer"), row.at("kv_head"),
                                        row.at("reference"), row.at("score"), found->second);
    INFO(key);
    REQUIRE(recall.at(key) == Approx(std::stod(row.at("value"))).epsilon(1e-12));
    ++compared;
  }
  CHECK(compared > 500);
}

TEST_CASE("what the page's script draws from is what the arrays hold", "[report]") {
  const std::string html = report_of(whole_results());
  const fs::path folder = whole_results();
  std::size_t maps = 0;
  const Json head_map = data_of(html, "head-map");
  for (const Json& map : head_map["maps"])
    if (map["name"][0] == "agreement of a score" && map["name"][1] == "spearman") {
      const auto values = npy_file(folder / "maps" /
                                   fmt::format("{}~{}~spearman.npy", map["name"][2].get<std::string>(),
                                               map["name"][3].get<std::string>()))
                              .as<double>();
      REQUIRE(values.size() == map["values"].size());
      for (std::size_t i = 0; i < values.size(); ++i)
        if (std::isnan(values[i]))
          CHECK(map["values"][i].is_null());
        else
          CHECK(map["values"][i].get<double>() == Approx(values[i]).epsilon(1e-3));
      ++maps;
    }
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder / "maps"))
    files += entry.path().filename().string().ends_with("~spearman.npy");
  CHECK(files > 50);
  CHECK(maps == files);

  // Loss curves: of the second head, as a share of its first value.
  const Npy curves = npy_file(folder / "curves" / "snapkv.npy");
  const auto losses = curves.as<double>();
  const std::size_t length = curves.shape[2];
  const Json lines = data_of(html, "loss-curves")["values"]["2,0"];
  REQUIRE(lines[0].size() == length);  // 62 points: none is left out
  for (std::size_t b = 0; b < length; ++b)
    CHECK(lines[0][b].get<double>() ==
          Approx(losses[length + b] / losses[length]).epsilon(1e-3).margin(1e-12));
}

TEST_CASE("lines by layer, head and channel are those of the tables and the arrays", "[report]") {
  report_of(whole_results());
  const fs::path folder = whole_results(), figures = folder / "report" / "figures";
  const auto budgets = numbers_in(figures / "budget-by-layer.csv");
  const auto allocation = numbers_in(figures / "allocation.csv");
  std::size_t layers = 0, heads = 0;
  for (const CsvRow& row : csv_rows(folder / "budgets.csv",
                                    "layer,kv_head,order,method,sigma,budget,loss,output_error,"
                                    "layer_output_error")) {
    if (row.at("sigma") != "0.5" || row.at("layer").empty()) continue;
    INFO(row.at("order") << " " << row.at("method") << " " << row.at("layer") << " " << row.at("kv_head"));
    if (row.at("kv_head").empty()) {
      for (const char* figure : {"loss", "output_error"})
        CHECK(budgets.at(fmt::format("{},{},kept 50 %,{},{}", figure, row.at("order"), row.at("method"),
                                     row.at("layer"))) == std::stod(row.at(figure)));
      ++layers;
    } else if (row.at("method") != "lu") {
      CHECK(allocation.at(fmt::format("\"layer {}, head {}\",{},{},0.5", row.at("layer"), row.at("kv_head"),
                                      row.at("order"), row.at("method"))) ==
            Approx(std::stod(row.at("budget")) / 61).epsilon(1e-12));
      ++heads;
    }
  }
  CHECK(layers == 20);
  CHECK(heads == 32);
  const auto profile = npy_file(folder / "curves" / "snapkv~lu.npy").as<float>();
  for (std::size_t i = 0; i < 99; ++i)
    for (std::size_t head = 0; head < 4; ++head)
      CHECK(allocation.at(fmt::format("\"layer {}, head {}\",snapkv,lu,{}", head / 2, head % 2,
                                      static_cast<double>(10 * (i + 1)) / 1000)) ==
            Approx(1 - static_cast<double>(profile[4 * i + head])).margin(1e-12));

  const auto selections = numbers_in(figures / "selection-by-layer.csv");
  std::size_t gains = 0;
  for (const CsvRow& row : csv_rows(folder / "channels.csv",
                                    "layer,kv_head,method,semantics,ratio,recent,pruned,rows,metric,value"))
    if (row.at("metric") == "reconstruction_gain" && !row.at("layer").empty() && row.at("kv_head").empty() &&
        !row.at("value").empty() && row.at("rows") == "window") {
      CHECK(selections.at(fmt::format("reconstruction_gain,window,{},{},{},{},{}", row.at("ratio"),
                                      row.at("semantics"), row.at("recent"), row.at("method"),
                                      row.at("layer"))) == std::stod(row.at("value")));
      ++gains;
    }
  CHECK(gains >= 20);

  const auto queries = numbers_in(figures / "query-channels.csv");
  const fs::path channels = folder / "layer_01" / "channels";
  const Npy means = npy_file(channels / "query_future_mean.npy");
  const auto mean = means.as<double>(), spread = npy_file(channels / "query_future_std.npy").as<double>();
  for (std::size_t head = 0; head < means.shape[0]; ++head)
    for (std::size_t channel = 0; channel < means.shape[1]; ++channel) {
      const std::size_t at = head * means.shape[1] + channel;
      const auto drawn = [&](const char* line) {
        return queries.at(
            fmt::format("\"layer 1, query head {}\",\"decoding, mean{}\",{}", head, line, channel));
      };
      CHECK(drawn("") == mean[at]);
      CHECK(drawn(" - spread") == mean[at] - spread[at]);
    }
}

TEST_CASE("decode curves end at the means of decode.csv", "[report]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  results_of("evict", temp / "dump", temp / "r",
             {"--phase", "decode,append-only", "--policy", "h2o,tova", "--precision", "f64"});
  report_of(temp / "r");
  const auto curves = numbers_in(fs::path(temp / "r") / "report" / "figures" / "decode.csv");
  std::size_t compared = 0;
  for (const CsvRow& row :
       csv_rows(fs::path(temp / "r") / "decode.csv", "layer,kv_head,policy,semantics,budget,metric,value")) {
    if (row.at("metric") != "mean") continue;
    const std::string name = row.at("policy"), policy = name.substr(0, name.find('~'));
    const std::string option =
        fmt::format("\"{}{}, paper\"", row.at("budget"), name == policy ? "" : ", append-only");
    const std::string key =
        fmt::format("{},\"layer {}, head {}\",{},8", option, row.at("layer"), row.at("kv_head"), policy);
    INFO(key);
    REQUIRE(curves.at(key) == Approx(std::stod(row.at("value"))).epsilon(1e-12));
    ++compared;
  }
  CHECK(compared == 4 * 4 * 3);  // heads, runs, budgets
}

TEST_CASE("claims are effects of one prompt, without verdicts", "[report]") {
  const std::string html = report_of(whole_results());
  CHECK(contains(html, "Twenty recent tokens, reserved among the kept"));
  CHECK(contains(html, "needs kvreplay tokens --reserve 0,20"));  // not measured here
  CHECK_FALSE(contains(html, "class=\"holds-"));
  const Json summary = Json::parse(file_text(fs::path(whole_results()) / "summary.json"));
  const Json& losses = summary["totals"]["budget_losses"];
  const double ratio =
      losses["snapkv-uniform-0.5"].get<double>() / losses["snapkv-pyramid-0.5"].get<double>();
  std::size_t found = 0;
  for (const CsvRow& row :
       csv_rows(fs::path(whole_results()) / "report/figures/papers-claims.csv", kClaims + ",prompt")) {
    CHECK(row.at("prompts") == "1");
    for (const char* none : {"low", "high", "verdict"}) CHECK(row.at(none).empty());
    CHECK(row.at("effect") == row.at("prompt"));
    if (row.at("id") != "lukv-3" || row.at("setting") != "uniform / pyramid, snapkv, kept 50 %, loss")
      continue;
    ++found;
    CHECK(std::stod(row.at("effect")) == Approx(ratio).epsilon(1e-12));
    CHECK(contains(html, "<td>uniform / pyramid, snapkv, kept 50 %, loss</td><td>one prompt: "));
  }
  CHECK(found == 1);
}

TEST_CASE("names from a dump do not become markup", "[report]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  results_of("tokens", temp / "dump", temp / "r");
  Json summary = Json::parse(file_text(temp / "r/summary.json"));
  summary["dump"]["model"] = "</title><script>alert('x')</script>\"&";
  summary["notes"].push_back("<img src=x onerror=alert(1)>");
  write_file(temp / "r/summary.json", summary.dump());
  const std::string html = report_of(temp / "r", {"--title", "a <b> \"c\""});
  CHECK_FALSE(contains(html, "<script>alert"));
  CHECK_FALSE(contains(html, "<img"));
  CHECK(contains(html, "<h1>a &lt;b&gt; &quot;c&quot;</h1>"));
  CHECK(contains(html, "&lt;/title&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;"));
}

TEST_CASE("a folder of one command gives a report of that, and says what the rest would take", "[report]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::map<std::string, std::pair<std::vector<std::string>, std::string>> commands = {
      {"tokens", {{"--metrics", "attn,exact_remove"}, "scatter"}},
      {"evict", {{"--policy", "h2o", "--budget", "20"}, "error-by-budget"}},
      {"budget", {{"--method", "uniform", "--sigma", "0.5"}, "loss-curves"}},
      {"channels", {{"--method", "think", "--ratio", "0.5"}, "interaction"}}};
  for (const auto& [command, given] : commands) {
    INFO(command);
    results_of(command, temp / "dump", temp / command, given.first);
    const std::string html = report_of(temp / command);
    CHECK(contains(html, fmt::format("<figure id=\"{}\">", given.second)));
    for (const auto& [other, its] : commands)
      if (other != command) {
        CHECK_FALSE(contains(html, fmt::format("<figure id=\"{}\">", its.second)));
        CHECK(contains(html, fmt::format("kvreplay {} DUMP --out DIR", other)));
      }
    for (const std::string& picture : pictures_in(html)) REQUIRE(xml_fault(picture).empty());
  }
  // Scores alone have nothing to be compared with, nor has an oracle alone.
  for (const std::string metrics : {"attn,value", "oracle_importance"}) {
    results_of("tokens", temp / "dump", temp / metrics, {"--metrics", metrics});
    CHECK(contains(report_of(temp / metrics), "it needs at least one score, and one exact error or oracle"));
  }
}

TEST_CASE("tables without rows and figures without values are no faults", "[report]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  results_of("evict", temp / "dump", temp / "r", {"--policy", "h2o", "--budget", "20"});
  forget_record(temp / "r");
  const fs::path table = fs::path(temp / "r") / "evictions.csv";
  const std::string whole = file_text(table);
  std::string values = whole;
  values = std::regex_replace(values, std::regex(",[-0-9.e]+\n"), ",\n");
  write_file(table, values);
  CHECK(contains(report_of(temp / "r"), "<figure id=\"policies\">"));
  for (const std::string& picture : pictures_in(report_of(temp / "r"))) REQUIRE(xml_fault(picture).empty());

  write_file(table, whole.substr(0, whole.find('\n') + 1));
  Json summary = Json::parse(file_text(temp / "r/summary.json"));
  summary["totals"]["eviction_rows"] = 0;
  write_file(temp / "r/summary.json", summary.dump());
  CHECK(contains(report_of(temp / "r"), "kvreplay evict DUMP --out DIR measures them"));
}

TEST_CASE("what is no finished result folder is refused in one line", "[report]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  results_of("tokens", temp / "dump", temp / "r");
  CHECK(contains(complaint({"report", temp / "nowhere"}), "nowhere"));
  CHECK(contains(complaint({"report", temp / "dump"}), "summary.json"));
  CHECK(contains(complaint({"report", temp / "r", "--out", temp / "r/summary.json"}), "ends in .html"));

  const std::string heads = file_text(temp / "r/heads.csv"), record = file_text(temp / "r/files.csv");
  const auto refused = [&](const std::string& line) {
    INFO(complaint({"report", temp / "r"}));
    CHECK(contains(complaint({"report", temp / "r"}), line));
    CHECK(contains(complaint({"compare", temp / "r", temp / "r"}), line));
  };
  replace_in(temp / "r/heads.csv", "\n0,", "\n9,");
  refused("/r/heads.csv: expected the ");
  fs::remove(temp / "r/heads.csv");
  refused("/r/heads.csv: expected the ");
  write_file(temp / "r/heads.csv", heads);
  report_of(temp / "r");
  write_file(temp / "r/files.csv", record.substr(0, record.rfind('\n', record.size() - 2) + 1));
  refused("/r/files.csv: expected the record that summary.json was written with, found another");
  fs::remove(temp / "r/files.csv");
  refused("/r/files.csv: expected a readable file");
  CHECK(contains(complaint({"tokens", temp / "dump", "--out", temp / "r", "--resume"}), "/r/files.csv"));

  forget_record(temp / "r");
  replace_in(temp / "r/heads.csv", "\n0,", "\n99,");
  report_of(temp / "r");  // heads.csv is not read
  replace_in(temp / "r/agreement.csv", "\n0,0,", "\n99,0,");
  CHECK(contains(complaint({"report", temp / "r"}),
                 "agreement.csv: line 2: expected heads of the run, found layer 99"));
  replace_in(temp / "r/summary.json", "\"schema\": 1", "\"schema\": 2");
  const std::string schema = complaint({"report", temp / "r"});
  CHECK(contains(schema, "expected 1"));
  CHECK(contains(schema, "found 2"));
  fs::remove(temp / "r/summary.json");
  fs::create_directories(temp / "r/.kvreplay");
  write_file(temp / "r/.kvreplay/state.json", "{}");
  CHECK(contains(complaint({"report", temp / "r"}), "unfinished"));
}

TEST_CASE("the same results give the same report, whole or not at all", "[report]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  results_of("tokens", temp / "dump", temp / "r");
  const std::string html = report_of(temp / "r");
  const auto first = contents(fs::path(temp / "r") / "report");
  report_of(temp / "r");
  CHECK(contents(fs::path(temp / "r") / "report") == first);

  // A full disk: the old page stays, and nothing half-written.
  const ProcessResult full = run_kvreplay({"report", temp / "r"}, {.folder = {}, .largest_file = 60000});
  CHECK(full.code == 2);
  CHECK(lines(full.err) == 1);
  CHECK(file_text(fs::path(temp / "r") / "report" / "index.html") == html);
  CHECK_FALSE(has_half_written(temp / "r"));

  // Elsewhere: the page and its folder of figures; what is no report's own is left alone.
  const ProcessResult elsewhere =
      run_kvreplay({"report", temp / "r", "--out", temp / "x/mine.html", "--json"});
  CHECK(elsewhere.code == 0);
  const Json said = Json::parse(elsewhere.out);
  CHECK(said["bytes"] == fs::file_size(temp / "x/mine.html"));
  CHECK(fs::exists(temp / "x/mine-figures/recall.svg"));
  CHECK(contains(file_text(temp / "x/mine.html"), "href=\"mine-figures/recall.svg\""));
  fs::create_directories(temp / "x/other-figures");
  write_file(temp / "x/other-figures/photo.svg", "mine");
  CHECK(contains(complaint({"report", temp / "r", "--out", temp / "x/other.html"}), "other files"));
  CHECK(file_text(temp / "x/other-figures/photo.svg") == "mine");
  CHECK_FALSE(fs::exists(temp / "x/other.html"));
  // A report that was killed before its list was written is in nobody's way.
  const fs::path cut_short = temp / "x/mine-figures/.kvreplay-00000001-0.tmp";
  fs::remove_all(cut_short.parent_path());
  fs::create_directories(cut_short.parent_path());
  write_file(cut_short, "figure,fi");
  CHECK(run_kvreplay({"report", temp / "r", "--out", temp / "x/mine.html"}).code == 0);
  CHECK_FALSE(fs::exists(cut_short));
}

TEST_CASE("a report leaves the results as they are; results that are replaced take it along", "[report]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  results_of("tokens", temp / "dump", temp / "r");
  auto before = contents(temp / "r");
  report_of(temp / "r");
  auto after = contents(temp / "r");
  std::erase_if(after, [](const auto& file) { return file.first.starts_with("report"); });
  CHECK(after == before);
  results_of("tokens", temp / "dump", temp / "r", {"--resume"});
  CHECK(fs::exists(temp / "r/report/index.html"));
  results_of("tokens", temp / "dump", temp / "r", {"--force"});
  CHECK_FALSE(fs::exists(temp / "r/report"));
}
