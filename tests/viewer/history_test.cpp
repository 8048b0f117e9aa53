#include "viewer/model/history.hpp"

#include "tests/support/catch.hpp"

using namespace kvreplay::viewer;
using std::chrono::milliseconds;

namespace {

const History<int>::Clock::time_point kStart{};

}  // namespace

TEST_CASE("undo and redo walk through the states", "[viewer][history]") {
  History<int> history(0);
  CHECK_FALSE(history.can_undo());
  history.undo();
  history.redo();
  CHECK(history.now() == 0);
  for (const int state : {1, 2, 2, 3}) history.record(state);
  history.undo();
  CHECK(history.now() == 2);
  history.undo();
  CHECK(history.now() == 1);  // the same state again was no step
  history.redo();
  CHECK(history.now() == 2);
  CHECK(history.can_redo());
  history.record(9);
  CHECK_FALSE(history.can_redo());
  history.undo();
  history.undo();
  history.undo();
  CHECK(history.now() == 0);
  CHECK_FALSE(history.can_undo());
}

TEST_CASE("a drag is one step", "[viewer][history]") {
  History<int> history(0);
  history.record(1, "pan", kStart);
  history.record(2, "pan", kStart + milliseconds(300));
  history.record(3, "pan", kStart + milliseconds(900));  // long, but without a pause
  history.record(4, "zoom", kStart + milliseconds(950));
  history.record(5, "zoom", kStart + milliseconds(5000));  // after a pause
  history.record(6, "", kStart + milliseconds(5001));
  history.record(7, "", kStart + milliseconds(5002));
  std::vector<int> states;
  for (; history.can_undo(); history.undo()) states.push_back(history.now());
  CHECK(states == std::vector<int>{7, 6, 5, 4, 3});
  CHECK(history.now() == 0);
  for (; history.can_redo(); history.redo()) states.push_back(history.now());
  CHECK(history.now() == 7);
}

TEST_CASE("what follows an undo is a step of its own", "[viewer][history]") {
  History<int> history(0);
  history.record(1, "pan", kStart);
  history.record(2, "zoom", kStart + milliseconds(10));
  history.undo();
  history.record(3, "pan", kStart + milliseconds(20));
  history.undo();
  CHECK(history.now() == 1);
}

TEST_CASE("a drag that ends where it began leaves no step", "[viewer][history]") {
  History<int> history(0);
  history.record(5);
  history.record(6, "pan", kStart);
  history.record(5, "pan", kStart + milliseconds(10));
  CHECK(history.now() == 5);
  history.record(7, "pan", kStart + milliseconds(20));  // and is not joined with what was before it
  history.undo();
  CHECK(history.now() == 5);
  history.undo();
  CHECK(history.now() == 0);
}

TEST_CASE("old steps are forgotten", "[viewer][history]") {
  History<int> history(0, 3);
  for (int state = 1; state <= 10; ++state) history.record(state);
  int steps = 0;
  for (; history.can_undo(); history.undo()) ++steps;
  CHECK(steps == 3);
  CHECK(history.now() == 7);
}

TEST_CASE("a drag is one step however long the hand rests in it", "[viewer][history]") {
  History<int> history(0);
  history.record(1, "press 1", kStart);
  history.record(2, "press 1", kStart + milliseconds(60000), true);
  history.record(3, "press 2", kStart + milliseconds(60100), true);  // the next one begins at once
  history.record(4, "press 2", kStart + milliseconds(90000));        // let go long ago
  std::vector<int> states;
  for (; history.can_undo(); history.undo()) states.push_back(history.now());
  CHECK(states == std::vector<int>{4, 3, 2});
}

TEST_CASE("an amended state is no step", "[viewer][history]") {
  History<int> history(0);
  history.amend(4);
  CHECK(history.now() == 4);
  CHECK_FALSE(history.can_undo());
  history.record(5);
  history.undo();
  CHECK(history.now() == 4);
}
