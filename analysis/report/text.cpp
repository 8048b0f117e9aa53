#include "analysis/report/text.hpp"

#include "analysis/drawing/axis.hpp"
#include "analysis/results/over_dumps.hpp"
#include "data/utf8.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

namespace kvreplay::report {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Control characters and two others have no place in XML.
bool has_place(const Character& character) {
  const char32_t code = character.code;
  return character.valid && (code >= 0x20 || code == '\n' || code == '\t') && code != 0xFFFE &&
         code != 0xFFFF;
}

std::string replaced(std::string_view text,
                     std::initializer_list<std::pair<char, std::string_view>> substitutes) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto* const found =
        std::ranges::find_if(substitutes, [&](const auto& substitute) { return substitute.first == c; });
    found == substitutes.end() ? out += c : out += found->second;
  }
  return out;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character first = first_character(text);
    const char c = text.front();
    if (!has_place(first))
      out += kReplacement;
    else if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += first.bytes;
    text.remove_prefix(first.bytes.size());
  }
  return out;
}

std::string table_html(const std::vector<std::string>& headings, const std::string& rows, bool numbers) {
  std::string head;
  for (const std::string& heading : headings) head += fmt::format("<th>{}</th>", escaped(heading));
  return fmt::format(
      "<div class=\"scroll\"><table{}><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table></div>",
      numbers ? " class=\"numbers\"" : "", head, rows);
}

std::string script_safe(std::string_view json) { return replaced(json, {{'<', "\\u003c"}}); }

std::string attribute_safe(std::string_view json) {
  return replaced(json, {{'&', "&amp;"}, {'<', "&lt;"}, {'\'', "&#39;"}});
}

std::string json_string(std::string_view text) {
  using Json = nlohmann::ordered_json;
  return Json(std::string(text)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string shown(double value) {
  if (std::isnan(value)) return "no value";
  return short_number(value);
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  return fmt::format("{:.4g}", value);
}

std::string json_numbers(std::span<const double> values) { return json_list(values, json_number); }

std::string axis_json(const Axis& axis) {
  const std::string ticks = json_list(axis.ticks(), [](const AxisTick& tick) {
    return fmt::format("[{:.4g},{}]", tick.at, json_string(tick.text));
  });
  return fmt::format(R"({{"low":{},"high":{},"log":{},"label":{},"ticks":{}}})", axis.low, axis.high,
                     axis.log, json_string(axis.label), ticks);
}

std::string base64(std::span<const std::uint8_t> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    const std::size_t here = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t j = 0; j < 3; ++j) group = group << 8 | (j < here ? bytes[i + j] : 0u);
    for (std::size_t j = 0; j < 4; ++j) text += j <= here ? kBase64Digits[group >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

std::string base64_floats(std::span<const double> values) {
  std::vector<std::uint8_t> bytes;
  bytes.reserve(4 * values.size());
  for (const double value : values) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<std::uint8_t>(bits >> shift));
  }
  return base64(bytes);
}

}  // namespace kvreplay::report
