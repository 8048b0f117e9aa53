#include "data/console.hpp"

#include "data/utf8.hpp"

#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

namespace kvreplay {
namespace {

constexpr std::size_t kLongestLine = 500;

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
