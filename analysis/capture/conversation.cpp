#include "analysis/capture/conversation.hpp"

#include "data/error.hpp"
#include "data/json_fields.hpp"
#include "data/mapped_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace kvreplay {
namespace {

constexpr const char* kNoTools = "no tools (kvcapture.py --messages has them)";

std::string content_of(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw InputError(where, "a text", json_text(content));
  std::string text;
  for (const Json& part : content) {  // as in requests that may hold images
    const std::string type = part.is_object() ? part.value("type", "") : part.type_name();
    if (type != "text" && type != "input_text" && type != "output_text")
      throw InputError(where, "text", fmt::format("a part of type {}", type));
    if (!text.empty()) text += '\n';
    text += part.value("text", "");
  }
  return text;
}

Conversation conversation_in(const Json& found, const std::string& where) {
  if (found.is_object() && found.contains("body")) return conversation_in(found["body"], where);
  const Json messages = found.is_object() ? found.value("messages", Json()) : found;
  if (!messages.is_array() || messages.empty())
    throw InputError(where, R"(a list of {"role", "content"}, or {"messages": [..]})", json_text(found));
  if (found.is_object() && !found.value("tools", Json()).empty()) throw InputError(where, kNoTools, "some");
  Conversation conversation;
  for (const Json& message : messages) {
    const std::string at = fmt::format("{}, message {}", where, conversation.size());
    if (!message.is_object() || !message.value("role", Json()).is_string())
      throw InputError(at, R"(an object with a "role")", json_text(message));
    if (!message.value("tool_calls", Json()).empty()) throw InputError(at, kNoTools, "a call");
    conversation.push_back(
        {message["role"].get<std::string>(), content_of(message.value("content", Json()), at + ": content")});
  }
  return conversation;
}

}  // namespace

std::vector<Conversation> read_conversations(const std::filesystem::path& file) {
  const std::string text = file_text(file, kMostText), where = file.string();
  std::vector<Conversation> all;
  Json found;
  try {
    found = parse_json(text, where);
  } catch (const InputError&) {
    std::istringstream lines(text);
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const std::string at = fmt::format("{}, line {}", where, number);
      all.push_back(conversation_in(parse_json(line, at), at));
    }
    if (all.size() > 1) return all;
    throw;
  }
  const bool several = found.is_array() && !found.empty() && std::ranges::all_of(found, [](const Json& one) {
                         return one.is_array() || (one.is_object() && !one.contains("role"));
                       });
  if (!several) return {conversation_in(found, where)};
  for (const Json& one : found)
    all.push_back(conversation_in(one, fmt::format("{}, request {}", where, all.size())));
  return all;
}

}  // namespace kvreplay
