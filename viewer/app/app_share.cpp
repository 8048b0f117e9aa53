// What is shown as commands and links that show it again.

#include "data/error.hpp"
#include "viewer/app/app.hpp"
#include "viewer/app/session_file.hpp"
#include "viewer/work/command_text.hpp"

#include <fmt/format.h>

namespace kvreplay::viewer {

void App::copy(const std::string& text, const std::string& said) {
  ImGui::SetClipboardText(text.c_str());
  state_.say(said);
}

/// A session says all that the picture depends on; it lies beside where the picture would.
void App::copy_drawing_command() {
  if (!state_.run()) return state_.say("There is nothing to draw: open a dump or a result folder.");
  if (areas_[static_cast<std::size_t>(focused_)].width <= 0)
    return state_.say(fmt::format("{} is not in view.", title_of(focused_)));
  const std::filesystem::path session = std::filesystem::absolute(export_path(".session.json"));
  try {
    write_session_file(session, save());
  } catch (const InputError& error) {
    return state_.say(error.what(), true);
  }
  std::filesystem::path picture = session;
  picture.replace_extension().replace_extension(".png");
  copy(shell_line({"kvreplay-viewer", "--session", session.string(), "--screenshot", picture.string(),
                   "--panel", std::string(name_of(focused_)), "--figure"}),
       "Copied the command; what it draws is in " + session.string());
}

void App::copy_measuring_command() {
  const std::shared_ptr<const Run>& run = state_.run();
  if (!run || run->dump() == nullptr)
    return state_.say("What is measured is a dump, and there is none here.");
  std::string lines;
  try {
    const auto [a, b] = state_.settings();
    for (const auto& [name, settings] : {std::pair("A", &a), std::pair("B", &b)}) {
      if (settings == &b && a == b) continue;
      const UserScore* score = find_score(state_.scores, settings->score);
      lines += evict_command(*run->dump(), *settings, score, fmt::format("results/{}-{}", run->name(), name));
      lines += '\n';
    }
  } catch (const InputError& error) {
    return state_.say(error.what(), true);
  }
  copy(lines, "Copied the commands that measure A and B over all heads.");
}

ViewLink App::link() const {
  const Selection& s = state_.selection();
  const Comparison& c = state_.comparison;
  ViewLink link;
  link.run = state_.run()->path().string();
  link.panel = name_of(focused_);
  link.layer = s.layer;
  link.kv_head = s.kv_head;
  link.query_head = s.query_head;
  link.row = s.row;
  link.token = s.token;
  link.score = name_of(c.score);
  link.reference = name_of(c.reference);
  link.window = c.window;
  return link;
}

}  // namespace kvreplay::viewer
