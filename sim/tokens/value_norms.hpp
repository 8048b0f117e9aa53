#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

namespace kvreplay {

/// ||v_p|| of the candidates, [l].
template <class T>
Vector<double> value_norms(const HeadGroup<T>& group, Workers& workers);

/// ||v_p W_O(g)|| of the candidates as query head g writes them, [l]; ||v_p|| where the group has no wo.
template <class T>
Vector<double> projected_value_norms(const HeadGroup<T>& group, Index g, Workers& workers);

}  // namespace kvreplay
