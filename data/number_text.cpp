#include "data/number_text.hpp"

#include <charconv>
#include <cmath>

namespace kvreplay {

std::string shortest(double value) {
  if (std::isnan(value)) return "nan";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  return std::string(digits, end);
}

}  // namespace kvreplay
