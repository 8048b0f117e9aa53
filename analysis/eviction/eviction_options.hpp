#pragma once

#include "analysis/channels/channel_options.hpp"
#include "analysis/eviction/budget.hpp"
#include "analysis/eviction/cache_format.hpp"
#include "analysis/eviction/recipe.hpp"
#include "analysis/given/given_arrays.hpp"
#include "sim/cache/cache.hpp"
#include "sim/compensation/compensation_facts.hpp"
#include "sim/eviction/policy.hpp"
#include "sim/least_squares/reference_rows.hpp"

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay {

struct Phase {
  enum class Kind { prefill, blockwise, decode, append_only };
  Kind kind = Kind::prefill;
  Index block = 0;  ///< tokens of the prompt, or decoded ones from cut to cut; 0: while decoding, every step
  bool decodes() const { return kind == Kind::decode || kind == Kind::append_only; }
  std::string name() const;       ///< "blockwise:32"
  std::string file_name() const;  ///< "blockwise_32"
};

/// The budget that a label says; nothing where it is none.
std::optional<Budget> budget_labelled(const std::string& label);
/// Tokens that a budget as it was asked for comes to, of `l`: "448" is 448 tokens, "0.5" a compression ratio.
/// `kept` where it is known.
double tokens_kept(const std::string& budget, const std::string& kept, Index l);

/// The cache with which phases that decode begin.
enum class PromptCache { cut, whole, pinned };

struct PromptCacheFacts {
  PromptCache id;
  std::string_view name;
};
inline constexpr auto kPromptCaches = facts_table<PromptCacheFacts>({
    {PromptCache::cut, "cut"},
    {PromptCache::whole, "whole"},
    {PromptCache::pinned, "pinned"},
});

/// Positions that count as bytes in layers with a sliding window: only those held for later rows; or all of
/// the prompt, as in engines that reserve whole pages for such layers.
enum class WindowBytes { held, reserved };

struct WindowBytesFacts {
  WindowBytes id;
  std::string_view name;
};
inline constexpr auto kWindowBytes = facts_table<WindowBytesFacts>({
    {WindowBytes::held, "held"},
    {WindowBytes::reserved, "reserved"},
});

/// The rows that exact searches look at.
enum class SearchRows { window, future };

/// A policy; nothing is "none": the whole prompt, or only the kept sets of the user's.
using PolicyChoice = std::optional<Policy>;
std::vector<PolicyChoice> policies_named(const std::vector<std::string>& names);

/// A format that engines have and that fails where a key channel is large: what findings compare cures on.
inline constexpr std::string_view kKeyProbe = "kq4_0v16";

struct EvictionOptions {
  std::vector<PolicyChoice> policies =
      policies_named({"h2o", "h2o+value", "h2o+key", "h2o+joint", "h2o+caote",       //
                      "tova", "tova+value", "tova+key", "tova+joint", "tova+caote",  //
                      "snapkv", "snapkv+value", "snapkv+key", "snapkv+joint", "snapkv+caote"});
  std::vector<Budget> budgets = {{{}, 0.5}, {{}, 0.8}, {{}, 0.9}};
  std::vector<Semantics> semantics = {Semantics::paper};  ///< several: side by side
  std::vector<Phase> phases = {{}};
  std::optional<Index> decode_window;
  PromptCache prompt = PromptCache::cut;
  std::optional<Positions> window, sinks, recent;
  std::optional<Pooling> pool;
  SearchRows on = SearchRows::window;
  std::optional<SearchBy> by;
  std::optional<Index> seed;  ///< of random
  bool per_query_head = false;
  bool ties = false;                     ///< count what ties with the last token kept
  std::optional<RuleAndRatio> channels;  ///< key channels that the kept tokens lose
  std::optional<Protection> protect;     ///< of these
  CacheFormatOptions stored;             ///< storage of the kept tokens; no format: as they are
  /// Measure the whole prompt in kKeyProbe as well, without a cure and with each one, where nothing else is
  /// stored in a format and the head size allows it.
  bool probe_keys = false;
  std::optional<WindowBytes> windows;    ///< default: held
  std::vector<Compensation> compensate;  ///< none: evictions are measured as they are alone
  std::optional<Reference> reference;
  Index reference_rows = 4096;
  std::vector<NamedFile> scores, kept;
  std::vector<RecipeFile> recipes;  ///< in place of policies, budgets and formats
  /// Where set, policies that take longer than this, or that the dump cannot feed, are left out rather than
  /// run or refused.
  struct Quick {
    Index most_rows;       ///< of a score
    Index longest_search;  ///< the longest prompt for an exact search
  };
  std::optional<Quick> quick;
};

/// Binds every option to its field of `options`, which must outlive the result.
BoundOptions bound(EvictionOptions& options);
/// --bits and how: the formats of a cache.
BoundOptions bound(CacheFormatOptions& stored);
/// The options of one policy alone: window, sinks, recent, pool, by, those of expected_attention, of pages,
/// and of what reads less.
BoundOptions bound(PolicyOverrides& overrides);

namespace evict_option {
inline constexpr OptionFacts policy{"policy", "LIST",
                                    "BASE, BASE+SCORE or score:SCORE, comma-separated, each with options of "
                                    "its own as in snapkv[window=64,pool=7]; none: only your kept sets, or "
                                    "the whole prompt with channels pruned or quantized",
                                    "h2o,tova,snapkv and their +value,+key,+joint,+caote"},
    sigma{"sigma", "LIST",
          "Budgets as shares that are evicted: 0.9 keeps a tenth. Give one of sigma, keep and budget"},
    keep{"keep", "LIST",
         "Budgets as the part of the prompt that every KV head keeps: 20% or 0.2, or 410 tokens"},
    budget{"budget", "LIST",
           "Budgets as tokens that every KV head keeps, pinned ones included; 20% is a share"},
    semantics{"semantics", "NAME", "Variant of a policy"},
    diff{"diff", "LIST", "Several semantics side by side, and where they differ"},
    phase{"phase", "LIST", "prefill, blockwise:N, decode, decode:N (a cut every N steps), append-only"},
    decode_window{"decode-window", "N", "Decoding steps, the last ones, whose scores count", "all", 1},
    prompt{"prompt", "HOW",
           "Cache at the start of phases that decode: the prompt cut to the budget; whole, until the first "
           "cut; or "
           "pinned for good, the budget then being of decoded tokens"},
    window{
        "window", "N",
        "The last N queries, or a share as 5%: policies score on them, and errors are measured on them, too",
        "the policy's own; 32 measured", 1},
    sinks{"sinks", "N", "Pin the first N positions", "the policy's own"},
    recent{"recent", "N", "Pin the last N positions, which lose no key channels either",
           "the policy's own; of channels 32"},
    pool{"pool", "KIND", "Pool the scores over neighbours: max:7, avg:5, none", "the policy's own"},
    on{"on", "ROWS", "Rows on which greedy_exact, greedy_loss and exchange search: window or future"},
    by{"by", "WHAT", "Objective of exchange: error or loss", "error"},
    n_sink{"n_sink", "N", "First tokens that expected_attention ranks above all", "4"},
    n_future{"n_future", "N", "Positions behind the prompt that expected_attention expects queries at", "512",
             1},
    epsilon{"epsilon", "X", "Number that expected_attention adds to every weight", "the policy's own"},
    page{"page", "N", "Keep or evict N neighbouring tokens together, as engines with tables of blocks do",
         "1", 1},
    page_by{"page_by", "WHAT", "Score of a page from those of its tokens: mean, max or sum", "mean"},
    page_heads{
        "page_heads", "WHOSE",
        "Pages are chosen for every KV head, or by the sum of their scores for all of a layer: head or "
        "layer",
        "head"},
    chunk{"chunk", "WHAT", "Keep or evict whole lines or sentences of the prompt's text together", "off"},
    r{"r", "N", "Channels of keys that sparq and double_sparsity choose by", "a quarter of them", 1},
    dense{"dense", "N", "The first N layers, in which every row reads the whole prompt", "0"},
    threshold{"threshold", "X",
              "Keep every token whose score, pooled as the policy pools, is at least X, and no budget"},
    seed{"seed", "N", "Seed of the draws of random", "0"},
    heads{"heads", "WHOSE", "random draws for every KV head, or once for all of a layer: head or layer",
          "head"},
    per_query_head{"per-query-head", "",
                   "A cache for every query head, not one for its group; its memory counts as such"},
    ties{"ties", "",
         "Count the tokens of a head that tie with the last one kept, by scores as they are and rounded to "
         "16 bits"},
    channels{"channels", "METHOD:RATIO",
             "Prune key channels of what is kept too, its last keys (32, or those of recent) left whole: a "
             "method and a ratio of the command channels, which ranks by the queries of the window"},
    protect{"protect", "A:B", "Never prune channels of outstanding key norm: between A and B percent of them",
            "off"},
    bits{"bits", "LIST",
         "Formats of what is kept: 4; k4v2 for keys and values apart; k8v4;0-1,last:16 with other bits in "
         "these layers; 4;auto:2 with 8 bits (auto:2:16: 16) in the two layers that lose most. All formats "
         "of an engine: vllm, sglang, trtllm, modelopt or llama.cpp"},
    rotate{"rotate", "LIST",
           "Turn keys and values by a Hadamard matrix before they are stored: none, hadamard, k, v; of N "
           "numbers as in hadamard:64, of keys and values apart as in hadamard:128:64"},
    center{"center", "LIST",
           "Subtract the mean of a head's prompt keys before they are stored: none, k; without the first N "
           "tokens as in k:N; or the vectors of FILE.npy, [layers, kv_heads, d]"},
    scales{"scales", "LIST",
           "Scales of fp8 and int8: none for 1, or those of FILE.safetensors, k_scale and v_scale a layer as "
           "vLLM reads them"},
    keys{"keys", "WHAT", "Axis along which keys in 2 to 8 bits share a step: channel or token"},
    group{"group", "N", "Numbers that share a step in 2 to 8 bits", "", 1},
    residual{"residual", "N", "The most recent tokens kept are stored as they are",
             "128 in 2 to 8 bits, else 0"},
    window_bytes{
        "window-bytes", "WHICH",
        "Positions that bytes count in layers with a sliding window: held, those that a later row can "
        "see; or reserved, the whole prompt, as some engines allocate",
        "held"},
    compensate{"compensate", "LIST", "Measure too what kept tokens make up for evicted ones", "none"},
    reference{"reference", "KIND", "Queries that a fit looks at: window, shifted or repeat",
              "shifted where the dump tells its rotation, else window"},
    reference_positions{"reference-rows", "N", "At most N positions of them, evenly spaced", "", 1},
    score{"score", "name=PATH",
          "Your score, .npy [layers, kv_heads, prompt]; the highest are kept. Used as BASE+name, or as "
          "score:name with nothing pinned, in phase prefill. {dump} in PATH is the dump's name; a folder "
          "holds <dump>.npy of each"},
    recipe{"recipe", "FILE",
           "Recipe of kvreplay recommend, in place of policies and budgets: FILE.json or name=FILE.json, "
           "comma-separated; {dump} in FILE is the dump's name"},
    kept{"kept", "name=PATH",
         "Your kept sets, .npy of booleans [layers, kv_heads, l], measured too; PATH as that of a score"};
}  // namespace evict_option

/// BASE, BASE+SCORE or score:SCORE, and its own options in brackets. Throws OptionError of `named_by` with
/// the nearest names where one is unknown; `scores` are the names of the user's. Names are understood
/// in_known_spelling(), and the policy's own has that.
Policy parse_policy(const std::string& given, const std::vector<std::string>& scores,
                    const OptionFacts& named_by = evict_option::policy);

template <>
struct OptionValue<PolicyChoice> {
  static PolicyChoice parse(const OptionFacts&, const std::string& word) { return parse_policy(word, {}); }
  static std::string text(const PolicyChoice& choice) { return choice ? choice->name : "none"; }
};

/// `sigma` takes ratios, `budget` tokens or '20%', `keep` these and shares.
template <>
struct OptionValue<Budget> {
  static std::string complaint(const OptionFacts& option, const std::string& word);
  static Budget parse(const OptionFacts& option, const std::string& word);
  static std::string text(const Budget& budget) { return budget.label(); }
  static Json json(const Budget& budget) { return budget.tokens ? Json(*budget.tokens) : Json(budget.sigma); }
};

template <>
struct OptionValue<Phase> {
  static Phase parse(const OptionFacts& option, const std::string& given);
  static std::string text(const Phase& phase) { return phase.name(); }
};

template <>
struct OptionValue<Pooling> {
  static Pooling parse(const OptionFacts& option, const std::string& given);
  static std::string text(const Pooling& pool);  ///< "max:7", "avg:5" or "none"
};

template <>
struct OptionValue<SearchRows> {
  static SearchRows parse(const OptionFacts& option, const std::string& word);
  static std::string text(SearchRows rows) { return rows == SearchRows::window ? "window" : "future"; }
};

template <>
struct OptionValue<Compensation> : NamedValue<kCompensations, Listed::some> {};

template <>
struct OptionValue<Reference> : NamedValue<kReferences, Listed::all> {};

template <>
struct OptionValue<PageScore> : NamedValue<kPageScores, Listed::one_of> {};

template <>
struct OptionValue<WindowBytes> : NamedValue<kWindowBytes, Listed::one_of> {};
template <>
struct OptionValue<PromptCache> : NamedValue<kPromptCaches, Listed::one_of> {};

template <>
struct OptionValue<PageHeads> : NamedValue<kPageHeads, Listed::one_of> {};

template <>
struct OptionValue<ChunkBy> : NamedValue<kChunkBy, Listed::one_of> {};

template <>
struct OptionValue<SearchBy> {
  static SearchBy parse(const OptionFacts& option, const std::string& word);
  static std::string text(SearchBy by) { return std::string(name_of(by)); }
};

/// Throws OptionError, which names `option`, where the width is even.
void check_pooling(const OptionFacts& option, const Pooling& pool);
/// The three ways to say the budgets of one field: as ratios, which stand under `key` in JSON, as what stays,
/// and in tokens.
std::array<BoundOption, 3> bound_budgets(std::vector<Budget>& budgets, std::string key,
                                         const OptionFacts& sigma, const OptionFacts& keep,
                                         const OptionFacts& tokens);

/// Throws OptionError, which names `option`, where it is no compression ratio in (0, 1).
void check_sigma(const OptionFacts& option, double sigma);

}  // namespace kvreplay
