#include "viewer/model/find_query.hpp"

#include "viewer/model/token_text.hpp"
#include "viewer/model/typed_words.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace kvreplay::viewer {
namespace {

constexpr const char* kHeadsExample = "heads where rho(caote) < 0.8";
constexpr const char* kTokensExample = "tokens where exact_remove > 0.1";
constexpr std::array<std::pair<std::string_view, Compare>, 6> kComparisons{{{"<=", Compare::at_most},
                                                                            {">=", Compare::at_least},
                                                                            {"==", Compare::equal},
                                                                            {"<", Compare::less},
                                                                            {">", Compare::more},
                                                                            {"=", Compare::equal}}};

bool is_space(char c) { return c == ' ' || c == '\t'; }
bool is_mark(char c) { return c == '(' || c == ')' || c == ',' || c == '<' || c == '>' || c == '='; }

/// Words, brackets, commas and comparisons, in lower case.
std::vector<std::string> parts_of(std::string_view typed) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < typed.size();) {
    if (is_space(typed[i])) {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    if (!is_mark(typed[i]))
      while (end < typed.size() && !is_space(typed[end]) && !is_mark(typed[end])) ++end;
    else if (end < typed.size() && typed[end] == '=' && typed[i] != '(' && typed[i] != ')' && typed[i] != ',')
      ++end;
    parts.push_back(lower_case(typed.substr(i, end - i)));
    i = end;
  }
  return parts;
}

std::optional<Index> whole(std::string_view text) {
  Index number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

/// "0.8", "80%".
std::optional<double> real(std::string_view text) {
  const bool percent = text.ends_with('%');
  if (percent) text.remove_suffix(1);
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || !std::isfinite(number))
    return std::nullopt;
  return percent ? number / 100 : number;
}

std::string in_quotes(std::string_view part) { return fmt::format("\"{}\"", visible_text(part, 24)); }

/// The parts from left to right.
class Reader {
 public:
  explicit Reader(std::vector<std::string> parts) : parts_(std::move(parts)) {}

  bool ended() const { return at_ == parts_.size(); }
  const std::string& peek() const {
    static const std::string none;
    return ended() ? none : parts_[at_];
  }
  std::string take() { return ended() ? std::string() : parts_[at_++]; }
  bool take(std::string_view wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  bool is_word() const { return !ended() && !is_mark(peek().front()); }
  std::string found() const { return ended() ? "nothing" : in_quotes(peek()); }

 private:
  std::vector<std::string> parts_;
  std::size_t at_ = 0;
};

FindQuery expected(const std::string& what, const Reader& reader, const char* example) {
  return {{}, fmt::format("expected {}, found {}: {}", what, reader.found(), example)};
}

FindQuery where(Reader& reader, bool heads) {
  const char* const example = heads ? kHeadsExample : kTokensExample;
  WhereQuery query{.heads = heads, .figure = {}, .of = {}};
  if (!reader.take("where")) return expected("\"where\"", reader, example);
  if (!reader.is_word()) return expected(heads ? "a figure" : "a metric", reader, example);
  query.figure = reader.take();
  if (reader.take("(")) {
    do {
      if (!reader.is_word()) return expected("a metric", reader, example);
      query.of.push_back(reader.take());
    } while (reader.take(","));
    if (!reader.take(")")) return expected("\",\" or \")\"", reader, example);
  }
  const auto comparison = std::find_if(kComparisons.begin(), kComparisons.end(),
                                       [&](const auto& one) { return one.first == reader.peek(); });
  if (comparison == kComparisons.end()) return expected("<, <=, >, >= or =", reader, example);
  reader.take();
  query.compare = comparison->second;
  const std::optional<double> bound = real(reader.peek());
  if (!bound) return expected("a number", reader, example);
  reader.take();
  query.bound = *bound;
  if (!reader.ended()) return expected("no more", reader, example);
  return {query, {}};
}

/// "l3" and "layer 3" alike: the number behind one of these words.
std::optional<Index> numbered(std::vector<std::string>& words, std::size_t& at,
                              std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (!words[at].starts_with(name)) continue;
    const std::string rest = words[at].substr(name.size());
    if (const auto number = whole(rest)) {
      ++at;
      return number;
    }
    if (rest.empty() && at + 1 < words.size())
      if (const auto number = whole(words[at + 1])) {
        at += 2;
        return number;
      }
  }
  return std::nullopt;
}

std::optional<PlaceQuery> place(std::vector<std::string> words) {
  PlaceQuery query;
  if (words.size() == 1) {
    if (const auto token = whole(words[0])) return PlaceQuery{{}, {}, token};
    const std::size_t dot = words[0].find('.');
    const auto layer = whole(std::string_view(words[0]).substr(0, dot));
    const auto head = dot == std::string::npos ? std::nullopt : whole(words[0].substr(dot + 1));
    if (layer && head) return PlaceQuery{layer, head, {}};
  }
  // "l3h1" is two words.
  std::vector<std::string> split;
  for (const std::string& word : words) {
    const std::size_t h = word.find('h');
    const bool both = word.size() > 3 && word[0] == 'l' && h != std::string::npos && h > 1 &&
                      whole(std::string_view(word).substr(1, h - 1)) &&
                      whole(std::string_view(word).substr(h + 1));
    if (both) split.push_back(word.substr(0, h));
    if (word != "kv" && word != ",") split.push_back(both ? word.substr(h) : word);
  }
  for (std::size_t at = 0; at < split.size();) {
    const auto take = [&](std::optional<Index>& into, std::initializer_list<std::string_view> names) {
      const auto number = into ? std::nullopt : numbered(split, at, names);
      if (number) into = number;
      return number.has_value();
    };
    if (!take(query.layer, {"layer", "l"}) && !take(query.kv_head, {"head", "h"}) &&
        !take(query.token, {"token", "t", "#"}))
      return std::nullopt;
  }
  if (query == PlaceQuery{}) return std::nullopt;
  return query;
}

}  // namespace

std::string_view symbol_of(Compare compare) {
  for (const auto& [symbol, of] : kComparisons)
    if (of == compare) return symbol == "==" ? "=" : symbol;
  return "";
}

bool holds(Compare compare, double value, double bound) {
  switch (compare) {
    case Compare::less:
      return value < bound;
    case Compare::at_most:
      return value <= bound;
    case Compare::more:
      return value > bound;
    case Compare::at_least:
      return value >= bound;
    case Compare::equal:
      return value == bound;
  }
  return false;
}

std::string WhereQuery::text() const {
  return fmt::format("{} where {}{} {} {}", heads ? "heads" : "tokens", figure,
                     of.empty() ? "" : fmt::format("({})", fmt::join(of, ", ")), symbol_of(compare), bound);
}

FindQuery find_query(std::string_view typed) {
  Reader reader(parts_of(typed));
  for (const auto& [name, heads] : {std::pair("heads", true), std::pair("tokens", false)})
    if (reader.take(name)) return where(reader, heads);
  std::vector<std::string> words;
  while (!reader.ended()) words.push_back(reader.take());
  if (auto query = place(std::move(words))) return {*query, {}};
  return {};
}

}  // namespace kvreplay::viewer
