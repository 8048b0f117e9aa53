#include "analysis/report/prompt_text.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/analysis/xml_check.hpp"
#include "tests/support/catch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <regex>

// The text of the prompt in a report: what its page carries, against the arrays of the folder.

using namespace kvreplay;
using namespace kvreplay::report;
using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kTokens = 61;
const std::vector<std::string> kUnkind = {"</span></script><script>alert(1)</script>",
                                          "a\nb\n",
                                          "\t",
                                          "&amp; \"q\" 'r'",
                                          " ",
                                          "\u202Eabc",
                                          "\u65E5",
                                          "\\"};

/// The texts that a page shows for kUnkind.
const std::vector<std::string> kUnkindShown = {"</span></script><script>alert(1)</script>",
                                               "a\u21B5\nb\u21B5\n",
                                               "\u2192\t",
                                               "&amp; \"q\" 'r'",
                                               " ",
                                               "\\u202eabc",
                                               "\u65E5",
                                               "\\"};

/// Results of a small dump whose tokens are unkind, made once for each list of options.
fs::path results_of(const std::vector<std::string>& more = {}) {
  static const TempDir temp;
  static std::map<std::vector<std::string>, fs::path> made;
  const auto found = made.find(more);
  if (found != made.end()) return found->second;
  const fs::path dump = fs::path(temp / fmt::format("{}", made.size())) / "dump",
                 out = dump.parent_path() / "r";
  make_small_dump(dump.string());
  Json tokens = Json::parse(file_text(dump / "tokens.json"));
  for (std::size_t i = 0; i < kUnkind.size(); ++i) tokens["text"][i] = kUnkind[i];
  write_file(dump / "tokens.json", tokens.dump());
  std::vector<std::string> arguments = {"analyze", dump.string(), "--out", out.string(), "--quiet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  succeed(arguments);
  return made[more] = out;
}

std::string figure_of(const std::string& html) {
  const std::size_t begin = html.find("<figure id=\"text\">");
  REQUIRE(begin != std::string::npos);
  return html.substr(begin, html.find("</figure>", begin) - begin);
}
Json data_of(const std::string& figure) {
  constexpr std::string_view open = "<script type=\"application/json\">";
  const std::size_t at = figure.find(open) + open.size();
  return Json::parse(figure.substr(at, figure.find("</script>", at) - at));
}

std::size_t digit(char c) {
  const std::string all = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  REQUIRE(all.find(c) != std::string::npos);
  return all.find(c);
}
std::string bytes_of(const std::string& base64) {
  std::string bytes;
  unsigned bits = 0, held = 0;
  for (const char c : base64) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<unsigned>(digit(c));
    if ((held += 6) >= 8) bytes += static_cast<char>(bits >> (held -= 8) & 255);
  }
  return bytes;
}
template <class T>
std::vector<T> numbers_of(const std::string& base64) {
  const std::string bytes = bytes_of(base64);
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

/// By the definition: 1 and those that are larger, or equal and before it.
std::size_t rank_of(const std::vector<double>& values, std::size_t token) {
  std::size_t rank = 1;
  for (std::size_t i = 0; i < values.size(); ++i)
    rank += values[i] > values[token] || (values[i] == values[token] && i < token);
  return rank;
}

/// The rows of a layer's arrays, heads of all layers one after another.
template <class T>
std::vector<std::vector<double>> heads_of(const fs::path& results, const std::string& name) {
  std::vector<std::vector<double>> heads;
  for (const char* layer : {"layer_00", "layer_01"}) {
    const Npy array = npy_file(results / layer / name);
    const auto values = array.as<T>();
    for (std::size_t h = 0; h < array.shape[0]; ++h)
      heads.emplace_back(values.begin() + static_cast<std::ptrdiff_t>(h * kTokens),
                         values.begin() + static_cast<std::ptrdiff_t>((h + 1) * kTokens));
  }
  return heads;
}
std::vector<double> sum_of(const std::vector<std::vector<double>>& heads, std::size_t from, std::size_t to) {
  std::vector<double> sum(kTokens, 0.0);
  for (std::size_t h = from; h < to; ++h)
    for (std::size_t i = 0; i < kTokens; ++i) sum[i] += heads[h][i];
  return sum;
}

/// Checks in every scope that a metric's levels and a policy's kept sets are those of the arrays.
void check_data(const fs::path& results, const Json& data, std::size_t heads) {
  REQUIRE(data["scopes"].size() == 1 + 2 + heads);
  std::size_t levels = 0, kept = 0;
  for (const Json& metric : data["metrics"]) {
    INFO(metric["name"]);
    const auto arrays =
        heads_of<float>(results, fmt::format("tokens/{}.npy", metric["name"].get<std::string>()));
    REQUIRE(arrays.size() == heads);
    const auto values = numbers_of<float>(metric["values"]);
    const std::vector<double> all = sum_of(arrays, 0, heads);
    REQUIRE(values.size() == kTokens);
    for (std::size_t i = 0; i < kTokens; ++i)
      REQUIRE(values[i] == Approx(all[i]).epsilon(1e-6).margin(1e-30));
    REQUIRE(metric["levels"].size() == data["scopes"].size());
    for (std::size_t scope = 0; scope < data["scopes"].size(); ++scope) {
      const std::vector<double> of = sum_of(arrays, data["scopes"][scope][0], data["scopes"][scope][1]);
      const std::string digits = metric["levels"][scope];
      REQUIRE(digits.size() == kTokens);
      for (std::size_t i = 0; i < kTokens; ++i) {
        const auto rank = static_cast<double>(rank_of(of, i));
        const std::size_t level =
            1 + static_cast<std::size_t>(62 * (1 - std::log(rank) / std::log(static_cast<double>(kTokens))));
        const Json& ranks = data["ranks"][digit(digits[i])];
        REQUIRE(digit(digits[i]) == level);
        REQUIRE(ranks[0] <= rank);
        REQUIRE(ranks[1] >= rank);
        ++levels;
      }
    }
  }
  for (const Json& policy : data["policies"]) {
    std::string name = policy["name"];
    INFO(name);
    std::replace(name.begin(), name.end(), ':', '_');
    const auto arrays = heads_of<std::uint8_t>(results, fmt::format("kept/{}-paper-prefill-12.npy", name));
    REQUIRE(arrays.size() == heads);
    const auto counts = numbers_of<std::uint16_t>(policy["kept"]);
    const std::vector<double> all = sum_of(arrays, 0, heads);
    for (std::size_t i = 0; i < kTokens; ++i) REQUIRE(counts[i] == all[i]);
    REQUIRE(policy["heads"].size() == heads);
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t i = 0; i < kTokens; ++i)
        REQUIRE((digit(policy["heads"][h].get<std::string>()[i / 6]) >> (i % 6) & 1) == arrays[h][i]);
    ++kept;
  }
  CHECK(levels > 13 * kTokens);
  CHECK(kept > 10);
}

std::string unescaped(std::string text) {
  for (const auto& [entity, character] :
       {std::pair{"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}})
    for (std::size_t at = 0; (at = text.find(entity, at)) != std::string::npos; ++at)
      text.replace(at, std::strlen(entity), character);
  return text;
}

struct Span {
  std::string looks, text;
};
std::vector<Span> spans_of(const std::string& figure) {
  const std::size_t begin = figure.find("<div class=\"prompt\"");
  const std::string text = figure.substr(begin, figure.find("</div>", begin) - begin);
  std::vector<Span> spans;
  const std::regex span("<span(?: class=\"([^\"]*)\")?>([^<]*)</span>");
  for (std::sregex_iterator at(text.begin(), text.end(), span), end; at != end; ++at)
    spans.push_back({(*at)[1], unescaped((*at)[2])});
  return spans;
}

}  // namespace

TEST_CASE("tokens flow as text, with a sign for what cannot be seen", "[report_prompt]") {
  for (std::size_t i = 0; i < kUnkind.size(); ++i) CHECK(flowing_text(kUnkind[i]) == kUnkindShown[i]);
  CHECK(flowing_text("\xE6\x97") == "\uFFFD\uFFFD");  // a part of a character
  CHECK(flowing_text("\x97z") == "\uFFFDz");
  CHECK(flowing_text("") == "");
  CHECK(fitting({"ab", "cd", "e"}, 1, 4) == 2);
  CHECK(fitting({"ab", "cd", "e"}, 2, 4) == 3);
  CHECK(fitting({"a\n", "b\n", "c"}, 2, 9) == 2);
  CHECK(fitting({"\u65E5\u65E5\u65E5", "a"}, 1, 3) == 1);
  CHECK(fitting({}, 1, 3) == 0);
}

TEST_CASE("the text's values, ranks and kept sets are those of the arrays", "[report_prompt]") {
  const fs::path results = results_of();
  const std::string figure = figure_of(report_of(results));
  const Json data = data_of(figure);
  CHECK(data["tokens"] == kTokens);
  CHECK(data["heads"] == 4);
  CHECK(data["passages"] == Json::parse("[[0,61]]"));
  CHECK(data["metrics"][0]["name"] == "exact_remove");
  check_data(results, data, 4);
  CHECK(
      contains(figure, "Struck through is what a policy evicts (kept 20 %, phase prefill, semantics paper)"));
  CHECK_FALSE(contains(figure, "room for"));
  CHECK_FALSE(contains(figure, "title="));

  // Its policies begin with the best that can run and the best oracle.
  const Evictions evictions(results);
  const auto error = [&](const Json& policy) {
    return evictions.at(",", policy["name"].get<std::string>() + ",paper,prefill,0.8", "future",
                        "output_error");
  };
  CHECK(data["policies"][1]["name"].get<std::string>().starts_with("oracle"));
  for (const Json& policy : data["policies"]) {
    INFO(policy["name"]);
    const bool oracle = policy["name"].get<std::string>().starts_with("oracle");
    CHECK(error(policy) >= error(data["policies"][oracle ? 1 : 0]));
  }
}

TEST_CASE("the text stands in the page tinted and struck through without its script", "[report_prompt]") {
  const fs::path results = results_of();
  const std::string figure = figure_of(report_of(results));
  const Json data = data_of(figure);
  const std::vector<Span> spans = spans_of(figure);
  REQUIRE(spans.size() == kTokens);
  for (std::size_t i = 0; i < kUnkindShown.size(); ++i) CHECK(spans[i].text == kUnkindShown[i]);
  CHECK_FALSE(contains(figure, "<script>alert"));
  const std::string levels = data["metrics"][0]["levels"][0];
  const auto kept = numbers_of<std::uint16_t>(data["policies"][0]["kept"]);
  for (std::size_t i = 0; i < kTokens; ++i) {
    const std::size_t level = digit(levels[i]), tint = (level - 1) / 8;
    std::string looks = tint == 0 ? "" : fmt::format("t{}", tint);
    if (kept[i] < 4) looks += fmt::format("{}e{}", looks.empty() ? "" : " ", 4 - kept[i]);  // of four heads
    CHECK(spans[i].looks == looks);
  }
  const std::size_t body = figure.find("<div class=\"prompt\"");
  CHECK(xml_fault(figure.substr(body, figure.find("</div>", body) + 6 - body)).empty());
  const auto rows = file_text(results / "report" / "figures" / "text.csv");
  CHECK(rows.starts_with("token,text,exact_remove,attn,"));
  CHECK(contains(rows, "1,\"a\nb\n\","));
}

TEST_CASE("without room for heads the text is of all of them", "[report_prompt]") {
  const ResultReader reader(results_of());
  const Tables tables(reader);
  const PromptText none = prompt_text(tables, 0), whole = prompt_text(tables);
  CHECK(none.scopes.size() == 1);
  CHECK(whole.scopes.size() == 7);
  REQUIRE(none.metrics.size() == whole.metrics.size());
  for (std::size_t m = 0; m < none.metrics.size(); ++m) {
    CHECK(none.metrics[m].values == whole.metrics[m].values);
    REQUIRE(none.metrics[m].levels.size() == 1);
    CHECK(none.metrics[m].levels[0] == whole.metrics[m].levels[0]);
  }
  for (std::size_t p = 0; p < none.policies.size(); ++p) {
    CHECK(none.policies[p].heads.empty());
    CHECK(none.policies[p].kept == whole.policies[p].kept);
  }
  // Six scopes of 61 tokens take 366 digits a metric, four heads 44 a policy.
  const PromptText some = prompt_text(tables, 1300);
  CHECK(some.metrics[1].levels.size() == 7);
  CHECK(some.metrics[2].levels.size() == 1);
  CHECK(some.policies[10].heads.size() == 4);
  CHECK(some.policies[11].heads.empty());
}

TEST_CASE("arrays by query head give a text by query head", "[report_prompt]") {
  const fs::path results = results_of({"--per-query-head"});
  const std::string figure = figure_of(report_of(results));
  const Json data = data_of(figure);
  CHECK(contains(figure, "<option value=\"layer 1, query head 3\">"));
  CHECK(data["heads"] == 8);
  check_data(results, data, 8);
}

TEST_CASE("tokens alone are tinted, evictions alone struck through, and nothing without text",
          "[report_prompt]") {
  const std::string tokens =
      figure_of(report_of(results_of({"--only", "tokens", "--metrics", "attn,knorm"})));
  CHECK(data_of(tokens)["metrics"].size() == 2);
  CHECK(data_of(tokens)["policies"].empty());
  CHECK_FALSE(contains(tokens, "evicted by"));
  const std::string evictions = figure_of(report_of(results_of({"--only", "evict", "--policy", "h2o"})));
  CHECK(data_of(evictions)["metrics"].empty());
  CHECK(data_of(evictions)["policies"].size() == 1);
  CHECK(data_of(evictions)["scopes"].size() == 7);
  CHECK(contains(evictions, "class=\"e4\""));
  CHECK_FALSE(contains(report_of(results_of({"--only", "channels"})), "<figure id=\"text\">"));

  const fs::path results = results_of({"--only", "tokens"}), dump = results.parent_path() / "dump";
  CHECK(contains(report_of(results), "<figure id=\"text\">"));
  const std::string names = file_text(dump / "tokens.json");
  fs::remove(dump / "tokens.json");
  const std::string without = report_of(results);
  CHECK_FALSE(contains(without, "<figure id=\"text\">"));
  CHECK_FALSE(contains(without, "href=\"#prompt\""));
  CHECK(contains(without, "<figure id=\"scatter\">"));
  write_file(dump / "tokens.json", names);
  // An array that does not fit is refused like any other.
  forget_record(results);
  write_file(results / "layer_01" / "tokens" / "attn.npy",
             npy<float>("<f4", {2, 3}, std::vector<float>(6)).bytes());
  CHECK(contains(complaint({"report", results.string()}), "attn.npy: expected shape [2 or 4, 61]"));
}

TEST_CASE("a long prompt stands in the page in passages, and the page says so", "[report_prompt]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--layers", "1", "--prompt", "9001", "--decode", "1", "--q-heads", "1",
                                  "--kv-heads", "1"});
  succeed({"tokens", temp / "dump", "--out", temp / "r", "--metrics", "exact_remove", "--window", "4",
           "--quiet"});
  const std::string figure = figure_of(report_of(temp / "r"));
  const Json data = data_of(figure);
  CHECK(data["tokens"] == 9001);
  const auto values = npy_file(fs::path(temp / "r") / "layer_00" / "tokens" / "exact_remove.npy").as<float>();
  const auto shown = numbers_of<float>(data["metrics"][0]["values"]);
  std::size_t count = 0;
  bool has_largest = false;
  const auto largest = std::max_element(values.begin(), values.end()) - values.begin();
  for (const Json& passage : data["passages"])
    for (std::ptrdiff_t token = passage[0]; token < passage[1]; ++token) {
      REQUIRE(shown[count++] == values[static_cast<std::size_t>(token)]);
      has_largest |= token == largest;
    }
  CHECK(has_largest);
  CHECK(count == shown.size());
  CHECK(count == spans_of(figure).size());
  CHECK(count <= 8192);
  CHECK(data["passages"].back()[1] == 9001);
  CHECK(contains(figure, fmt::format("{} of 9001 tokens stand here", count)));
  CHECK(std::regex_search(figure, std::regex("<b>\\.\\.\\. [0-9]+ tokens \\.\\.\\.</b>")));
  CHECK(contains(figure, "more tokens on the page itself</b><i>"));
}
