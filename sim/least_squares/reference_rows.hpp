#pragma once

#include "data/facts_table.hpp"
#include "sim/least_squares/row_logits.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace kvreplay {

/// The queries that a fit looks at.
enum class Reference { window, shifted, repeat };

struct ReferenceFacts {
  Reference id;
  std::string_view name;
  std::string_view meaning;  ///< one line
};
inline constexpr auto kReferences = facts_table<ReferenceFacts>({
    {Reference::window, "window", "The last queries of the prompt"},
    {Reference::shifted, "shifted",
     "All queries of the prompt, moved behind it: unrotated, then rotated again"},
    {Reference::repeat, "repeat", "Queries of a second reading of the prompt, as captured"},
});
constexpr std::string_view name_of(Reference rows) { return kReferences[rows].name; }

struct ReferenceOptions {
  Reference kind = Reference::shifted;
  Index window = 32;  ///< queries of Reference::window
  Index most = 4096;  ///< positions; of more, as many evenly spaced
};

/// Why a dump has no such rows, as one clause; nothing where it has.
std::optional<std::string> why_no_reference(const Dump& dump, Reference kind);

/// Positions that shifted queries are moved to, l to l + kShiftedPositions - 1, one after the other.
inline constexpr Index kShiftedPositions = 64;

/// Reference queries of all query heads. They see the prompt alone.
template <class T>
QueryRows<T> reference_queries(const HeadGroup<T>& group, const ReferenceOptions& options);

/// Logits of the reference rows. Every fourth position is held out, to choose between ridges fitted on the
/// rest. With fewer than four positions, none is held out.
template <class T>
struct ReferenceRows {
  RowLogits<T> fitted, held_out;
  Index count() const { return fitted.n + held_out.n; }
  /// Sum over the rows of ||o_i||^2.
  double full_sq() const { return fitted.full_sq() + held_out.full_sq(); }
};
template <class T>
ReferenceRows<T> reference_rows(const HeadGroup<T>& group, const ReferenceOptions& options, Workers& workers);

}  // namespace kvreplay
