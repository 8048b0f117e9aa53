#include "analysis/results/view_link.hpp"

#include "analysis/options/option.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <set>

namespace kvreplay {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 &&
        (std::isalnum(byte) != 0 || std::string_view("-_.~/").find(c) != std::string_view::npos))
      out += c;
    else
      out += fmt::format("%{:02X}", byte);
  }
  return out;
}

std::string unescaped(std::string_view text, std::string_view link) {
  const auto digit = [](char c) {
    return std::string_view("0123456789abcdef")
        .find(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const std::size_t high = i + 2 < text.size() ? digit(text[i + 1]) : std::string_view::npos;
    const std::size_t low = i + 2 < text.size() ? digit(text[i + 2]) : std::string_view::npos;
    if (high == std::string_view::npos || low == std::string_view::npos || (high == 0 && low == 0))
      throw InputError(std::string(link), "% with two hexadecimal digits", fmt::format("'{}'", text));
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

/// Calls f(key, field) for each text, and g for each number, in the order in which they are written.
template <class Link, class F, class G>
void each_field(Link& link, F text, G number) {
  text("run", link.run);
  text("dump", link.dump);
  text("panel", link.panel);
  number("layer", link.layer);
  number("head", link.kv_head);
  number("query-head", link.query_head);
  number("row", link.row);
  number("token", link.token);
  text("score", link.score);
  text("reference", link.reference);
  number("window", link.window);
}

}  // namespace

bool is_view_link(std::string_view text) { return text.starts_with("kvreplay:"); }

std::string text_of(const ViewLink& link) {
  std::string query;
  const auto add = [&](const char* key, const std::string& value) {
    query += fmt::format("{}{}={}", query.empty() ? "" : "&", key, escaped(value));
  };
  each_field(
      link,
      [&](const char* key, const std::string& value) {
        if (!value.empty()) add(key, value);
      },
      [&](const char* key, const std::optional<Index>& value) {
        if (value) add(key, std::to_string(*value));
      });
  return std::string(kLinkBegin) + query;
}

ViewLink view_link(std::string_view text) {
  const std::string whole(text);
  if (!text.starts_with(kLinkBegin))
    throw InputError("a link", fmt::format("{}run=...", kLinkBegin), fmt::format("'{}'", whole));
  std::string_view rest = text.substr(kLinkBegin.size());
  rest = rest.substr(0, rest.find('#'));
  ViewLink link;
  std::set<std::string, std::less<>> seen;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
    if (item.empty()) continue;
    const std::size_t equals = item.find('=');
    const std::string key(item.substr(0, equals));
    const std::string value =
        equals == std::string_view::npos ? std::string() : unescaped(item.substr(equals + 1), whole);
    if (!seen.insert(key).second) throw InputError(whole, fmt::format("{} once", key), "it twice");
    bool known = false;
    std::string keys;
    const auto wanted = [&](const char* name) {
      keys += fmt::format("{}{}", keys.empty() ? "" : ", ", name);
      return key == name && (known = true);
    };
    each_field(
        link,
        [&](const char* name, std::string& field) {
          if (wanted(name)) field = value;
        },
        [&](const char* name, std::optional<Index>& field) {
          if (!wanted(name)) return;
          field = index_in(value);
          if (!field || *field < 0)
            throw InputError(whole, fmt::format("a whole number as {}", name), fmt::format("'{}'", value));
        });
    if (!known) throw InputError(whole, fmt::format("keys among {}", keys), fmt::format("'{}'", key));
  }
  if (link.run.empty()) throw InputError(whole, "run=PATH", "none");
  return link;
}

}  // namespace kvreplay
