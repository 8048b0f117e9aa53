#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

// R-KV's score of a cache's tokens (arXiv 2505.24133, sec. 3; the readings of its authors' code where the
// paper leaves a choice): what recent queries attend to, less what other keys say as well.

namespace kvreplay {

inline constexpr double kRkvLambda = 0.1;     ///< lambda: the importance's share
inline constexpr double kRkvThreshold = 0.5;  ///< T: keys of a larger cosine are similar
inline constexpr Index kRkvPool = 7;          ///< width of the importance's max pooling

/// lambda I - (1 - lambda) R of every candidate, [l]. The window is the last `window` prompt queries, as far
/// as they are there. I: the softmax over the candidates before the window of each row's logits, of which the
/// largest of the query heads counts, as the mean over the rows, then pooled; 0 in the window. R: the softmax
/// over all candidates of the mean cosine of a key with the others', where each key's last similar one does
/// not count. O(l^2 d) and O(l d) memory; the same bytes for any number of
/// threads.
Vector<double> rkv_scores(const HeadGroup<double>& group, Index window, Workers& workers);

/// Reference implementation.
Vector<double> rkv_reference(const HeadGroup<double>& group, Index window);

}  // namespace kvreplay
