#pragma once

#include "analysis/results/result_reader.hpp"
#include "data/dump.hpp"

#include <optional>
#include <string>

namespace kvreplay {

/// The dump that results are of, where it still lies there unchanged in make.
std::optional<Dump> dump_of(const ResultReader& results);

/// What its tokens are called, where it is there and has such names.
std::optional<TokenLabels> token_labels_of(const ResultReader& results);

/// "' len'": a token's text in quotes, short and on one line. Empty where it has none.
std::string quoted_token(const std::optional<TokenLabels>& labels, Index token);

}  // namespace kvreplay
