#include "analysis/results/over_dumps.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/analysis/xml_check.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <regex>
#include <set>

// `kvreplay report` of a folder over several dumps, against the tables that it is made from.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kNames = {"a", "b", "c", "d"};
constexpr double kT = 3.182446305284263;  // of 95 % with three degrees of freedom
const std::string kFigureHeader = "item,n,mean,ci_low,ci_high,a,b,c,d";
const std::string kOver = ",n,mean,sd,geometric_mean,ci_low,ci_high";

void make_results(const std::string& out, const std::vector<std::string>& command,
                  const std::vector<std::string>& dumps) {
  std::vector<std::string> arguments = {command.front()};
  arguments.insert(arguments.end(), dumps.begin(), dumps.end());
  arguments.insert(arguments.end(), {"--out", out, "--quiet", "--backend", "cpu"});
  arguments.insert(arguments.end(), command.begin() + 1, command.end());
  succeed(arguments);
}

/// Four dumps of everything, made once; b has a shorter prompt.
const std::string& whole_results() {
  static const TempDir temp;
  static const std::string folder = [] {
    make_small_dump(temp / "a", {"--seed", "1"});
    make_small_dump(temp / "b", {"--seed", "2", "--prompt", "47"});
    make_small_dump(temp / "c", {"--seed", "3"});
    make_small_dump(temp / "d", {"--seed", "4"});
    make_results(temp / "all", {"analyze"}, {temp / "a", temp / "b", temp / "c", temp / "d"});
    return temp / "all";
  }();
  return folder;
}

/// Two dumps of a few policies, for a test to change.
std::string small_results(const TempDir& temp) {
  make_small_dump(temp / "a", {"--seed", "1"});
  make_small_dump(temp / "b", {"--seed", "2"});
  make_results(temp / "r", {"evict", "--policy", "h2o,snapkv", "--budget", "20"}, {temp / "a", temp / "b"});
  return temp / "r";
}

std::vector<CsvRow> figure_rows(const std::string& name, const std::string& header = kFigureHeader) {
  return csv_rows(fs::path(whole_results()) / "report" / "figures" / (name + ".csv"), header);
}

double number(const std::string& text) { return text.empty() ? std::nan("") : std::stod(text); }

}  // namespace

TEST_CASE("a report over dumps is one page that refers to nothing elsewhere", "[report][many]") {
  const std::string html = report_of(whole_results());
  std::string without = html;
  for (std::size_t at; (at = without.find("http://www.w3.org/2000/svg")) != std::string::npos;)
    without.erase(at, 26);
  for (const char* outside : {"http://", "https://", "@import", "src=", "<link", "file:/"})
    CHECK_FALSE(contains(without, outside));
  // The only links are into the page and to its own figures.
  const std::regex link("href=\"([^\"]*)\"");
  for (std::sregex_iterator at(html.begin(), html.end(), link), end; at != end; ++at) {
    const std::string to = (*at)[1];
    INFO(to);
    CHECK((to.starts_with('#') || fs::exists(fs::path(whole_results()) / "report" / to)));
  }
  const std::vector<std::string> pictures = pictures_in(html);
  CHECK(pictures.size() > 60);
  for (const std::string& picture : pictures) {
    INFO(picture.substr(0, 400));
    REQUIRE(xml_fault(picture).empty());
    REQUIRE_FALSE(std::regex_search(picture, std::regex(" d=\"[^\"]*(nan|inf)")));
  }
  CHECK(repeated_ids(html).empty());
  CHECK(html.size() < 3'000'000);

  std::map<std::string, std::set<std::string>> kinds;
  for (const CsvRow& row : csv_rows(fs::path(whole_results()) / "report/figures/figures.csv", "figure,file"))
    kinds[row.at("figure")].insert(fs::path(row.at("file")).extension().string());
  std::set<std::string> names;
  for (const auto& [name, of] : kinds) {
    INFO(name);
    names.insert(name);
    CHECK(of.contains(".csv"));
    CHECK(of.contains(".svg") == (name != "papers-claims"));
    CHECK(contains(html, fmt::format("<figure id=\"{}\">", name)));
  }
  CHECK(names == std::set<std::string>{"agreement", "allocation", "better-agreement", "better-budgets",
                                       "better-channels", "better-evictions", "budget-by-layer",
                                       "budget-gains", "budgets", "papers-claims", "policies", "recipes",
                                       "recipes-by-prompt", "selection-by-layer", "selections"});
  CHECK(contains(html, "4 dumps of one model"));
  CHECK(contains(html, "prompts of 47 to 61 tokens, 9 decoding steps"));
  const auto dumps = csv_rows(fs::path(whole_results()) / "dumps.csv", "name,model,fingerprint,l,steps");
  for (const CsvRow& dump : dumps)
    CHECK(contains(html, fmt::format("<th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
                                     dump.at("name"), dump.at("model"), dump.at("l"), dump.at("steps"),
                                     dump.at("fingerprint"))));
}

TEST_CASE("means, intervals and dots over dumps are those of the tables", "[report][many]") {
  const std::string html = report_of(whole_results());
  const fs::path folder = whole_results();
  std::map<std::string, CsvRow> means;
  const std::string keys = "layer,kv_head,policy,semantics,phase,budget,rows,metric";
  for (const CsvRow& row : csv_rows(folder / "evictions_over_dumps.csv", keys + kOver))
    if (row.at("layer").empty() && row.at("kv_head").empty() && row.at("rows") == "future" &&
        row.at("metric") == "output_error" && row.at("phase") == "prefill" && row.at("budget") == "0.5")
      CHECK(means.emplace(row.at("policy"), row).second);
  const auto rows = figure_rows("policies");
  REQUIRE(rows.size() == means.size());
  REQUIRE(rows.size() > 10);
  double last = 0;
  for (const CsvRow& row : rows) {
    const std::string policy = row.at("item");
    INFO(policy);
    for (const char* column : {"n", "ci_low", "ci_high"})
      CHECK(row.at(column) == means.at(policy).at(column));
    CHECK(row.at("mean") == means.at(policy).at("geometric_mean"));
    for (const std::string& name : kNames)
      CHECK(std::stod(row.at(name)) ==
            Evictions(folder / name).at(",", policy + ",paper,prefill,0.5", "future", "output_error"));
    CHECK(std::stod(row.at("mean")) >= last);  // the best first
    last = std::stod(row.at("mean"));
    const auto shown = [&](const char* column) { return kvreplay::short_number(std::stod(row.at(column))); };
    CHECK(contains(html, fmt::format("data-tip=\"{}: {}, 95 % from {} to {}, n 4&#10;a: {}&#10;", policy,
                                     shown("mean"), shown("ci_low"), shown("ci_high"), shown("a"))));
  }

  // Scores: medians over the heads, of which the single tables have every one.
  for (const CsvRow& row : figure_rows("agreement")) {
    std::vector<double> heads;
    for (const CsvRow& of : csv_rows(folder / "b" / "agreement.csv",
                                     "layer,kv_head,score,reference,rows,window,reserve,metric,value"))
      if (of.at("score") == row.at("item") && of.at("reference") == "exact_remove" &&
          of.at("metric") == "spearman")
        heads.push_back(std::stod(of.at("value")));
    std::sort(heads.begin(), heads.end());
    REQUIRE(heads.size() == 4);
    CHECK(std::stod(row.at("b")) == Approx((heads[1] + heads[2]) / 2).epsilon(1e-14));
  }
}

TEST_CASE("gains of divided budgets are formed dump by dump", "[report][many]") {
  report_of(whole_results());
  const fs::path folder = whole_results();
  std::map<std::string, double> errors;  // of the whole model, by dump and method
  std::string order, sigma;
  for (const std::string& name : kNames)
    for (const fs::path& below : {fs::path(name), "leave_one_out" / fs::path(name)})
      for (const CsvRow& row : csv_rows(folder / below / "budgets.csv",
                                        "layer,kv_head,order,method,sigma,budget,loss,output_error,"
                                        "layer_output_error")) {
        if (order.empty()) order = row.at("order"), sigma = row.at("sigma");
        if (row.at("layer").empty() && row.at("order") == order && row.at("sigma") == sigma)
          errors[name + row.at("method")] = std::stod(row.at("output_error"));
      }
  const auto rows = figure_rows("budget-gains");
  CHECK(rows.size() == 5);  // of the six methods, uniform is what they are measured by
  for (const CsvRow& row : rows) {
    const std::string method = row.at("item");
    INFO(method);
    double sum = 0, squares = 0;
    for (const std::string& name : kNames) {
      const double gain = 1 - errors.at(name + method) / errors.at(name + "uniform");
      CHECK(number(row.at(name)) == Approx(gain).epsilon(1e-12).margin(1e-15));
      sum += gain, squares += gain * gain;
    }
    const double mean = sum / 4, sd = std::sqrt((squares - 4 * mean * mean) / 3);
    CHECK(number(row.at("mean")) == Approx(mean).epsilon(1e-12).margin(1e-15));
    CHECK(number(row.at("ci_high")) == Approx(std::min(1.0, mean + kT * sd / 2)).epsilon(1e-6).margin(1e-9));
  }
}

TEST_CASE("lines by layer and head have every prompt and their mean", "[report][many]") {
  const std::string html = report_of(whole_results());
  const fs::path folder = whole_results(), figures = folder / "report" / "figures";
  std::map<std::string, std::vector<double>> layers;  // of lu, by the end of the row's key
  for (const std::string& name : kNames)
    for (const CsvRow& row : csv_rows(folder / name / "budgets.csv",
                                      "layer,kv_head,order,method,sigma,budget,loss,output_error,"
                                      "layer_output_error"))
      if (row.at("method") == "lu" && row.at("order") == "snapkv" && row.at("sigma") == "0.5" &&
          !row.at("layer").empty() && row.at("kv_head").empty())
        layers[row.at("layer")].push_back(std::stod(row.at("output_error")));
  const std::string header = "figure,method,tokens ranked by,budget,line,layer,value";
  std::size_t compared = 0;
  for (const CsvRow& row : csv_rows(figures / "budget-by-layer.csv", header)) {
    if (row.at("figure") != "output_error" || row.at("method") != "lu (oracle)" ||
        row.at("tokens ranked by") != "snapkv" || !row.at("budget").starts_with("kept 50 %"))
      continue;
    const std::vector<double>& of = layers.at(row.at("layer"));
    const auto dump = std::find(kNames.begin(), kNames.end(), row.at("line"));
    CHECK(number(row.at("value")) ==
          Approx(dump != kNames.end() ? of[dump - kNames.begin()] : (of[0] + of[1] + of[2] + of[3]) / 4));
    ++compared;
  }
  CHECK(compared == 10);

  std::map<std::string, std::vector<double>> kept;  // of layer 1, head 0
  for (const CsvRow& row :
       csv_rows(figures / "allocation.csv",
                "head,tokens ranked by,line,\"sigma, the share of all tokens that is evicted\",value"))
    if (row.at("head") == "layer 1, head 0" && row.at("tokens ranked by") == "keydiff")
      kept[row.at("line")].push_back(number(row.at("value")));
  REQUIRE(kept.size() == 6);
  std::vector<double> mean(99);
  for (const std::string& name : kNames) {
    const auto profile = npy_file(folder / name / "curves" / "keydiff~lu.npy").as<float>();
    REQUIRE(kept.at(name).size() == 99);
    for (std::size_t i = 0; i < 99; ++i) {
      CHECK(kept.at(name)[i] == Approx(1 - static_cast<double>(profile[4 * i + 2])).margin(1e-12));
      mean[i] += kept.at(name)[i] / 4;
    }
  }
  for (std::size_t i = 0; i < 99; ++i) CHECK(kept.at("mean")[i] == Approx(mean[i]).margin(1e-12));
  CHECK(kept.at("optimal").size() == 2);
}

TEST_CASE("claims have their effects, intervals and verdicts over dumps", "[report][many]") {
  const std::string html = report_of(whole_results());
  const fs::path folder = whole_results();
  std::map<std::string, double> losses;  // of the whole model, by dump, method, order and ratio
  for (const std::string& name : kNames)
    for (const fs::path& below : {"leave_one_out" / fs::path(name), fs::path(name)})
      for (const CsvRow& row : csv_rows(folder / below / "budgets.csv",
                                        "layer,kv_head,order,method,sigma,budget,loss,output_error,"
                                        "layer_output_error"))
        if (row.at("layer").empty())
          for (const char* metric : {"loss", "output_error"})
            losses[name + row.at("method") + row.at("order") + row.at("sigma") + metric] =
                std::stod(row.at(metric));
  std::map<std::string, CsvRow> claims;
  std::set<std::string> ids;
  for (const CsvRow& row : csv_rows(folder / "report/figures/papers-claims.csv", kClaims + ",a,b,c,d")) {
    CHECK(claims.emplace(row.at("id") + ": " + row.at("setting"), row).second);
    ids.insert(row.at("id"));
    if (row.at("prompts") == "4" && !row.at("low").empty()) {
      CHECK(number(row.at("low")) <= number(row.at("effect")));
      CHECK(number(row.at("effect")) <= number(row.at("high")));
      CHECK_FALSE(row.at("verdict").empty());
    }
  }
  for (const char* id :
       {"obcache-2a-exact", "obcache-2a-attn", "obcache-taylor", "obcache-scores", "caote-3", "lukv-3",
        "lukv-4", "lukv-2a", "lukv-steps", "lukv-profile", "iap-3", "iap-output"}) {
    INFO(id);
    CHECK(ids.contains(id));
  }
  for (const auto& [key, left, right, metric] :
       {std::array<std::string, 4>{"lukv-3: profile / ada, snapkv, kept 50 %, loss", "profile", "ada",
                                   "loss"},
        {"lukv-profile: profile / uniform, snapkv, kept 50 %, output_error", "profile", "uniform",
         "output_error"}}) {
    INFO(key);
    const CsvRow& row = claims.at(key);
    double sum = 0, squares = 0;
    for (const std::string& name : kNames) {
      const auto of = [&, figure = metric](const std::string& method) {
        return losses.at(name + method + "snapkv" + "0.5" + figure);
      };
      const double ratio = of(left) / of(right);
      CHECK(number(row.at(name)) == Approx(ratio).epsilon(1e-12));
      sum += std::log(ratio), squares += std::log(ratio) * std::log(ratio);
    }
    const double mean = sum / 4, half = kT * std::sqrt((squares - 4 * mean * mean) / 3 / 4);
    CHECK(number(row.at("effect")) == Approx(std::exp(mean)).epsilon(1e-9));
    CHECK(number(row.at("low")) == Approx(std::exp(mean - half)).epsilon(1e-6));
    CHECK(number(row.at("high")) == Approx(std::exp(mean + half)).epsilon(1e-6));
    CHECK((row.at("verdict") == "holds") == (mean + half < 0));
    CHECK((row.at("verdict") == "does not hold") == (mean - half > 0));
  }
  CHECK(contains(html, "class=\"holds-yes\">holds</td>"));
  CHECK(contains(html, "needs kvreplay tokens --reserve 0,20"));  // not measured here
}

TEST_CASE("two dumps have effects of claims and no verdicts", "[report][many]") {
  const TempDir temp;
  make_small_dump(temp / "a", {"--seed", "1"});
  make_small_dump(temp / "b", {"--seed", "2"});
  make_results(temp / "r", {"evict", "--policy", "h2o,h2o+joint", "--budget", "20"},
               {temp / "a", temp / "b"});
  CHECK_FALSE(contains(report_of(temp / "r"), "class=\"holds-"));
  const auto rows = csv_rows(fs::path(temp / "r") / "report/figures/papers-claims.csv", kClaims + ",a,b");
  REQUIRE(rows.size() == 1);
  CHECK(rows.front().at("setting") == "h2o+joint / h2o, kept 20 tokens, output_error, decoding steps");
  CHECK(number(rows.front().at("effect")) ==
        Approx(std::sqrt(number(rows.front().at("a")) * number(rows.front().at("b")))));
  for (const char* none : {"low", "high", "verdict"}) CHECK(rows.front().at(none).empty());
}

TEST_CASE("a folder over dumps that does not go together is refused in one line", "[report][many]") {
  const TempDir temp;
  const std::string r = small_results(temp);
  forget_record(r);
  const fs::path summary = fs::path(r) / "summary.json", over = fs::path(r) / "evictions_over_dumps.csv";
  const std::string whole_summary = file_text(summary), whole_over = file_text(over);
  report_of(r);

  std::string changed = whole_over;
  const std::size_t line = changed.find("\n,,") + 1,
                    comma = changed.rfind(",2,", changed.find('\n', line)) + 3;
  changed.insert(comma, "9");
  write_file(over, changed);
  const std::string mean = complaint({"report", r});
  CHECK(contains(mean, "evictions_over_dumps.csv: h2o,paper,prefill,20,"));
  CHECK(contains(mean, "of 2 dumps, as their own tables say"));
  write_file(over, whole_over.substr(0, whole_over.rfind('\n', whole_over.size() - 2) + 1));
  CHECK(contains(complaint({"report", r}), "rows, as summary.json says"));
  write_file(over, whole_over);

  Json json = Json::parse(whole_summary);
  json["dumps"][1]["fingerprint"] = "0123456789abcdef";
  write_file(summary, json.dump());
  CHECK(contains(complaint({"report", r}), "results of the dump with the fingerprint 0123456789abcdef"));
  json["dumps"][1] = {{"name", "../elsewhere"}, {"fingerprint", "x"}};
  write_file(summary, json.dump());
  CHECK(contains(complaint({"report", r}), "expected names of folders in it, found '../elsewhere'"));
  json["dumps"] = Json::array();
  write_file(summary, json.dump());
  CHECK(contains(complaint({"report", r}), "expected a list of dumps"));
  json["schema"] = 2;
  write_file(summary, json.dump());
  CHECK(contains(complaint({"report", r}), "schema: expected 1, found 2"));
  write_file(summary, whole_summary);
  report_of(r);
  fs::remove_all(fs::path(r) / "b");
  CHECK(contains(complaint({"report", r}), "/b: expected a result folder"));
}

TEST_CASE("names from dumps do not become markup on a page over them", "[report][many]") {
  const TempDir temp;
  const std::string r = small_results(temp), hostile = "<img src=x>&'\"";
  const fs::path summary = fs::path(r) / "summary.json", own = fs::path(r) / "b" / "summary.json";
  Json json = Json::parse(file_text(own));
  json["dump"]["model"] = "</title><script>alert('x')</script>\"&";
  json["notes"].push_back(hostile);
  write_file(own, json.dump());
  fs::rename(fs::path(r) / "b", fs::path(r) / hostile);
  Json over = Json::parse(file_text(summary));
  over["dumps"][1]["name"] = hostile;
  write_file(summary, over.dump());
  const std::string html = report_of(r, {"--title", "a <b> \"c\""});
  CHECK_FALSE(contains(html, "<script>alert"));
  CHECK_FALSE(contains(html, "<img"));
  CHECK(contains(html, "<h1>a &lt;b&gt; &quot;c&quot;</h1>"));
  CHECK(contains(html, "(1 of 2 dumps)"));
  for (const std::string& picture : pictures_in(html)) REQUIRE(xml_fault(picture).empty());
}

TEST_CASE("a report over dumps leaves the results as they are, and is made again to the byte",
          "[report][many]") {
  const TempDir temp;
  const std::string r = small_results(temp);
  const auto before = contents(r);
  const std::string html = report_of(r);
  auto after = contents(r);
  std::erase_if(after, [](const auto& file) { return file.first.starts_with("report"); });
  CHECK(after == before);
  CHECK(report_of(r) == html);
  // The page names the tables that the folder lacks, and how to make them.
  CHECK(contains(html, "kvreplay tokens DUMP DUMP --out DIR"));
  const std::vector<std::string> evict = {"evict", temp / "a", temp / "b",   "--out",
                                          r,       "--policy", "h2o,snapkv", "--budget",
                                          "20",    "--quiet",  "--backend",  "cpu"};
  std::vector<std::string> again = evict;
  again.emplace_back("--resume");
  CHECK(run_kvreplay(again).code == 0);
  CHECK(fs::exists(fs::path(r) / "report/index.html"));
  again.back() = "--force";
  CHECK(run_kvreplay(again).code == 0);
  CHECK_FALSE(fs::exists(fs::path(r) / "report"));
}

TEST_CASE("a dump's folder never takes the report's place", "[report][many]") {
  const TempDir temp;
  make_small_dump(temp / "report", {"--seed", "1"});
  make_small_dump(temp / "b", {"--seed", "2"});
  make_results(temp / "r", {"evict", "--policy", "h2o", "--budget", "20"}, {temp / "report", temp / "b"});
  CHECK(fs::exists(temp / "r/dump_report/summary.json"));
  report_of(temp / "r");
}
