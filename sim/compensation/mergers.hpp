#pragma once

#include "data/facts_table.hpp"
#include "sim/eviction/policy_facts.hpp"
#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"

#include <optional>
#include <string_view>

// Evicted tokens merged into kept ones. Definitions: sim/compensation/MERGERS.md.

namespace kvreplay {

enum class Merging { cam, d2o, kvmerger, keepkv, merging_press };

struct MergingFacts {
  Merging id;
  std::string_view name;
  std::string_view plain;    ///< what becomes of evicted tokens, in plain words, for menus
  std::string_view meaning;  ///< one line
  std::string_view source;
  bool paper = true;             ///< whether there is such a semantics of it: as its paper says,
  bool official = false;         ///< as its authors' code does,
  bool kvpress = false;          ///< as kvpress does (0.5.4 and 0.5.5 merge alike)
  bool changes_keys = true;      ///< else only values
  bool biased = false;           ///< needs one more number a kept token, a bias on its logit
  bool needs_attention = false;  ///< asks what window queries look at
  /// The least cosine of two keys that are merged; empty: of no account, or found in the keys.
  std::optional<double> threshold = {};
};

inline constexpr auto kMergings = facts_table<MergingFacts>({
    {.id = Merging::cam,
     .name = "cam",
     .plain = "values shared out among the next kept tokens",
     .meaning = "Values of evicted tokens, shared out among the next kept ones, as far as attention says",
     .source = "CaM, ICML 2024 (PMLR 235:58840)",
     .official = true,
     .changes_keys = false,
     .needs_attention = true},
    {.id = Merging::d2o,
     .name = "d2o",
     .plain = "merged into the nearest key, where near",
     .meaning = "Keys and values merged into the kept token of nearest key, where nearer than most",
     .source = "D2O, arXiv 2406.13035",
     .official = true},
    {.id = Merging::kvmerger,
     .name = "kvmerger",
     .plain = "runs of similar keys merged into one",
     .meaning =
         "Runs of similar adjacent keys merged into the kept token among them, by a Gaussian of distance",
     .source = "KVMerger, arXiv 2407.08454",
     .threshold = 0.75},
    {.id = Merging::keepkv,
     .name = "keepkv",
     .plain = "merged into the nearest key, and counted",
     .meaning =
         "Merged by attention into the kept token of nearest key, which then counts for as many tokens",
     .source = "KeepKV, arXiv 2504.09936",
     .official = true,
     .biased = true,
     .needs_attention = true,
     .threshold = 0.8},
    {.id = Merging::merging_press,
     .name = "merging_press",
     .plain = "values merged into the nearest key",
     .meaning = "Values merged into the kept token of nearest key, by similarity and the values' norms",
     .source = "NVIDIA kvpress 0.5.4 and 0.5.5, MergingPress",
     .paper = false,
     .kvpress = true,
     .changes_keys = false,
     .threshold = 0.0},
});
constexpr std::string_view name_of(Merging method) { return kMergings[method].name; }

constexpr bool has_semantics(Merging method, Semantics semantics) {
  const MergingFacts& facts = kMergings[method];
  return semantics == Semantics::paper      ? facts.paper
         : semantics == Semantics::official ? facts.official
                                            : facts.kvpress;
}

/// Attention of the window's queries to a group's prompt.
struct WindowAttention {
  Vector<double> a;      ///< [l] mean of a_ip over the rows and query heads; a hidden token has 0
  Vector<double> log_s;  ///< [l] log of the mean of exp(z_ip) over the rows that see p and the query heads;
                         ///< -inf where none does
};
/// For the last `window` prompt queries, or as many as there are. O(G window l d).
WindowAttention window_attention(const HeadGroup<double>& group, Index window);

struct MergingOptions {
  std::optional<double> threshold = {};  ///< in place of the method's own
  Index budget = 32;                     ///< m: kept tokens that cam shares a value out among
  double sigma = 5;                      ///< of kvmerger's Gaussian, in the keys' unit
};

/// A group's prompt after merging. Rows of tokens that are not kept are undefined.
struct MergedCache {
  Matrix<double> k;     ///< [l, d]
  Matrix<double> v;     ///< [l, d_v]
  Vector<double> bias;  ///< [l] on the logits (behind scale and soft cap), 0 where there is none
  Index merged = 0;     ///< evicted tokens of which something went into a kept one
};

/// Merges the tokens that are not kept ([l], by any policy) into kept ones. The method decides only the
/// target of each token and the weights. Kept tokens without merged ones stay unchanged, bit for bit; with
/// nothing kept all tokens are dropped. Equal similarities go to the lower position. The method must have the
/// given semantics; only methods that need `attention` read it. O(l^2 d).
MergedCache merged_cache(const HeadGroup<double>& group, const KeptSet& kept, Merging method,
                         Semantics semantics, const WindowAttention& attention,
                         const MergingOptions& options = {});

}  // namespace kvreplay
