#include "analysis/results/text_file.hpp"

#include "data/error.hpp"
#include "data/json_fields.hpp"

#include <fmt/format.h>

namespace kvreplay {

std::optional<nlohmann::ordered_json> json_object_in(const std::filesystem::path& path) {
  constexpr std::uintmax_t kMost = std::uintmax_t{1} << 28;
  try {
    auto json = parse_json<nlohmann::ordered_json>(file_text(path, kMost), path.string());
    if (json.is_object()) return json;
  } catch (const InputError&) {  // whoever asks says what is missing
  }
  return std::nullopt;
}

std::string unquoted(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace kvreplay
