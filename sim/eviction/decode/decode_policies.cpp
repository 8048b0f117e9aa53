#include "sim/backend.hpp"
#include "sim/eviction/decode/decode_policy.hpp"
#include "sim/eviction/decode/decode_rows.hpp"
#include "sim/eviction/decode/decode_run.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/keydiff.hpp"
#include "sim/tokens/token_readings.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

// All policies of the decoding replay.

namespace kvreplay {
namespace {

/// Scores of a cache's tokens by slot, summed over all steps or over the last `window` ones. Rows are
/// [width][capacity].
class ScoreSums {
 public:
  ScoreSums(Index width, Index capacity, std::optional<Index> window);

  double* new_row();  ///< to be filled for the slots there are; then:
  void add_row();     ///< the row takes part in the sums
  double* sums(Index w) { return sums_.data() + w * capacity_; }
  void clear(Index slot);
  void move(Index from, Index to);

 private:
  // A window is made of the rows since the last multiple of N steps, whose sum runs along, and of the older
  // rows that it still holds: their sums were taken from the newest back once, at that multiple. Nothing is
  // ever subtracted: small scores would drown in what a large one leaves behind.
  Index width_, capacity_, window_, step_ = 0;
  std::vector<double> row_, newer_, sums_;
  std::vector<std::vector<double>>
      older_;  // [window]: rows up to step_ of the new ones, then sums of the old

  template <class Body>
  void each_vector(const Body& body) {
    body(row_);
    body(newer_);
    body(sums_);
    for (std::vector<double>& row : older_) body(row);
  }
};

/// One step's scores.
template <class T>
class RowScores {
 public:
  RowScores(const HeadGroup<T>& group, TokenMetric metric, Index capacity);

  /// row := scores of the rows of all query heads, summed, or their attention one by one where by_query_head.
  void take(const AttentionRows<T>& attention, const TokenSlots<T>& slots, double* row);

  /// rank[slot] := the caote or fastcaote of every query head's summed attention, summed.
  void take_caote(ScoreSums& attention, const TokenSlots<T>& slots, const Vector<double>& plain_mean,
                  double* rank);

 private:
  const HeadGroup<T>& group_;
  const TokenMetric metric_;
  const Decoding decoding_;
  Index capacity_;
  hwy::AlignedFreeUniquePtr<T[]> base_;              // [G][d_v]
  hwy::AlignedFreeUniquePtr<T[]> square_, product_;  // [G][capacity]
  hwy::AlignedFreeUniquePtr<T[]> weights_, sums_;    // caote: [G][capacity], [panels][G][W]

  template <class Formula>
  void add_head(const AttentionRows<T>& attention, const TokenSlots<T>& slots, Index g, double* row) const;
  double of_top(const AttentionRows<T>& attention, const TokenSlots<T>& slots, Index g) const;
  /// The differences of the tokens from base_, of m vectors.
  void take_differences(const TokenSlots<T>& slots);
};

ScoreSums::ScoreSums(Index width, Index capacity, std::optional<Index> window)
    : width_(width), capacity_(capacity), window_(window.value_or(0)) {
  const auto size = static_cast<std::size_t>(width * capacity);
  row_.assign(size, 0.0);
  sums_.assign(size, 0.0);
  if (window) newer_.assign(size, 0.0);
  older_.assign(window_, std::vector<double>(size, 0.0));
}

double* ScoreSums::new_row() {
  std::fill(row_.begin(), row_.end(), 0.0);
  return row_.data();
}

void ScoreSums::add_row() {
  const std::size_t n = row_.size();
  if (window_ == 0) {
    for (std::size_t k = 0; k < n; ++k) sums_[k] += row_[k];
    return;
  }
  const auto at = static_cast<std::size_t>(step_);
  const double* old = at + 1 < older_.size() ? older_[at + 1].data() : nullptr;
  for (std::size_t k = 0; k < n; ++k) {
    newer_[k] += row_[k];
    sums_[k] = newer_[k] + (old != nullptr ? old[k] : 0.0);
  }
  std::swap(older_[at], row_);
  if (++step_ < window_) return;
  step_ = 0;
  std::fill(newer_.begin(), newer_.end(), 0.0);
  for (std::size_t j = older_.size() - 1; j > 0; --j)
    for (std::size_t k = 0; k < n; ++k) older_[j - 1][k] += older_[j][k];
}

void ScoreSums::clear(Index slot) {
  each_vector([&](std::vector<double>& values) {
    for (auto k = static_cast<std::size_t>(slot); k < values.size(); k += static_cast<std::size_t>(capacity_))
      values[k] = 0;
  });
}

void ScoreSums::move(Index from, Index to) {
  each_vector([&](std::vector<double>& values) {
    if (values.empty()) return;
    for (Index w = 0; w < width_; ++w) values[w * capacity_ + to] = values[w * capacity_ + from];
  });
}

template <class T>
RowScores<T>::RowScores(const HeadGroup<T>& group, TokenMetric metric, Index capacity)
    : group_(group), metric_(metric), decoding_(kTokenMetrics[metric].decoding), capacity_(capacity) {
  if (!needs_differences(decoding_)) return;
  const Index G = group.G();
  base_ = aligned_zeros<T>(G * group.d_v());
  square_ = aligned_zeros<T>(G * capacity);
  if (product_of(decoding_.score) != DifferenceProduct::none) product_ = aligned_zeros<T>(G * capacity);
  if (!by_query_head(decoding_.rank)) return;
  weights_ = aligned_zeros<T>(G * capacity);
  sums_ = aligned_zeros<T>(G * (group.d_v() + kPanelWidth<T>));
}

template <class T>
void RowScores<T>::take_differences(const TokenSlots<T>& slots) {
  const Index G = group_.G();
  decode_rows_simd<T>().token_differences(slots.value_tiles(), slots.tiles(), group_.d_v(), base_.get(), G,
                                          capacity_, square_.get(), product_of(decoding_.score),
                                          product_.get());
  for (Index g = 0; g < G; ++g) {
    double total = 0;
    for (Index p = 0; p < slots.size(); ++p) total += static_cast<double>(square_[g * capacity_ + p]);
    if (!std::isfinite(total))
      report_not_finite(group_, "a finite " + std::string(name_of(metric_)) + " while decoding");
  }
}

template <class T>
void RowScores<T>::take(const AttentionRows<T>& attention, const TokenSlots<T>& slots, double* row) {
  const Index G = group_.G(), n = slots.size();
  if (by_query_head(decoding_.rank)) {
    for (Index g = 0; g < G; ++g) std::copy_n(attention.weight(g), n, row + g * capacity_);
    return;
  }
  if (needs_differences(decoding_)) {
    for (Index g = 0; g < G; ++g)
      for (Index c = 0; c < group_.d_v(); ++c)
        base_[g * group_.d_v() + c] = static_cast<T>(attention.output(g)[c]);
    take_differences(slots);
  }
  for (Index g = 0; g < G; ++g) {
    const Index top = attention.top(g);
    const double before = row[top];
    with_formula(decoding_.score,
                 [&]<class Formula>(Formula) { add_head<Formula>(attention, slots, g, row); });
    row[top] = before + of_top(attention, slots, g);
  }
}

template <class T>
template <class Formula>
void RowScores<T>::add_head(const AttentionRows<T>& attention, const TokenSlots<T>& slots, Index g,
                            double* row) const {
  constexpr bool kProduct = Formula::kProduct != DifferenceProduct::none;
  const double* a = attention.weight(g);
  const double* z = attention.logit(g);
  const double* v_sq = slots.value_sq();
  const T* u = Formula::kDifference ? square_.get() + g * capacity_ : nullptr;
  const T* product = kProduct ? product_.get() + g * capacity_ : nullptr;
  const EntryRow<double> of_row = entry_row(attention.column(g).lse, attention.output(g).squaredNorm());
  for (Index p = 0, n = slots.size(); p < n; ++p) {
    RowEntry<double> token{a[p], z[p], 0, v_sq[p], {0, 0, 0}};
    if constexpr (Formula::kTaylor) token.taylor = attention.taylor_logit(g, p);
    if constexpr (Formula::kDifference) token.to.u = static_cast<double>(u[p]);
    // The one that the formula asks for: it looks at no other.
    if constexpr (kProduct) token.to.v_dot_diff = token.to.o_dot_diff = static_cast<double>(product[p]);
    row[p] += visible_term<Formula>(of_row, token);
  }
}

template <class T>
double RowScores<T>::of_top(const AttentionRows<T>& attention, const TokenSlots<T>& slots, Index g) const {
  const Index slot = attention.top(g);
  const TopCombination top =
      top_combination(decoding_.score, attention.column(g), attention.taylor_logit(g, slot));
  if (top.scale == 0) return top.plain;
  const Vector<double> v = slots.value(slot);
  const Vector<double>&rest = attention.rest_output(g), &output = attention.output(g);
  Vector<double> entries(v.size());
  for (Index c = 0; c < v.size(); ++c) entries[c] = top.entry(v[c], rest[c], output[c]);
  // As ||o||^2 is taken in add_head(): where they are to be equal, they are to the last bit.
  return top.plain + top.scale * entries.squaredNorm();
}

template <class T>
void RowScores<T>::take_caote(ScoreSums& attention, const TokenSlots<T>& slots,
                              const Vector<double>& plain_mean, double* rank) {
  const Index G = group_.G(), n = slots.size(), d_v = group_.d_v();
  const bool fast = decoding_.rank == CacheRank::fastcaote;
  std::vector<Vector<double>> summed;
  for (Index g = 0; g < G; ++g) summed.emplace_back(Eigen::Map<const Vector<double>>(attention.sums(g), n));
  std::vector<CaoteHead> heads(summed.begin(), summed.end());
  for (Index g = 0; g < G; ++g) {
    const Vector<double> weights = heads[g].weights(0, n);
    for (Index p = 0; p < n; ++p) weights_[g * capacity_ + p] = static_cast<T>(weights[p]);
  }
  decode_rows_simd<T>().weighted_tokens(slots.values(), capacity_, n, slots.panels(), weights_.get(), G,
                                        sums_.get());
  const Vector<double> centre = Vector<double>::Zero(d_v);  // the slots' values are as they are
  Vector<double> sum(d_v);
  for (Index g = 0; g < G; ++g) {
    for (Index c = 0; c < d_v; ++c) sum[c] = static_cast<double>(sums_[panel_entry<T>(g, c, G)]);
    heads[g].set_values(sum, slots.value(heads[g].top()), centre);
    const Vector<double>& mean = fast ? plain_mean : heads[g].mean();
    for (Index c = 0; c < d_v; ++c) base_[g * d_v + c] = static_cast<T>(mean[c]);
  }
  take_differences(slots);
  std::fill_n(rank, n, 0.0);
  for (Index g = 0; g < G; ++g) {
    CaoteScores scores{Vector<double>::Zero(n), Vector<double>::Zero(n)};
    const T* square = square_.get() + g * capacity_;
    heads[g].score(0, n, square, square, scores);
    heads[g].score_top(scores);
    Eigen::Map<Vector<double>>(rank, n) += fast ? scores.fastcaote : scores.caote;
  }
}

/// Ranks the tokens and evicts the last ones; what a rank is made of is the derived class's.
template <class T>
class RankingPolicy : public DecodePolicy<T> {
 public:
  RankingPolicy(const HeadGroup<T>& group, const EvictionRule& rule, const DecodeOptions& options,
                const TokenSlots<T>& slots)
      : group_(group),
        rule_(rule),
        slots_(slots),
        window_(steps_counted(rule, options)),
        append_only_(options.append_only),
        rank_(slots.capacity()) {}

  void join(Index) override { rows_before_.push_back(-rows_); }
  void leave(Index slot) override {
    rows_before_[slot] = rows_before_.back();
    rows_before_.pop_back();
  }
  void init(const Matrix<double>&) override {
    if (window_) return;
    const Index prompt_rows = window_rows(group_.l, group_.first_query(), rule_.window).count();
    for (Index slot = 0; slot < slots_.size(); ++slot)
      rows_before_[slot] = std::min(prompt_rows, group_.l - slots_.position(slot));
  }
  void observe(const AttentionRows<T>&) override { ++rows_; }

  std::vector<Index> victims(const DecodeCut& cut) override {
    const Index n = slots_.size(), excess = n - cut.budget;
    if (excess <= 0) return {};
    rank();
    if (rule_.per_visible_row) divide_by_rows();
    if (append_only_) {
      const Index newest = cut.by_position.back();
      Index before = -1;  // a tie goes to the other; the newest counts itself
      for (Index slot = 0; slot < n; ++slot) before += rank_[slot] >= rank_[newest] ? 1 : 0;
      return before < cut.budget ? std::vector<Index>{} : std::vector{slots_.position(newest)};
    }
    std::vector<Index> lowest;
    if (excess == 1) {
      lowest = {cut.unpinned.front()};
      for (const Index slot : cut.unpinned)
        if (rank_[slot] <= rank_[lowest[0]]) lowest[0] = slot;  // among equals the last
    } else {
      lowest.assign(cut.unpinned.begin(), cut.unpinned.end());
      std::sort(lowest.begin(), lowest.end(), [&](Index a, Index b) {
        return rank_[a] != rank_[b] ? rank_[a] < rank_[b] : slots_.position(a) > slots_.position(b);
      });
      lowest.resize(excess);
      // The last slot takes a place: from the back, none of these moves.
      std::sort(lowest.rbegin(), lowest.rend());
    }
    for (Index& slot : lowest) slot = slots_.position(slot);
    return lowest;
  }

 protected:
  virtual void rank() = 0;  ///< takes ranks(), larger is kept
  Eigen::Ref<Vector<double>> ranks() { return rank_.head(slots_.size()); }

  const HeadGroup<T>& group_;
  const EvictionRule& rule_;
  const TokenSlots<T>& slots_;
  const std::optional<Index> window_;

 private:
  const bool append_only_;
  Vector<double> rank_;
  Index rows_ = 0;                  // so far
  std::vector<Index> rows_before_;  // by slot: rows that went into its sum when it joined, less rows_ then

  void divide_by_rows() {
    for (Index slot = 0; slot < slots_.size(); ++slot) {
      Index rows = rows_ + rows_before_[slot];
      if (window_) rows = std::min(rows, *window_);
      if (rows > 0) rank_[slot] /= static_cast<double>(rows);
    }
  }
};

/// By the tokens' own numbers.
template <class T>
class OwnRank final : public RankingPolicy<T> {
 public:
  OwnRank(const HeadGroup<T>& group, const EvictionRule& rule, const DecodeOptions& options,
          const TokenSlots<T>& slots)
      : RankingPolicy<T>(group, rule, options, slots), score_(decoding_of(rule, options).own) {}

 private:
  const OwnScore score_;

  void rank() override {
    const TokenSlots<T>& slots = this->slots_;
    for (Index slot = 0; slot < slots.size(); ++slot)
      this->ranks()[slot] = own_score(
          score_, {static_cast<double>(slots.position(slot)), slots.key_norm(slot), slots.value_sq()[slot]});
  }
};

/// By KeyDiff, whose sum over the cache's keys follows what comes and goes.
template <class T>
class KeyDiffRank final : public RankingPolicy<T> {
 public:
  KeyDiffRank(const HeadGroup<T>& group, const EvictionRule& rule, const DecodeOptions& options,
              const TokenSlots<T>& slots)
      : RankingPolicy<T>(group, rule, options, slots), keydiff_(group.k, single_) {}

  void join(Index slot) override {
    RankingPolicy<T>::join(slot);
    const Index p = this->slots_.position(slot);
    keydiff_.add({&p, 1});
  }
  void leave(Index slot) override {
    const Index p = this->slots_.position(slot);
    keydiff_.remove({&p, 1});
    RankingPolicy<T>::leave(slot);
  }

 private:
  Workers single_{1};  // runs are what is shared out
  KeyDiff<T> keydiff_;

  void rank() override { this->ranks() = keydiff_.scores(this->slots_.positions()); }
};

/// By the sums of a row's scores over steps: `width` rows of sums.
template <class T>
class RowSums : public RankingPolicy<T> {
 public:
  RowSums(const HeadGroup<T>& group, const EvictionRule& rule, const DecodeOptions& options,
          const TokenSlots<T>& slots)
      : RankingPolicy<T>(group, rule, options, slots),
        width_(width_of_sums(group, decoding_of(rule, options))),
        // A window that no run outlives drops nothing.
        sums_(width_, slots.capacity(),
              this->window_ && *this->window_ < decode_steps(group).count() ? this->window_ : std::nullopt),
        row_scores_(group, *rule.metric, slots.capacity()) {}

  void join(Index slot) override {
    RankingPolicy<T>::join(slot);
    sums_.clear(slot);
  }
  void leave(Index slot) override {
    RankingPolicy<T>::leave(slot);
    sums_.move(this->slots_.size() - 1, slot);
  }
  void init(const Matrix<double>& start_scores) override {
    RankingPolicy<T>::init(start_scores);
    if (this->window_) return;
    if (start_scores.rows() != width_ || start_scores.cols() != this->group_.l)
      throw std::invalid_argument("decode_replay: start scores of another group or rule");
    for (Index slot = 0; slot < this->slots_.size(); ++slot)
      for (Index w = 0; w < width_; ++w) sums_.sums(w)[slot] = start_scores(w, this->slots_.position(slot));
  }
  void observe(const AttentionRows<T>& rows) override {
    RankingPolicy<T>::observe(rows);
    row_scores_.take(rows, this->slots_, sums_.new_row());
    sums_.add_row();
  }

 protected:
  const Index width_;
  ScoreSums sums_;
  RowScores<T> row_scores_;

  void rank() override { std::copy_n(sums_.sums(0), this->slots_.size(), this->ranks().data()); }
};

/// By caote or fastcaote of each query head's summed attention.
template <class T>
class CaoteRank final : public RowSums<T> {
 public:
  CaoteRank(const HeadGroup<T>& group, const EvictionRule& rule, const DecodeOptions& options,
            const TokenSlots<T>& slots)
      : RowSums<T>(group, rule, options, slots),
        fast_(rule.metric == TokenMetric::fastcaote),
        value_sum_(Vector<double>::Zero(group.d_v())) {}

  void join(Index slot) override {
    RowSums<T>::join(slot);
    if (fast_) value_sum_ += this->slots_.value(slot);
  }
  void leave(Index slot) override {
    if (fast_) value_sum_ -= this->slots_.value(slot);
    RowSums<T>::leave(slot);
  }

 private:
  const bool fast_;
  Vector<double> value_sum_;  // over the cache, for fastcaote

  void rank() override {
    this->row_scores_.take_caote(this->sums_, this->slots_,
                                 value_sum_ / static_cast<double>(this->slots_.size()), this->ranks().data());
  }
};

/// By lots, drawn anew for each cut.
template <class T>
class DrawnRank final : public RankingPolicy<T> {
 public:
  using RankingPolicy<T>::RankingPolicy;

 private:
  void rank() override {
    const std::span<const Index> tokens = this->slots_.positions();
    const Index seen = *std::ranges::max_element(tokens) + 1;
    for (Index slot = 0; slot < std::ssize(tokens); ++slot)
      this->ranks()[slot] = lot_of(this->rule_, this->group_.layer, this->group_.kv_head, seen, tokens[slot]);
  }
};

/// Every few positions, anew by the last queries, as a block of the prompt.
template <class T>
class IntervalCuts final : public DecodePolicy<T> {
 public:
  IntervalCuts(const HeadGroup<T>& group, const EvictionRule& rule, const DecodeOptions& options,
               const TokenSlots<T>& slots)
      : group_(group), slots_(slots), interval_(options.interval), blocks_(group, rule, on_thread_) {}

  void join(Index slot) override {
    const Index p = slots_.position(slot);
    blocks_.add({&p, 1});
  }
  void leave(Index slot) override {
    const Index p = slots_.position(slot);
    if (leaving_ > 0)  // blocks_ knows already
      --leaving_;
    else
      blocks_.remove({&p, 1});
  }
  void init(const Matrix<double>&) override {}
  void observe(const AttentionRows<T>&) override {}
  std::vector<Index> victims(const DecodeCut& cut) override {
    const Index newest = slots_.position(cut.by_position.back());
    if ((newest + 1 - group_.l) % interval_ != 0) return {};
    std::vector<Index> cache;
    for (const Index slot : cut.by_position) cache.push_back(slots_.position(slot));
    const Index with_query = std::max<Index>(newest + 1 - group_.first_query(), 0);
    std::vector<Index> leaving = blocks_.cut(cache, cut.budget, std::min(interval_, with_query));
    leaving_ = std::ssize(leaving);
    return leaving;
  }

 private:
  const HeadGroup<T>& group_;
  const TokenSlots<T>& slots_;
  const Index interval_;
  Workers single_{1};
  Compute on_thread_{single_};
  BlockCuts<T> blocks_;
  Index leaving_ = 0;  // tokens of the last cut that are still there
};

}  // namespace

template <class T>
std::unique_ptr<DecodePolicy<T>> decode_policy(const HeadGroup<T>& group, const EvictionRule& rule,
                                               const DecodeOptions& options, const TokenSlots<T>& slots) {
  const Decoding decoding = decoding_of(rule, options);
  if (options.interval > 0) return std::make_unique<IntervalCuts<T>>(group, rule, options, slots);
  if (rule.seed) return std::make_unique<DrawnRank<T>>(group, rule, options, slots);
  switch (decoding.rank) {
    case CacheRank::none:
      break;
    case CacheRank::own:
      return std::make_unique<OwnRank<T>>(group, rule, options, slots);
    case CacheRank::keydiff:
      return std::make_unique<KeyDiffRank<T>>(group, rule, options, slots);
    case CacheRank::row_sums:
      return std::make_unique<RowSums<T>>(group, rule, options, slots);
    case CacheRank::caote:
    case CacheRank::fastcaote:
      return std::make_unique<CaoteRank<T>>(group, rule, options, slots);
  }
  throw std::logic_error("a cache that nothing ranks");
}

template decltype(decode_policy<float>) decode_policy<float>;
template decltype(decode_policy<double>) decode_policy<double>;

}  // namespace kvreplay
