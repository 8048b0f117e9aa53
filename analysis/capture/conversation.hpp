#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvreplay {

inline constexpr std::uintmax_t kMostText = 1 << 30;  ///< bytes of a file with a prompt

struct Message {
  std::string role, content;
};
using Conversation = std::vector<Message>;

/// Reads a list of messages, a request {"messages": [..]}, a list of either, or one of them per line, as
/// kvcapture.py --messages does. Throws InputError, one line with file and message, for what is none of these
/// and for tools, which llama.cpp's templates do not have.
std::vector<Conversation> read_conversations(const std::filesystem::path& file);

}  // namespace kvreplay
