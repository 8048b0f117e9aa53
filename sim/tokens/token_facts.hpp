#pragma once

#include "data/facts_table.hpp"
#include "sim/tokens/row_scores.hpp"

#include <optional>
#include <string_view>

namespace kvreplay {

/// Every per-token metric, in the order in which they are exported. Definitions: sim/tokens/METRICS.md.
enum class TokenMetric {
  attn,
  attn_sq,
  value,
  key,
  joint,
  caote,
  fastcaote,
  knorm,
  keydiff,
  expected_attention,
  leverage,
  kvzip,
  lagkv,
  cur,
  qfilter,
  defensive,
  kvzip_plus,
  rkv,
  triattention,
  exact_value,
  exact_key,
  exact_joint,
  exact_remove,
  exact_loss,
  oracle_next,
  oracle_future,
  oracle_importance,
  oracle_loss,
};

/// Kind of a metric: a score that methods can compute; the exact cost of a single change of the cache; or an
/// oracle, which needs the decoding steps. For exact metrics and oracles, a larger value means a larger cost.
enum class MetricKind { score, exact, oracle };

/// Unit of a metric. Relative errors are meaningful only between metrics of one unit.
enum class MetricUnit { weight, squared_weight, squared_output, output, nats, other };

struct MetricUnitFacts {
  MetricUnit id;
  std::string_view name;
};
inline constexpr auto kMetricUnits = facts_table<MetricUnitFacts>({
    {MetricUnit::weight, "attention weight"},
    {MetricUnit::squared_weight, "squared weight"},
    {MetricUnit::squared_output, "squared output"},
    {MetricUnit::output, "output"},
    {MetricUnit::nats, "nats"},
    {MetricUnit::other, "score"},
});
constexpr std::string_view name_of(MetricUnit unit) { return kMetricUnits[unit].name; }

/// Rows on which a metric is computed; the dump must contain them.
enum class MetricRows {
  none,    ///< no rows: keys and values suffice
  prompt,  ///< all prompt rows, with the rotation of their queries undone
  asked,   ///< prompt rows that the dump has, with their rotation
  window,  ///< the last prompt rows
  next,    ///< the first decoding step
  future,  ///< all decoding steps
  repeat,  ///< rows of a second reading of the prompt
};

/// Reduction of a metric over the query heads of a group.
enum class OverHeads {
  sum,
  mean,  ///< the first tokens then rank above all others, as in each head (kExpectedAttentionFirst)
  same,  ///< computed for the KV head: all query heads share one value
  max,
};

/// Kind of policy that results from a metric while decoding (sim/eviction/decode/decode_policies.cpp).
enum class CacheRank {
  none,  ///< no policy
  own,   ///< an OwnScore
  keydiff,
  row_sums,  ///< the sums of a RowScore over steps
  caote,     ///< caote and fastcaote come from the sums of each query head's `attention`
  fastcaote,
};
constexpr bool by_query_head(CacheRank rank) {
  return rank == CacheRank::caote || rank == CacheRank::fastcaote;
}

/// Ranking of a cache by a metric while decoding.
struct Decoding {
  CacheRank rank = CacheRank::none;
  RowScore score = RowScore::attention;  ///< for CacheRank::row_sums
  OwnScore own = OwnScore::position;     ///< for CacheRank::own
};
constexpr Decoding by_sums_of(RowScore score) { return {CacheRank::row_sums, score}; }
constexpr Decoding by_own(OwnScore own) { return {CacheRank::own, RowScore::attention, own}; }

struct TokenMetricFacts {
  TokenMetric id;
  std::string_view name;
  std::string_view plain;    ///< the name in plain words, for menus
  std::string_view meaning;  ///< one line
  MetricKind kind = MetricKind::score;
  MetricUnit unit = MetricUnit::other;
  MetricRows rows = MetricRows::window;
  OverHeads heads = OverHeads::sum;
  Decoding decoding = {};
  std::string_view not_in_decoding = {};  ///< reason why it cannot rank while decoding, as one clause
  std::string_view not_in_blocks = {};    ///< reason why it cannot rank a block of the prompt, as one clause
  /// Best shown on a linear axis: some values are negative, or the values of all tokens add up to a constant.
  bool linear = false;
  bool on_request = false;    ///< computed only if it is named
  bool on_host = false;       ///< computed by prompt_score() on any backend (sim/tokens/prompt_scores.hpp)
  bool of_values = true;      ///< needs V
  bool of_gradients = false;  ///< weighted by the dump's gradients of its rows
};

inline constexpr std::string_view kRepeatedWhole = "a second reading is that of the whole prompt";
inline constexpr std::string_view kOracleInDecoding = "the oracle looks at steps yet to come";
inline constexpr std::string_view kOracleInBlocks = "the oracle looks at the whole prompt";
inline constexpr std::string_view kStretches = "its stretches are those of a whole prompt";
inline constexpr std::string_view kFloorOfPrompt = "its floor is a mean over the prompt";
inline constexpr std::string_view kGradientsOfPrompt = "its gradients are those of the prompt's last rows";

inline constexpr auto kTokenMetrics = facts_table<TokenMetricFacts>({
    {.id = TokenMetric::attn,
     .name = "attn",
     .plain = "attention paid to it, summed",
     .meaning = "Attention that the window pays to the token, summed (H2O, TOVA, SnapKV)",
     .unit = MetricUnit::weight,
     .decoding = by_sums_of(RowScore::attention),
     .linear = true,
     .of_values = false},
    {.id = TokenMetric::attn_sq,
     .name = "attn_sq",
     .plain = "squared attention paid to it, summed",
     .meaning = "Squared attention that the window pays to the token, summed (OBCache)",
     .unit = MetricUnit::squared_weight,
     .decoding = by_sums_of(RowScore::attention_sq),
     .of_values = false},
    {.id = TokenMetric::value,
     .name = "value",
     .plain = "error if its value became 0",
     .meaning = "Error of setting the token's value to 0; exact (OBCache)",
     .unit = MetricUnit::squared_output,
     .decoding = by_sums_of(RowScore::value)},
    {.id = TokenMetric::key,
     .name = "key",
     .plain = "error if its key became 0, to first order",
     .meaning = "Error of setting the token's key to 0, to first order (OBCache)",
     .unit = MetricUnit::squared_output,
     .decoding = by_sums_of(RowScore::key)},
    {.id = TokenMetric::joint,
     .name = "joint",
     .plain = "error if key and value became 0, to first order",
     .meaning = "Error of setting the token's key and value to 0, to first order (OBCache)",
     .unit = MetricUnit::squared_output,
     .decoding = by_sums_of(RowScore::joint)},
    {.id = TokenMetric::caote,
     .name = "caote",
     .plain = "output error without it, for an averaged row",
     .meaning = "Output error of removing the token, for one averaged row (CAOTE)",
     .unit = MetricUnit::output,
     .decoding = {CacheRank::caote}},
    {.id = TokenMetric::fastcaote,
     .name = "fastcaote",
     .plain = "the same with the mean of the values",
     .meaning = "CAOTE with the plain mean of the values, which is cheaper",
     .unit = MetricUnit::output,
     .decoding = {CacheRank::fastcaote}},
    {.id = TokenMetric::knorm,
     .name = "knorm",
     .plain = "how small its key is",
     .meaning = "Less the key's norm: keys of small norm draw attention",
     .rows = MetricRows::none,
     .heads = OverHeads::same,
     .decoding = by_own(OwnScore::knorm),
     .linear = true,
     .of_values = false},
    {.id = TokenMetric::keydiff,
     .name = "keydiff",
     .plain = "how unlike the mean key it is",
     .meaning = "Less the cosine between the key and the mean key: unusual keys are kept (KeyDiff)",
     .rows = MetricRows::none,
     .heads = OverHeads::same,
     .decoding = {CacheRank::keydiff},
     .linear = true,
     .of_values = false},
    {.id = TokenMetric::expected_attention,
     .name = "expected_attention",
     .plain = "attention expected of queries to come",
     .meaning = "Attention expected of queries still to come, times the value's norm",
     .rows = MetricRows::prompt,
     .heads = OverHeads::mean,
     .not_in_decoding = "Expected Attention is defined for the queries of a prompt",
     .not_in_blocks = "Expected Attention needs the queries of the whole prompt"},
    {.id = TokenMetric::leverage,
     .name = "leverage",
     .plain = "error without it, all other values fitted anew",
     .meaning = "Error of removing the token where all other values may be fitted anew; l^3 operations",
     .unit = MetricUnit::squared_output,
     .rows = MetricRows::prompt,
     .heads = OverHeads::same,
     .not_in_decoding = "leverage is defined for a whole prompt",
     .not_in_blocks = "leverage needs the queries of the whole prompt",
     .on_request = true,
     .on_host = true},
    {.id = TokenMetric::kvzip,
     .name = "kvzip",
     .plain = "most attention at a second reading",
     .meaning = "Largest attention that a second reading of the prompt pays to the token (KVzip)",
     .unit = MetricUnit::weight,
     .rows = MetricRows::repeat,
     .heads = OverHeads::max,
     .not_in_decoding = kRepeatedWhole,
     .not_in_blocks = kRepeatedWhole,
     .of_values = false},
    {.id = TokenMetric::lagkv,
     .name = "lagkv",
     .plain = "spread of its channels, by the next stretch",
     .meaning = "Rank in its 128 tokens by how unevenly key and value lie in the next 128's range (LagKV)",
     .rows = MetricRows::none,
     .heads = OverHeads::same,
     .not_in_decoding = "LagKV ranks a stretch by the one behind it",
     .not_in_blocks = kStretches,
     .linear = true,
     .on_request = true,
     .on_host = true},
    {.id = TokenMetric::cur,
     .name = "cur",
     .plain = "squared key times squared value, of its 16",
     .meaning = "Its share of squared keys times that of squared values among its 16 tokens (CurDKV)",
     .rows = MetricRows::none,
     .heads = OverHeads::same,
     .not_in_decoding = kStretches,
     .not_in_blocks = kStretches,
     .on_request = true,
     .on_host = true},
    {.id = TokenMetric::qfilter,
     .name = "qfilter",
     .plain = "its key along the queries' main direction",
     .meaning = "The key along the main direction of the prompt's own queries (Q-Filters)",
     .rows = MetricRows::asked,
     .heads = OverHeads::same,
     .not_in_decoding = "the filter is made of the prompt's queries",
     .not_in_blocks = "the filter is made of the whole prompt's queries",
     .linear = true,
     .on_request = true,
     .on_host = true,
     .of_values = false},
    {.id = TokenMetric::defensive,
     .name = "defensive",
     .plain = "most attention of any row, at least the mean",
     .meaning =
         "Largest pooled attention of any row and head, at least its mean over the tokens (DefensiveKV)",
     .unit = MetricUnit::weight,
     .heads = OverHeads::same,
     .not_in_decoding = kFloorOfPrompt,
     .not_in_blocks = kFloorOfPrompt,
     .on_request = true,
     .on_host = true},
    {.id = TokenMetric::kvzip_plus,
     .name = "kvzip_plus",
     .plain = "most that it writes at a second reading",
     .meaning =
         "Largest share of the stream that a row of a second reading gets of the token's value (KVzip+)",
     .rows = MetricRows::repeat,
     .heads = OverHeads::same,
     .not_in_decoding = kRepeatedWhole,
     .not_in_blocks = kRepeatedWhole,
     .on_request = true,
     .on_host = true},
    {.id = TokenMetric::rkv,
     .name = "rkv",
     .plain = "attention, less how like other keys it is",
     .meaning = "R-KV: pooled attention of the window, less the key's likeness to other keys; l^2 operations",
     .heads = OverHeads::same,
     .not_in_decoding = "R-KV compares a cache's keys with each other, at intervals only: decode:N",
     .linear = true,
     .on_request = true,
     .on_host = true,
     .of_values = false},
    {.id = TokenMetric::triattention,
     .name = "triattention",
     .plain = "logit that mean queries to come would give it",
     .meaning =
         "TriAttention: logit that the mean un-rotated query would give the key from positions to come",
     .rows = MetricRows::prompt,
     .heads = OverHeads::same,
     .not_in_decoding = "TriAttention ranks a cache at intervals only: decode:N",
     .not_in_blocks = "TriAttention's mean queries are those of the whole prompt",
     .linear = true,
     .on_request = true,
     .on_host = true,
     .of_values = false},
    {.id = TokenMetric::exact_value,
     .name = "exact_value",
     .plain = "exact error when its value is 0",
     .meaning = "Exact squared change of the outputs when the token's value becomes 0",
     .kind = MetricKind::exact,
     .unit = MetricUnit::squared_output,
     .decoding = by_sums_of(RowScore::value)},
    {.id = TokenMetric::exact_key,
     .name = "exact_key",
     .plain = "exact error when its key is 0",
     .meaning = "Exact squared change of the outputs when the token's key becomes 0",
     .kind = MetricKind::exact,
     .unit = MetricUnit::squared_output,
     .decoding = by_sums_of(RowScore::exact_key)},
    {.id = TokenMetric::exact_joint,
     .name = "exact_joint",
     .plain = "exact error when key and value are 0",
     .meaning = "Exact squared change of the outputs when the token's key and value become 0",
     .kind = MetricKind::exact,
     .unit = MetricUnit::squared_output,
     .decoding = by_sums_of(RowScore::exact_joint)},
    {.id = TokenMetric::exact_remove,
     .name = "exact_remove",
     .plain = "exact error when it is removed alone",
     .meaning = "Exact squared change of the outputs when the token leaves the cache, the rest renormalised",
     .kind = MetricKind::exact,
     .unit = MetricUnit::squared_output,
     .decoding = by_sums_of(RowScore::exact_remove)},
    {.id = TokenMetric::exact_loss,
     .name = "exact_loss",
     .plain = "predicted loss when it is removed alone",
     .meaning =
         "exact_remove weighted by the model's sampled gradients: predicted loss over the window, in nats",
     .kind = MetricKind::exact,
     .unit = MetricUnit::nats,
     .not_in_decoding = kGradientsOfPrompt,
     .not_in_blocks = kGradientsOfPrompt,
     .of_gradients = true},
    {.id = TokenMetric::oracle_next,
     .name = "oracle_next",
     .plain = "exact error at the next step",
     .meaning = "exact_remove on the first decoding step alone",
     .kind = MetricKind::oracle,
     .unit = MetricUnit::squared_output,
     .rows = MetricRows::next,
     .not_in_decoding = kOracleInDecoding,
     .not_in_blocks = kOracleInBlocks},
    {.id = TokenMetric::oracle_future,
     .name = "oracle_future",
     .plain = "exact error over all decoding steps",
     .meaning = "exact_remove on all decoding steps",
     .kind = MetricKind::oracle,
     .unit = MetricUnit::squared_output,
     .rows = MetricRows::future,
     .not_in_decoding = kOracleInDecoding,
     .not_in_blocks = kOracleInBlocks},
    {.id = TokenMetric::oracle_importance,
     .name = "oracle_importance",
     .plain = "largest attention to come, times its value",
     .meaning = "Largest attention over all decoding steps, times the norm of the value behind W_O (LU-KV)",
     .kind = MetricKind::oracle,
     .unit = MetricUnit::output,
     .rows = MetricRows::future,
     .not_in_decoding = kOracleInDecoding,
     .not_in_blocks = kOracleInBlocks},
    {.id = TokenMetric::oracle_loss,
     .name = "oracle_loss",
     .plain = "predicted loss over all decoding steps",
     .meaning = "exact_loss on all decoding steps",
     .kind = MetricKind::oracle,
     .unit = MetricUnit::nats,
     .rows = MetricRows::future,
     .not_in_decoding = kOracleInDecoding,
     .not_in_blocks = kOracleInBlocks,
     .of_gradients = true},
});
static_assert(
    [] {
      for (const TokenMetricFacts& facts : kTokenMetrics) {
        const bool decodes = facts.decoding.rank != CacheRank::none;
        const bool in_blocks =
            !facts.of_gradients && (facts.rows == MetricRows::none || facts.rows == MetricRows::window);
        if (decodes != facts.not_in_decoding.empty()) return false;
        if (!facts.on_host && in_blocks != facts.not_in_blocks.empty()) return false;
      }
      return true;
    }(),
    "a metric says how it ranks a cache, or why it cannot");

constexpr std::string_view name_of(TokenMetric metric) { return kTokenMetrics[metric].name; }

/// Terms of a single row and a single token that metrics sum up over rows and query heads.
enum class EntryTerm {
  logit,
  attn,
  attn_sq,
  value,
  key,
  joint,
  exact_value,
  exact_key,
  exact_joint,
  exact_remove,
};

struct EntryFacts {
  EntryTerm id;
  std::string_view name;
  std::string_view plain;    ///< the name in plain words, for menus
  std::string_view meaning;  ///< its formula, or one line
  std::string_view unit;
  std::optional<TokenMetric> metric;  ///< the token metric whose terms these are
};
namespace detail {
constexpr EntryFacts terms_of(TokenMetric metric, EntryTerm id, std::string_view meaning,
                              std::string_view plain = {}) {
  return {id,
          name_of(metric),
          plain.empty() ? kTokenMetrics[metric].plain : plain,
          meaning,
          name_of(kTokenMetrics[metric].unit),
          metric};
}
}  // namespace detail

inline constexpr auto kEntries = facts_table<EntryFacts>({
    {EntryTerm::logit, "logit", "query times key, before the softmax",
     "z: the logit, scaled and capped as the layer does", "logit", std::nullopt},
    detail::terms_of(TokenMetric::attn, EntryTerm::attn, "a: the attention weight", "attention of the query"),
    detail::terms_of(TokenMetric::attn_sq, EntryTerm::attn_sq, "a\u00b2", "squared attention of the query"),
    detail::terms_of(TokenMetric::value, EntryTerm::value, "a\u00b2 \u2016v\u2016\u00b2 (OBCache eq. 4)"),
    detail::terms_of(TokenMetric::key, EntryTerm::key,
                     "(a z)\u00b2 \u2016v \u2212 o\u2016\u00b2 (OBCache eq. 5)"),
    detail::terms_of(TokenMetric::joint, EntryTerm::joint,
                     "a\u00b2 \u2016v + z (v \u2212 o)\u2016\u00b2 (OBCache eq. 6)"),
    detail::terms_of(TokenMetric::exact_value, EntryTerm::exact_value,
                     "exact squared change of the output when v := 0"),
    detail::terms_of(TokenMetric::exact_key, EntryTerm::exact_key,
                     "exact squared change of the output when k := 0"),
    detail::terms_of(TokenMetric::exact_joint, EntryTerm::exact_joint,
                     "exact squared change of the output when k := 0 and v := 0"),
    detail::terms_of(TokenMetric::exact_remove, EntryTerm::exact_remove,
                     "exact squared change of the output when the token leaves the cache"),
});
constexpr std::string_view name_of(EntryTerm entry) { return kEntries[entry].name; }

}  // namespace kvreplay
