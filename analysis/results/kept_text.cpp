#include "analysis/results/kept_text.hpp"

#include "analysis/options/option.hpp"
#include "analysis/results/csv.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

namespace kvreplay {
namespace {

std::optional<double> sigma_of(std::string_view label) {
  const std::string text(label);
  char* end = nullptr;
  const double sigma = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == 0 && sigma > 0 && sigma < 1 ? std::optional(sigma) : std::nullopt;
}

double rounded(double value) {
  constexpr double kDigits = 1e12;
  return std::round(value * kDigits) / kDigits;
}

}  // namespace

double rest_of(double share) { return rounded(1 - share); }

std::optional<double> kept_share(std::string_view label, std::ptrdiff_t l) {
  if (const auto tokens = index_in(label, kNoLimit))
    return l > 0 ? std::optional(static_cast<double>(*tokens) / static_cast<double>(l)) : std::nullopt;
  const auto sigma = sigma_of(label);
  return sigma ? std::optional(rest_of(*sigma)) : std::nullopt;
}

std::string percent(double share) { return fmt::format("{} %", shortest(rounded(100 * share))); }

std::string kept_text(std::string_view label) {
  if (const auto tokens = index_in(label, kNoLimit)) return "kept " + counted(*tokens, "token");
  const auto sigma = sigma_of(label);
  return sigma ? fmt::format("kept {}", percent(rest_of(*sigma))) : std::string(label);
}

std::string rows_text(std::string_view rows) {
  return std::string(rows == "future" ? "decoding steps" : rows);
}

}  // namespace kvreplay
