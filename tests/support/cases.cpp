#include "tests/support/cases.hpp"

#include <string>
#include <utility>

namespace kvreplay::test {
namespace {

class CaseList {
 public:
  void add(std::string name, GroupSpec spec, Index window, bool per_query_head = false) {
    spec.seed = 100 + cases_.size();
    TokenCase token_case{std::move(name), spec, {}};
    token_case.options.window = window;
    token_case.options.per_query_head = per_query_head;
    token_case.options.metrics = available_metrics(token_case.group());
    cases_.push_back(std::move(token_case));
  }
  std::vector<TokenCase> take() { return std::move(cases_); }

 private:
  std::vector<TokenCase> cases_;
};

std::vector<TokenCase> small_cases() {
  const Rope half = rope_of(Rope::Style::half, 8);
  CaseList list;
  list.add("plain", {.rope = half}, 8);
  list.add("plain, per query head", {.rope = half}, 8, true);
  list.add("whole prompt as window", {.rope = half}, 40);
  list.add("window longer than the prompt", {}, 1000);
  list.add("window 1", {}, 1);
  list.add("G = 1", {.G = 1, .rope = half}, 8);
  list.add("G = 4", {.G = 4, .rope = half}, 8);
  list.add("G = 4, per query head", {.G = 4, .rope = half}, 8, true);
  list.add("G = 3, with wo", {.G = 3, .d_model = 24}, 8);
  list.add("wo, per query head", {.d_model = 7}, 8, true);
  list.add("odd d = 5", {.d = 5, .d_v = 5}, 8);
  list.add("d = 5, d_v = 3", {.d = 5, .d_v = 3, .d_model = 6}, 40);
  list.add("d = 3, d_v = 17", {.d = 3, .d_v = 17}, 40);
  list.add("d = 1, d_v = 1", {.d = 1, .d_v = 1}, 40);
  list.add("no decoding steps", {.T = 40, .rope = half}, 40);
  list.add("one token", {.l = 1, .T = 1}, 1);
  list.add("one token and one decoding step", {.l = 1, .T = 2, .d_model = 4}, 1);
  list.add("two tokens", {.l = 2, .T = 3, .G = 1}, 2);
  list.add("five tokens, the fewest with expected attention", {.l = 5, .T = 6, .rope = half}, 5);
  list.add("one query", {.T = 40, .T_q = 1}, 8);
  list.add("one query, the first decoding step's", {.T = 41, .T_q = 1}, 8);
  list.add("queries from the middle of the window", {.T_q = 12}, 8);
  list.add("queries of later decoding steps only", {.T_q = 3}, 8);
  list.add("queries from position 4 on", {.T_q = 44, .rope = half}, 8);
  list.add("a zero key and value", {.zero_token = 6, .rope = half}, 40);
  list.add("a zero key and value among logits of 200", {.logit_shift = 200.0, .zero_token = 6}, 40);
  list.add("values far from 0", {.value_offset = 30.0}, 40);

  list.add("sink of 1 - 1e-9", {.attention_sink = 0}, 8);
  list.add("sink of 1 - 1e-9, whole prompt", {.attention_sink = 0}, 40);
  list.add("sink of 1 - 1e-9, per query head", {.G = 4, .attention_sink = 0}, 8, true);
  list.add("sink in mid prompt", {.attention_sink = 17}, 40);
  list.add("sink among the decoding steps", {.attention_sink = 42}, 40);
  list.add("sink, logits + 200", {.logit_shift = 200.0, .attention_sink = 0}, 40);
  list.add("sink, logits - 200", {.logit_shift = -200.0, .attention_sink = 0}, 40);
  list.add("logits + 200", {.logit_shift = 200.0}, 40);
  list.add("logits - 200", {.logit_shift = -200.0}, 40);
  list.add("logits times 20", {.logit_std = 20.0, .rope = half}, 8);
  list.add("logits times 60", {.logit_std = 60.0}, 40);
  list.add("logits times 1e-3", {.logit_std = 1e-3, .rope = half}, 40);

  list.add("sliding window 7", {.sliding_window = 7}, 40);
  list.add("sliding window 1", {.sliding_window = 1}, 40);
  list.add("sliding window 1, window 1", {.sliding_window = 1}, 1);
  list.add("sliding window longer than the dump", {.sliding_window = 64}, 40);
  list.add("sliding window 7 and a sink that leaves it", {.attention_sink = 20, .sliding_window = 7}, 40);
  list.add("soft cap", {.logit_std = 20.0, .softcap = 15.0}, 40);
  list.add("soft cap far above the logits", {.softcap = 1000.0}, 8);
  list.add("soft cap, logits - 200", {.logit_shift = -200.0, .softcap = 50.0}, 8);
  list.add("sink logit", {.sink_logit = 2.0}, 40);
  list.add("sink logit, per query head", {.G = 4, .sink_logit = -1.0}, 8, true);
  list.add("sink logit far below", {.sink_logit = -300.0}, 8);
  list.add("sink logit far above", {.sink_logit = 30.0}, 8);
  list.add("sink logit that takes all", {.sink_logit = 1000.0}, 8);
  list.add("sink logit and sink", {.attention_sink = 0, .sink_logit = 3.0}, 40);
  list.add("one token and a sink logit", {.l = 1, .T = 2, .sink_logit = 0.5}, 1);
  list.add("non-causal", {.causal = false, .rope = half}, 8);
  list.add("non-causal encoder", {.T = 40, .causal = false}, 40);
  list.add("non-causal with sink", {.attention_sink = 39, .causal = false}, 40);
  list.add("non-causal, sliding window 7", {.causal = false, .sliding_window = 7}, 40);
  list.add("non-causal, two-sided window 7", {.causal = false, .sliding_window = 7, .two_sided = true}, 40);
  list.add("non-causal, two-sided window 1", {.causal = false, .sliding_window = 1, .two_sided = true}, 40);
  list.add("soft cap, sink logit, sliding window",
           {.logit_std = 5.0, .sliding_window = 9, .softcap = 8.0, .sink_logit = 1.0}, 40);

  list.add("rope, interleaved", {.rope = rope_of(Rope::Style::interleaved, 8)}, 8);
  list.add("rope on part of the channels", {.d = 11, .rope = rope_of(Rope::Style::half, 6)}, 8, true);
  list.add("rope, interleaved on part of the channels, factor",
           {.d = 11, .rope = rope_of(Rope::Style::interleaved, 4, 500.0, 1.3)}, 8);
  list.add("rope and wide logits", {.logit_std = 8.0, .rope = rope_of(Rope::Style::half, 8)}, 8, true);

  list.add("gate", {.d_model = 24, .gate = true, .rope = half}, 8);
  list.add("gate, G = 3, per query head", {.G = 3, .d_model = 7, .gate = true}, 8, true);
  list.add("gate, d = 5, d_v = 3", {.d = 5, .d_v = 3, .d_model = 6, .gate = true}, 40);
  list.add("gate, d_v = 17", {.d_v = 17, .d_model = 9, .gate = true}, 8);
  list.add("gate, no decoding steps", {.T = 40, .d_model = 9, .gate = true}, 8);
  list.add("gate, queries of later decoding steps only", {.T_q = 3, .d_model = 9, .gate = true}, 8);
  list.add("gate, a sink of 1 - 1e-9", {.d_model = 9, .gate = true, .attention_sink = 0}, 8);
  list.add(
      "gate, soft cap, sink logit, sliding window",
      {.d_model = 9, .gate = true, .logit_std = 5.0, .sliding_window = 12, .softcap = 8.0, .sink_logit = 1.0},
      8);
  list.add("gate, not causal, two-sided window 12",
           {.d_model = 9, .gate = true, .causal = false, .sliding_window = 12, .two_sided = true}, 8);
  return list.take();
}

std::vector<TokenCase> large_cases() {
  CaseList list;
  for (const Index l : {31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257}) {
    list.add("tile edge, whole prompt, l = " + std::to_string(l),
             {.l = l, .T = l + 3, .G = 1, .d = 64, .d_v = 64, .attention_sink = 0}, l);
  }
  for (const Index w : {31, 33, 64, 65, 129}) {
    list.add("tile edge, l = 385, w = " + std::to_string(w), {.l = 385, .T = 386, .d = 16, .d_v = 24}, w);
  }
  list.add("l = w = 300, d = 128",
           {.l = 300, .T = 303, .G = 1, .d = 128, .d_v = 128, .rope = rope_of(Rope::Style::half, 128)}, 300);
  list.add("l = w = 320, d = 128, d_v = 32, sink logit",
           {.l = 320, .T = 321, .G = 1, .d = 128, .d_v = 32, .sink_logit = 1.0}, 320);
  list.add("l = w = 321, sliding window 100",
           {.l = 321, .T = 330, .d = 64, .d_v = 64, .attention_sink = 130, .sliding_window = 100}, 321);
  list.add("l = w = 513, d = 16, soft cap", {.l = 513, .T = 514, .G = 1, .d = 16, .d_v = 4, .softcap = 30.0},
           513);
  list.add("l = 700, w = 33, G = 4, wo",
           {.l = 700, .T = 703, .G = 4, .d = 64, .d_v = 16, .d_model = 32, .logit_std = 4.0}, 33);
  list.add("non-causal, l = w = 257",
           {.l = 257, .T = 260, .G = 1, .d = 64, .d_v = 16, .attention_sink = 3, .causal = false}, 257);
  list.add("gate on 70 decoding steps",
           {.l = 300, .T = 370, .d = 16, .d_v = 40, .d_model = 48, .gate = true, .logit_std = 3.0}, 33);
  return list.take();
}

std::vector<TokenCase> held_cases() {
  CaseList list;
  for (const double gap : {30.0, 45.0, 60.0, 100.0, 150.0}) {
    list.add("worthless sink " + std::to_string(gap),
             {.d_model = 5, .value_offset = 0.5, .attention_sink = 0, .worthless_by = gap}, 8);
    list.add("worthless sink and whole prompt " + std::to_string(gap),
             {.l = 70, .T = 75, .attention_sink = 0, .worthless_by = gap}, 8, true);
    list.add("sink logit " + std::to_string(gap), {.value_offset = 3.0, .sink_logit = gap + 10}, 8);
  }
  for (const double gap : {45.0, 150.0})
    list.add("gate and worthless sink " + std::to_string(gap),
             {.d_model = 5, .gate = true, .value_offset = 0.5, .attention_sink = 0, .worthless_by = gap}, 8);
  return list.take();
}

}  // namespace

const std::vector<TokenCase>& held_token_cases() {
  static const std::vector<TokenCase> cases = held_cases();
  return cases;
}

const std::vector<TokenCase>& small_token_cases() {
  static const std::vector<TokenCase> cases = small_cases();
  return cases;
}

const std::vector<TokenCase>& large_token_cases() {
  static const std::vector<TokenCase> cases = large_cases();
  return cases;
}

}  // namespace kvreplay::test
