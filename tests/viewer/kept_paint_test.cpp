#include "viewer/model/kept_paint.hpp"

#include "data/error.hpp"
#include "tests/support/catch.hpp"
#include "viewer/questions/what_if.hpp"

#include <random>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

using Marks = std::vector<MarkedToken>;
constexpr auto kKeep = PaintMark::keep, kPin = PaintMark::pin, kEvict = PaintMark::evict;

Index count_of(const KeptSet& kept) { return std::count(kept.begin(), kept.end(), std::uint8_t{1}); }

Vector<double> scores_of(std::initializer_list<double> values) {
  Vector<double> scores(static_cast<Index>(values.size()));
  std::copy(values.begin(), values.end(), scores.data());
  return scores;
}

}  // namespace

TEST_CASE("marks by hand are read back from their text", "[kept-paint]") {
  KeptPaint paint;
  CHECK(paint.empty());
  CHECK(paint.text().empty());
  const std::vector<Index> some = {5, 6, 7, 12};
  paint.mark(some, kKeep, {});
  CHECK(paint.text() == "keep 5-7,12");
  paint.mark(std::vector<Index>{6}, kEvict, KeptPaint::Head{2, 1});
  CHECK(paint.text() == "keep 5-7,12; evict 6 in 2.1");
  CHECK(paint.of_head({0, 0}) == Marks{{5, kKeep}, {6, kKeep}, {7, kKeep}, {12, kKeep}});
  CHECK(paint.of_head({2, 1}) == Marks{{5, kKeep}, {6, kEvict}, {7, kKeep}, {12, kKeep}});
  CHECK(paint.count(kKeep) == 4);
  CHECK(paint.count(kEvict) == 1);
  // What holds in all heads holds in each: the head's own mark goes.
  paint.mark(std::vector<Index>{6}, kPin, {});
  CHECK(paint.of_head({2, 1}) == paint.of_head({0, 0}));
  CHECK(paint.text() == "keep 5,7,12; pin 6");
  paint.mark(some, std::nullopt, {});
  CHECK(paint == KeptPaint());

  std::mt19937 random(4);
  for (int trial = 0; trial < 200; ++trial) {
    const std::optional<KeptPaint::Head> head =
        random() % 3 == 0 ? std::optional(KeptPaint::Head{random() % 3, random() % 2}) : std::nullopt;
    std::vector<Index> tokens;
    for (std::size_t n = random() % 9; n > 0; --n) tokens.push_back(static_cast<Index>(random() % 40));
    paint.mark(tokens, random() % 4 == 0 ? std::optional<PaintMark>() : kPaintMarks.all()[random() % 3],
               head);
    CHECK(KeptPaint::of_text(paint.text()) == paint);
  }
  CHECK(KeptPaint::of_text("  keep 1 - 3 , 9 in 0.1 ;evict 4;").text() == "evict 4; keep 1-3,9 in 0.1");
}

TEST_CASE("what is no text of marks is refused in a line", "[kept-paint]") {
  for (const char* text :
       {"hold 3", "keep", "keep x", "keep 3-", "keep 5-3", "keep -1", "keep 3 in 2", "keep 3 in",
        "keep 3 evict 4", "keep 3,", "keep 99999999999999999999", "keep 0-999999999", "3"}) {
    INFO(text);
    try {
      KeptPaint::of_text(text);
      FAIL("was taken");
    } catch (const InputError& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
      CHECK(std::string(error.what()).find("expected") != std::string::npos);
    }
  }
}

TEST_CASE("marks change a kept set: beyond the budget, within it, and away", "[kept-paint]") {
  const KeptSet kept = {1, 0, 1, 0, 1, 0, 1, 1};
  const Vector<double> scores = scores_of({9, 1, 5, 2, 4, 3, 6, 0});
  CHECK(painted(kept, {}, scores, 1, 1) == kept);
  CHECK(painted(kept, {{1, kKeep}}, scores, 1, 1) == KeptSet{1, 1, 1, 0, 1, 0, 1, 1});
  CHECK(painted(kept, {{6, kEvict}}, scores, 1, 1) == KeptSet{1, 0, 1, 0, 1, 0, 0, 1});
  // The least wanted that is neither a sink, nor recent, nor marked goes: 4, not 7.
  CHECK(painted(kept, {{1, kPin}}, scores, 1, 1) == KeptSet{1, 1, 1, 0, 0, 0, 1, 1});
  CHECK(painted(kept, {{1, kPin}}, scores, 1, 0) == KeptSet{1, 1, 1, 0, 1, 0, 1, 0});
  CHECK(painted(kept, {{1, kPin}, {4, kKeep}}, scores, 1, 1) == KeptSet{1, 1, 0, 0, 1, 0, 1, 1});
  CHECK(painted(kept, {{2, kPin}}, scores, 1, 1) == kept);  // it was there
  // Without scores a pinned token stays beyond the budget; beyond the prompt marks mean nothing.
  CHECK(painted(kept, {{1, kPin}}, {}, 1, 1) == KeptSet{1, 1, 1, 0, 1, 0, 1, 1});
  CHECK(painted(kept, {{8, kKeep}, {1000, kPin}}, scores, 0, 0) == kept);
  CHECK(painted({}, {{0, kKeep}}, {}, 4, 4).empty());
  // All that is kept is pinned: nothing can go.
  CHECK(painted({1, 1, 0}, {{2, kPin}}, scores_of({1, 2, 3}), 2, 0) == KeptSet{1, 1, 1});

  std::mt19937 random(8);
  for (int trial = 0; trial < 300; ++trial) {
    const auto l = static_cast<Index>(1 + random() % 40);
    KeptSet set(l);
    Vector<double> of(l);
    for (Index p = 0; p < l; ++p) {
      set[p] = random() % 2;
      of[p] = static_cast<double>(random() % 5);
    }
    KeptPaint paint;
    for (int n = 0; n < 5; ++n)
      paint.mark(std::vector<Index>{static_cast<Index>(random() % l)}, kPaintMarks.all()[random() % 3], {});
    const Marks marks = paint.of_head({0, 0});
    const KeptSet after = painted(set, marks, of, 0, 0);
    Index expected = count_of(set), pinned = 0, free = 0;
    for (const auto& [token, mark] : marks) {
      CHECK((after[token] != 0) == (mark != kEvict));
      if (mark == kEvict) expected -= set[token];
      if (mark == kKeep) expected += 1 - set[token];
      if (mark == kPin) pinned += 1 - set[token];
    }
    for (Index p = 0; p < l; ++p)
      free += set[p] != 0 &&
              std::none_of(marks.begin(), marks.end(), [&](const MarkedToken& m) { return m.token == p; });
    CHECK(count_of(after) == expected + std::max<Index>(0, pinned - free));
  }
}
