#pragma once

#include "analysis/results/result_reader.hpp"
#include "data/dump.hpp"

#include <optional>
#include <string>

namespace kvreplay {

/// What the tokens of a dump are called, where the results' dump still lies there unchanged in make and has
/// such names.
std::optional<TokenLabels> token_labels_of(const ResultReader& results);

/// "' len'": a token's text in quotes, short and on one line. Empty where it has none.
std::string quoted_token(const std::optional<TokenLabels>& labels, Index token);

}  // namespace kvreplay
