#include "sim/cuda/softmax.hpp"
#include "sim/eviction/decode/cuda/decode_kernels.hpp"
#include "sim/tokens/entry_formulas.hpp"

#if defined(__CUDACC__)
#define KVREPLAY_BLOCKS(threads, on_a_multiprocessor) __launch_bounds__(threads, on_a_multiprocessor)
#else
#define KVREPLAY_BLOCKS(threads, on_a_multiprocessor)
#endif

namespace kvreplay::cuda {
namespace {

// A block of the decoding replay works over all slots of a cache, and its threads come to one result.
// Slots that a thread takes by itself are its number and every kThreads after it: nobody else touches them
// between two barriers.

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTokenLanes = 8;      // that share the channels of one token
constexpr int kTogether = 2;        // tokens of such lanes at once
constexpr int kPartChannels = 128;  // of the values, that a warp sums at once
constexpr int kLongest = 128;       // values that are added up in float32 without a break
constexpr int kInFlight = 4;        // values that a lane asks for before it adds any

struct alignas(16) Four {
  float x, y, z, w;
};
KVREPLAY_DEVICE Four four_at(const float* row, int at) { return reinterpret_cast<const Four*>(row)[at]; }

/// The two largest of some numbers, and where the largest is: among equals at the lowest slot.
struct Largest {
  double first, second;
  int slot;

  KVREPLAY_DEVICE static Largest none() {
    return {-static_cast<double>(INFINITY), -static_cast<double>(INFINITY), 0x7fffffff};
  }
  KVREPLAY_DEVICE Largest across(int mask) const {
    return {shuffle_xor(first, mask), shuffle_xor(second, mask), shuffle_xor(slot, mask)};
  }
  KVREPLAY_DEVICE Largest join(const Largest& b) const {
    if (first > b.first || (first == b.first && slot < b.slot)) return {first, larger(second, b.first), slot};
    return {b.first, larger(first, b.second), b.slot};
  }
};

/// The token that ranks last: among equals the one of the highest position.
struct Least {
  double rank;
  int position, slot;

  KVREPLAY_DEVICE static Least none() { return {static_cast<double>(INFINITY), -1, -1}; }
  KVREPLAY_DEVICE Least across(int mask) const {
    return {shuffle_xor(rank, mask), shuffle_xor(position, mask), shuffle_xor(slot, mask)};
  }
  KVREPLAY_DEVICE Least join(const Least& b) const {
    return b.rank < rank || (b.rank == rank && b.position > position) ? b : *this;
  }
};

struct Sum {
  double value;

  KVREPLAY_DEVICE static Sum none() { return {0}; }
  KVREPLAY_DEVICE Sum across(int mask) const { return {shuffle_xor(value, mask)}; }
  KVREPLAY_DEVICE Sum join(const Sum& b) const { return {value + b.value}; }
};

/// Each thread's `own` of the n slots, joined to one for every warp: parts[warp]. A barrier has to follow,
/// and then joined(). Barriers before it: parts must not be read any more.
template <class Value>
KVREPLAY_DEVICE void join_warps(Value own, int n, Value* parts) {
  if (warp_id() * 32 >= n) return;
  KVREPLAY_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) own = own.join(own.across(mask));
  if (lane_id() == 0) parts[warp_id()] = own;
}
template <class Value>
KVREPLAY_DEVICE Value joined(const Value* parts, int n) {
  Value all = Value::none();
  for (int warp = 0; warp < kWarps && warp * 32 < n; ++warp) all = all.join(parts[warp]);
  return all;
}

/// store(slot, s, sum s) for every slot and s < kSums, with the sums over the channels of
/// rows[position[slot]] that add(sums, four channels, their number) takes. Rows are `fours` times 4 channels.
template <int kSums, class Add, class Store>
KVREPLAY_DEVICE void over_tokens(const float* rows, int fours, const int* position, int n, Add add,
                                 Store store) {
  static_assert(kSums <= kTokenLanes, "each sum has a lane that stores it");
  constexpr int kStep = 32 / kTokenLanes, kAtOnce = kStep * kTogether;
  const int lane = lane_id() % kTokenLanes;
  for (int first = warp_id() * kAtOnce; first < n; first += kWarps * kAtOnce) {
    int slot[kTogether];
    const float* row[kTogether];
    float sums[kTogether][kSums] = {};
    KVREPLAY_UNROLL
    for (int t = 0; t < kTogether; ++t) {
      slot[t] = first + t * kStep + lane_id() / kTokenLanes;
      row[t] = rows + static_cast<std::ptrdiff_t>(position[smaller(slot[t], n - 1)]) * fours * 4;
    }
    for (int c = lane; c < fours; c += kTokenLanes) {
      KVREPLAY_UNROLL
      for (int t = 0; t < kTogether; ++t) add(sums[t], four_at(row[t], c), c);
    }
    KVREPLAY_UNROLL
    for (int t = 0; t < kTogether; ++t) {
      KVREPLAY_UNROLL
      for (int s = 0; s < kSums; ++s) {
        float sum = sums[t][s];
        KVREPLAY_UNROLL
        for (int mask = 1; mask < kTokenLanes; mask *= 2) sum += shuffle_xor(sum, mask);
        if (lane == s && slot[t] < n) store(slot[t], s, sum);
      }
    }
  }
}

/// Lanes that share a value of `fours` times 4 channels, as far as a warp sums them at once.
KVREPLAY_DEVICE int value_lanes(int fours) {
  int lanes = 1;
  while (lanes < fours && lanes < kPartChannels / 4) lanes *= 2;
  return lanes;
}

/// sums[h][c] = sum over the n slots of weights[slot][h] values[position[slot]][c]: [kHeads][4 fours], in
/// float64, of float32 sums of kLongest products; weights are [n][kHeads]. parts:
/// [kWarps][kHeads][kPartChannels]. A barrier follows the last write.
template <int kHeads>
KVREPLAY_DEVICE void weighted_values(const float* values, int fours, const int* position, int n,
                                     const float* weights, float* parts, double* sums) {
  const int lanes = value_lanes(fours), a_warp = 32 / lanes,
            turns = (n + kWarps * a_warp - 1) / (kWarps * a_warp);
  const int lane = lane_id() % lanes;
  const int busy = smaller(kWarps, (n + a_warp - 1) / a_warp);  // warps
  float* own = parts + warp_id() * kHeads * kPartChannels;
  for (int begin = 0; begin < fours; begin += lanes) {
    const int c = begin + lane;
    for (int turn = 0; turn < turns; turn += kLongest) {
      float sum[kHeads][4] = {};
      const int end = smaller(turn + kLongest, turns);
      for (int at = turn; at < end; at += kInFlight) {
        Four x[kInFlight];
        float w[kInFlight][kHeads];
        KVREPLAY_UNROLL
        for (int t = 0; t < kInFlight; ++t) {
          const int slot = ((at + t) * kWarps + warp_id()) * a_warp + lane_id() / lanes;
          const bool inside = at + t < end && slot < n && c < fours;
          x[t] = {0, 0, 0, 0};
          if (inside) x[t] = four_at(values + static_cast<std::ptrdiff_t>(position[slot]) * fours * 4, c);
          KVREPLAY_UNROLL
          for (int h = 0; h < kHeads; ++h)
            w[t][h] = inside ? weights[static_cast<std::ptrdiff_t>(slot) * kHeads + h] : 0.0F;
        }
        KVREPLAY_UNROLL
        for (int t = 0; t < kInFlight; ++t) {
          KVREPLAY_UNROLL
          for (int h = 0; h < kHeads; ++h) {
            sum[h][0] = fused(w[t][h], x[t].x, sum[h][0]);
            sum[h][1] = fused(w[t][h], x[t].y, sum[h][1]);
            sum[h][2] = fused(w[t][h], x[t].z, sum[h][2]);
            sum[h][3] = fused(w[t][h], x[t].w, sum[h][3]);
          }
        }
      }
      if (warp_id() < busy) {
        KVREPLAY_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          KVREPLAY_UNROLL
          for (int j = 0; j < 4; ++j) {
            float total = sum[h][j];
            for (int mask = lanes; mask < 32; mask *= 2) total += shuffle_xor(total, mask);
            if (lane_id() < lanes) own[h * kPartChannels + lane * 4 + j] = total;
          }
        }
      }
      sync_block();
      for (int at = thread_id(); at < kHeads * lanes * 4; at += kThreads) {
        const int h = at / (lanes * 4), channel = at % (lanes * 4);
        if (begin * 4 + channel >= fours * 4) continue;
        double total = 0;
        for (int warp = 0; warp < busy; ++warp)
          total += static_cast<double>(parts[(warp * kHeads + h) * kPartChannels + channel]);
        double& to = sums[h * fours * 4 + begin * 4 + channel];
        to = turn == 0 ? total : to + total;
      }
      sync_block();
    }
  }
}

/// One query head's row: its largest column and the rest.
struct HeadRow {
  int top;
  double largest, shift;  // shift: of the exponents of all but the largest
  double per_rest;
  LargestColumn column;
  EntryRow<double> row;
  double change_sq, top_score;
};

enum Bad { kLogits, kOutputs, kDifferences, kBads };
template <int kHeads>
struct Shared {
  DecodeTask run;
  HeadRow head[kHeads];
  int bad[kBads][kHeads];
  Largest largest[kHeads][kWarps];
  Sum sums[kHeads][kWarps];
  Least least[kWarps];
  alignas(16) float parts[kWarps * kHeads * kPartChannels];

  /// Size with the arrays behind it: rest [kHeads][value_width] float64, base as much float32, query
  /// [kHeads][key_width].
  static std::size_t bytes(const DecodeGroup& in) {
    return sizeof(Shared) + kHeads * (static_cast<std::size_t>(in.value_width) * 12 +
                                      static_cast<std::size_t>(in.key_width) * 4);
  }
};

/// A run's slots. Results and members are equal in all threads.
template <int kHeads>
class Cache {
 public:
  KVREPLAY_DEVICE Cache(const DecodeGroup& group, Shared<kHeads>& shared)
      : in_(group), s_(shared), run_(shared.run) {
    rest_ = reinterpret_cast<double*>(&s_ + 1);
    base_ = reinterpret_cast<float*>(rest_ + kHeads * in_.value_width);
    query_ = base_ + kHeads * in_.value_width;
    state_ = *run_.state;
  }

  KVREPLAY_DEVICE void prepare() {
    for (int at = thread_id(); at < kHeads * in_.value_width; at += kThreads) base_[at] = 0;
    if (thread_id() < kBads * kHeads) s_.bad[thread_id() / kHeads][thread_id() % kHeads] = 0;
    if (state_.started == 0) start();
    sync_block();
  }

  KVREPLAY_DEVICE void save() const {
    if (thread_id() == 0) *run_.state = state_;
  }

 protected:
  const DecodeGroup& in_;
  Shared<kHeads>& s_;
  const DecodeTask& run_;
  DecodeState state_;
  double* rest_;
  float *base_, *query_;

  KVREPLAY_DEVICE int n() const { return state_.tokens; }
  KVREPLAY_DEVICE std::ptrdiff_t in_head(int h, int slot) const {
    return static_cast<std::ptrdiff_t>(h) * run_.capacity + slot;
  }
  KVREPLAY_DEVICE const float* value(int position) const {
    return in_.v + static_cast<std::ptrdiff_t>(position) * in_.value_width;
  }
  KVREPLAY_DEVICE std::ptrdiff_t step_row(int g, int i) const {
    return static_cast<std::ptrdiff_t>(g) * in_.steps + (i - in_.first_step);
  }
  /// body(slot) for every slot, each by its own thread.
  template <class Body>
  KVREPLAY_DEVICE void each_slot(Body body) const {
    for (int slot = thread_id(); slot < n(); slot += kThreads) body(slot);
  }

  /// True if some head had a number beyond float32; the first such head is noted.
  KVREPLAY_DEVICE bool is_bad(Bad what, int i, int g0) {
    for (int h = 0; h < kHeads; ++h) {
      if (s_.bad[what][h] == 0) continue;
      if (thread_id() == 0) {
        state_.bad_position = i;
        state_.bad_head = g0 + h;
      }
      return true;
    }
    return false;
  }

  KVREPLAY_DEVICE void start() {
    state_.started = 1;
    state_.tokens = run_.n_start;
    each_slot([&](int slot) {
      const int p = run_.start[slot];
      run_.position[slot] = p;
      run_.rows_before[slot] = run_.window > 0 ? 0 : smaller(run_.prompt_rows, in_.l - p);
      clear(slot, 0, 1);
      for (int w = 0; run_.start_sums != nullptr && w < run_.width; ++w)
        run_.sums[in_head(w, slot)] = run_.start_sums[static_cast<std::ptrdiff_t>(w) * n() + slot];
    });
  }

  /// Forgets a slot's sums; `from` and `step` share that out.
  KVREPLAY_DEVICE void clear(int slot, int from, int step) const {
    for (int w = from; w < run_.width; w += step) {
      run_.sums[in_head(w, slot)] = 0;
      if (run_.window > 0) run_.newer[in_head(w, slot)] = 0;
    }
    for (int w = from; w < run_.window * run_.width; w += step) run_.older[in_head(w, slot)] = 0;
  }

  KVREPLAY_DEVICE void join(int i) {
    const int slot = state_.tokens++;
    if (thread_id() == 0) {
      run_.position[slot] = i;
      run_.rows_before[slot] = -state_.rows;
    }
    clear(slot, thread_id(), kThreads);
    sync_block();
  }

  /// The token at position p leaves its slot, at position i.
  KVREPLAY_DEVICE void remove(int slot, int p, int i) {
    const int last = --state_.tokens;
    if (thread_id() == 0) run_.left[state_.moves] = {i, p};
    ++state_.moves;
    if (slot != last) {
      if (thread_id() == 0) {
        run_.position[slot] = run_.position[last];
        run_.rows_before[slot] = run_.rows_before[last];
        run_.rank_by[slot] = run_.rank_by[last];
      }
      for (int w = thread_id(); w < run_.width; w += kThreads) {
        run_.sums[in_head(w, slot)] = run_.sums[in_head(w, last)];
        if (run_.window > 0) run_.newer[in_head(w, slot)] = run_.newer[in_head(w, last)];
      }
      for (int w = thread_id(); w < run_.window * run_.width; w += kThreads)
        run_.older[in_head(w, slot)] = run_.older[in_head(w, last)];
    }
    sync_block();
  }

  /// Largest of numbers(h, slot) for each head.
  template <class Numbers>
  KVREPLAY_DEVICE void take_largest(Numbers numbers) {
    Largest own[kHeads];
    for (int h = 0; h < kHeads; ++h) own[h] = Largest::none();
    each_slot([&](int slot) {
      KVREPLAY_UNROLL
      for (int h = 0; h < kHeads; ++h)
        own[h] = own[h].join({numbers(h, slot), -static_cast<double>(INFINITY), slot});
    });
    for (int h = 0; h < kHeads; ++h) join_warps(own[h], n(), s_.largest[h]);
    sync_block();
  }

  /// The sums of numbers(h, slot).
  template <class Numbers>
  KVREPLAY_DEVICE void take_sums(Numbers numbers) {
    Sum own[kHeads];
    for (int h = 0; h < kHeads; ++h) own[h] = Sum::none();
    each_slot([&](int slot) {
      KVREPLAY_UNROLL
      for (int h = 0; h < kHeads; ++h) own[h].value += numbers(h, slot);
    });
    for (int h = 0; h < kHeads; ++h) join_warps(own[h], n(), s_.sums[h]);
    sync_block();
  }

  /// body(head) by one thread for each of the heads.
  template <class Body>
  KVREPLAY_DEVICE void each_head(Body body) {
    if (lane_id() == 0 && warp_id() < kHeads) body(warp_id(), s_.head[warp_id()]);
    sync_block();
  }

  KVREPLAY_DEVICE void add_to_sums(int w, int slot, double x) const {
    const std::ptrdiff_t at = in_head(w, slot);
    if (run_.window == 0) {
      run_.sums[at] += x;
      return;
    }
    const int next = state_.window_step + 1;
    const double newer = run_.newer[at] + x;
    run_.newer[at] = newer;
    run_.sums[at] = newer + (next < run_.window ? run_.older[in_head(next * run_.width + w, slot)] : 0.0);
    run_.older[in_head(state_.window_step * run_.width + w, slot)] = x;
  }

  /// The step's row is complete.
  KVREPLAY_DEVICE void finish_row() {
    ++state_.rows;
    if (run_.window == 0 || ++state_.window_step < run_.window) return;
    state_.window_step = 0;
    each_slot([&](int slot) {
      for (int w = 0; w < run_.width; ++w) {
        run_.newer[in_head(w, slot)] = 0;
        for (int j = run_.window - 1; j > 0; --j)
          run_.older[in_head((j - 1) * run_.width + w, slot)] +=
              run_.older[in_head(j * run_.width + w, slot)];
      }
    });
  }
};

/// A step's queries over a run's cache: attention, outputs and scores, kHeads query heads at a time.
template <int kHeads>
class Rows : public Cache<kHeads> {
 public:
  using Cache<kHeads>::Cache;

 protected:
  using Base = Cache<kHeads>;
  using Base::in_, Base::s_, Base::run_, Base::state_, Base::rest_, Base::base_, Base::query_;
  using Base::is_bad, Base::take_largest, Base::take_sums, Base::add_to_sums;
  using Base::n, Base::in_head, Base::value, Base::step_row, Base::each_slot, Base::each_head;

  KVREPLAY_DEVICE EntryLogit<double> logit(int h, int slot, int first_visible) const {
    if (run_.position[slot] < first_visible) return {static_cast<double>(kHidden), 0};
    return entry_logit(static_cast<double>(run_.dots[in_head(h, slot)]), in_.softcap);
  }
  KVREPLAY_DEVICE int first_visible(int i) const {
    return in_.first_visible == nullptr ? 0 : in_.first_visible[i - in_.first_step];
  }

  KVREPLAY_DEVICE void take_dots(int i, int g0) {
    for (int at = thread_id(); at < kHeads * in_.key_width; at += kThreads) {
      const int g = g0 + at / in_.key_width, c = at % in_.key_width;
      query_[at] = g < in_.G ? in_.q[step_row(g, i) * in_.key_width + c] : 0.0F;
    }
    sync_block();
    const int fours = in_.key_width / 4;
    over_tokens<kHeads>(
        in_.k, fours, run_.position, n(),
        [&](float* sums, const Four& k, int c) {
          KVREPLAY_UNROLL
          for (int h = 0; h < kHeads; ++h) {
            const Four q = four_at(query_, h * fours + c);
            sums[h] = fused(q.w, k.w, fused(q.z, k.z, fused(q.y, k.y, fused(q.x, k.x, sums[h]))));
          }
        },
        [&](int slot, int h, float dot) { run_.dots[in_head(h, slot)] = dot; });
    sync_block();
  }

  KVREPLAY_DEVICE bool take_weights(int i, int g0) {
    const int first = first_visible(i);
    take_largest([&](int h, int slot) {
      if (!finite(run_.dots[in_head(h, slot)])) set_flag(&s_.bad[kLogits][h]);
      return logit(h, slot, first).z;
    });
    if (is_bad(kLogits, i, g0)) return false;
    constexpr double kNone = -static_cast<double>(INFINITY);
    each_head([&](int h, HeadRow& head) {
      const Largest all = joined(s_.largest[h], n());
      head.top = all.slot;
      head.largest = all.first;
      head.shift = larger(all.second, g0 + h < in_.G ? in_.sink_logit[g0 + h] : kNone);
    });
    take_sums([&](int h, int slot) {
      const double z = logit(h, slot, first).z, shift = s_.head[h].shift;
      const double e = slot != s_.head[h].top && z > kNone ? exp(z - shift) : 0.0;
      run_.weights[in_head(h, slot)] = e;
      return e;
    });
    each_head([&](int h, HeadRow& head) {
      double rest = 0, rest_lse = kNone;
      if (head.shift > kNone) {
        const double sink = g0 + h < in_.G ? in_.sink_logit[g0 + h] : kNone;
        rest = joined(s_.sums[h], n()).value + exp(sink - head.shift);
        rest_lse = head.shift + log(rest);
      }
      head.per_rest = rest > 0 ? 1 / rest : 0;
      head.column = largest_column(head.largest, rest_lse);
    });
    each_slot([&](int slot) {
      KVREPLAY_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        const HeadRow& head = s_.head[h];
        const double w = run_.weights[in_head(h, slot)] * head.per_rest;
        run_.rest[static_cast<std::ptrdiff_t>(slot) * kHeads + h] = static_cast<float>(w);
        run_.weights[in_head(h, slot)] = slot == head.top ? head.column.a : w * head.column.one_minus_a;
      }
    });
    sync_block();
    return true;
  }

  KVREPLAY_DEVICE void take_rest() {
    weighted_values<kHeads>(in_.v, in_.value_width / 4, run_.position, n(), run_.rest, s_.parts, rest_);
  }

  /// Each head's output, its change, and the score of its largest column: a warp's work.
  KVREPLAY_DEVICE bool take_outputs(int i, int g0) {
    const int h = warp_id(), g = g0 + h;
    if (h < kHeads && g < in_.G) {
      HeadRow& head = s_.head[h];
      const LargestColumn column = head.column;
      const float* top = value(run_.position[head.top]);
      const std::ptrdiff_t row = step_row(g, i) * in_.d_v;
      const TopCombination score =
          top_combination(run_.score, column, logit(h, head.top, first_visible(i)).taylor);
      const int first = first_visible(i);
      const bool whole = n() == i + 1 - first && (first == 0 || first == in_.first_seen_from[i - in_.l]);
      double change_sq = 0, output_sq = 0, top_sq = 0;
      bool good = finite(column.lse);
      for (int c = lane_id(); c < in_.d_v; c += 32) {
        const double rest = rest_[h * in_.value_width + c], v = static_cast<double>(top[c]);
        const double output = column.one_minus_a * rest + column.a * v;
        const float rounded = static_cast<float>(output), change = whole ? 0.0F : rounded - in_.full[row + c];
        const double from_top = score.entry(v, rest, output);
        good = good && finite(output);
        base_[h * in_.value_width + c] = rounded;
        run_.change[row + c] = change;
        change_sq += static_cast<double>(change) * static_cast<double>(change);
        output_sq += output * output;
        top_sq += from_top * from_top;
      }
      if (!good) set_flag(&s_.bad[kOutputs][h]);
      change_sq = warp_sum(change_sq);
      output_sq = warp_sum(output_sq);
      top_sq = warp_sum(top_sq);
      if (lane_id() == 0) {
        head.change_sq = change_sq;
        head.row = entry_row(column.lse, output_sq);
        head.top_score = score.scale == 0 ? score.plain : score.plain + score.scale * top_sq;
      }
    }
    sync_block();
    if (is_bad(kOutputs, i, g0)) return false;
    if (thread_id() == 0) {
      double& sum = run_.change_sq[i - in_.first_step];
      if (g0 == 0) sum = 0;
      for (int head = 0; head < smaller(kHeads, in_.G - g0); ++head) sum += s_.head[head].change_sq;
    }
    return true;
  }

  /// ||v - b||^2 of every token and each head's base b, and v . (v - b) or b . (v - b).
  template <DifferenceProduct kProduct>
  KVREPLAY_DEVICE bool take_differences(int i, int g0) {
    constexpr int kSums = kProduct == DifferenceProduct::none ? kHeads : 2 * kHeads;
    const int fours = in_.value_width / 4;
    over_tokens<kSums>(
        in_.v, fours, run_.position, n(),
        [&](float* sums, const Four& v, int c) {
          KVREPLAY_UNROLL
          for (int h = 0; h < kHeads; ++h) {
            const Four b = four_at(base_, h * fours + c);
            const Four diff{v.x - b.x, v.y - b.y, v.z - b.z, v.w - b.w};
            sums[h] = add_product(diff, diff, sums[h]);
            if (kProduct == DifferenceProduct::with_token)
              sums[kSums - kHeads + h] = add_product(v, diff, sums[kSums - kHeads + h]);
            if (kProduct == DifferenceProduct::with_base)
              sums[kSums - kHeads + h] = add_product(b, diff, sums[kSums - kHeads + h]);
          }
        },
        [&](int slot, int sum, float number) {
          const int h = sum % kHeads;
          if (sum < kHeads)
            run_.difference[in_head(h, slot)] = number;
          else
            run_.product[in_head(h, slot)] = number;
          if (sum < kHeads && g0 + h < in_.G && !finite(number)) set_flag(&s_.bad[kDifferences][h]);
        });
    sync_block();
    return !is_bad(kDifferences, i, g0);
  }
  KVREPLAY_DEVICE static float add_product(const Four& a, const Four& b, float sum) {
    return fused(a.w, b.w, fused(a.z, b.z, fused(a.y, b.y, fused(a.x, b.x, sum))));
  }

  KVREPLAY_DEVICE void add_scores(int i, int g0) {
    const int heads = smaller(kHeads, in_.G - g0), first = first_visible(i);
    const bool differences = needs_difference(run_.score);
    const bool products = product_of(run_.score) != DifferenceProduct::none;
    each_slot([&](int slot) {
      double sum = g0 == 0 ? 0 : run_.row[slot];
      for (int h = 0; h < heads; ++h) {
        const HeadRow& head = s_.head[h];
        if (slot == head.top) {
          sum += head.top_score;
          continue;
        }
        RowEntry<double> token{
            run_.weights[in_head(h, slot)], 0, 0, in_.value_sq[run_.position[slot]], {0, 0, 0}};
        if (differences) {
          const EntryLogit<double> z = logit(h, slot, first);
          token.z = z.z;
          token.taylor = z.taylor;
          token.to.u = static_cast<double>(run_.difference[in_head(h, slot)]);
        }
        // The one that the formula asks for: it looks at no other.
        if (products)
          token.to.v_dot_diff = token.to.o_dot_diff = static_cast<double>(run_.product[in_head(h, slot)]);
        sum += visible_term(run_.score, head.row, token);
      }
      if (g0 + heads < in_.G)
        run_.row[slot] = sum;
      else
        add_to_sums(0, slot, sum);
    });
  }

  KVREPLAY_DEVICE bool attend(int i, int g0) {
    take_dots(i, g0);
    if (!take_weights(i, g0)) return false;
    take_rest();
    if (!take_outputs(i, g0)) return false;
    if (run_.width == 0) return true;
    const DifferenceProduct product = product_of(run_.score);
    if (product == DifferenceProduct::with_token) {
      if (!take_differences<DifferenceProduct::with_token>(i, g0)) return false;
    } else if (product == DifferenceProduct::with_base) {
      if (!take_differences<DifferenceProduct::with_base>(i, g0)) return false;
    } else if (needs_difference(run_.score)) {
      if (!take_differences<DifferenceProduct::none>(i, g0)) return false;
    }
    add_scores(i, g0);
    return true;
  }
};

/// A block's run_. What members return and hold is the same in all threads.
template <int kHeads>
class Replay : public Rows<kHeads> {
 public:
  using Rows<kHeads>::Rows;

  /// The token i joins, its queries attend, the cache is cut. False where a number is beyond float32.
  KVREPLAY_DEVICE bool go_to(int i) {
    join(i);
    if (i >= in_.first_step) {
      for (int g0 = 0; g0 < in_.G; g0 += kHeads)
        if (!attend(i, g0)) return false;
      finish_row();
    }
    cut(i);
    return true;
  }

 private:
  using Base = Rows<kHeads>;
  using Base::in_, Base::s_, Base::run_, Base::state_;
  using Base::n, Base::each_slot, Base::join, Base::remove, Base::take_sums, Base::attend, Base::finish_row;

  KVREPLAY_DEVICE void rank() {
    sync_block();
    each_slot([&](int slot) {
      const int p = run_.position[slot];
      double rank = run_.width > 0
                        ? run_.sums[slot]
                        : own_score(run_.own, {static_cast<double>(p), in_.key_norm[p], in_.value_sq[p]});
      if (run_.per_visible_row != 0) {
        int rows = state_.rows + run_.rows_before[slot];
        if (run_.window > 0) rows = smaller(rows, run_.window);
        if (rows > 0) rank /= rows;
      }
      run_.rank_by[slot] = rank;
    });
    sync_block();
  }

  /// The token of the highest position for which is(position) holds; slot -1 where there is none.
  template <class Is>
  KVREPLAY_DEVICE Least last_that(Is is) {
    Least own = Least::none();
    each_slot([&](int slot) {
      const int p = run_.position[slot];
      if (is(p)) own = own.join({0, p, slot});
    });
    join_warps(own, n(), s_.least);
    sync_block();
    const Least found = joined(s_.least, n());
    sync_block();
    return found;
  }

  /// Removes tokens that no row behind i sees, whatever the budget.
  KVREPLAY_DEVICE void drop_hidden(int i) {
    const int first = in_.first_seen_from[i + 1 - in_.l];
    const auto is_hidden = [first](int p) { return p < first; };
    for (Least hidden = last_that(is_hidden); hidden.slot >= 0; hidden = last_that(is_hidden))
      remove(hidden.slot, hidden.position, i);
  }

  /// Back to the budget.
  KVREPLAY_DEVICE void cut(int i) {
    if (in_.first_seen_from != nullptr) drop_hidden(i);
    if (n() <= run_.budget) {
      sync_block();
      return;
    }
    rank();
    if (run_.append_only != 0) {
      keep_newest_or_not(i);
      return;
    }
    // Tokens joined in order of position, and none of those pinned has left.
    const int recent = run_.n_start + (i - in_.l + 1) - run_.recent;
    const int recent_begin = recent < run_.n_start ? run_.start[recent] : in_.l + (recent - run_.n_start);
    for (int tokens = n() - run_.budget; tokens > 0; --tokens) {
      Least own = Least::none();
      each_slot([&](int slot) {
        const int p = run_.position[slot];
        if (p >= run_.sinks_end && p < recent_begin) own = own.join({run_.rank_by[slot], p, slot});
      });
      join_warps(own, n(), s_.least);
      sync_block();
      const Least least = joined(s_.least, n());
      remove(least.slot, least.position, i);
    }
  }

  /// The newest leaves at once where it is not among the first; a tie goes to the other.
  KVREPLAY_DEVICE void keep_newest_or_not(int i) {
    // Without a window no token has left since it joined, behind all others.
    const int newest =
        in_.first_seen_from == nullptr ? n() - 1 : last_that([i](int p) { return p == i; }).slot;
    const double rank_of_newest = run_.rank_by[newest];
    take_sums([&](int h, int slot) {
      return h == 0 && slot != newest && run_.rank_by[slot] >= rank_of_newest ? 1.0 : 0.0;
    });
    if (joined(s_.sums[0], n()).value >= run_.budget)
      remove(newest, i, i);
    else
      sync_block();
  }
};

/// Grid: runs.
template <int kHeads>
KVREPLAY_KERNEL void KVREPLAY_BLOCKS(kThreads, 2)
    decode_kernel(DecodeGroup in, const DecodeTask* tasks, int begin, int end) {
  auto& shared = *reinterpret_cast<Shared<kHeads>*>(shared_memory());
  if (thread_id() == 0) shared.run = tasks[block_id().x];
  sync_block();
  if (shared.run.state->bad_position >= 0) return;
  Replay<kHeads> replay(in, shared);
  sync_block();
  replay.prepare();
  for (int i = begin; i < end; ++i)
    if (!replay.go_to(i)) break;
  replay.save();
}

/// Grid: tokens by the warp.
KVREPLAY_KERNEL void norm_kernel(DecodeGroup in, int T) {
  const int p = static_cast<int>(block_id().x) * kWarps + warp_id();
  if (p >= T) return;
  double k_sq = 0, v_sq = 0;
  for (int c = lane_id(); c < in.d; c += 32) {
    const double k = static_cast<double>(in.k[static_cast<std::ptrdiff_t>(p) * in.key_width + c]);
    k_sq += k * k;
  }
  for (int c = lane_id(); c < in.d_v; c += 32) {
    const double v = static_cast<double>(in.v[static_cast<std::ptrdiff_t>(p) * in.value_width + c]);
    v_sq += v * v;
  }
  k_sq = warp_sum(k_sq);
  v_sq = warp_sum(v_sq);
  if (lane_id() != 0) return;
  in.key_norm[p] = sqrt(k_sq);
  in.value_sq[p] = v_sq;
}

template <int kHeads>
void decode_with(const DecodeGroup& group, const DecodeTask* tasks, int runs, int begin, int end,
                 const Stream& stream) {
  launch(decode_kernel<kHeads>, {static_cast<unsigned>(runs)}, kThreads, Shared<kHeads>::bytes(group), stream,
         group, tasks, begin, end);
}

}  // namespace

void decode_norms(const DecodeGroup& group, int T, const Stream& stream) {
  launch(norm_kernel, {blocks_of(T, kWarps)}, kThreads, 0, stream, group, T);
}

void decode_positions(const DecodeGroup& group, const DecodeTask* tasks, int runs, int begin, int end,
                      const Stream& stream) {
  if (group.G <= 1)
    decode_with<1>(group, tasks, runs, begin, end, stream);
  else if (group.G == 2)
    decode_with<2>(group, tasks, runs, begin, end, stream);
  else
    decode_with<kDecodeHeads>(group, tasks, runs, begin, end, stream);
}

}  // namespace kvreplay::cuda
