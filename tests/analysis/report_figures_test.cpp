#include "analysis/drawing/axis.hpp"
#include "analysis/report/cell_map.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/report/plots.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/token_figures.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/xml_check.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <regex>
#include <set>

using namespace kvreplay;
using namespace kvreplay::report;
using kvreplay::test::contains;
using kvreplay::test::xml_fault;

namespace {

const std::string kHostile = "</title></svg><script>alert(1)</script> & \"a\" 'b' \x01 \xff";

/// By the definition: the tokens of the k largest, as sets.
double recall_by_sets(const std::vector<double>& score, const std::vector<double>& reference, std::size_t k) {
  const auto largest = [&](const std::vector<double>& values) {
    std::set<std::size_t> chosen;
    while (chosen.size() < k) {
      std::size_t best = values.size();
      for (std::size_t i = 0; i < values.size(); ++i)
        if (!chosen.contains(i) && (best == values.size() || values[i] > values[best])) best = i;
      chosen.insert(best);
    }
    return chosen;
  };
  const auto a = largest(score), b = largest(reference);
  double both = 0;
  for (const std::size_t token : a) both += b.contains(token);
  return both / static_cast<double>(k);
}

CellMap some_map() {
  CellMap map;
  map.id = "some";
  map.title = kHostile;
  map.rows = {"a", kHostile};
  map.columns = {"x", "y", "z"};
  map.row_label = "row";
  map.column_label = "column";
  map.values.resize(2, 3);
  map.values << 1, 0.25, kNan, 0, -2, std::numeric_limits<double>::infinity();
  map.scale = color_scale(FigureScale::log, std::span(map.values.data(), 6));
  map.value_label = "value";
  map.numbers = true;
  return map;
}

}  // namespace

TEST_CASE("texts are escaped for HTML, XML and scripts", "[report]") {
  CHECK(escaped("<a href=\"x\">&'") == "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
  CHECK(escaped("H\xC3\xA4nde") == "H\xC3\xA4nde");
  CHECK(escaped("\xC3") == "\xEF\xBF\xBD");
  CHECK(escaped("\xED\xA0\x80x") == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDx");  // a surrogate
  CHECK(escaped(std::string("a\0b", 3)) ==
        "a\xEF\xBF\xBD"
        "b");
  CHECK(xml_fault("<a b=\"" + escaped(kHostile) + "\">" + escaped(kHostile) + "</a>").empty());
  CHECK_FALSE(contains(script_safe("{\"a\":\"</script>\"}"), "<"));
  CHECK(nlohmann::json::parse(script_safe("{\"a\":\"</script>\"}"))["a"] == "</script>");
  CHECK(nlohmann::json::parse(json_string("a\"\\\n<")) == "a\"\\\n<");
}

TEST_CASE("numbers are short and read back", "[report]") {
  CHECK(shown(0.01294539) == "0.0129");
  CHECK(shown(kNan) == "no value");
  CHECK(json_numbers(std::vector<double>{0.123456, kNan, -3e-9, 448, HUGE_VAL}) ==
        "[0.1235,null,-3e-09,448,null]");
  CHECK(base64(std::vector<std::uint8_t>{'M', 'a', 'n', 'y'}) == "TWFueQ==");
  CHECK(base64_floats(std::vector<double>{1.0}) == "AACAPw==");
}

TEST_CASE("axes are round, and what lies beyond them stands on the edge", "[report]") {
  const Axis linear = linear_axis("", std::vector<double>{3, 97, kNan}, true);
  CHECK(linear.low == 0);
  CHECK(linear.high == 100);
  CHECK(linear.ticks().front().text == "0");
  CHECK(linear.ticks().back().text == "100");
  const Axis log = log_axis("", std::vector<double>{0, 3e-4, 0.2, -1});
  CHECK(log.low == Approx(1e-4));
  CHECK(log.high == Approx(1));
  CHECK(log.at(0) == 0);
  CHECK(log.at(-5) == 0);
  CHECK(log.at(0.01) == Approx(0.5));
  CHECK(log.at(7) == 1);
  CHECK(std::isnan(log.at(kNan)));
  const Axis narrow = log_axis("", std::vector<double>{0.0021, 0.046});
  CHECK(narrow.low == Approx(0.002));
  CHECK(narrow.high == Approx(0.05));
  // No values, one value, all the same: still an axis with ticks.
  for (const std::vector<double>& values : {std::vector<double>{}, {5.0}, {0.0, 0.0}, {kNan}})
    for (const Axis& axis :
         {linear_axis("", values, false), linear_axis("", values, true), log_axis("", values)}) {
      CHECK(axis.low < axis.high);
      CHECK(axis.ticks().size() >= 2);
      CHECK(axis.ticks().size() <= 12);
    }
}

TEST_CASE("a figure's colours follow what it is", "[report]") {
  const ColorScale rho = color_scale(FigureScale::correlation, std::vector<double>{0.5});
  CHECK(rho.color(0) == kWhiteColor);
  CHECK(rho.color(1) == diverging_color(-1));  // blue is good
  CHECK(color_scale(FigureScale::share, {}).high == 1);
  CHECK(color_scale(FigureScale::linear, std::vector<double>{-1, 4}).low == -4);
  CHECK(color_scale(FigureScale::linear, std::vector<double>{0, 0}).at(0) == 0);
  const ColorScale log = color_scale(FigureScale::linear, std::vector<double>{1e-6, 1, 0, kNan});
  CHECK(log.log);
  CHECK(log.at(1e-3) == Approx(0.5));
  // Lightness falls all the way: the order of values is seen without colour, too.
  double last = 1e9;
  for (int i = 0; i <= 20; ++i) {
    const Rgb color = sequential_color(i / 20.0);
    const double luma = 0.2126 * color.r + 0.7152 * color.g + 0.0722 * color.b;
    CHECK(luma < last);
    last = luma;
  }
}

TEST_CASE("recall at every k is the share of common tokens, ties to the lower position", "[report]") {
  std::mt19937 random(7);
  for (const std::size_t n : {1u, 2u, 7u, 40u}) {
    std::vector<double> score(n), reference(n), k;
    for (double& x : score) x = static_cast<double>(random() % 5);  // many ties
    for (double& x : reference) x = static_cast<double>(random() % 9);
    for (std::size_t i = 1; i <= n; ++i) k.push_back(static_cast<double>(i));
    const auto curve = recall_curve(ranks_of(score.data(), static_cast<Index>(n)),
                                    ranks_of(reference.data(), static_cast<Index>(n)), k);
    for (std::size_t i = 1; i <= n; ++i) CHECK(curve[i - 1] == Approx(recall_by_sets(score, reference, i)));
    CHECK(curve.back() == 1);
  }
}

TEST_CASE("sampled tokens hold the largest and are spread evenly", "[report]") {
  std::vector<double> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>((i * 7919) % 1000);
  const std::vector<Index> rank = ranks_of(values.data(), 1000), tokens = sampled_tokens(rank, 100);
  CHECK(tokens.size() <= 100);
  CHECK(tokens.size() >= 75);
  CHECK(std::is_sorted(tokens.begin(), tokens.end()));
  Index largest = 0, gap = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    largest += rank[tokens[i]] < 25;
    if (i > 0) gap = std::max(gap, tokens[i] - tokens[i - 1]);
  }
  CHECK(largest == 25);
  CHECK(gap <= 14);
  CHECK(sampled_tokens(rank, 1000).size() == 1000);
}

TEST_CASE("pictures are well-formed XML whatever the names", "[report]") {
  const std::string map = svg_of(some_map());
  INFO(map);
  CHECK(xml_fault(map).empty());
  CHECK(contains(map, ">0.25<"));
  CHECK(contains(map, "url(#some-none)"));  // NaN is hatched
  CHECK_FALSE(contains(map, "<script"));

  LinePlot plot;
  plot.id = "lines";
  plot.title = kHostile;
  plot.at = {1, 10, 100};
  plot.x = log_axis(kHostile, plot.at);
  plot.y = {"y", 0, 1, false};
  plot.lines = {{kHostile, {}, {0.1, kNan, 0.3}}, {"none", {1, 1, 1}, {kNan, kNan, kNan}}};
  const std::string lines = svg_of(plot);
  INFO(lines);
  CHECK(xml_fault(lines).empty());
  CHECK_FALSE(contains(lines, "nan"));

  ScatterPlot scatter;
  scatter.id = "points";
  scatter.x = plot.x, scatter.y = plot.y;
  scatter.tokens = {0, 1, 2}, scatter.across = {1, kNan, HUGE_VAL}, scatter.up = {0.5, 0.5, 0.5};
  const std::string points = svg_of(scatter);
  CHECK(xml_fault(points).empty());
  CHECK(contains(points, "M62 214h0M462 214h0\""));  // infinity stands on the edge, NaN nowhere

  const FigureFile file = svg_file("map", map);
  CHECK(file.name == "map.svg");
  CHECK(xml_fault(file.bytes).empty());
  CHECK(contains(file.bytes, "<style>"));
}

TEST_CASE("a map's CSV holds every number in full", "[report]") {
  CellMap map = some_map();
  map.rows[1] = "b, c";
  CHECK(csv_of(map) == "row,column,value\na,x,1\na,y,0.25\na,z,\n\"b, c\",x,0\n\"b, c\",y,-2\n\"b, c\",z,\n");
}

TEST_CASE("intervals of any kind are drawn within the picture", "[report]") {
  const double nan = kNan;
  IntervalPlot plot;
  plot.id = "p";
  plot.title = "t";
  plot.samples = {"x", "y"};
  plot.rows = {{"wide", {}, 2, 0.02, -3, 4, {0.01, 0.03}},
               {"one value", {}, 1, 0.05, nan, nan, {0.05, nan}},
               {"none", {}, 0, nan, nan, nan, {nan, nan}},
               {"zero", {}, 2, 0, 0, 0, {0, 0}}};
  for (const bool log : {false, true}) {
    plot.x = interval_axis("value", plot.rows, log);
    CHECK(plot.x.low < plot.x.high);
    CHECK(plot.x.high >= 0.05);
    CHECK(plot.x.high <= 0.5);  // not as far as the widest interval
    const std::string svg = svg_of(plot);
    CHECK(xml_fault(svg).empty());
    CHECK_FALSE(std::regex_search(svg, std::regex(" d=\"[^\"]*(nan|inf)")));
    std::size_t bars = 0;
    for (std::size_t at = 0; (at = svg.find("class=\"interval", at)) != std::string::npos; ++at) ++bars;
    CHECK(bars == 2);
    CHECK(contains(svg, "data-tip=\"one value: 0.05, n 1&#10;x: 0.05&#10;y: no value\""));
  }
  CHECK(csv_of(plot) ==
        "item,n,mean,ci_low,ci_high,x,y\nwide,2,0.02,-3,4,0.01,0.03\none value,1,0.05,,,0.05,\n"
        "none,0,,,,,\nzero,2,0,0,0,0,0\n");
  // Nothing at all is still a picture.
  plot.rows.clear();
  for (const bool log : {false, true}) {
    plot.x = interval_axis("value", plot.rows, log);
    CHECK(xml_fault(svg_of(plot)).empty());
  }
}
