
#include "tests/support/catch.hpp"
#include "viewer/model/numbers.hpp"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

using namespace kvreplay::viewer;

TEST_CASE("a number has three digits, and its own exponent", "[numbers]") {
  const std::vector<std::pair<double, std::string>> wanted = {{0, "0"},
                                                              {-0.0, "0"},
                                                              {1, "1"},
                                                              {0.125, "0.125"},
                                                              {0.95, "0.95"},
                                                              {999.4, "999"},
                                                              {999.9, "1e3"},
                                                              {-1234, "-1.23e3"},
                                                              {12345, "1.23e4"},
                                                              {0.00102, "0.00102"},
                                                              {0.001, "0.001"},
                                                              {0.0009996, "0.001"},
                                                              {1e-4, "1e-4"},
                                                              {-4.17e-10, "-4.17e-10"},
                                                              {5.48e-6, "5.48e-6"},
                                                              {1e300, "1e300"},
                                                              {kInfinity, "inf"},
                                                              {kNone, "\xE2\x80\x94"}};
  for (const auto& [value, text] : wanted) {
    INFO(value);
    CHECK(number_text(value) == text);
  }
}

TEST_CASE("what is rounding alone beside the range is 0", "[numbers]") {
  CHECK(number_text(-4.17e-10, 0.1) == "-4.17e-10");
  CHECK(number_text(-4.17e-12, 0.1) == "0");
  CHECK(number_text(-4.17e-12, -0.1) == "0");
  CHECK(number_text(1e-300, 0) == "1e-300");  // no range is known
  CHECK(number_text(kNone, 1) == "\xE2\x80\x94");
}

TEST_CASE("a difference that is rounding alone is 0", "[numbers]") {
  CHECK(difference_of(0.1, 0.3) == Approx(0.2));
  CHECK(difference_of(0.3, 0.1) == Approx(-0.2));
  CHECK(difference_of(0.1, 0.1 + 1e-12) == 0);
  CHECK(difference_of(0.1, 0.1 + 1e-9) > 0);
  CHECK(difference_of(0, 1e-12) == 1e-12);
  CHECK(std::isnan(difference_of(kNone, 1)));
}

TEST_CASE("a column of numbers has equal decimals", "[numbers]") {
  const auto texts = [](const std::vector<double>& values) {
    const NumberColumn column(values);
    std::string all;
    for (const double value : values) all += column.text(value) + " ";
    return all;
  };
  CHECK(texts({0.4929, 0.95, 0.9889}) == "0.493 0.950 0.989 ");
  CHECK(texts({12.34, 1.7, -0.2}) == "12.34 1.70 -0.20 ");
  CHECK(texts({0.0495, 0.14}) == "0.0495 0.1400 ");
  CHECK(texts({0.00154, 0.0012}) == "0.00154 0.00120 ");
  CHECK(texts({12345, 300}) == "12345 300 ");
  CHECK(texts({0.075, 9.48e-5, 0}) == "7.50e-2 9.48e-5 0 ");
  CHECK(texts({1e-6, 2.5e-6}) == "1.00e-6 2.50e-6 ");
  CHECK(texts({0.5, 1e-17}) == "0.500 0 ");  // rounding alone does not turn the column to exponents
  CHECK(texts({0.5, kNone}) == "0.500 \xE2\x80\x94 ");
  CHECK(texts({kInfinity, 0.25}) == "inf 0.250 ");
  CHECK(texts({0, 0}) == "0 0 ");
  const std::vector<double> units = {14, 4e-9};
  CHECK(NumberColumn(units).text(4e-9) == "0");
  CHECK(NumberColumn(units, false).text(4e-9) == "4e-9");  // a logit above a squared output
  const std::vector<double> shares = {0.5, 0.9};
  CHECK(NumberColumn(shares).text(-0.0004) == "0.000");  // no minus before zeros
}

TEST_CASE("bytes, shares and their differences", "[numbers]") {
  CHECK(bytes_text(999) == "999 B");
  CHECK(bytes_text(45875.2) == "44.8 KiB");
  CHECK(bytes_text(kNone) == "\xE2\x80\x94");
  CHECK(percent_text(0.9589) == "95.9 %");
  CHECK(points_text(0.959 - 0.938) == "+2.1 points");
  CHECK(points_text(-0.05) == "-5.0 points");
}
