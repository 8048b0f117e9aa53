#include "sim/eviction/decode/cuda/decode_block_cache.hpp"
#include "sim/tokens/entry_formulas.hpp"

#if defined(__CUDACC__)
#define KVREPLAY_BLOCKS(threads, on_a_multiprocessor) __launch_bounds__(threads, on_a_multiprocessor)
#else
#define KVREPLAY_BLOCKS(threads, on_a_multiprocessor)
#endif

namespace kvreplay::cuda {
namespace {

using namespace decode;

/// A step's queries over a run's cache: attention, outputs and scores, kHeads query heads at a time.
template <int kHeads>
class Rows : public Cache<kHeads> {
 public:
  using Cache<kHeads>::Cache;

 protected:
  using Base = Cache<kHeads>;
  using Base::in_, Base::s_, Base::run_, Base::state_, Base::rest_, Base::base_, Base::query_;
  using Base::is_bad, Base::take_largest, Base::take_sums, Base::add_to_sums;
  using Base::n, Base::by_head, Base::in_head, Base::value, Base::step_row, Base::each_slot, Base::each_head;

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
    over_tokens<kHeads, float>(
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
    over_tokens<kSums, float>(
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
      if (by_head()) {
        for (int h = 0; h < heads; ++h) add_to_sums(g0 + h, slot, run_.weights[in_head(h, slot)]);
        return;
      }
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
    if (!by_head()) {
      const DifferenceProduct product = product_of(run_.score);
      if (product == DifferenceProduct::with_token) {
        if (!take_differences<DifferenceProduct::with_token>(i, g0)) return false;
      } else if (product == DifferenceProduct::with_base) {
        if (!take_differences<DifferenceProduct::with_base>(i, g0)) return false;
      } else if (needs_difference(run_.score)) {
        if (!take_differences<DifferenceProduct::none>(i, g0)) return false;
      }
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
    return cut(i);
  }

 private:
  using Base = Rows<kHeads>;
  using Base::in_, Base::s_, Base::run_, Base::state_, Base::rest_, Base::base_;
  using Base::n, Base::by_head, Base::in_head, Base::value, Base::each_slot, Base::each_head, Base::join;
  using Base::remove, Base::take_largest, Base::take_sums, Base::take_rest, Base::attend, Base::finish_row;

  KVREPLAY_DEVICE bool rank(int i) {
    sync_block();
    switch (run_.rank) {
      case CacheRank::none:  // the host lets none through
        break;
      case CacheRank::own:
        each_slot([&](int slot) {
          const int p = run_.position[slot];
          run_.rank_by[slot] =
              own_score(run_.own, {static_cast<double>(p), in_.key_norm[p], in_.value_sq[p]});
        });
        break;
      case CacheRank::keydiff:
        rank_by_keydiff();
        break;
      case CacheRank::row_sums:
        each_slot([&](int slot) { run_.rank_by[slot] = run_.sums[slot]; });
        break;
      case CacheRank::caote:
      case CacheRank::fastcaote:
        each_slot([&](int slot) { run_.rank_by[slot] = 0; });
        for (int g0 = 0; g0 < in_.G; g0 += kHeads)
          if (!add_caote(i, g0)) return false;
        break;
    }
    sync_block();
    if (run_.per_visible_row != 0)
      each_slot([&](int slot) {
        int rows = state_.rows + run_.rows_before[slot];
        if (run_.window > 0) rows = smaller(rows, run_.window);
        if (rows > 0) run_.rank_by[slot] /= rows;
      });
    sync_block();
    return true;
  }

  /// In float64: where all keys share a large part, their cosines differ in the last digits only.
  KVREPLAY_DEVICE void rank_by_keydiff() {
    double square = 0;
    for (int c = lane_id(); c < in_.d; c += 32) square += run_.key_sum[c] * run_.key_sum[c];
    const double norm = sqrt(warp_sum(square));
    over_tokens<1, double>(
        in_.k, in_.key_width / 4, run_.position, n(),
        [&](double* sums, const Four& k, int c) {
          const double* anchor = run_.key_sum + 4 * c;
          sums[0] +=
              anchor[0] / norm * static_cast<double>(k.x) + anchor[1] / norm * static_cast<double>(k.y) +
              anchor[2] / norm * static_cast<double>(k.z) + anchor[3] / norm * static_cast<double>(k.w);
        },
        [&](int slot, int, double dot) {
          const double own = in_.key_norm[run_.position[slot]];
          run_.rank_by[slot] = norm > 0 && own > 0 ? -dot / own : 0.0;
        });
  }

  /// Adds the caote or fastcaote of some query heads' summed attention, as RowScores::take_caote.
  KVREPLAY_DEVICE bool add_caote(int i, int g0) {
    const bool fast = run_.rank == CacheRank::fastcaote;
    const auto summed = [&](int h, int slot) {
      return g0 + h < in_.G ? run_.sums[in_head(g0 + h, slot)] : 0.0;
    };
    take_largest(summed);
    each_head([&](int h, HeadRow& head) {
      const Largest all = joined(s_.largest[h], n());
      head.top = all.slot;
      head.largest = all.first;
    });
    take_sums([&](int h, int slot) { return slot == s_.head[h].top ? 0.0 : summed(h, slot); });
    each_head([&](int h, HeadRow& head) {
      const double rest = joined(s_.sums[h], n()).value;
      head.column.one_minus_a = rest;
      head.total = rest + head.largest;
      head.per_rest = rest > 0 ? 1 / rest : 0;
    });
    each_slot([&](int slot) {
      for (int h = 0; h < kHeads; ++h)
        run_.rest[static_cast<std::ptrdiff_t>(slot) * kHeads + h] =
            slot == s_.head[h].top ? 0.0F : static_cast<float>(summed(h, slot) * s_.head[h].per_rest);
    });
    sync_block();
    take_rest();
    if (warp_id() < kHeads) {
      HeadRow& head = s_.head[warp_id()];
      const float* top = value(run_.position[head.top]);
      const double rest = head.total > 0 ? head.column.one_minus_a / head.total : 0;
      const double share = head.total > 0 ? head.largest / head.total : 0;
      double top_sq = 0;
      for (int c = lane_id(); c < in_.d_v; c += 32) {
        const double mean = rest_[warp_id() * in_.value_width + c], v = static_cast<double>(top[c]);
        base_[warp_id() * in_.value_width + c] =
            static_cast<float>(fast ? run_.value_sum[c] / n() : rest * mean + share * v);
        top_sq += (mean - v) * (mean - v);
      }
      top_sq = warp_sum(top_sq);
      // s/(1-s) ||m - v|| = s ||m' - v|| with m' the mean of the others
      if (lane_id() == 0) head.top_score = share * sqrt(top_sq);
    }
    sync_block();
    if (!Base::template take_differences<DifferenceProduct::none>(i, g0)) return false;
    each_slot([&](int slot) {
      double sum = run_.rank_by[slot];
      for (int h = 0; h < smaller(kHeads, in_.G - g0); ++h) {
        const HeadRow& head = s_.head[h];
        const bool top = slot == head.top;
        if (!(head.total > kNoAttention)) continue;
        const double own = summed(h, slot), others = top ? head.column.one_minus_a : head.total - own;
        if (top && !fast)
          sum += head.top_score;
        else
          sum += caote_score(own, others, sqrt(static_cast<double>(run_.difference[in_head(h, slot)])));
      }
      run_.rank_by[slot] = sum;
    });
    sync_block();
    return true;
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
  KVREPLAY_DEVICE bool cut(int i) {
    if (in_.first_seen_from != nullptr) drop_hidden(i);
    if (n() <= run_.budget) {
      sync_block();
      return true;
    }
    if (!rank(i)) return false;
    if (run_.append_only != 0) {
      keep_newest_or_not(i);
      return true;
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
    return true;
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
