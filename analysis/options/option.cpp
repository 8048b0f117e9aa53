#include "analysis/options/option.hpp"

#include "data/number_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

namespace kvreplay {
namespace {

/// The finite decimal number that all of a word spells.
std::optional<double> real(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool spelled = error == std::errc{} && end == word.data() + word.size() && std::isfinite(value);
  return spelled ? std::optional(value) : std::nullopt;
}

/// Throws the complaint() about a word, where there is one.
void require(const OptionFacts& option, const std::string& complaint) {
  if (!complaint.empty()) throw OptionError(option_text("{}: {}", option, complaint));
}

}  // namespace

std::optional<Index> index_in(std::string_view text, Index most) {
  Index value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool spelled = error == std::errc{} && end == text.data() + text.size();
  return spelled && value <= most ? std::optional(value) : std::nullopt;
}

std::string OptionValue<Index>::complaint(const OptionFacts& option, const std::string& word) {
  const auto value = index_in(word);
  if (value && *value >= option.least && *value <= option.most) return "";
  return fmt::format("expected a whole number {}, found '{}'",
                     option.most == kNoLimit ? fmt::format("of at least {}", option.least)
                                             : fmt::format("from {} to {}", option.least, option.most),
                     word);
}
Index OptionValue<Index>::parse(const OptionFacts& option, const std::string& word) {
  require(option, complaint(option, word));
  return *index_in(word);
}
std::string OptionValue<Index>::text(Index value) { return fmt::format("{}", value); }
Index OptionValue<Index>::from_json(const Json& json, const std::string& where) {
  constexpr Index kMost = Index{1} << 60;  // so that positions can be added to it
  const bool fits = json.is_number_unsigned() ? json.get<std::uint64_t>() <= std::uint64_t{kMost}
                                              : json.is_number_integer() && json.get<Index>() >= 0;
  if (!fits) throw InputError(where, "a whole number of at least 0", json_text(json));
  return json.get<Index>();
}

std::string or_else(const std::string& complaint, std::string_view alternative) {
  const std::size_t found = std::min(complaint.rfind(", found"), complaint.size());
  return complaint.empty()
             ? ""
             : fmt::format("{}{}{}", complaint.substr(0, found), alternative, complaint.substr(found));
}

namespace {

/// The share that "5%" or "all" says, in percent; nothing where a word says none.
std::optional<double> percent_in(const std::string& word) {
  if (word == "all") return 100;
  if (!word.ends_with('%')) return std::nullopt;
  const auto percent = real(word.substr(0, word.size() - 1));
  return percent && *percent > 0 && *percent <= 100 ? percent : std::nullopt;
}

}  // namespace

std::string OptionValue<Positions>::complaint(const OptionFacts& option, const std::string& word) {
  if (percent_in(word)) return "";
  return or_else(OptionValue<Index>::complaint(option, word), ", a share of the prompt as 5%, or all");
}
Positions OptionValue<Positions>::parse(const OptionFacts& option, const std::string& word) {
  const auto percent = percent_in(word);
  return percent ? Positions::share(*percent) : Positions(OptionValue<Index>::parse(option, word));
}
std::string OptionValue<Positions>::text(const Positions& value) {
  if (value.percent == 0) return OptionValue<Index>::text(value.count);
  return value.percent == 100 ? "all" : shortest(value.percent) + "%";
}
Json OptionValue<Positions>::json(const Positions& value) {
  return value.percent == 0 ? Json(value.count) : Json(text(value));
}
Positions OptionValue<Positions>::from_json(const Json& json, const std::string& where) {
  if (!json.is_string()) return OptionValue<Index>::from_json(json, where);
  const auto percent = percent_in(json.get<std::string>());
  if (!percent) throw InputError(where, "whole positions, a share as \"5%\", or \"all\"", json_text(json));
  return Positions::share(*percent);
}

std::string OptionValue<double>::complaint(const OptionFacts&, const std::string& word) {
  return real(word) ? "" : fmt::format("expected a number, found '{}'", word);
}
double OptionValue<double>::parse(const OptionFacts& option, const std::string& word) {
  require(option, complaint(option, word));
  return *real(word);
}
std::string OptionValue<double>::text(double value) { return shortest(value); }
double OptionValue<double>::from_json(const Json& json, const std::string& where) {
  if (!json.is_number()) throw InputError(where, "a number", json_text(json));
  return json.get<double>();
}

std::string in_known_spelling(std::string_view text, const std::vector<std::string>& names) {
  const auto is_of_a_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  };
  const auto spelled = [&](std::string_view part) {
    std::string_view known = part;
    if (std::ranges::find(names, part) != names.end()) return known;
    for (const std::string& name : names) {
      if (!same_name(name, part)) continue;
      if (known != part && known != name) return part;
      known = name;
    }
    return known;
  };
  std::string all;
  while (!text.empty()) {
    const auto end = static_cast<std::size_t>(std::ranges::find_if_not(text, is_of_a_name) - text.begin());
    all += end == 0 ? text.substr(0, 1) : spelled(text.substr(0, end));
    text.remove_prefix(std::max<std::size_t>(end, 1));
  }
  return all;
}

std::string names_text(const std::vector<std::string>& names, Listed how) {
  switch (how) {
    case Listed::all:
      return fmt::format("{}", fmt::join(names, ", "));
    case Listed::one_of:
      return fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
    case Listed::either:
      return fmt::format("{}", fmt::join(names, " or "));
    case Listed::some:
      return fmt::format("some of {}", fmt::join(names, ", "));
  }
  return "";
}

BoundOption bind_option(const OptionFacts& facts, bool& field) {
  BoundOption bound = option_detail::named(facts);
  bound.read = [&](const std::vector<std::string>&) { field = true; };
  bound.write = [&] { return Json(field); };
  bound.read_json = [&](const Json& json, const std::string& where) {
    if (!json.is_boolean()) throw InputError(where, "true or false", json_text(json));
    field = json.get<bool>();
  };
  return bound;
}

std::string title_of(const OptionFacts& option) {
  std::string title(option.name);
  std::replace(title.begin(), title.end(), '-', ' ');
  if (title.front() >= 'a' && title.front() <= 'z')
    title.front() = static_cast<char>(title.front() - 'a' + 'A');
  return title;
}

void read_json(const BoundOptions& options, const Json& json, const std::string& where) {
  if (!json.is_object()) throw InputError(where, "an object", json_text(json));
  for (const BoundOption& option : options) {
    const auto found = json.find(option.key);
    if (found != json.end() && !found->is_null()) option.read_json(*found, where + ": " + option.key);
  }
}

Json to_json(const BoundOptions& options) {
  Json json = Json::object();
  for (const BoundOption& option : options) {
    if (option.key.empty()) continue;
    if (auto value = option.write()) json[option.key] = std::move(*value);
  }
  return json;
}

namespace option_detail {

BoundOption named(const OptionFacts& facts) {
  BoundOption bound;
  bound.facts = &facts;
  bound.key = facts.name;
  std::replace(bound.key.begin(), bound.key.end(), '-', '_');
  return bound;
}

std::string word_of(const Json& json, const std::string& where) {
  if (!json.is_string()) throw InputError(where, "a text", json_text(json));
  return json.get<std::string>();
}

std::string at(const std::string& where, const OptionError& error) {
  return where.substr(0, where.rfind(": ")) + ": " + error.line().plain();
}

const Json& list_of(const Json& json, const std::string& where) {
  if (!json.is_array()) throw InputError(where, "a list", json_text(json));
  return json;
}

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ",")); }

}  // namespace option_detail

namespace {

/// Items that are no file, joined with those behind them to one.
std::vector<std::string> with_files_whole(const std::vector<std::string>& items) {
  const auto is_there = [](const std::string& item) {
    std::error_code ignored;
    const std::size_t equals = item.find('=');
    return std::filesystem::exists(item, ignored) ||
           (equals != std::string::npos && std::filesystem::exists(item.substr(equals + 1), ignored));
  };
  std::vector<std::string> whole;
  for (std::size_t first = 0; first < items.size(); ++first) {
    whole.push_back(items[first]);
    if (is_there(items[first])) continue;
    std::string joined = items[first];
    // No file has a longer name: the joins of a long list would take its square in time.
    constexpr std::size_t kLongestName = 255;
    for (std::size_t last = first + 1; last < items.size(); ++last) {
      joined += "," + items[last];
      if (joined.size() - (joined.find_last_of("/=") + 1) > kLongestName) break;
      if (!is_there(joined)) continue;
      whole.back() = joined;
      first = last;
      break;
    }
  }
  return whole;
}

}  // namespace

std::vector<std::string> items_of(const std::string& list, bool of_files) {
  std::vector<std::string> items(1);
  char quote = 0;
  bool bracketed = false, of_places = false;
  for (std::size_t at = 0; at < list.size(); ++at) {
    const char c = list[at];
    if (c == '\\' && at + 1 < list.size() && list[at + 1] == ',') {
      items.back() += list[++at];
    } else if (quote != 0 ? c == quote : (c == '"' || c == '\'') && list.find(c, at + 1) < list.size()) {
      quote = quote != 0 ? 0 : c;
    } else if (c == ',' && quote == 0 && !bracketed && !of_places) {
      items.emplace_back();
    } else {
      items.back() += c;
      of_places = c == ';' ? list.find(':', at) < list.size() : of_places && c != ':';
      if (c == '[') {  // unless it is never closed
        const std::size_t end = list.find_first_of("[]", at + 1);
        bracketed = end < list.size() && list[end] == ']';
      } else if (c == ']') {
        bracketed = false;
      }
    }
  }
  return of_files ? with_files_whole(items) : items;
}

std::vector<std::string> with_each_alternative(const std::string& word) {
  const std::size_t open = word.find('[');
  const std::size_t slash = open == std::string::npos ? open : word.find('/', open);
  if (slash == std::string::npos) return {word};
  const std::size_t begin = word.find_last_of("[,=", slash) + 1;
  std::size_t end = word.find_first_of(",]", slash);
  if (end == std::string::npos) end = word.size();
  std::vector<std::string> words;
  for (std::size_t at = begin; at <= end;) {
    const std::size_t next = std::min(word.find('/', at), end);
    const std::string one = word.substr(0, begin) + word.substr(at, next - at) + word.substr(end);
    for (std::string& each : with_each_alternative(one)) words.push_back(std::move(each));
    at = next + 1;
  }
  return words;
}

void read_own_options(const OptionFacts& named_by, const std::string& text, const BoundOptions& own,
                      const std::function<std::optional<std::string>(const OptionFacts&)>& why_no_effect) {
  const std::size_t open = text.find('[');
  if (open == std::string::npos) return;
  const auto fail = [&](const std::string& what) {
    throw OptionError(option_text("{}: '{}': {}", named_by, text, what));
  };
  if (!text.ends_with(']')) fail("expected ']' at its end");
  const std::string inside = text.substr(open + 1, text.size() - open - 2);
  std::vector<std::string> names, given;
  for (const BoundOption& option : own) names.emplace_back(option.facts->name);
  for (std::size_t at = 0; at <= inside.size();) {
    const std::size_t end = std::min(inside.find(',', at), inside.size());
    const std::string item = inside.substr(at, end - at);
    at = end + 1;
    const std::size_t equals = item.find('=');
    const std::string name = item.substr(0, equals),
                      word = equals < item.size() ? item.substr(equals + 1) : "";
    const auto option =
        std::ranges::find_if(own, [&](const BoundOption& one) { return one.facts->name == name; });
    if (equals == std::string::npos || word.empty())
      fail(fmt::format("expected [NAME=VALUE,...] with {}, found '{}'", fmt::join(names, ", "), item));
    if (option == own.end()) fail(fmt::format("unknown option '{}'{}", name, alternatives(name, names)));
    if (std::ranges::find(given, name) != given.end())
      fail(fmt::format("{}: expected once, found twice", name));
    given.push_back(name);
    const std::string complaint = option->complaint ? option->complaint(word) : "";
    if (!complaint.empty()) fail(fmt::format("{}: {}", name, complaint));
    try {
      option->read({word});
    } catch (const OptionError& error) {
      fail(error.what());
    }
    if (const auto why = why_no_effect(*option->facts)) fail(fmt::format("{} has no effect: {}", name, *why));
  }
}

bool spells_missing(std::string_view text) {
  constexpr std::string_view kMissing[] = {"nan", "NaN", "NA", "N.A.", "na", "null", "NULL", "None"},
                             kInAnyCase[] = {"inf", "infinity", "true", "false"};
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::ranges::find(kMissing, text) != std::end(kMissing) ||
         std::ranges::find(kInAnyCase, lower) != std::end(kInAnyCase);
}

std::string alternatives(std::string_view given, const std::vector<std::string>& names) {
  const std::string near = did_you_mean(given, names);
  return near.empty() ? fmt::format("; there are: {}", fmt::join(names, ", ")) : near;
}

OptionText::OptionText(const OptionFacts& option) : marked_(kMark + std::string(option.name)) {}

OptionText OptionText::naming(std::string_view option, std::string_view as) const {
  const std::string marked = kMark + std::string(option);
  const auto ends = [&](std::size_t at) {
    return at >= marked_.size() ||
           (std::isalnum(static_cast<unsigned char>(marked_[at])) == 0 && marked_[at] != '-');
  };
  std::string text = marked_;
  for (std::size_t at = marked_.rfind(marked); at != std::string::npos; at = marked_.rfind(marked, at - 1)) {
    if (ends(at + marked.size())) text.replace(at + 1, option.size(), as);
    if (at == 0) break;
  }
  return text;
}

std::string OptionText::written(std::string_view before) const {
  std::string text;
  for (const char c : marked_) c == kMark ? text += before : text += c;
  return text;
}

}  // namespace kvreplay
