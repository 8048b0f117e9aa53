#pragma once

#include "sim/cuda/softmax.hpp"
#include "sim/eviction/decode/cuda/decode_kernels.hpp"

// A run's cache as its block keeps it: slots, and the sums that rank them.

namespace kvreplay::cuda::decode {

// What a block of the decoding replay does over all slots of a cache, and how its threads come to one result.
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
template <int kSums, class T, class Add, class Store>
KVREPLAY_DEVICE void over_tokens(const float* rows, int fours, const int* position, int n, Add add,
                                 Store store) {
  static_assert(kSums <= kTokenLanes, "each sum has a lane that stores it");
  constexpr int kStep = 32 / kTokenLanes, kAtOnce = kStep * kTogether;
  const int lane = lane_id() % kTokenLanes;
  for (int first = warp_id() * kAtOnce; first < n; first += kWarps * kAtOnce) {
    int slot[kTogether];
    const float* row[kTogether];
    T sums[kTogether][kSums] = {};
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
        T sum = sums[t][s];
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

/// One query head's row, or, for caote and fastcaote, its summed attention: what is largest and the rest.
struct HeadRow {
  int top;
  double largest, shift;   // shift: of the exponents of all but the largest
  double total, per_rest;  // sums of caote
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

  /// What follows it: rest [kHeads][value_width] float64, base as much float32, query [kHeads][key_width].
  static std::size_t bytes(const DecodeGroup& in) {
    return sizeof(Shared) + kHeads * (static_cast<std::size_t>(in.value_width) * 12 +
                                      static_cast<std::size_t>(in.key_width) * 4);
  }
};

/// A run's slots. What members return and hold is the same in all threads.
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
  KVREPLAY_DEVICE bool by_head() const { return by_query_head(run_.rank); }
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

  /// Whether some head had a number beyond float32; the first such head is noted.
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
    each_sum([&](double& sum, int) { sum = 0; });
    for (int t = 0; t < n(); ++t) count_in(run_.start[t], 1);
  }

  /// body(sum, channel) for the sum over the cache that the rule needs, each by its own thread.
  template <class Body>
  KVREPLAY_DEVICE void each_sum(Body body) const {
    if (run_.rank == CacheRank::keydiff)
      for (int c = thread_id(); c < in_.key_width; c += kThreads) body(run_.key_sum[c], c);
    if (run_.rank == CacheRank::fastcaote)
      for (int c = thread_id(); c < in_.value_width; c += kThreads) body(run_.value_sum[c], c);
  }
  KVREPLAY_DEVICE void count_in(int p, double sign) const {
    const bool keys = run_.rank == CacheRank::keydiff;
    if (keys && !(in_.key_norm[p] > 0)) return;
    const float* row = keys ? in_.k + static_cast<std::ptrdiff_t>(p) * in_.key_width : value(p);
    const double factor = keys ? sign / in_.key_norm[p] : sign;
    each_sum([&](double& sum, int c) { sum += factor * static_cast<double>(row[c]); });
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
    count_in(i, 1);
    sync_block();
  }

  /// The token at position p leaves its slot, at position i.
  KVREPLAY_DEVICE void remove(int slot, int p, int i) {
    const int last = --state_.tokens;
    count_in(p, -1);
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

  /// Which of numbers(h, slot) is each head's largest.
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

}  // namespace kvreplay::cuda::decode
