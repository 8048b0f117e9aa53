#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/entry_formulas.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

// What a single row does with a single token: the terms that the token metrics sum up over rows and query
// heads, any rectangle of them at a time.

namespace kvreplay {

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

/// What is known of some rows of one query head after their softmax. The rest is EntryMap's own.
template <class T>
struct EntryRows {
  Index g = 0;
  RowRange rows;                       ///< positions: begin, begin + step, .. before end
  Index step = 1;                      ///< positions from one row to the next
  std::vector<T> queries;              ///< [panels][d][W], scale * q; W = kPanelWidth<T> rows to a panel
  std::vector<T> outputs;              ///< [panels][d_v][W], o_i - centre
  std::vector<T> constants;            ///< [panels][kRowConstants][W]
  std::vector<LargestScores> largest;  ///< [rows]

  Index count() const { return std::ssize(largest); }
  Index position(Index row) const { return rows.begin + row * step; }
  std::size_t bytes() const;
};

/// Entries of one head group. Thread safe.
template <class T>
class EntryMap {
 public:
  /// Centres the values: O(T d_v).
  EntryMap(std::shared_ptr<const HeadGroup<T>> group, Workers& workers);
  ~EntryMap();
  EntryMap(EntryMap&&) noexcept;
  EntryMap& operator=(EntryMap&&) noexcept;

  const HeadGroup<T>& group() const;
  /// Another number for every EntryMap<T> that this process makes: for the keys of caches.
  std::uint64_t id() const;
  /// The softmax of every `step`-th of some rows (positions with a query): 4 |rows| T d flops. Throws
  /// InputError where a number overflows T, Interrupted within milliseconds where the workers are stopping.
  EntryRows<T> rows(Index g, RowRange rows, Workers& workers, Index step = 1) const;
  /// out [n][end - begin]: one entry of those n rows of `of` whose positions are in `take`, for the positions
  /// [begin, end), which may be decoded ones; NaN where the token is hidden from the row, infinite where the
  /// entry is beyond T. The same bytes for an entry whatever else is asked for with it.
  /// Cost: 2 |rows| |tokens| d flops, with an output in the entry 2 |rows| |tokens| d_v more, and about 20 an
  /// entry; nothing for panels of rows that see none of the tokens. Scores keep to the numerics of
  /// METRICS.md, the row's largest column included.
  void entries(const EntryRows<T>& of, EntryTerm entry, RowRange take, Index begin, Index end, T* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The judge: one row of entries from the definitions in float64, exact errors by attention computed anew:
/// [tokens], NaN where hidden. O(T (d + |tokens| d_v)).
std::vector<double> entries_reference(const HeadGroup<double>& group, Index g, Index i, EntryTerm entry,
                                      const std::vector<Index>& tokens);

}  // namespace kvreplay
