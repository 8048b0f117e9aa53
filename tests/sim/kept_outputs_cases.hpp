#pragma once

#include "sim/attention.hpp"
#include "sim/head_group.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/kept_changes.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

// The head groups, rows and kept sets on which every output_changes() is judged.

namespace kvreplay::test {

/// Of the full outputs' norm: a logit of 200 is known to 2e-5 in float32, and so is its weight.
inline constexpr double kFloatTolerance = 1e-4;

struct KeptCase {
  std::string name;
  GroupSpec spec;
};

inline std::vector<KeptCase> numbered(std::vector<KeptCase> cases) {
  for (std::size_t n = 0; n < cases.size(); ++n) cases[n].spec.seed = 300 + n;
  return cases;
}

inline const std::vector<KeptCase>& kept_cases() {
  static const std::vector<KeptCase> list = numbered({
      {"plain", {}},
      {"G = 1", {.G = 1}},
      {"G = 3", {.G = 3}},
      {"odd d, d_v larger", {.d = 5, .d_v = 17}},
      {"odd d, d_v smaller", {.d = 7, .d_v = 3}},
      {"d = 1, d_v = 1", {.G = 1, .d = 1, .d_v = 1}},
      {"no decoded rows", {.T = 40}},
      {"one token", {.l = 1, .T = 1}},
      {"one token, one decoded", {.l = 1, .T = 2}},
      {"one row", {.T_q = 1}},
      {"rows from within the window", {.T_q = 12}},
      {"values far from 0", {.value_offset = 30.0}},
      {"sink", {.attention_sink = 0}},
      {"sink in mid prompt", {.attention_sink = 17}},
      {"sink among the decoded", {.attention_sink = 42}},
      {"sink, values far from 0", {.value_offset = 30.0, .attention_sink = 0}},
      {"sink, logits + 200", {.logit_shift = 200.0, .attention_sink = 3}},
      {"logits + 200", {.logit_shift = 200.0}},
      {"logits - 200", {.logit_shift = -200.0}},
      {"logits times 20", {.logit_std = 20.0}},
      {"sliding window 7", {.sliding_window = 7}},
      {"sliding window 1", {.sliding_window = 1}},
      {"sliding window longer than all", {.sliding_window = 64}},
      {"sliding window and a sink that leaves it", {.attention_sink = 20, .sliding_window = 7}},
      {"soft cap", {.logit_std = 20.0, .softcap = 15.0}},
      {"sink logit", {.sink_logit = 2.0}},
      {"sink logit far below", {.sink_logit = -300.0}},
      {"sink logit above", {.value_offset = 3.0, .sink_logit = 15.0}},
      {"sink logit far above", {.value_offset = 3.0, .sink_logit = 30.0}},
      {"sink logit that takes all", {.sink_logit = 1000.0}},
      {"sink logit and sink", {.attention_sink = 0, .sink_logit = 3.0}},
      {"non-causal", {.causal = false}},
      {"non-causal, sliding window 7", {.causal = false, .sliding_window = 7}},
      {"all at once", {.G = 3, .logit_std = 5.0, .sliding_window = 9, .softcap = 8.0, .sink_logit = 1.0}},
      // Tiles end after 252 tokens, panels after 16 rows (float64) or 32 (float32).
      {"l = 252, no more", {.l = 252, .T = 252, .T_q = 16, .G = 1}},
      {"l = 252", {.l = 252, .T = 253, .T_q = 17, .G = 1}},
      {"l = 253, 31 rows", {.l = 253, .T = 256, .T_q = 31, .G = 1}},
      {"l = 504, 32 rows", {.l = 504, .T = 506, .T_q = 32, .G = 1, .attention_sink = 251}},
      {"l = 505, 33 rows", {.l = 505, .T = 506, .T_q = 33, .G = 1, .sink_logit = 1.0}},
      {"l = 600, sliding window 260",
       {.l = 600, .T = 640, .T_q = 70, .G = 1, .logit_std = 3.0, .sliding_window = 260}},
  });
  return list;
}

/// The window, its last row, the decoded rows, all that have a query: those of them that are not empty.
inline std::vector<RowRange> row_sets(const HeadGroup<double>& group) {
  std::vector<RowRange> sets{window_rows(group.l, group.first_query(), 32),
                             window_rows(group.l, group.first_query(), 1),
                             future_rows(group.l, group.T_all(), group.first_query()),
                             {group.first_query(), group.T_all()}};
  std::erase_if(sets, [](RowRange rows) { return rows.count() == 0; });
  return sets;
}

/// All, none, runs at either end, combs, and one token more or less, the attention sink if there is one.
inline std::vector<KeptSet> kept_sets(const GroupSpec& spec) {
  const Index l = spec.l;
  const auto one = static_cast<std::size_t>(std::min(spec.attention_sink.value_or(l / 2), l - 1));
  KeptSet alone = every(l, l, l), others = every(l, 1, 0);
  alone[one] = 1;
  others[one] = 0;
  KeptSet first = every(l, 1, 0);
  std::fill(first.begin() + static_cast<std::ptrdiff_t>((l + 2) / 3), first.end(), std::uint8_t{0});
  return {every(l, 1, 0), every(l, l, l), every(l, 1, l / 2), first, every(l, 2, 1), every(l, 5, 0),
          alone,          others};
}

template <class T>
using ChangesOf =
    std::function<OutputChanges<T>(const HeadGroup<T>&, RowRange, std::span<const KeptSet>, bool, Workers&)>;

/// Every kept set of every case, without vectors; `tolerance` is of the full outputs' norm.
template <class T>
void check_against_reference(const ChangesOf<T>& output_changes_of, double tolerance) {
  Workers workers(1);
  for (const KeptCase& c : kept_cases()) {
    const HeadGroup<T> group = converted<T>(random_group(c.spec));
    const HeadGroup<double> judged = converted<double>(group);
    const std::vector<KeptSet> sets = kept_sets(c.spec);
    for (const RowRange rows : row_sets(judged)) {
      const OutputChanges<T> got = output_changes_of(group, rows, sets, false, workers);
      REQUIRE(got.change_sq.size() == sets.size());
      CHECK(got.full.empty());
      CHECK(got.change.empty());
      CHECK(got.change_sq[0] == 0.0);  // everything is kept
      for (std::size_t s = 0; s < sets.size(); ++s) {
        INFO(c.name << ", rows " << rows.begin << " to " << rows.end << ", set " << s);
        const OutputChangeReference want = output_change_reference(judged, rows, sets[s]);
        INFO("want " << want.change_sq << " of " << want.full_sq << ", got " << got.change_sq[s] << " of "
                     << got.full_sq);
        // Where outputs are 0 a change is the least number above 0 at least.
        const double allowed = tolerance * std::sqrt(want.full_sq) + 1e-160;
        CHECK(std::abs(std::sqrt(got.full_sq) - std::sqrt(want.full_sq)) <= allowed);
        CHECK(std::abs(std::sqrt(got.change_sq[s]) - std::sqrt(want.change_sq)) <= allowed);
      }
    }
  }
}

/// Relative errors at sinks of value 0, to `tolerance` of themselves: nothing may cancel.
template <class T>
void check_worthless_sinks(const ChangesOf<T>& output_changes_of, double tolerance) {
  Workers workers(1);
  for (const double gap : {15.0, 20.0, 23.0, 30.0, 37.0, 45.0, 60.0, 100.0, 340.0}) {
    const GroupSpec spec{
        .l = 70, .T = 80, .d_v = 5, .value_offset = 0.5, .attention_sink = 0, .worthless_by = gap};
    const HeadGroup<T> group = converted<T>(random_group(spec));
    const HeadGroup<double> judged = converted<double>(group);
    const std::vector<KeptSet> sets = kept_sets(spec);
    for (const RowRange rows : row_sets(judged)) {
      const OutputChanges<T> got = output_changes_of(group, rows, sets, true, workers);
      CHECK(got.change_sq[0] == 0.0);
      for (std::size_t s = 0; s < sets.size(); ++s) {
        INFO("gap " << gap << ", rows " << rows.begin << " to " << rows.end << ", set " << s);
        const OutputChangeReference want = output_change_reference(judged, rows, sets[s]);
        CHECK(std::sqrt(got.full_sq) == Approx(std::sqrt(want.full_sq)).epsilon(tolerance));
        CHECK(std::sqrt(got.change_sq[s]) == Approx(std::sqrt(want.change_sq)).epsilon(tolerance));
        if (gap > 60) continue;  // the vectors are in T
        double sum = 0;
        for (Index g = 0; g < group.G(); ++g)
          for (Index r = 0; r < rows.count(); ++r)
            for (Index c = 0; c < group.d_v(); ++c) {
              const double x = got.change[s][g][panel_entry<T>(c, r, group.d_v())];
              sum += x * x;
            }
        CHECK(std::sqrt(sum) == Approx(std::sqrt(want.change_sq)).epsilon(std::max(tolerance, 1e-6)));
      }
    }
  }
}

/// Where the outputs are 0, or too small to square, every change is above 0 but that of keeping everything.
template <class T>
void check_no_outputs(const ChangesOf<T>& output_changes_of) {
  Workers workers(1);
  GroupSpec spec{.value_offset = 0.5, .attention_sink = 0};
  const std::vector<KeptSet> sets = kept_sets(spec);
  for (const double gap : {400.0, 1000.0}) {
    spec.worthless_by = gap;
    const OutputChanges<T> got =
        output_changes_of(converted<T>(random_group(spec)), {32, 48}, sets, false, workers);
    CHECK(got.full_sq < std::numeric_limits<double>::min());
    CHECK(got.change_sq[0] == 0.0);
    for (std::size_t s = 1; s < sets.size(); ++s) CHECK(got.change_sq[s] > 0);
  }
  HeadGroup<T> none = converted<T>(random_group({}));
  none.v.setZero();
  const OutputChanges<T> got = output_changes_of(none, {32, 48}, sets, false, workers);
  CHECK(got.full_sq == 0.0);
  CHECK(got.change_sq == std::vector<double>(sets.size(), 0.0));
}

using FloatChanges = std::function<OutputChanges<float>(const HeadGroup<double>&)>;

/// What overflows float32 where no row reads it, or below a soft cap, is no error. `changes` keeps every
/// other token and takes the rows 32 to 40.
inline void check_harmless_overflows(const FloatChanges& changes) {
  // Row 33 does not see position 39.
  HeadGroup<double> group = random_group({});
  for (HeadMatrix<double>& q : group.q) q.row(33) *= 1e35;
  group.k.row(39).setConstant(1e5);
  const OutputChanges<float> got = changes(group);
  const OutputChangeReference want =
      output_change_reference(converted<double>(converted<float>(group)), {32, 40}, every(40, 2, 0));
  CHECK(got.full_sq == Approx(want.full_sq).epsilon(1e-4));
  CHECK(got.change_sq[0] == Approx(want.change_sq).epsilon(1e-4));
  group = random_group({.G = 1, .d = 2, .softcap = 10.0});
  group.q[0].setConstant(1e30);
  group.k.topRows(20).setConstant(1e30);
  CHECK_NOTHROW(changes(group));
}

}  // namespace kvreplay::test
