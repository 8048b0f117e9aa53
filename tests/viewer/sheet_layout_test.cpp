#include "tests/support/catch.hpp"
#include "viewer/model/layout.hpp"

#include <map>

using namespace kvreplay;
using namespace kvreplay::viewer;

TEST_CASE("every picture has its texels in a sheet, and gaps have none", "[sheet]") {
  for (const Index count : {1, 2, 7, 12})
    for (const Index columns : {1, 3, 12})
      for (const Index gap : {0, 2}) {
        const SheetLayout sheet{count, columns, {3, 4}, gap};
        const MatrixSize size = sheet.size();
        std::map<Index, Index> texels;
        for (Index r = -1; r <= size.rows; ++r)
          for (Index c = -1; c <= size.columns; ++c)
            if (const auto place = sheet.at(r, c)) {
              REQUIRE(place->number < count);
              CHECK(sheet.first_row(place->number) + place->row == r);
              CHECK(sheet.first_column(place->number) + place->column == c);
              CHECK((r >= 0 && c >= 0 && r < size.rows && c < size.columns));
              ++texels[place->number];
            }
        CHECK(static_cast<Index>(texels.size()) == count);
        for (const auto& [number, n] : texels) CHECK(n == 12);
      }
  CHECK(SheetLayout{0, 3, {3, 4}, 2}.size() == MatrixSize{});
  CHECK_FALSE(SheetLayout{0, 3, {3, 4}, 2}.at(0, 0));
}

TEST_CASE("a sheet has as many columns as make its pictures largest", "[sheet]") {
  CHECK(sheet_layout(12, 1, {10, 10}, 0, 400, 300).columns == 4);
  CHECK(sheet_layout(12, 1, {10, 10}, 0, 1200, 100).columns == 12);
  CHECK(sheet_layout(12, 1, {10, 10}, 0, 100, 1200).columns == 1);
  // The heads of a layer stay side by side.
  for (const double width : {50.0, 300.0, 1000.0, 9000.0})
    CHECK(sheet_layout(256, 8, {64, 64}, 6, width, 600).columns % 8 == 0);
  CHECK(sheet_layout(256, 8, {64, 64}, 6, 1000, 1000).columns == 16);
  CHECK(sheet_layout(3, 8, {64, 64}, 6, 100, 100).columns == 3);
  CHECK(sheet_layout(0, 1, {64, 64}, 6, 100, 100).size() == MatrixSize{});
}
