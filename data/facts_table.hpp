#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay {

/// True if two names differ in spelling only: in letter case, in the marks '-', '_' and '.', which are equal,
/// and in a mark between letters, which may be missing. "llama.cpp", "Llama-CPP" and "llamacpp" are equal;
/// "1.6" and "16" are not.
constexpr bool same_name(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  const auto is_letter = [&](char c) { return lower(c) >= 'a' && lower(c) <= 'z'; };
  const auto is_mark = [](char c) { return c == '-' || c == '_' || c == '.'; };
  const auto next = [&](std::string_view text, std::size_t at) {
    const bool between = at > 0 && at + 1 < text.size() && is_mark(text[at]) && is_letter(text[at - 1]) &&
                         is_letter(text[at + 1]);
    return between ? at + 1 : at;
  };
  for (std::size_t i = 0, j = 0;; ++i, ++j) {
    i = next(a, i);
    j = next(b, j);
    if (i == a.size() || j == b.size()) return i == a.size() && j == b.size();
    if (lower(a[i]) != lower(b[j]) && !(is_mark(a[i]) && is_mark(b[j]))) return false;
  }
}

/// True if an enumerator has this value. Compilers print it as "kvreplay::Base::h2o", or as
/// "(kvreplay::Base)11" if none has.
template <auto kValue>
constexpr bool is_enumerator() {
  const std::string_view text = __PRETTY_FUNCTION__;
  const char behind = text[text.rfind(')') + 1];
  return behind < '0' || behind > '9';
}

/// The fault in the rows of a facts table, or empty. Each row must have its `id` in the enumeration's order
/// from 0 on, and a `name` that is the same_name() as no other's.
template <class Facts, std::size_t N>
constexpr std::string_view fault_of(const Facts (&rows)[N]) {
  if (is_enumerator<static_cast<decltype(Facts::id)>(N)>()) return "a value of the enumeration has no row";
  for (std::size_t i = 0; i < N; ++i) {
    if (static_cast<std::size_t>(rows[i].id) != i) return "a row is out of the enumeration's order";
    if (rows[i].name.empty()) return "a row has no name";
    for (std::size_t other = 0; other < i; ++other)
      if (same_name(rows[i].name, rows[other].name)) return "two rows have one name";
  }
  return "";
}

/// All facts about an enumeration, one row for each value; nothing about a value is written elsewhere. A
/// table with a fault_of() does not compile.
template <class Facts, std::size_t N>
class FactsTable {
 public:
  using Enum = decltype(Facts::id);

  consteval explicit FactsTable(const Facts (&rows)[N]) : rows_(std::to_array(rows)) {
    if (!fault_of(rows).empty()) throw fault_of(rows);
    for (std::size_t i = 0; i < N; ++i) ids_[i] = rows[i].id;
  }

  constexpr const Facts& operator[](Enum id) const { return rows_[static_cast<std::size_t>(id)]; }
  constexpr std::optional<Enum> named(std::string_view name) const {
    for (const Facts& facts : rows_)
      if (facts.name == name) return facts.id;
    return std::nullopt;
  }
  /// The enumeration's values.
  constexpr const std::array<Enum, N>& all() const { return ids_; }
  constexpr auto begin() const { return rows_.begin(); }
  constexpr auto end() const { return rows_.end(); }
  static constexpr std::size_t size() { return N; }

  /// The names of those that `which` holds for.
  template <class Which>
  std::vector<std::string> names_where(const Which& which) const {
    std::vector<std::string> names;
    for (const Facts& facts : rows_)
      if (which(facts)) names.emplace_back(facts.name);
    return names;
  }
  std::vector<std::string> names() const {
    return names_where([](const Facts&) { return true; });
  }

 private:
  std::array<Facts, N> rows_;
  std::array<Enum, N> ids_{};
};

/// call.operator()<kValue>() with the one of an enumeration's first N values that `value` is.
template <std::size_t N, class Enum, class Call>
void with_constant(Enum value, const Call& call) {
  [&]<std::size_t... kValues>(std::index_sequence<kValues...>) {
    ((static_cast<std::size_t>(value) == kValues ? call.template operator()<static_cast<Enum>(kValues)>()
                                                 : void()),
     ...);
  }
  (std::make_index_sequence<N>());
}

/// facts_table<BaseFacts>({{..}, {..}}).
template <class Facts, std::size_t N>
consteval FactsTable<Facts, N> facts_table(const Facts (&rows)[N]) {
  return FactsTable<Facts, N>(rows);
}

}  // namespace kvreplay
