// State that the report's page keeps in its address, and links from its figures to the dashboard. The page
// runs in headless Chromium if it is installed.

#include "analysis/report/figure.hpp"
#include "analysis/results/view_link.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "viewer/model/panel_kind.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

/// A page of a dump of 3 layers and 6 heads, made once.
const fs::path& page() {
  static const TempDir temp;
  static const fs::path path = [] {
    make_small_dump(temp / "a dump", {"--layers", "3"});
    succeed({"analyze", temp / "a dump", "--out", temp / "re sults", "--quiet"});
    report_of(temp / "re sults");
    return fs::path(temp / "re sults") / "report" / "index.html";
  }();
  return path;
}

std::string chromium() {
  const ProcessResult found = run({"/bin/sh", "-c", "command -v chromium || command -v chromium-browser"});
  return found.code == 0 ? found.out.substr(0, found.out.find('\n')) : "";
}

/// The output of a script in the page, a line each, after the page was opened at this address.
std::vector<std::string> said(const std::string& script, const std::string& hash) {
  std::string html = file_text(page());
  const std::size_t end = html.rfind("</body>");
  html.insert(
      end, fmt::format("<pre id=\"said\"></pre><script>\n"
                       "const say = (x) => {{ document.getElementById('said').textContent += x + '\\n'; }};\n"
                       "const lists = (id) => [...document.querySelectorAll(`#${{id}} .picks select`)];\n"
                       "const shows = (id) => lists(id).map((s) => s.value).join('|');\n"
                       "const pick = (id, i, value) => {{ lists(id)[i].value = value; "
                       "lists(id)[i].dispatchEvent(new Event('change')); }};\n{}</script>",
                       script));
  const TempDir profile;
  const fs::path copy = page().parent_path() / "copy.html";
  write_file(copy, html);
  const ProcessResult result =
      run({chromium(), "--headless", "--no-sandbox", "--disable-gpu",
           fmt::format("--user-data-dir={}", std::string(profile / "profile")), "--virtual-time-budget=4000",
           "--dump-dom", "file://" + std::regex_replace(copy.string(), std::regex(" "), "%20") + hash});
  fs::remove(copy);
  INFO(result.err);
  REQUIRE(result.code == 0);
  const std::size_t from = result.out.find("<pre id=\"said\">") + 15;
  std::string text = result.out.substr(from, result.out.find("</pre>", from) - from);
  text = std::regex_replace(text, std::regex("&amp;"), "&");
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    lines.push_back(text.substr(at, text.find('\n', at) - at));
  return lines;
}

}  // namespace

TEST_CASE("every figure of a head or a policy opens in a panel that there is", "[report_state]") {
  const std::string html = file_text(page());
  const std::regex figure("<figure id=\"([^\"]*)\">"), button("data-panel=\"([^\"]*)\"");
  std::size_t figures = 0, buttons = 0;
  for (std::sregex_iterator at(html.begin(), html.end(), figure), end; at != end; ++at) {
    const std::string name = (*at)[1];
    INFO(name);
    CHECK(report::panel_of_figure(name).empty() == (name == "papers-claims"));
    ++figures;
  }
  for (std::sregex_iterator at(html.begin(), html.end(), button), end; at != end; ++at) {
    INFO((*at)[1]);
    CHECK(viewer::kPanels.named((*at)[1].str()));
    ++buttons;
  }
  CHECK(buttons + 1 == figures);
  CHECK(report::panel_of_figure("measured-evictions") == "validation");
  CHECK(contains(html, "<body data-results=\"..\" data-heads=\""));
}

TEST_CASE("the page keeps what was chosen in its address, and opens there again", "[report_state]") {
  if (chromium().empty()) {
    WARN("skipped: there is no Chromium");
    return;
  }
  const std::string choosing = R"(
say(shows('scatter')); say(shows('recall'));
document.querySelector('#head-map [data-cell="2"]').dispatchEvent(new MouseEvent('click', { bubbles: true }));
pick('recall', 1, lists('recall')[1].options[1].value);
pick('scatter', 1, lists('scatter')[1].options[2].value);
say(location.hash); say(shows('scatter')); say(shows('recall')); say(shows('interaction')); say(shows('head-map'));
say([...document.querySelectorAll('.chosen')].every((c) => c.dataset.cell === '2'));
)";
  const std::vector<std::string> chosen = said(choosing, "");
  REQUIRE(chosen.size() == 8);
  CHECK(chosen[7] == "true");
  CHECK(chosen[3] != chosen[0]);
  CHECK(chosen[3].find("layer 1, head 0") == 0);
  CHECK(chosen[4].find("layer 1, head 0") == 0);
  CHECK(chosen[5].find("layer 1, head 0") == 0);
  const std::vector<std::string> again = said(
      "say(location.hash); say(shows('scatter')); say(shows('recall')); "
      "say(shows('interaction')); say(shows('head-map'));",
      chosen[2]);
  CHECK(again == std::vector<std::string>(chosen.begin() + 2, chosen.begin() + 7));
  // A plain anchor, and what no page says, show what the page shows by itself.
  for (const char* hash : {"#scatter", "#scatter?head=99.9&recall.1=none&nothing.0=x", "#?head=x", "#%"}) {
    INFO(hash);
    const std::vector<std::string> plain = said("say(shows('scatter')); say(shows('recall'));", hash);
    CHECK(plain == std::vector<std::string>(chosen.begin(), chosen.begin() + 2));
  }
}

TEST_CASE("a finding about a head goes on to its figure with that head", "[report_state]") {
  if (chromium().empty()) {
    WARN("skipped: there is no Chromium");
    return;
  }
  const std::vector<std::string> lines = said(R"(
const link = document.querySelector('a[data-head]');
if (link) { link.click(); say(link.hash.slice(1)); say(link.dataset.head); say(shows('scatter')); say(document.querySelectorAll('.chosen').length > 0);
  say([...document.querySelectorAll('#text .prompt span')].findIndex((s) => s.classList.contains('it')) === Number(link.dataset.token)); }
)",
                                              "");
  REQUIRE(lines.size() == 5);
  CHECK(lines[4] == "true");
  CHECK(lines[0] == "scatter");
  const std::size_t dot = lines[1].find('.');
  CHECK(lines[2].find(fmt::format("layer {}, head {}|", lines[1].substr(0, dot), lines[1].substr(dot + 1))) ==
        0);
  CHECK(lines[3] == "true");
}

TEST_CASE("a token that is clicked is marked in the text and among the points, and stands in the address",
          "[report_state]") {
  if (chromium().empty()) {
    WARN("skipped: there is no Chromium");
    return;
  }
  const std::string show = R"(
const spans = () => [...document.querySelectorAll('#text .prompt span')];
const marked = () => spans().map((s, i) => (s.classList.contains('it') ? i : -1)).filter((i) => i >= 0).join(',');
const tell = () => {
  say(location.hash);
  say(marked());
  say(document.querySelector('#text .said').hidden ? 'nothing' : document.querySelector('#text .said').textContent);
  say(Number(document.querySelector('#scatter .ring').getAttribute('cx')) > 0);
};
)";
  const std::vector<std::string> lines = said(show + R"(
tell();
spans()[30].click(); tell();
document.querySelector('#head-map [data-cell="2"]').dispatchEvent(new MouseEvent('click', { bubbles: true })); tell();
spans()[30].click(); tell();
)",
                                              "#scatter");
  REQUIRE(lines.size() == 16);
  CHECK(lines[0] == "#scatter");
  CHECK(lines[1].empty());
  CHECK(lines[2] == "nothing");
  CHECK(lines[3] == "false");
  CHECK(lines[4] == "#scatter?token=30");
  CHECK(lines[5] == "30");
  CHECK(std::regex_search(lines[6], std::regex("^token 30 '.*'; exact_remove over all heads: [-0-9.e]+, rank "
                                               "[0-9]+ of 61; .* keeps it in [0-6] of 6 heads; oracle")));
  CHECK(lines[7] == "true");
  CHECK(lines[8] == "#scatter?head=1.0&token=30");
  CHECK(std::regex_search(lines[10], std::regex("exact_remove: rank [0-9]+( to [0-9]+)? of 61; "
                                                "(kept|evicted) by ")));
  CHECK(lines[12] == "#scatter?head=1.0");
  CHECK(lines[13].empty());
  CHECK(lines[14] == "nothing");
  CHECK(said(show + "tell();", "#text?head=1.0&token=30")[2] == lines[10]);
  for (const char* hash : {"#text?token=61", "#text?token=x", "#text?token=", "#text?token=-1"})
    CHECK(said(show + "tell();", hash)[1].empty());
}

TEST_CASE("the text follows its lists: head, metric, and from policy A to B and back", "[report_state]") {
  if (chromium().empty()) {
    WARN("skipped: there is no Chromium");
    return;
  }
  const std::vector<std::string> lines = said(R"(
const looks = () => [...document.querySelectorAll('#text .prompt span')].map((s) => s.className).join('|');
const asPage = looks();
const data = JSON.parse(document.querySelector('#text script').textContent);
const button = document.querySelector('#text .picks button');
pick('text', 0, 'all heads'); say(looks() === asPage);
button.click(); const asB = looks(); say(asB !== asPage); say(location.hash); say(button.textContent);
button.click(); say(looks() === asPage); say(location.hash);
// By the data: in every head what A evicts there is struck through, and nothing else; tints are the levels'.
const digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
let right = true;
for (let scope = 0; scope < data.scopes.length; ++scope) {
  for (const metric of [0, 3]) {
    pick('text', 0, lists('text')[0].options[scope].value);
    pick('text', 1, lists('text')[1].options[metric].value);
    const [from, to] = data.scopes[scope];
    [...document.querySelectorAll('#text .prompt span')].forEach((span, i) => {
      const tint = Math.floor((digits.indexOf(data.metrics[metric].levels[scope][i]) - 1) / 8);
      let evicted = 0;
      for (let h = from; h < to; ++h) evicted += digits.indexOf(data.policies[0].heads[h][Math.floor(i / 6)]) >> (i % 6) & 1 ? 0 : 1;
      const strike = Math.ceil(4 * evicted / (to - from));
      right &&= span.className === [tint && `t${tint}`, strike && `e${strike}`].filter(Boolean).join(' ');
    });
  }
}
say(right);
pick('text', 1, 'nothing'); pick('text', 2, 'nothing'); say(/^\|*$/.test(looks()));
say(document.querySelectorAll('[title]').length);
)",
                                              "");
  REQUIRE(lines.size() == 9);
  for (const std::size_t yes : {0, 1, 4, 6, 7}) CHECK(lines[yes] == "true");
  CHECK(lines[2] == "#?text.4=B");
  CHECK(lines[3] == "B is shown, go to A");
  CHECK(lines[5].empty());
  CHECK(lines[8] == "0");
}

TEST_CASE("the report of the sample has at most 8 printed pages", "[report_state]") {
  if (chromium().empty()) {
    WARN("skipped: there is no Chromium");
    return;
  }
  const TempDir temp;
  succeed({"analyze", sample_dump(), "--out", temp / "r", "--quiet"});
  report_of(temp / "r");
  const ProcessResult printed =
      run({chromium(), "--headless", "--no-sandbox", "--disable-gpu",
           fmt::format("--user-data-dir={}", std::string(temp / "profile")), "--virtual-time-budget=4000",
           "--no-pdf-header-footer", fmt::format("--print-to-pdf={}", std::string(temp / "page.pdf")),
           fmt::format("file://{}", std::string(temp / "r/report/index.html"))});
  REQUIRE(printed.code == 0);
  const std::string pdf = file_text(temp / "page.pdf");
  const std::regex page("/Type /Page[^s]");
  const auto pages =
      std::distance(std::sregex_iterator(pdf.begin(), pdf.end(), page), std::sregex_iterator());
  CHECK(pages >= 2);
  CHECK(pages <= 8);
}

TEST_CASE("a figure's command opens the same place in the dashboard", "[report_state]") {
  if (chromium().empty()) {
    WARN("skipped: there is no Chromium");
    return;
  }
  const std::vector<std::string> lines = said(R"(
for (const id of ['scatter', 'head-map', 'policies']) {
  document.querySelector(`#${id} button[data-panel]`).click();
  say(document.querySelector(`#${id} .command`).textContent);
}
)",
                                              "#?head=1.0&token=7");
  REQUIRE(lines.size() == 3);
  const auto link_of = [](const std::string& command) {
    const std::string begin = "kvreplay view '";
    REQUIRE(command.substr(0, begin.size()) == begin);
    return view_link(command.substr(begin.size(), command.size() - begin.size() - 1));
  };
  const ViewLink scatter = link_of(lines[0]), heads = link_of(lines[1]), policies = link_of(lines[2]);
  for (const ViewLink& link : {scatter, heads, policies}) {
    CHECK(fs::equivalent(link.run, page().parent_path().parent_path()));
    CHECK(link.layer == 1);
    CHECK(link.kv_head == 0);
  }
  CHECK(scatter.panel == "scatter");
  CHECK(scatter.reference == "exact_remove");
  CHECK_FALSE(scatter.score.empty());
  CHECK(heads.panel == "heads");
  CHECK(policies.panel == "what-if");
  CHECK(scatter.token == 7);
  CHECK_FALSE(policies.token);
}
