#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

namespace kvreplay {

/// The largest weight that a query of the second reading gives each prompt token, [G, l], 0 for a token that
/// none of them sees. The softmax is over the prompt and the sink column (KVzip, arXiv 2505.23416, but
/// for the repeated keys, which share its softmax there). Products in T; a weight is kept as its
/// logarithm until the end, so that none vanishes. Cost 2 G R l d flops and G R l exponentials; holds l + d
/// panels of rows a thread. The same bytes for any number of threads. Throws InputError where a number
/// overflows T.
template <class T>
Matrix<double> largest_repeat_attention(const HeadGroup<T>& group, Workers& workers);

}  // namespace kvreplay
