#include "analysis/results/text_file.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

namespace kvreplay {

std::optional<Json> json_object_in(const std::filesystem::path& path) {
  constexpr std::uintmax_t kMost = std::uintmax_t{1} << 28;
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored))
    static_cast<void>(file_text(path, kMost));  // throws
  try {
    auto json = parse_json(file_text(path, kMost), path.string());
    if (json.is_object()) return json;
  } catch (const InputError&) {  // the caller reports what is missing
  }
  return std::nullopt;
}

std::string unquoted(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace kvreplay
