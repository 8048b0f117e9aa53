#include "analysis/options/option.hpp"
#include "analysis/run/run.hpp"
#include "tests/support/catch.hpp"

using namespace kvreplay;

TEST_CASE("a mistyped name finds the one that was meant", "[names]") {
  const std::vector<std::string> names = {"exact_key", "exact_joint", "exact_value", "knorm", "keydiff"};
  CHECK(nearest_names("exact_kye", names).front() == "exact_key");
  CHECK(nearest_names("knrm", names) == std::vector<std::string>{"knorm"});
  CHECK(nearest_names("exact", names).size() == 3);
  CHECK(nearest_names("zebra", names).empty());
  CHECK(did_you_mean("knrm", names) == "; did you mean 'knorm'?");
  CHECK(did_you_mean("zebra", names).empty());
}

TEST_CASE("a mistyped name is found whatever its letters' case", "[names]") {
  CHECK(nearest_names("StreamingLLM", {"h2o", "streaming", "snapkv"}) ==
        std::vector<std::string>{"streaming"});
  CHECK(nearest_names("SNAPVK", {"h2o", "snapkv"}) == std::vector<std::string>{"snapkv"});
  CHECK(did_you_mean("--Windw", {"--window"}) == "; did you mean '--window'?");
}

TEST_CASE("progress shows share, rate and time left", "[progress]") {
  CHECK(progress_line(0, 8, 0) == "[>                             ]   0 %  0/8 heads");
  CHECK(progress_line(2, 8, 1) ==
        "[=======>                      ]  25 %  2/8 heads  2.0 heads/s  0:03 left");
  CHECK(progress_line(1, 3, 100) ==
        "[==========>                   ]  33 %  1/3 heads  100.0 s/head  3:20 left");
  CHECK(progress_line(8, 8, 4) == "[==============================] 100 %  8/8 heads  2.0 heads/s");
  CHECK(clock_text(59.2) == "1:00");
  CHECK(clock_text(3 * 3600 + 5 * 60 + 10) == "3:05:10");
}
