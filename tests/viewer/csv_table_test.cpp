#include "viewer/questions/csv_table.hpp"

#include "tests/support/catch.hpp"

#include <limits>
#include <optional>

using namespace kvreplay::viewer;

TEST_CASE("a table in memory has the fields of a CSV file", "[viewer][csv]") {
  CsvTable table("a,b,c");
  CHECK(table.rows() == 0);
  table.row(1, 0.1, 0.1F);
  table.row("plain", std::string("with \"quotes\", and a comma"), true);
  table.add(std::optional<int>()).add(std::optional(2.5)).add(std::numeric_limits<double>::quiet_NaN());
  table.end_row();
  table.row(if_any(std::numeric_limits<double>::quiet_NaN()), if_any(3), "");
  CHECK(table.rows() == 4);
  CHECK(table.text() ==
        "a,b,c\n"
        "1,0.1,0.1\n"
        "plain,\"with \"\"quotes\"\", and a comma\",1\n"
        ",2.5,nan\n"
        ",3,\n");
}
