#include "analysis/results/text_file.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <exception>
#include <fstream>
#include <system_error>

namespace kvreplay {

std::string file_text(const std::filesystem::path& path, std::uintmax_t most) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw InputError(path.string(), "a file",
                     std::filesystem::exists(path, error) ? "something else" : "none");
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > most)
    throw InputError(path.string(), fmt::format("at most {} bytes", most), fmt::format("{}", size));
  std::ifstream in(path, std::ios::binary);
  std::string text;
  try {
    text.resize(error ? 0 : static_cast<std::size_t>(size));
  } catch (const std::exception&) {
    throw InputError(path.string(), "a file that fits into memory", fmt::format("{} bytes", size));
  }
  if (error || !in || !in.read(text.data(), static_cast<std::streamsize>(text.size())))
    throw InputError(path.string() + ": cannot be read");
  return text;
}

std::optional<Json> json_object_in(const std::filesystem::path& path) {
  constexpr std::uintmax_t kMost = std::uintmax_t{1} << 28;
  try {
    auto json = parse_json(file_text(path, kMost), path.string());
    if (json.is_object()) return json;
  } catch (const InputError&) {  // whoever asks says what is missing
  }
  return std::nullopt;
}

std::string unquoted(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace kvreplay
