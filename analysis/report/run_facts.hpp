#pragma once

#include "analysis/results/result_reader.hpp"

#include <string>
#include <utility>
#include <vector>

namespace kvreplay::report {

/// "1 layer", "3 layers"
std::string counted(Index n, const char* one);
/// A field as text; empty where there is none or it is null.
std::string text_in(const nlohmann::ordered_json& json, const char* key);

/// How results came about, for the head of a page: names and values, those that are known.
std::vector<std::pair<std::string, std::string>> facts_of(const ResultReader& results);
/// What was computed of what, as a line.
std::string lead_of(const ResultReader& results);
/// Notes and what was left out, each once.
std::vector<std::string> remarks_of(const ResultReader& results);

}  // namespace kvreplay::report
