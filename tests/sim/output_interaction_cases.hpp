#pragma once

#include "sim/channels/output_interaction.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/random_group.hpp"

#include <algorithm>
#include <string>
#include <vector>

// Cases for output interactions, and how near to the reference every twin must be.

namespace kvreplay::test {

struct InteractionCase {
  std::string name;
  GroupSpec spec;
};

inline const std::vector<InteractionCase>& interaction_cases() {
  static const std::vector<InteractionCase> list = [] {
    std::vector<InteractionCase> all{
        {"plain", {}},
        {"G = 1", {.G = 1}},
        {"G = 3", {.G = 3}},
        {"odd d, d_v larger", {.d = 5, .d_v = 17}},
        {"odd d, d_v smaller", {.d = 35, .d_v = 3}},
        {"d = 1, d_v = 1", {.G = 1, .d = 1, .d_v = 1}},
        {"no decoded rows", {.T = 40}},
        {"one token", {.l = 1, .T = 1}},
        {"one token, one decoded", {.l = 1, .T = 2}},
        {"two tokens", {.l = 2, .T = 3}},
        {"one row", {.T_q = 1}},
        {"rows from within the window", {.T_q = 12}},
        {"values far from 0", {.value_offset = 30.0}},
        {"sink", {.attention_sink = 0}},
        {"sink in mid prompt", {.attention_sink = 17}},
        {"sink among the recent", {.attention_sink = 39}},
        {"sink among the decoded", {.attention_sink = 42}},
        {"sink, values far from 0", {.value_offset = 30.0, .attention_sink = 0}},
        {"sink, logits + 200", {.logit_shift = 200.0, .attention_sink = 3}},
        {"logits + 200", {.logit_shift = 200.0}},
        {"logits - 200", {.logit_shift = -200.0}},
        {"logits times 20", {.logit_std = 20.0}},
        {"logits times 1e-3", {.logit_std = 1e-3}},
        {"sliding window 7", {.sliding_window = 7}},
        {"sliding window 1", {.sliding_window = 1}},
        {"sliding window longer than all", {.sliding_window = 64}},
        {"sliding window and a sink that leaves it", {.attention_sink = 20, .sliding_window = 7}},
        {"sliding window beyond the prompt", {.l = 20, .T = 48, .T_q = 12, .sliding_window = 9}},
        {"soft cap", {.logit_std = 20.0, .softcap = 15.0}},
        {"soft cap, all logits near it", {.logit_shift = 60.0, .softcap = 10.0}},
        {"soft cap far above", {.softcap = 1000.0}},
        {"soft cap and a sink", {.attention_sink = 4, .softcap = 100.0}},
        {"sink logit", {.sink_logit = 2.0}},
        {"sink logit far below", {.sink_logit = -300.0}},
        {"sink logit above", {.value_offset = 3.0, .sink_logit = 15.0}},
        {"sink logit far above", {.value_offset = 3.0, .sink_logit = 30.0}},
        {"sink logit and sink", {.attention_sink = 0, .sink_logit = 3.0}},
        {"non-causal", {.causal = false}},
        {"non-causal, sliding window 7", {.causal = false, .sliding_window = 7}},
        {"all at once", {.G = 3, .logit_std = 5.0, .sliding_window = 9, .softcap = 8.0, .sink_logit = 1.0}},
        // Tiles end after 64 keys and 252 or 256 columns, panels after 16 (float64) or 32 rows or channels.
        {"l = 64, 17 rows, d = 16", {.l = 64, .T = 66, .T_q = 17, .G = 1, .d = 16, .d_v = 33}},
        {"l = 253, 31 rows, d = 33", {.l = 253, .T = 256, .T_q = 31, .G = 1, .d = 33, .attention_sink = 251}},
        {"l = 257, 33 rows", {.l = 257, .T = 258, .T_q = 33, .G = 1, .sink_logit = 1.0}},
        {"l = 270, 70 rows, sliding window 130",
         {.l = 270, .T = 290, .T_q = 70, .G = 1, .logit_std = 3.0, .sliding_window = 130}},
    };
    for (std::size_t n = 0; n < all.size(); ++n) all[n].spec.seed = 800 + n;
    return all;
  }();
  return list;
}

/// All but the recent, all, none, half of half a cache, and a cache without most of what is recent.
inline std::vector<PrunableKeys> key_sets(Index l) {
  PrunableKeys sparse{every(l, 2, 0), every(l, 4, 0)}, old{every(l, 1, 0), every(l, 3, 1)};
  std::fill(old.cache.begin() + l / 2, old.cache.end(), std::uint8_t{0});
  std::fill(old.prunable.begin() + l / 2, old.prunable.end(), std::uint8_t{0});
  return {prompt_keys(l, 8), prompt_keys(l, 0), prompt_keys(l, l), sparse, old};
}

inline std::vector<RowRange> row_sets(const HeadGroup<double>& group) {
  std::vector<RowRange> sets{window_rows(group.l, group.first_query(), 10),
                             window_rows(group.l, group.first_query(), 1),
                             {group.first_query(), group.T_all()}};
  std::erase_if(sets, [](RowRange rows) { return rows.count() == 0; });
  return sets;
}

constexpr Tolerance kInteractionDouble{.of_largest = 1e-9, .floor = 1.0, .tiny = 1e-290};
// A logit of 200 is known to 2e-5 in float32, and so is its weight; M is a square. Squares of weights below
// 1e-15 leave float32's range.
constexpr Tolerance kInteractionSingle{.of_largest = 1e-4, .floor = 1.0, .tiny = 1e-30};

}  // namespace kvreplay::test
