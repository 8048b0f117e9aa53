#pragma once

#include "viewer/model/session.hpp"

#include <filesystem>
#include <optional>

namespace kvreplay::viewer {

/// Where the session is kept unless told otherwise: $XDG_STATE_HOME/kvreplay/session.json, by default
/// ~/.local/state/kvreplay/session.json; empty where there is no home.
std::filesystem::path default_session_file();

/// The session in a file; nothing where there is none, or an empty one. Throws InputError where it is no
/// regular file or larger than any session; what cannot be understood gives remarks.
std::optional<ReadSession> read_session_file(const std::filesystem::path& path);

/// Whole or not at all. Throws InputError where it cannot be written.
void write_session_file(const std::filesystem::path& path, const Session& session);

}  // namespace kvreplay::viewer
