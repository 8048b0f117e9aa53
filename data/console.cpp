#include "data/console.hpp"

#include "data/utf8.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fcntl.h>
#include <numeric>
#include <unistd.h>
#include <utility>

namespace kvreplay {
namespace {

constexpr std::size_t kLongestLine = 500;

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

/// Levenshtein's.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

/// Marks and isolates of direction: what follows one is read in another order.
bool turns_text(char32_t code) {
  return code == 0x200E || code == 0x200F || code == 0x061C || (code >= 0x202A && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

std::string shown(const Character& character) {
  if (!character.valid) return "\xef\xbf\xbd";
  switch (character.code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      break;
  }
  if (character.code < 0x20 || (character.code >= 0x7F && character.code < 0xA0))
    return fmt::format("\\x{:02x}", static_cast<unsigned>(character.code));
  if (turns_text(character.code)) return fmt::format("\\u{:04x}", static_cast<unsigned>(character.code));
  return std::string(character.bytes);
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view given_name, const std::vector<std::string>& names) {
  const std::string given = in_lower_case(given_name);
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const std::string& name : names) {
    const std::string known = in_lower_case(name);
    const std::size_t distance = edit_distance(given, known);
    const bool begins = given.size() >= 3 && (known.starts_with(given) || given.starts_with(known));
    if (begins || distance <= std::max<std::size_t>(1, std::max(given.size(), name.size()) / 3))
      near.emplace_back(distance, name);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> result;
  for (auto& [distance, name] : near)
    if (result.size() < 3) result.push_back(std::move(name));
  return result;
}

std::string did_you_mean(std::string_view given, const std::vector<std::string>& names) {
  const std::vector<std::string> near = nearest_names(given, names);
  std::string text;
  for (std::size_t i = 0; i < near.size(); ++i)
    text += (i == 0 ? "; did you mean '" : i + 1 == near.size() ? " or '" : ", '") + near[i] + "'";
  return text.empty() ? text : text + "?";
}

std::string first_names(std::span<const std::string> names, std::size_t most) {
  const std::size_t shown = std::min(names.size(), most), others = names.size() - shown;
  return fmt::format("{}{}", fmt::join(names.first(shown), ", "),
                     others > 0 ? fmt::format(" and {} more", others) : "");
}

std::string displayable(std::string_view text, std::size_t most) {
  std::string_view end;
  const bool cut = text.size() > most;
  if (cut) {
    const std::size_t behind = text.size() - most / 3;
    end = text.substr(behind);
    while (!end.empty() && continues_character(end.front())) end.remove_prefix(1);
    text = text.substr(0, most - most / 3);
    // A character that was cut: its first byte is the last that continues none.
    std::size_t last = text.size();
    while (last > 0 && continues_character(text[last - 1])) --last;
    if (last > 0 && !first_character(text.substr(last - 1)).valid) text = text.substr(0, last - 1);
  }
  std::string all;
  const auto add = [&](std::string_view part) {
    while (!part.empty()) {
      const Character character = first_character(part);
      all += shown(character);
      part.remove_prefix(character.bytes.size());
    }
  };
  add(text);
  if (cut) {
    all += "...";
    add(end);
  }
  return all;
}

std::string shell_word(const std::string& word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./=+:,%@").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line.append(line.empty() ? "" : " ").append(shell_word(word));
  return line;
}

void to_stderr(const std::string& text) { std::fputs(text.c_str(), stderr); }

std::string complaint(std::string_view program, std::string_view line) {
  return fmt::format("{}: {}\n", program, displayable(line, kLongestLine));
}

void say_text(std::string_view text) {
  std::string all;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    all += displayable(text.substr(0, end));
    if (end == std::string_view::npos) break;
    all += '\n';
    text.remove_prefix(end + 1);
  }
  std::fwrite(all.data(), 1, all.size(), stdout);
}

void keep_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
}

}  // namespace kvreplay
