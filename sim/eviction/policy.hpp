#pragma once

#include "data/dtype.hpp"
#include "sim/eviction/policy_facts.hpp"
#include "sim/kept_set.hpp"
#include "sim/positions.hpp"
#include "sim/tokens/expected_attention.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Ranking and kept sets of policies. Definitions: sim/eviction/POLICIES.md.

namespace kvreplay {

/// A centred filter over neighbouring positions, stride 1: beyond the ends max ignores, avg counts 0.
struct Pooling {
  enum class Kind { none, max, avg };
  Kind kind = Kind::none;
  Index width = 1;  ///< odd
  bool operator==(const Pooling&) const = default;
};

/// Settings in place of a base's own; unset ones stay.
struct PolicyOverrides {
  std::optional<Positions> window, sinks, recent;
  std::optional<Pooling> pool;
  std::optional<SearchBy> by;
  std::optional<Index> n_sink, n_future;  ///< of expected_attention, as epsilon
  std::optional<double> epsilon;
  std::optional<Index> page;
  std::optional<PageScore> page_by;
  std::optional<PageHeads> page_heads;
  std::optional<ChunkBy> chunk;
  std::optional<Index> r, dense;  ///< of policies that read less
  std::optional<double> threshold;
  std::optional<Index> seed;  ///< of random, as is `heads`: one draw for each head or for all of a layer
  std::optional<PageHeads> heads;
  bool operator==(const PolicyOverrides&) const = default;
  /// These, and `others` where they are unset.
  PolicyOverrides before(const PolicyOverrides& others) const;
};

/// BASE[+SCORE], or score:SCORE; the score is a token metric or a name of the user's. exchange also takes
/// +BASE: it starts from what that base keeps, on its own from what a greedy search by the same keeps.
struct Policy {
  std::string name;
  EvictionBase base = EvictionBase::h2o;
  std::optional<TokenMetric> metric;  ///< of +SCORE
  std::optional<std::size_t> given;   ///< of +SCORE: number of the user's score
  std::optional<EvictionBase> start;  ///< of exchange+BASE
  PolicyOverrides own = {};           ///< this policy's, before those of all policies
  bool operator==(const Policy&) const = default;
};
/// BASE+SCORE, or BASE:SCORE where the base has nothing but its score; BASE without a score.
std::string policy_name(std::string_view base, std::string_view score);
/// True if it finds its kept set by search from beginning to end: nothing is ranked.
bool only_searches(const Policy& policy);
/// True if the policy of this name ranks by the decoding steps, which no method can know, or reads everything
/// to choose what to read.
bool knows_the_future(std::string_view policy);
/// True if the policy of this name keeps the whole prompt, and its rows read less.
bool evicts_nothing(std::string_view policy);

/// A policy with every choice made, for a prompt of l tokens and a budget.
struct EvictionRule {
  Policy policy;
  /// Score that ranks the tokens; neither metric nor given: by position, later is larger.
  std::optional<TokenMetric> metric;
  std::optional<std::size_t> given;
  Index window = 1;  ///< the rows whose scores count: the last `window` queries
  Pooling pool;      ///< over what lies before the last `pool_window` positions
  Index pool_window = 0;
  Index sinks = 0;   ///< pinned: the first `sinks` positions
  Index recent = 0;  ///< pinned: the last `recent` positions
  Index page = 1;    ///< so many neighbouring tokens of a cache are kept or evicted together
  PageScore page_by = PageScore::mean;
  /// In place of pages: where each piece of the prompt's text ends (exclusive), ascending, the last at l.
  std::vector<Index> chunk_ends = {};
  /// If set, all tokens with at least this score stay, besides the pinned ones, whatever the budget.
  std::optional<double> threshold;
  Index block = 0;  ///< the prompt is taken in blocks of so many tokens, ranked again after each; 0: once
  bool per_visible_row = false;  ///< scores divided by the number of window rows from the token on
  bool shared_by_layer = false;  ///< one ranking for all KV heads: the mean over the layer's query heads
  std::optional<Index> seed;     ///< where set, tokens rank by lot_of()
  bool one_draw_a_layer = false;
  bool two_stages = false;       ///< half of the budget goes by score, the rest by score times weight
  bool pins_in_first = false;    ///< that half counts what is pinned
  Index least_in_first = 0;      ///< of that half
  ExpectedAttention expected;    ///< the form of expected_attention
  std::optional<SearchBy> by;    ///< objective of a search
  std::optional<ReadBy> reads;   ///< nothing is evicted: each row reads what it chooses by this
  std::optional<Index> r;        ///< channels that are read to choose so; unset: a quarter of them
  Index dense = 0;               ///< the first layers, in which rows read everything
  bool reads_by_logits = false;  ///< by sums over query heads of logits, not of weights

  /// True if it swaps kept and evicted tokens.
  bool exchanges() const { return by && !kBases[policy.base].greedy; }
  /// The greedy search whose kept set this is, or starts from.
  std::optional<SearchBy> greedy_by() const;
};

/// The rows of the window that a policy looks at unless it has a reading of its own.
inline constexpr Index kUsualWindow = 32;

/// The rule for a cache of l tokens. `hidden`: the number of earlier positions of the prompt that a sliding
/// window hides; the first positions that a policy pins are the prompt's, so pins among these fall away.
EvictionRule rule_of(const Policy& policy, Semantics semantics, const PolicyOverrides& of_all, Index l,
                     Index budget, bool has_wo, Index hidden = 0);

/// A token's lot, uniform in [0, 1): of the rule's seed, the layer, the KV head (unless one draw serves the
/// layer), the number of positions seen when it is drawn, and the token's own position. Equal on every
/// machine and for any number of threads.
double lot_of(const EvictionRule& rule, Index layer, Index kv_head, Index seen, Index position);

/// Number of l tokens that are pinned with `sinks` first and `recent` last ones: whole pages, and the last
/// one where it is not full; of pages of one token sinks + recent, as asked for.
Index pinned_tokens(Index sinks, Index recent, Index page, Index l);

/// Number of l tokens that a policy keeps within a budget, or a row reads where nothing is evicted: whole
/// pages.
Index tokens_within(const Policy& policy, Index budget, Index l);

/// Number of l tokens that whole pages keep within a budget: the last page as far as it is there, and full
/// ones.
Index tokens_of_pages(Index budget, Index page, Index l);

/// Number of l tokens that a compression ratio sigma in (0, 1) keeps: round((1 - sigma) l), in kvpress
/// int(l (1 - sigma)) in floating point, since 0.5.5 at least 1.
Index kept_tokens(double sigma, Index l, Semantics semantics);

/// scores, pooled as the rule says; `scores` has one value for each position of a cache, in order.
Vector<double> pooled(const Vector<double>& scores, const Pooling& pool, Index window);

/// Scores of pages of `page` tokens, the last of which may have fewer.
Vector<double> page_scores(const Vector<double>& scores, Index page, PageScore by);

/// Ends of the lines or sentences of a prompt, for EvictionRule::chunk_ends, from the texts of its tokens, at
/// least one. A line ends behind a token with a line break. A sentence ends there too, and behind a token
/// that ends in '.', '!' or '?', quotes and brackets aside, where the next token begins with a space.
std::vector<Index> chunk_ends(std::span<const std::string> texts, ChunkBy by);

/// The kept set of a cache: pinned tokens (sinks first, then the most recent), then the largest scores, ties
/// to the lower position. With a threshold, all tokens that reach it are kept, without a budget. Pages are
/// kept or evicted whole; a page that does not fit into the rest of the budget is evicted. Pieces of text go
/// in the order of their worth; of a piece that the budget does not hold whole, the first tokens stay.
/// `scores` are those that rule_scores() ranks by, in order of position; they must not be NaN. `weights` are
/// second_weights() of a rule with two stages: half of the budget goes by score, and of the other tokens
/// those of largest (score + kCriticalEpsilon) weight are kept.
KeptSet keep_by(const EvictionRule& rule, Vector<double> scores, Index budget,
                const Vector<double>& weights = {});

/// Number of tokens that share the score of the kept token with the lowest score, where one of them is not
/// kept: the choice among them is arbitrary. 0 where the cut runs between two scores. Scores are pooled, and
/// rounded to `numbers`, first. Pinned tokens do not count. For rules that rank token by token, once, in one
/// stage.
Index tied_at_cut(const EvictionRule& rule, const Vector<double>& scores, const KeptSet& kept, Dtype numbers);

/// Term that CriticalKV's code and kvpress add to mean attention before they multiply it.
inline constexpr double kCriticalEpsilon = 1e-4;

}  // namespace kvreplay
