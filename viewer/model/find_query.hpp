#pragma once

#include "data/dump.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

// What is typed to find something: a place, or a condition that heads or tokens are to meet.

namespace kvreplay::viewer {

/// "L3 H1", "layer 3 head 1", "3.1", "token 379", "379": what is not said stays as it is.
struct PlaceQuery {
  std::optional<Index> layer, kv_head, token;
  bool operator==(const PlaceQuery&) const = default;
};

enum class Compare { less, at_most, more, at_least, equal };
/// "<"
std::string_view symbol_of(Compare compare);
bool holds(Compare compare, double value, double bound);

/// "heads where rho(caote) < 0.8", "tokens where exact_remove > 0.1".
struct WhereQuery {
  bool heads = false;           ///< else tokens of the selected head
  std::string figure;           ///< "rho", in lower case
  std::vector<std::string> of;  ///< "caote": what stands in brackets
  Compare compare = Compare::less;
  double bound = 0;
  bool operator==(const WhereQuery&) const = default;
  std::string text() const;  ///< as it may be typed
};

struct FindQuery {
  std::variant<std::monostate, PlaceQuery, WhereQuery> is;
  std::string error;  ///< one line: what was expected; of what does not begin as a query: empty
};
/// Upper and lower case are one. Never throws.
FindQuery find_query(std::string_view typed);

}  // namespace kvreplay::viewer
