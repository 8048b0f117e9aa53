#include "viewer/model/status_line.hpp"

#include "tests/support/catch.hpp"

using kvreplay::viewer::StatusLine;
using namespace std::chrono_literals;

namespace {

const StatusLine::Clock::time_point kStart{};

}  // namespace

TEST_CASE("what was said goes after some seconds", "[status_line]") {
  StatusLine line;
  CHECK(line.text(kStart).empty());
  CHECK_FALSE(line.left(kStart));
  line.say("Saved a.png", false, kStart);
  CHECK(line.text(kStart + 5s) == "Saved a.png");
  CHECK(line.left(kStart + 5s) == StatusLine::Clock::duration(1s));
  CHECK(line.text(kStart + 6s).empty());
  CHECK_FALSE(line.left(kStart + 6s));
  line.say("Saved b.png", false, kStart + 20s);
  CHECK(line.text(kStart + 21s) == "Saved b.png");
}

TEST_CASE("an error stays until something went well after it", "[status_line]") {
  StatusLine line;
  line.say("no such file", true, kStart);
  CHECK(line.is_error());
  CHECK(line.text(kStart + 1h) == "no such file");
  CHECK_FALSE(line.left(kStart));
  line.went_well();
  CHECK(line.text(kStart + 5s) == "no such file");  // it can be read all the same
  CHECK(line.text(kStart + 6s).empty());

  line.say("again", true, kStart + 10s);
  CHECK(line.text(kStart + 1h) == "again");  // that success was before
  line.went_well_since(kStart + 10s);        // asked for together with what failed
  CHECK(line.text(kStart + 11s) == "again");
  line.went_well_since(kStart + 11s);
  CHECK(line.text(kStart + 11s).empty());
  CHECK_FALSE(line.is_error());
  line.say("Saved", false, kStart + 12s);
  line.went_well_since(kStart + 13s);  // takes errors only
  CHECK(line.text(kStart + 13s) == "Saved");
}
