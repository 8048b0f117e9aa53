#include "data/console.hpp"

#include "tests/support/catch.hpp"

#include <string>

namespace kvreplay {

TEST_CASE("a name neither steers a terminal nor splits a line", "[console]") {
  CHECK(displayable("results/mine 1.npy") == "results/mine 1.npy");
  CHECK(displayable("") == "");
  CHECK(displayable("a\nb\r\tc") == "a\\nb\\r\\tc");
  CHECK(displayable("\x1b[31mred\x7f") == "\\x1b[31mred\\x7f");
  CHECK(displayable(std::string("nul\0.", 5)) == "nul\\x00.");
  CHECK(displayable("\xc2\x9b"
                    "31m") == "\\x9b31m");
  CHECK(displayable("\xe2\x80\xaegnp.npy") == "\\u202egnp.npy");
  CHECK(displayable("\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80") == "\xc3\xa9 \xe6\xbc\xa2 \xf0\x9f\x98\x80");
  CHECK(displayable("\xff\xc3(") == "\xef\xbf\xbd\xef\xbf\xbd(");
}

TEST_CASE("of a long name the beginning and the end are shown, characters whole", "[console]") {
  CHECK(displayable("0123456789", 10) == "0123456789");
  CHECK(displayable("0123456789abc", 9) == "012345...abc");
  std::string accents;
  for (int i = 0; i < 40; ++i) accents += "\xc3\xa9";
  for (std::size_t most = 1; most < accents.size(); ++most) {
    const std::string shown = displayable(accents, most);
    CAPTURE(most, shown);
    CHECK(shown.size() <= most + 3);
    CHECK(shown.find("\xef\xbf\xbd") == std::string::npos);
    CHECK(shown.find("...") != std::string::npos);
  }
}

TEST_CASE("a complaint is one line of bounded length", "[console]") {
  CHECK(complaint("kvreplay", "d\n: expected q") == "kvreplay: d\\n: expected q\n");
  const std::string line = complaint("kvreplay", std::string(100'000, '\n') + "found nothing");
  CHECK(line.size() < 5000);
  CHECK(line.find('\n') == line.size() - 1);
  CHECK(line.ends_with("found nothing\n"));
}

}  // namespace kvreplay
