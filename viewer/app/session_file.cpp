#include "viewer/app/session_file.hpp"

#include "analysis/results/text_file.hpp"
#include "data/atomic_file.hpp"

#include <cstdint>
#include <cstdlib>
#include <system_error>

namespace kvreplay::viewer {

std::filesystem::path default_session_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (state != nullptr && *state != 0)
    folder = state;
  else if (home != nullptr && *home != 0)
    folder = std::filesystem::path(home) / ".local" / "state";
  else
    return {};
  return folder / "kvreplay" / "session.json";
}

std::optional<ReadSession> read_session_file(const std::filesystem::path& path) {
  constexpr std::uintmax_t kMost = std::uintmax_t{1} << 24;
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return {};
  const std::string text = file_text(path, kMost);
  if (text.empty()) return {};
  return session_of_text(text);
}

void write_session_file(const std::filesystem::path& path, const Session& session) {
  write_output(path, text_of(session));
}

}  // namespace kvreplay::viewer
