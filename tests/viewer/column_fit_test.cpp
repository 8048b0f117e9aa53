#include "tests/support/catch.hpp"
#include "viewer/model/layout.hpp"

#include <array>

using namespace kvreplay::viewer;

TEST_CASE("columns that have no room drop, whole", "[columns]") {
  using Columns = std::vector<std::size_t>;
  const std::array<float, 4> widths = {50, 40, 30, 10};
  CHECK(columns_that_fit(widths, 130) == Columns{0, 1, 2, 3});
  CHECK(columns_that_fit(widths, 129) == Columns{0, 1, 2});
  CHECK(columns_that_fit(widths, 119) == Columns{0, 1, 3});  // a narrow one takes what a wide one leaves
  CHECK(columns_that_fit(widths, 60) == Columns{0, 3});
  CHECK(columns_that_fit(widths, 20) == Columns{0});  // one is always shown
  CHECK(columns_that_fit({}, 100).empty());
}
