#pragma once

#include "sim/head_group.hpp"
#include "sim/tokens/entry_formulas.hpp"

#include <hwy/aligned_allocator.h>

#include <limits>
#include <span>
#include <vector>

// The fast decoding replay's cache and the attention of single query rows over it.

namespace kvreplay {

/// Memory for vectors, all 0.
template <class T>
hwy::AlignedFreeUniquePtr<T[]> aligned_zeros(Index n);

/// Keys and values of cached tokens in slots 0..size()-1, in no order of position: a token that leaves gives
/// its slot to the last one, so that an eviction moves one token.
template <class T>
class TokenSlots {
 public:
  /// `value_tiles`: hold the values a second time, as token_differences reads them.
  TokenSlots(const HeadGroup<T>& group, Index capacity, bool value_tiles);

  void add(Index p);        ///< the token at position p, behind the last
  void remove(Index slot);  ///< the last token takes its slot
  Index size() const { return std::ssize(positions_); }
  Index capacity() const { return capacity_; }  ///< a whole number of tiles
  Index tiles() const;                          ///< that hold the tokens there are
  Index panels() const { return panels_; }      ///< of the values' channels
  Index position(Index slot) const { return positions_[slot]; }
  std::span<const Index> positions() const { return positions_; }  ///< [size]
  double key_norm(Index slot) const { return key_norm_[slot]; }
  const double* value_sq() const { return value_sq_.data(); }  ///< [size], ||v||^2
  auto value(Index slot) const { return group_.v.row(position(slot)).template cast<double>().transpose(); }

  const T* keys() const { return keys_.get(); }                ///< [tiles][d][W]
  const T* values() const { return values_.get(); }            ///< [panels][capacity][W]
  const T* value_tiles() const { return value_tiles_.get(); }  ///< [tiles][d_v][W], or null

 private:
  const HeadGroup<T>& group_;
  Index capacity_, panels_;
  std::vector<Index> positions_;
  std::vector<double> key_norm_, value_sq_;
  hwy::AlignedFreeUniquePtr<T[]> keys_, values_, value_tiles_;

  void place(Index slot, Index p);
};

/// The attention of a few rows over the first tokens of a cache, with the largest column taken out of every
/// sum: one that holds nearly all of a row cancels against the rest otherwise. Arrays are [tokens], by slot.
template <class T>
class AttentionRows {
 public:
  AttentionRows(const HeadGroup<T>& group, Index capacity, Index rows);

  /// Row r is query head g's at position i, over the first `tokens` slots.
  void set(Index r, Index g, Index i, Index tokens);
  /// Throws InputError where a number overflows T.
  void attend(const TokenSlots<T>& slots);

  Index rows() const { return std::ssize(rows_); }
  Index tokens(Index r) const { return row(r).tokens; }
  const double* weight(Index r) const { return weights_.get() + r * capacity_; }  ///< a
  const double* logit(Index r) const { return logits_.get() + r * capacity_; }    ///< z, -inf where hidden
  double taylor_logit(Index r, Index slot) const {  ///< z_raw dz/dz_raw, 0 where hidden
    const double z = logit(r)[slot];
    if (!(z > kHidden)) return 0;
    return slopes_ == nullptr ? z : slopes_[r * capacity_ + slot];
  }
  Index top(Index r) const { return row(r).top; }  ///< slot of the largest logit
  const LargestColumn& column(Index r) const { return row(r).column; }
  const Vector<double>& rest_output(Index r) const { return row(r).rest_output; }  ///< o' of all but the top
  const Vector<double>& output(Index r) const { return row(r).output; }            ///< o, [d_v]

 private:
  static constexpr double kHidden = -std::numeric_limits<double>::infinity();
  struct Row {
    Index g = 0, i = 0, tokens = 0, top = 0;
    LargestColumn column{};
    Vector<double> rest_output, output;
  };
  const HeadGroup<T>& group_;
  Index capacity_, panels_;
  std::vector<Row> rows_;
  hwy::AlignedFreeUniquePtr<T[]> queries_;       // [rows][d], times the scale
  hwy::AlignedFreeUniquePtr<T[]> dots_;          // [tiles][rows][W]
  hwy::AlignedFreeUniquePtr<T[]> rest_weights_;  // [rows][capacity], of o'
  hwy::AlignedFreeUniquePtr<T[]> sums_;          // [panels][rows][W]
  hwy::AlignedFreeUniquePtr<double[]> logits_, weights_, slopes_;

  const Row& row(Index r) const { return rows_[r]; }
  void take_logits(Index r, const TokenSlots<T>& slots);
  void take_weights(Index r, Index longest);
  void take_outputs(Index r, const TokenSlots<T>& slots);
  [[noreturn]] void overflow(Index r) const;
};

}  // namespace kvreplay
