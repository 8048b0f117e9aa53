#pragma once

#include <nlohmann/json.hpp>

#include <string>

namespace kvreplay {

/// The first key under which two settings differ, as "options.tokens.window was 32, is 64"; empty where they
/// are equal.
std::string settings_difference(const nlohmann::ordered_json& was, const nlohmann::ordered_json& is,
                                const std::string& where = "");

}  // namespace kvreplay
