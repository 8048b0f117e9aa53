#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/analysis/xml_check.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <map>
#include <regex>
#include <set>

// `kvreplay compare --html`: what stands in the page and beside it, against what the command says in JSON.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// Results of two dumps, a and b, made once; of a with another window, too.
const TempDir& results() {
  static const TempDir temp;
  static const bool made = [] {
    make_small_dump(temp / "da", {"--seed", "1"});
    make_small_dump(temp / "db", {"--seed", "2"});
    for (const auto& [out, dump, window] :
         {std::tuple("a", "da", "32"), std::tuple("b", "db", "32"), std::tuple("w", "da", "8")}) {
      succeed(
          {"analyze", temp / dump, "--out", temp / out, "--window", window, "--backend", "cpu", "--quiet"});
    }
    return true;
  }();
  REQUIRE(made);
  return temp;
}

std::string page_of(const std::string& a, const std::string& b, const std::string& file,
                    std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"compare", a, b, "--html", file, "--quiet"});
  const ProcessResult ran = succeed(more);
  CHECK(ran.out.empty());
  return file_text(file);
}

}  // namespace

TEST_CASE("a comparison is one page that refers to nothing elsewhere", "[compare][report]") {
  const TempDir temp;
  const std::string html = page_of(results() / "a", results() / "b", temp / "page.html");
  std::string without = html;
  for (std::size_t at; (at = without.find("http://www.w3.org/2000/svg")) != std::string::npos;)
    without.erase(at, 26);
  for (const char* outside : {"http://", "https://", "@import", "src=", "<link", "file:"})
    CHECK_FALSE(contains(without, outside));
  std::set<std::string> ids;
  const std::regex id(" id=\"([^\"]*)\""), link("href=\"([^\"]*)\"");
  for (std::sregex_iterator at(html.begin(), html.end(), id), end; at != end; ++at) {
    INFO((*at)[1].str());
    CHECK(ids.insert((*at)[1].str()).second);
  }
  for (std::sregex_iterator at(html.begin(), html.end(), link), end; at != end; ++at) {
    const std::string to = (*at)[1];
    INFO(to);
    CHECK((to.starts_with('#') ? ids.contains(to.substr(1)) : fs::exists(temp.path() / to)));
  }
  const std::vector<std::string> pictures = pictures_in(html);
  CHECK(pictures.size() > 12);
  for (const std::string& picture : pictures) {
    INFO(picture.substr(0, 400));
    REQUIRE(xml_fault(picture).empty());
    REQUIRE_FALSE(std::regex_search(picture, std::regex("=\"[^\"]*\\b(nan|inf)\\b[^\"]*\"")));
  }
  // The differences between the runs come before anything else.
  CHECK(html.find("dump.fingerprint") < html.find("<figure"));
  CHECK(html.find("dump.fingerprint") != std::string::npos);
  // The same command, the same bytes.
  CHECK(page_of(results() / "a", results() / "b", temp / "page.html") == html);
}

TEST_CASE("the numbers of a comparison's figures and tables are those of its text", "[compare][report]") {
  const TempDir temp;
  const std::string a = results() / "a", b = results() / "b";
  const std::string html = page_of(a, b, temp / "page.html", {"--all"});
  const ProcessResult said = succeed({"compare", a, b, "--json"});
  const Json json = Json::parse(said.out);
  CHECK(contains(html, fmt::format("figures differ. {}</p>", json["headline"].get<std::string>())));
  const std::map<std::string, std::pair<std::string, std::size_t>> figures = {
      {"agreement-spearman", {"agreement", 0}},
      {"evictions-output_error", {"evictions", 0}},
      {"budgets-loss", {"budgets", 0}},
      {"budgets-output_error", {"budgets", 1}},
      {"channels-relative_reconstruction_error", {"channels", 0}},
      {"channels-output_error", {"channels", 1}}};
  for (const auto& [name, from] : figures) {
    INFO(name);
    CHECK(contains(html, fmt::format("<figure id=\"{}\">", name)));
    // The CSV has the setting that the page shows first: one in which every row is found.
    std::map<std::string, std::map<std::string, std::pair<double, double>>> by_setting;
    for (const Json& figure : json["tables"][from.first]["main"][from.second]["figures"])
      if (!figure["a"].is_null() && !figure["b"].is_null())
        by_setting[figure["setting"]][figure["item"]] = {figure["a"].get<double>(),
                                                         figure["b"].get<double>()};
    const auto rows = csv_rows(temp.path() / "page-figures" / (name + ".csv"), "item,a,b,difference");
    REQUIRE(rows.size() > 1);
    std::size_t matching = 0;
    for (const auto& [setting, values] : by_setting) {
      bool all = values.size() == rows.size();
      for (const CsvRow& row : rows) {
        const auto at = values.find(row.at("item"));
        all = all && at != values.end() && at->second.first == std::stod(row.at("a")) &&
              at->second.second == std::stod(row.at("b"));
      }
      matching += all;
      if (!all) continue;
      for (const CsvRow& row : rows) {
        const double x = std::stod(row.at("a")), y = std::stod(row.at("b"));
        const std::string item = row.at("item");
        const bool oracle =
            name.starts_with("budgets-") && (item.ends_with(" lu") || item.ends_with(" optimal"));
        CHECK(std::stod(row.at("difference")) == y - x);
        CHECK(contains(html, fmt::format("data-tip=\"{}&#10;A: {:.3g}&#10;B: {:.3g}&#10;B - A: {:.3g}\"",
                                         oracle ? item + " (oracle)" : item, x, y, y - x)));
        CHECK(contains(html, fmt::format("<td>{:.4g}</td><td>{:.4g}</td><td>{:.4g}</td>", x, y, y - x)));
      }
    }
    CHECK(matching >= 1);  // two ratios may prune as many channels
  }
  for (const auto& [table, its] : json["tables"].items())
    CHECK(
        contains(html, fmt::format("<a href=\"#part-{0}\">{0}</a></th><td>{1}</td><td>{2}</td>", table,
                                   its["figures"].get<std::size_t>(), its["differing"].get<std::size_t>())));
}

TEST_CASE("a comparison of what is alike has a page, too", "[compare][report]") {
  const TempDir temp;
  const std::string same = page_of(results() / "a", results() / "a", temp / "same.html");
  CHECK(contains(same, "Run alike"));
  CHECK(contains(same, "None of the main figures of the model differs."));
  CHECK_FALSE(contains(same, "<figure"));
  // Another window changes the scores and leaves the rest.
  const std::string window = page_of(results() / "a", results() / "w", temp / "window.html");
  CHECK(contains(window, "<th scope=\"row\">options.tokens.window</th><td>[32]</td><td>[8]</td>"));
  CHECK(contains(window, "<figure id=\"agreement-spearman\">"));
}

TEST_CASE("a page beside the tables of a comparison is replaced with them", "[compare][report]") {
  const TempDir temp;
  const std::string a = results() / "a", b = results() / "b", out = temp / "out";
  const std::vector<std::string> both = {"--out", out};
  page_of(a, b, out + "/index.html", both);
  CHECK(fs::exists(fs::path(out) / "figures/agreement-spearman.svg"));
  const std::string line = complaint({"compare", a, b, "--html", out + "/index.html", "--out", out});
  CHECK(contains(line, "already holds a comparison; --force replaces it"));
  page_of(a, b, out + "/index.html", {"--out", out, "--force"});
  CHECK(contains(complaint({"compare", a, b, "--out", out, "--force"}), "expected a new or empty folder"));

  CHECK(contains(complaint({"compare", a, b, "--html", temp / "page.txt"}),
                 "--html: expected a file that ends in .html"));
  write_file(temp / "file", "");
  CHECK(contains(complaint({"compare", a, b, "--html", temp / "file/page.html"}), "file"));
  fs::create_directories(temp / "mine-figures");
  write_file(temp / "mine-figures/photo.svg", "mine");
  CHECK(contains(complaint({"compare", a, b, "--html", temp / "mine.html"}), "other files"));
  CHECK(file_text(temp / "mine-figures/photo.svg") == "mine");
}

TEST_CASE("names from two dumps do not become markup", "[compare][report]") {
  const TempDir temp;
  for (const char* side : {"a", "b"}) fs::copy(results() / side, temp / side, fs::copy_options::recursive);
  Json summary = Json::parse(file_text(temp / "b/summary.json"));
  summary["dump"]["model"] = "</title><script>alert('x')</script>\"&";
  summary["options"]["tokens"]["<img src=x>"] = "<b>";
  write_file(temp / "b/summary.json", summary.dump());
  const std::string html = page_of(temp / "a", temp / "b", temp / "page.html");
  CHECK_FALSE(contains(html, "<script>alert"));
  CHECK_FALSE(contains(html, "<img"));
  CHECK_FALSE(contains(html, "<b>"));
  CHECK(contains(html, "&lt;script&gt;alert"));
}
