#pragma once

#include "data/console.hpp"
#include "data/dtype.hpp"
#include "data/dump.hpp"
#include "data/error.hpp"
#include "data/json_fields.hpp"
#include "sim/positions.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// Lines that name options. The libraries name an option by its concept ("sinks and recent: expected at most
// ..."). The interface that shows the line spells the option: a command line puts dashes before it.

namespace kvreplay {

struct OptionFacts;

class OptionText {
 public:
  OptionText(std::string line) : marked_(std::move(line)) {}  // NOLINT: a line that names none
  OptionText(const char* line) : marked_(line) {}             // NOLINT
  OptionText(const OptionFacts& option);                      // NOLINT: its name

  /// "sinks and recent: ..".
  std::string plain() const { return written(""); }
  /// "--sinks and --recent: ..".
  std::string dashed() const { return written("--"); }
  /// With a mark before each option, so that it stays one within another line.
  const std::string& marked() const { return marked_; }

  /// The text with `option` called `as`.
  OptionText naming(std::string_view option, std::string_view as) const;

  static constexpr char kMark = '\x1a';

 private:
  std::string written(std::string_view before) const;

  std::string marked_;
};

}  // namespace kvreplay

template <>
struct fmt::formatter<kvreplay::OptionText> : fmt::formatter<std::string> {
  auto format(const kvreplay::OptionText& text, fmt::format_context& context) const {
    return fmt::formatter<std::string>::format(text.marked(), context);
  }
};
template <>
struct fmt::formatter<kvreplay::OptionFacts> : fmt::formatter<kvreplay::OptionText> {};

namespace kvreplay {

/// fmt::format(); options and texts among the arguments stay what they are.
template <class... Arguments>
OptionText option_text(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  return fmt::format(format, std::forward<Arguments>(arguments)...);
}

/// "1 layer", "2 layers".
inline std::string counted(std::ptrdiff_t n, const char* one) {
  return fmt::format("{} {}{}", n, one, n == 1 ? "" : "s");
}

/// An InputError about options; what() is the plain line.
class OptionError : public InputError {
 public:
  explicit OptionError(OptionText line) : InputError(line.plain()), line_(std::move(line)) {}
  OptionError(const OptionText& what, const OptionText& expected, const std::string& found)
      : OptionError(option_text("{}: expected {}, found {}", what, expected, found)) {}
  const OptionText& line() const { return line_; }

 private:
  OptionText line_;
};

/// Far beyond any token count, and small enough to be added to another.
inline constexpr Index kNoLimit = std::numeric_limits<Index>::max() / 4;

/// The whole number that all of `text` spells; nothing where it spells none, or one above `most`.
std::optional<Index> index_in(std::string_view text, Index most = std::numeric_limits<Index>::max());

/// Description of an option, used wherever the option is named: the command line and its help, TOML, JSON,
/// messages and the dashboard's controls.
struct OptionFacts {
  std::string_view name = {};        ///< "decode-window": after the dashes, and in TOML; JSON has '_' for '-'
  std::string_view takes = {};       ///< "N", "LIST"; empty: nothing, it is a flag
  std::string_view meaning = {};     ///< a sentence
  std::string_view otherwise = {};   ///< the default as text; empty: the field's value
  Index least = 0, most = kNoLimit;  ///< of a whole number
};

/// "Decode window": its name over a control.
std::string title_of(const OptionFacts& option);

/// Conversion of values, by type. text() and parse() convert one word; parse() throws OptionError. json() and
/// from_json() exist if the value is not text in JSON. complaint() describes an error in the form of a word
/// before anything is parsed; if it is empty, parse() does not throw. A list of a type that has kAlternatives
/// takes with_each_alternative() of every word; kFiles: words are, or end in, names of files.
template <class T>
struct OptionValue;

template <>
struct OptionValue<Index> {
  static std::string complaint(const OptionFacts& option, const std::string& word);
  static Index parse(const OptionFacts& option, const std::string& word);
  static std::string text(Index value);
  static Json json(Index value) { return value; }
  static Index from_json(const Json& json, const std::string& where);
};
template <>
struct OptionValue<double> {
  static std::string complaint(const OptionFacts& option, const std::string& word);
  static double parse(const OptionFacts& option, const std::string& word);
  static std::string text(double value);
  static Json json(double value) { return value; }
  static double from_json(const Json& json, const std::string& where);
};
/// A complaint() with another thing that is expected, too: ", or all". Empty where the complaint is.
std::string or_else(const std::string& complaint, std::string_view alternative);
/// Whole positions, a share of the prompt as 5%, or all of it.
template <>
struct OptionValue<Positions> {
  static std::string complaint(const OptionFacts& option, const std::string& word);
  static Positions parse(const OptionFacts& option, const std::string& word);
  static std::string text(const Positions& value);
  static Json json(const Positions& value);
  static Positions from_json(const Json& json, const std::string& where);
};
template <>
struct OptionValue<std::string> {
  static std::string parse(const OptionFacts&, const std::string& word) { return word; }
  static std::string text(const std::string& value) { return value; }
};

/// A text in which each part of letters, digits, '-', '_' and '.' that is the same_name() as just one of some
/// names is spelled as that one: "SnapKV+Joint[window=64]" is snapkv+joint[window=64]. A part that is one of
/// them stays.
std::string in_known_spelling(std::string_view text, const std::vector<std::string>& names);

/// Forms in which messages list names: "a, b, c", "a, b or c", "a or b or c", "some of a, b, c".
enum class Listed { all, one_of, either, some };
std::string names_text(const std::vector<std::string>& names, Listed how);

/// A value of an enumeration that has a table of facts: by its names.
template <const auto& kTable, Listed kHow>
struct NamedValue {
  using Enum = typename std::remove_cvref_t<decltype(kTable)>::Enum;
  static Enum parse(const OptionFacts& option, const std::string& word) {
    if (const auto value = kTable.named(in_known_spelling(word, kTable.names()))) return *value;
    throw OptionError(option, names_text(kTable.names(), kHow), fmt::format("'{}'", word));
  }
  static std::string text(Enum value) { return std::string(kTable[value].name); }
};

template <>
struct OptionValue<Dtype> : NamedValue<kDtypes, Listed::one_of> {};

/// An option and the field that holds it.
struct BoundOption {
  const OptionFacts* facts = nullptr;
  bool list = false;
  bool of_files = false;  ///< FILE or NAME=FILE, whose names may have commas
  /// Read after all others: it names what they give.
  bool last = false;
  std::string key;      ///< in JSON; empty: it is not there
  std::string words;    ///< text behind the meaning: the words that the option takes
  std::string initial;  ///< the field's value as text; empty where it has none
  std::function<std::string(const std::string&)> complaint;  ///< of one word; may be empty
  std::function<void(const std::vector<std::string>&)> read;
  std::function<std::optional<Json>()> write;  ///< nothing where there is nothing to say
  std::function<void(const Json&, const std::string& where)> read_json;

  std::vector<const OptionFacts*> excludes;
  const OptionFacts* needs = nullptr;

  bool flag() const { return facts->takes.empty(); }
  BoundOption saying(std::string more) && { return words = std::move(more), std::move(*this); }
  BoundOption naming_files() && { return of_files = true, std::move(*this); }
  BoundOption keyed(std::string name) && { return key = std::move(name), std::move(*this); }
  BoundOption excluding(const OptionFacts& other) && { return excludes.push_back(&other), std::move(*this); }
  BoundOption needing(const OptionFacts& other) && { return needs = &other, std::move(*this); }
};
using BoundOptions = std::vector<BoundOption>;

/// Options as JSON. An absent or null value leaves its field unchanged. read_json() throws InputError, one
/// line that begins with `where`, for a wrong type and for an unknown word.
void read_json(const BoundOptions& options, const Json& json, const std::string& where);
Json to_json(const BoundOptions& options);

namespace option_detail {

template <class T>
Json to_json(const T& value) {
  if constexpr (requires { OptionValue<T>::json(value); })
    return OptionValue<T>::json(value);
  else
    return OptionValue<T>::text(value);
}

std::string word_of(const Json& json, const std::string& where);
/// Calls f; what an option's parser throws is said of `where`.
std::string at(const std::string& where, const OptionError& error);

template <class T>
T from_json(const OptionFacts& option, const Json& json, const std::string& where) {
  if constexpr (requires { OptionValue<T>::from_json(json, where); })
    return OptionValue<T>::from_json(json, where);
  else
    try {
      return OptionValue<T>::parse(option, word_of(json, where));
    } catch (const OptionError& error) {
      throw InputError(at(where, error));
    }
}

BoundOption named(const OptionFacts& facts);
const Json& list_of(const Json& json, const std::string& where);
std::string joined(const std::vector<std::string>& words);

template <class T>
BoundOption described(const OptionFacts& facts, bool list) {
  BoundOption bound = named(facts);
  bound.list = list;
  bound.of_files = requires { OptionValue<T>::kFiles; };
  if constexpr (requires(std::string word) { OptionValue<T>::complaint(facts, word); })
    bound.complaint = [&facts](const std::string& word) { return OptionValue<T>::complaint(facts, word); };
  return bound;
}

/// One value of T, in a field that it can be assigned to.
template <class T, class Field>
BoundOption one(const OptionFacts& facts, Field& field) {
  BoundOption bound = described<T>(facts, false);
  bound.read = [&](const std::vector<std::string>& words) {
    field = OptionValue<T>::parse(facts, words.front());
  };
  bound.read_json = [&](const Json& json, const std::string& where) {
    field = from_json<T>(facts, json, where);
  };
  return bound;
}

}  // namespace option_detail

template <class T>
BoundOption bind_option(const OptionFacts& facts, T& field) {
  BoundOption bound = option_detail::one<T>(facts, field);
  bound.initial = OptionValue<T>::text(field);
  bound.write = [&] { return option_detail::to_json(field); };
  return bound;
}

template <class T>
BoundOption bind_option(const OptionFacts& facts, std::optional<T>& field) {
  BoundOption bound = option_detail::one<T>(facts, field);
  bound.initial = field ? OptionValue<T>::text(*field) : "";
  bound.write = [&] { return field ? std::optional(option_detail::to_json(*field)) : std::nullopt; };
  return bound;
}

/// The words that one with alternatives within brackets stands for, the first alternatives first:
/// "a[b=1/2,c=3/4]" is a[b=1,c=3], a[b=1,c=4], a[b=2,c=3] and a[b=2,c=4].
std::vector<std::string> with_each_alternative(const std::string& word);

template <class T>
BoundOption bind_option(const OptionFacts& facts, std::vector<T>& field) {
  BoundOption bound = option_detail::described<T>(facts, true);
  std::vector<std::string> words;
  for (const T& value : field) words.push_back(OptionValue<T>::text(value));
  bound.initial = option_detail::joined(words);
  bound.read = [&](const std::vector<std::string>& given) {
    field.clear();
    for (const std::string& word : given)
      if constexpr (requires { OptionValue<T>::kAlternatives; })
        for (const std::string& each : with_each_alternative(word))
          field.push_back(OptionValue<T>::parse(facts, each));
      else
        field.push_back(OptionValue<T>::parse(facts, word));
  };
  bound.write = [&] {
    Json list = Json::array();
    for (const T& value : field) list.push_back(option_detail::to_json(value));
    return list;
  };
  bound.read_json = [&](const Json& json, const std::string& where) {
    std::vector<T> read;
    for (const Json& item : option_detail::list_of(json, where))
      read.push_back(option_detail::from_json<T>(facts, item, where));
    field = std::move(read);
  };
  return bound;
}

BoundOption bind_option(const OptionFacts& facts, bool& field);

/// The items of a list, which commas separate: not those within brackets, within quotes, behind a backslash,
/// or between a semicolon and the colon that ends the places it begins (k8v4;0-1,last:16). Quotes, and a
/// backslash before a comma, are not part of an item. `of_files`: items are FILE or NAME=FILE; where one is
/// no file, and with those behind it is one whose name has commas, they are one item.
std::vector<std::string> items_of(const std::string& list, bool of_files = false);

/// Reads what stands in the brackets of "NAME[option=value,...]" into the fields of `own`; nothing where
/// there are none. `why_no_effect` says, as one clause, why an option would do nothing for this name. Throws
/// OptionError of `named_by`, one line that quotes the text.
void read_own_options(const OptionFacts& named_by, const std::string& text, const BoundOptions& own,
                      const std::function<std::optional<std::string>(const OptionFacts&)>& why_no_effect);

/// True if readers of tables take a text for a missing value, an infinity or a truth value, as pandas does
/// with "NA", "null", "INFINITY" and "True".
bool spells_missing(std::string_view text);

/// did_you_mean(), and where no name comes near "; there are: " with all of them.
std::string alternatives(std::string_view given, const std::vector<std::string>& names);

}  // namespace kvreplay
