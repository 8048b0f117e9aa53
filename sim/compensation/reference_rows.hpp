#pragma once

#include "sim/compensation/compensation_facts.hpp"
#include "sim/compensation/row_logits.hpp"

#include <optional>
#include <string>

namespace kvreplay {

struct ReferenceOptions {
  Reference kind = Reference::shifted;
  Index window = 32;  ///< queries of Reference::window
  Index most = 4096;  ///< positions; of more, as many evenly spaced
};

/// Why a dump has no such rows, as one clause; nothing where it has.
std::optional<std::string> why_no_reference(const Dump& dump, Reference kind);

/// Positions that shifted queries are moved to, l to l + kShiftedPositions - 1, one after the other.
inline constexpr Index kShiftedPositions = 64;

/// The queries, of all query heads. They see the prompt alone.
template <class T>
QueryRows<T> reference_queries(const HeadGroup<T>& group, const ReferenceOptions& options);

/// What they attend to: every fourth position apart, to choose by what the rest were fitted with. Of fewer
/// than four positions there are none apart.
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
