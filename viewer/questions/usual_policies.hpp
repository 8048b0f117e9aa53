#pragma once

#include "viewer/questions/what_if.hpp"

#include <array>
#include <string>

namespace kvreplay::viewer {

/// Policies that are compared most: each ranks by the window's data and needs no search.
inline constexpr std::array kUsualPolicies = {EvictionBase::streaming, EvictionBase::h2o,
                                              EvictionBase::tova,      EvictionBase::snapkv,
                                              EvictionBase::keydiff,   EvictionBase::expected_attention};

/// The policy as it is by itself, at the budget of another setting.
inline WhatIfSettings at_budget_of(const WhatIfSettings& other, EvictionBase base) {
  WhatIfSettings settings;
  settings.base = std::string(name_of(base));
  settings.semantics = other.semantics;
  static_cast<KeptBudget&>(settings) = other;
  return settings;
}

}  // namespace kvreplay::viewer
