#pragma once

#include "analysis/results/schema.hpp"

#include <string>
#include <string_view>

namespace kvreplay {

/// Whether what a key of a table names, a policy or a budget method, looks at the decoding steps that it is
/// judged on, as nothing can that runs. Such an oracle is shown beside the others and never called the best.
bool is_oracle(Table table, std::string_view key, std::string_view value);

/// The value of a key as people read it: of budgets' method "lu" it is "lu (oracle)".
std::string shown_key(Table table, std::string_view key, const std::string& value);

}  // namespace kvreplay
