#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

// What a single row does with a single token: the terms that the token metrics sum up over rows and query
// heads, any rectangle of them at a time.

namespace kvreplay {

enum class Entry {
  logit,  ///< z_ip, capped where the layer caps
  attn,   ///< a_ip
  attn_sq,
  value,
  key,
  joint,
  exact_value,
  exact_key,
  exact_joint,
  exact_remove,
};
inline constexpr std::size_t kEntries = 10;
const std::array<Entry, kEntries>& all_entries();
std::string_view name_of(Entry entry);
std::optional<Entry> entry_named(std::string_view name);
/// The token metric whose terms these are; none for the logit.
std::optional<TokenMetric> metric_of(Entry entry);

/// What is known of a run of rows of one query head after its softmax.
template <class T>
struct EntryRows {
  Index g = 0;
  Rows rows;                    ///< positions
  std::vector<T> queries;       ///< scale * q
  std::vector<T> constants;     ///< per row
  std::vector<T> outputs;       ///< o_i - centre
  std::vector<double> largest;  ///< what the row's largest column is scored from
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

  const HeadGroup<T>& group() const;
  /// The softmax of some rows (positions with a query): 4 |rows| T d flops.
  EntryRows<T> rows(Index g, Rows rows, Workers& workers) const;
  /// out [take.count()][end - begin]: one entry of the rows `take`, which lie within `of`, and the positions
  /// [begin, end), which may be decoded ones; NaN where the token is hidden from the row.
  /// Cost: 4 |rows| |tokens| d flops and about 20 more an entry. Scores keep to the numerics of METRICS.md,
  /// the row's largest column included.
  void entries(const EntryRows<T>& of, Entry entry, Rows take, Index begin, Index end, T* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The judge: one row of entries from the definitions in float64, exact errors by attention computed anew:
/// [tokens], NaN where hidden.
std::vector<double> entries_reference(const HeadGroup<double>& group, Index g, Index i, Entry entry,
                                      const std::vector<Index>& tokens);

extern template class EntryMap<float>;
extern template class EntryMap<double>;

}  // namespace kvreplay
