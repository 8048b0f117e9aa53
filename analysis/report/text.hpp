#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {
struct Axis;
}

namespace kvreplay::report {

/// Text for HTML and XML, between tags and in quoted attributes. Bytes that are not UTF-8 and control
/// characters that XML does not allow become U+FFFD.
std::string escaped(std::string_view text);

/// A table under `headings`, plain text, of rows that are HTML ("<tr>..</tr>\n"): it scrolls on its own where
/// the page is narrower.
std::string table_html(const std::vector<std::string>& headings, const std::string& rows,
                       bool numbers = true);

/// JSON that may stand in a <script>: no '<' in it.
std::string script_safe(std::string_view json);

/// JSON for an attribute in single quotes.
std::string attribute_safe(std::string_view json);
/// A text as JSON, quotes included, ASCII alone.
std::string json_string(std::string_view text);

/// Three significant digits: "0.0123", "448", "1.2e-05"; "no value" for NaN.
std::string shown(double value);
/// "[..,..]" of what text_of() makes of every item.
template <class Items, class TextOf>
std::string json_list(const Items& items, const TextOf& text_of) {
  std::string list;
  for (const auto& item : items) (list += list.empty() ? "[" : ",") += text_of(item);
  return list.empty() ? "[]" : list + "]";
}
/// As short as JSON allows, four significant digits; "null" for NaN and infinities.
std::string json_number(double value);
/// [a,b,...] of json_number().
std::string json_numbers(std::span<const double> values);

/// For the page's script: the range and the ticks.
std::string axis_json(const Axis& axis);

/// The digits of base64 by their values: 0 .. 63.
inline constexpr std::string_view kBase64Digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
std::string base64(std::span<const std::uint8_t> bytes);
/// Little-endian float32, as base64.
std::string base64_floats(std::span<const double> values);

}  // namespace kvreplay::report
