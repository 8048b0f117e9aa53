#pragma once

#include "sim/tokens/token_facts.hpp"

#include <optional>
#include <string_view>

// All policies. Definitions: sim/eviction/POLICIES.md.

namespace kvreplay {

enum class Semantics { paper, official, kvpress, kvpress_0_5_5 };

struct SemanticsFacts {
  Semantics id;
  std::string_view name;
  std::string_view meaning;  ///< the policy variant
};
inline constexpr auto kSemantics = facts_table<SemanticsFacts>({
    {Semantics::paper, "paper", "What the method's paper says"},
    {Semantics::official, "official", "What its authors' code does"},
    {Semantics::kvpress, "kvpress", "What NVIDIA kvpress 0.5.4 does"},
    {Semantics::kvpress_0_5_5, "kvpress-0.5.5", "What NVIDIA kvpress 0.5.5 does: a token is kept at least"},
});
constexpr std::string_view name_of(Semantics semantics) { return kSemantics[semantics].name; }
/// True for kvpress' variant, of any version.
constexpr bool is_kvpress(Semantics semantics) {
  return semantics == Semantics::kvpress || semantics == Semantics::kvpress_0_5_5;
}

/// Objective of an exact search on its rows.
enum class SearchBy { error, loss, leverage };

struct SearchByFacts {
  SearchBy id;
  std::string_view name;
  std::string_view meaning;
  bool swaps = true;  ///< an exchange of tokens can use this objective
};
inline constexpr auto kSearchBy = facts_table<SearchByFacts>({
    {SearchBy::error, "error", "The exact change of the outputs"},
    {SearchBy::loss, "loss", "What that change costs the model by the dump's gradients: loss_row"},
    {SearchBy::leverage, "leverage", "What no values of the kept tokens can make up for", false},
});
constexpr std::string_view name_of(SearchBy by) { return kSearchBy[by].name; }

/// Score of a page of tokens.
enum class PageScore { mean, max, sum };

struct PageScoreFacts {
  PageScore id;
  std::string_view name;
};
inline constexpr auto kPageScores = facts_table<PageScoreFacts>({
    {PageScore::mean, "mean"},
    {PageScore::max, "max"},
    {PageScore::sum, "sum"},
});

/// Scope of one choice of pages: one KV head, or all KV heads of a layer.
enum class PageHeads { head, layer };

struct PageHeadsFacts {
  PageHeads id;
  std::string_view name;
};
inline constexpr auto kPageHeads = facts_table<PageHeadsFacts>({
    {PageHeads::head, "head"},
    {PageHeads::layer, "layer"},
});

/// Pieces of the prompt's text that are kept or evicted together.
enum class ChunkBy { line, sentence };

struct ChunkByFacts {
  ChunkBy id;
  std::string_view name;
};
inline constexpr auto kChunkBy = facts_table<ChunkByFacts>({
    {ChunkBy::line, "line"},
    {ChunkBy::sentence, "sentence"},
});

/// Score by which each row chooses the tokens that it reads, if the cache keeps the whole prompt.
enum class ReadBy {
  weight,          ///< weights of the tokens
  weight_share,    ///< weights of the tokens, as many as reach a share of the whole
  page_bounds,     ///< bounds of the logits of a page of tokens
  query_channels,  ///< weights by the row's largest query channels
  heavy_channels,  ///< weights by channels chosen on the prompt
};

enum class EvictionBase {
  streaming,
  h2o,
  tova,
  snapkv,
  knorm,
  keydiff,
  expected_attention,
  leverage,
  kvzip,
  rkv,
  triattention,
  score,
  random,
  oracle,
  oracle_exact,
  oracle_loss,
  greedy_exact,
  greedy_loss,
  greedy_leverage,
  exchange,
  defensive,
  criticalkv,
  top_k,
  top_p,
  quest,
  sparq,
  double_sparsity,
};

struct EvictionBaseFacts {
  EvictionBase id;
  std::string_view name;
  std::string_view plain;    ///< the tokens that it keeps, in plain words, for menus
  std::string_view meaning;  ///< one line
  /// Metric that ranks the tokens; nothing: ranked by position, at random, or by exact search.
  std::optional<TokenMetric> metric = {};
  /// True if BASE+SCORE is allowed: the base ranks by an attention sum that a score can replace, or starts
  /// from the tokens that a score ranks first.
  bool takes_score = false;
  bool alone = false;  ///< only BASE:SCORE is allowed: the base has no score of its own
  /// Objective of a base that searches for the kept set. A user can choose another one unless `greedy`.
  std::optional<SearchBy> searches = {};
  bool greedy = false;       ///< searches by evicting one token at a time
  bool last_row = false;     ///< while decoding, only the last step's scores count
  bool draws = false;        ///< ranks at random
  bool pins_all = false;     ///< everything that it keeps is pinned
  bool pins_window = false;  ///< the rows that compute the scores are pinned
  bool two_stages = false;   ///< half of the budget goes by score, the rest by score times ||v W_O||_1
  /// Reason, as one clause, why the base ranks a whole prompt only, neither blocks nor while decoding.
  std::string_view whole_prompt = {};
  std::optional<ReadBy> reads = {};  ///< evicts nothing: each row chooses by this what it reads
  bool reads_all_first = false;      ///< a reference: the choice itself needs all keys
  int page = 1;                      ///< tokens in a page that is read
};
inline constexpr std::string_view kSearchesPrompt = "the exact search looks at the whole prompt",
                                  kEvictsNothing = "it evicts nothing: rows read less of the whole prompt";

inline constexpr auto kBases = facts_table<EvictionBaseFacts>({
    {.id = EvictionBase::streaming,
     .name = "streaming",
     .plain = "the first and the most recent tokens",
     .meaning = "StreamingLLM: the first 4 and the most recent tokens",
     .pins_all = true},
    {.id = EvictionBase::h2o,
     .name = "h2o",
     .plain = "attention of all rows, the recent half pinned",
     .meaning = "H2O: attention summed over all rows; the recent half is pinned",
     .metric = TokenMetric::attn,
     .takes_score = true},
    {.id = EvictionBase::tova,
     .name = "tova",
     .plain = "attention of the last row",
     .meaning = "TOVA: attention of the last row",
     .metric = TokenMetric::attn,
     .takes_score = true,
     .last_row = true},
    {.id = EvictionBase::snapkv,
     .name = "snapkv",
     .plain = "attention of the window, pooled",
     .meaning = "SnapKV: attention of the pinned window, pooled",
     .metric = TokenMetric::attn,
     .takes_score = true,
     .pins_window = true},
    {.id = EvictionBase::knorm,
     .name = "knorm",
     .plain = "keys of small norm",
     .meaning = "Knorm: keys of small norm are kept",
     .metric = TokenMetric::knorm},
    {.id = EvictionBase::keydiff,
     .name = "keydiff",
     .plain = "keys unlike the mean key",
     .meaning = "KeyDiff: keys unlike the mean key are kept",
     .metric = TokenMetric::keydiff},
    {.id = EvictionBase::expected_attention,
     .name = "expected_attention",
     .plain = "attention expected of queries to come",
     .meaning = "Expected Attention: attention expected of queries still to come",
     .metric = TokenMetric::expected_attention},
    {.id = EvictionBase::leverage,
     .name = "leverage",
     .plain = "what fitted values make up for least",
     .meaning = "Keeps what fitted values of the others would make up for least",
     .metric = TokenMetric::leverage},
    {.id = EvictionBase::kvzip,
     .name = "kvzip",
     .plain = "most attention at a second reading",
     .meaning = "KVzip: largest attention of a second reading of the prompt",
     .metric = TokenMetric::kvzip},
    {.id = EvictionBase::rkv,
     .name = "rkv",
     .plain = "attention, less likeness to other keys",
     .meaning = "R-KV: pooled attention of the pinned window, less the key's likeness to other keys",
     .metric = TokenMetric::rkv,
     .pins_window = true},
    {.id = EvictionBase::triattention,
     .name = "triattention",
     .plain = "logit that mean queries to come would give",
     .meaning = "TriAttention: logit that the mean un-rotated query would give from positions to come",
     .metric = TokenMetric::triattention},
    {.id = EvictionBase::score,
     .name = "score",
     .plain = "a score alone",
     .meaning = "A score alone: nothing is pinned or pooled",
     .alone = true},
    {.id = EvictionBase::random,
     .name = "random",
     .plain = "tokens drawn at random",
     .meaning = "Baseline: tokens drawn uniformly at random for every KV head",
     .draws = true},
    {.id = EvictionBase::oracle,
     .name = "oracle",
     .plain = "importance to the decoding steps",
     .meaning = "Reference: ranks by oracle_importance on the decoding steps",
     .metric = TokenMetric::oracle_importance},
    {.id = EvictionBase::oracle_exact,
     .name = "oracle_exact",
     .plain = "exact error over the decoding steps",
     .meaning = "Reference: ranks by oracle_future, the exact error of each single eviction",
     .metric = TokenMetric::oracle_future},
    {.id = EvictionBase::oracle_loss,
     .name = "oracle_loss",
     .plain = "predicted loss over the decoding steps",
     .meaning = "Reference: ranks by oracle_loss, the loss in nats of each single eviction",
     .metric = TokenMetric::oracle_loss},
    {.id = EvictionBase::greedy_exact,
     .name = "greedy_exact",
     .plain = "one by one, by least exact error",
     .meaning = "Reference: evicts one token at a time, always the one of least exact error. Takes seconds.",
     .searches = SearchBy::error,
     .greedy = true,
     .whole_prompt = kSearchesPrompt},
    {.id = EvictionBase::greedy_loss,
     .name = "greedy_loss",
     .plain = "one by one, by least predicted loss",
     .meaning = "Evicts one token at a time, always the one of least loss_row. Takes longer.",
     .searches = SearchBy::loss,
     .greedy = true,
     .whole_prompt = kSearchesPrompt},
    {.id = EvictionBase::greedy_leverage,
     .name = "greedy_leverage",
     .plain = "one by one, by what fits make up for",
     .meaning =
         "Evicts one token at a time, always the one that fitted values make up for best. Takes seconds.",
     .searches = SearchBy::leverage,
     .greedy = true,
     .whole_prompt = kSearchesPrompt},
    {.id = EvictionBase::exchange,
     .name = "exchange",
     .plain = "swaps while the exact error falls",
     .meaning = "Reference: swaps kept and evicted tokens while the exact error falls. Takes long.",
     .takes_score = true,
     .searches = SearchBy::error,
     .whole_prompt = kSearchesPrompt},
    {.id = EvictionBase::defensive,
     .name = "defensive",
     .plain = "most attention of any row, at least the mean",
     .meaning = "DefensiveKV: largest attention of any row and head of the pinned window, at least its mean",
     .metric = TokenMetric::defensive,
     .pins_window = true},
    {.id = EvictionBase::criticalkv,
     .name = "criticalkv",
     .plain = "attention, then that times its value's size",
     .meaning = "CriticalKV: half of the budget as snapkv, the rest by that attention times ||v W_O||_1",
     .metric = TokenMetric::attn,
     .takes_score = true,
     .pins_window = true,
     .two_stages = true,
     .whole_prompt = "its two stages share the budget of a whole prompt"},
    {.id = EvictionBase::top_k,
     .name = "top_k",
     .plain = "keeps all, reads the largest weights",
     .meaning = "Reference: evicts nothing; each row reads the tokens of largest weight in it",
     .whole_prompt = kEvictsNothing,
     .reads = ReadBy::weight,
     .reads_all_first = true},
    {.id = EvictionBase::top_p,
     .name = "top_p",
     .plain = "keeps all, reads a share of the weight",
     .meaning =
         "Reference: evicts nothing; each row reads the fewest tokens that reach a share of its weight",
     .whole_prompt = kEvictsNothing,
     .reads = ReadBy::weight_share,
     .reads_all_first = true},
    {.id = EvictionBase::quest,
     .name = "quest",
     .plain = "keeps all, reads pages of largest bound",
     .meaning = "Quest: evicts nothing; each row reads the pages whose keys allow the largest logits",
     .whole_prompt = kEvictsNothing,
     .reads = ReadBy::page_bounds,
     .page = 16},
    {.id = EvictionBase::sparq,
     .name = "sparq",
     .plain = "keeps all, reads by the largest query channels",
     .meaning = "SparQ: evicts nothing; each row reads by the logits of its largest query channels",
     .whole_prompt = kEvictsNothing,
     .reads = ReadBy::query_channels},
    {.id = EvictionBase::double_sparsity,
     .name = "double_sparsity",
     .plain = "keeps all, reads by the heaviest channels",
     .meaning = "Double Sparsity: evicts nothing; rows read by the logits of the prompt's heaviest channels",
     .whole_prompt = kEvictsNothing,
     .reads = ReadBy::heavy_channels},
});
constexpr std::string_view name_of(EvictionBase base) { return kBases[base].name; }

}  // namespace kvreplay
