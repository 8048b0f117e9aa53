#pragma once

#include "sim/cuda/softmax.hpp"

// What a block of the decoding replay does over all slots of a cache, and how its threads come to one result.
// Slots that a thread takes by itself are its number and every kThreads after it: nobody else touches them
// between two barriers.

namespace kvreplay::cuda::decode {

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

}  // namespace kvreplay::cuda::decode
