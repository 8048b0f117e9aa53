#include "analysis/results/csv.hpp"

#include "data/error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temp_dir.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>

using namespace kvreplay;

TEST_CASE("printed floats read back as the same bits", "[csv]") {
  std::mt19937_64 bits(7);
  for (int i = 0; i < 20000; ++i) {
    const double value = std::bit_cast<double>(bits());
    if (std::isnan(value)) continue;
    const std::string text = shortest(value);
    REQUIRE(std::bit_cast<std::uint64_t>(std::strtod(text.c_str(), nullptr)) ==
            std::bit_cast<std::uint64_t>(value));
  }
}

TEST_CASE("floats print as short as they can", "[csv]") {
  CHECK(shortest(0.1) == "0.1");
  CHECK(shortest(3.0) == "3");
  CHECK(shortest(-0.0) == "-0");
  CHECK(shortest(1.0 / 3) == "0.3333333333333333");
  CHECK(shortest(5e-324) == "5e-324");
  CHECK(shortest(1e300) == "1e+300");
}

TEST_CASE("what is no number prints without a sign of its own", "[csv]") {
  CHECK(shortest(std::numeric_limits<double>::quiet_NaN()) == "nan");
  CHECK(shortest(-std::numeric_limits<double>::quiet_NaN()) == "nan");
  CHECK(shortest(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(shortest(-std::numeric_limits<double>::infinity()) == "-inf");
}

TEST_CASE("a field without a finite number is empty", "[csv]") {
  CHECK(csv_number(-0.25) == "-0.25");
  CHECK(csv_number(std::numeric_limits<double>::quiet_NaN()).empty());
  CHECK(csv_number(-std::numeric_limits<double>::infinity()).empty());
}

TEST_CASE("a table appears whole, with finish()", "[csv]") {
  const test::TempDir folder;
  {
    CsvFile csv(folder / "a.csv", "name,count,value");
    csv.add("plain").add(3).add(0.5);
    csv.end_row();
    csv.add("a \"b\", c").add(-1).add(1e-9);
    csv.end_row();
    CHECK_FALSE(std::filesystem::exists(folder / "a.csv"));
    csv.finish();
    CHECK(csv.rows() == 2);
  }
  CHECK(test::file_text(folder / "a.csv") == "name,count,value\nplain,3,0.5\n\"a \"\"b\"\", c\",-1,1e-09\n");
  { const CsvFile dropped(folder / "b.csv", "x"); }
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a table that cannot be written says so", "[csv]") {
  CHECK_THROWS_AS(CsvFile(std::filesystem::path("/proc/no/such/folder.csv"), "x"), InputError);
}
