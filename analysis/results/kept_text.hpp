#pragma once

#include "analysis/results/schema.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Values of the tables' key columns as readable text. A budget's label is a number of tokens ("410") or a
// compression ratio sigma ("0.8").

namespace kvreplay {

/// 1 - x to twelve digits, so that 0.7 and 0.3 map to each other: from a compression ratio to the kept share,
/// and back.
double rest_of(double share);

/// The share that a label keeps of l tokens; for a compression ratio, the requested share. Nothing for other
/// texts.
std::optional<double> kept_share(std::string_view label, std::ptrdiff_t l);

/// "20 %", "0.5 %"
std::string percent(double share);

/// "kept 20 %" of "0.8", "kept 410 tokens" of "410"; other texts as they are.
std::string kept_text(std::string_view label);
/// kept_text() of a token count, with its share of the prompt: "kept 20 tokens (2.2 %)".
std::string kept_with_share(std::string_view label, double share);

/// "decoding steps" for "future"; other rows as they are called.
std::string rows_text(std::string_view rows);

/// True if the policy or budget method that a key names is an oracle: one that uses the decoding steps on
/// which it is judged, which is impossible in a running engine. Oracles are shown next to the others and
/// never called the best.
bool is_oracle(Table table, std::string_view key, std::string_view value);

/// The value of a key as readable text: "lu (oracle)" for budgets' method "lu", rows_text() for rows,
/// kept_text() for budget and sigma.
std::string shown_key(Table table, std::string_view key, std::string_view value);
/// The values of several keys as people read them.
std::vector<std::string> shown_keys(Table table,
                                    std::span<const std::pair<std::string_view, std::string_view>> keys);

}  // namespace kvreplay
