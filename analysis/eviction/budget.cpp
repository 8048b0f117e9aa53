#include "analysis/eviction/budget.hpp"

#include "analysis/results/kept_text.hpp"
#include "data/number_text.hpp"

#include <fmt/format.h>

namespace kvreplay {

double Budget::ratio(Index l) const {
  return tokens ? rest_of(static_cast<double>(*tokens) / static_cast<double>(l)) : sigma;
}

std::string Budget::label() const { return tokens ? fmt::format("{}", *tokens) : shortest(sigma); }

}  // namespace kvreplay
