#pragma once

#include <cstddef>

namespace kvreplay {

using Index = std::ptrdiff_t;

/// Matrices whose columns are query rows are kept in panels of this many columns, each panel row-major: two
/// vectors of AVX-512, a whole number of vectors everywhere.
template <class T>
inline constexpr Index kPanelWidth = 128 / static_cast<Index>(sizeof(T));

}  // namespace kvreplay
