// What is shown as commands and links that show it again.

#include "data/error.hpp"
#include "data/npy_write.hpp"
#include "viewer/app/app.hpp"
#include "viewer/app/session_file.hpp"
#include "viewer/work/command_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

void App::save_kept_set() {
  const std::shared_ptr<const Run>& run = state_.run();
  if (!run || run->dump() == nullptr)
    return state_.say("What is kept is computed from the dump, and there is none here.");
  const DumpShape& shape = run->shape();
  KeptToSave saving;
  saving.run = run;
  saving.settings = state_.setting().without_compensation();
  saving.path = std::filesystem::absolute(export_path(".kept.npy"));
  saving.kept.resize(static_cast<std::size_t>(shape.layers * shape.n_kv * shape.l));
  saving.round.restart(shape.layers * shape.n_kv);
  saving_ = std::move(saving);
}

void App::go_on_saving() {
  if (!saving_) return;
  KeptToSave& saving = *saving_;
  if (saving.run != state_.run()) {
    saving_.reset();
    return state_.say("The kept set was not saved: another run is in view.", true);
  }
  const DumpShape& shape = saving.run->shape();
  PanelContext context{state_, desk_};
  saving.round.go_on(
      [&](Index i) {
        return ask_kept_set(context, saving.settings, i / shape.n_kv, i % shape.n_kv, Urgency::background,
                            {});
      },
      [&](Index i, const Answer<WhatIf>& answer) {
        if (answer) std::copy(answer->kept.begin(), answer->kept.end(), saving.kept.begin() + i * shape.l);
      });
  if (saving.round.done() < saving.round.count()) {
    state_.say(fmt::format("Kept set: {} of {} heads", saving.round.done(), saving.round.count()));
    return;
  }
  const KeptToSave done = *std::exchange(saving_, {});
  if (done.round.failed() > 0) return state_.say(done.round.error(), true);
  const std::size_t dimensions[] = {static_cast<std::size_t>(shape.layers),
                                    static_cast<std::size_t>(shape.n_kv), static_cast<std::size_t>(shape.l)};
  try {
    write_npy_bool(AtomicFile(done.path), dimensions, done.kept);
  } catch (const InputError& error) {
    return state_.say(error.what(), true);
  }
  copy(shell_line({"kvreplay", "evict", done.run->dump()->folder().string(), "--out",
                   fmt::format("results/{}-by-hand", done.run->name()), "--policy", "none", "--kept",
                   "by_hand=" + done.path.string()}),
       fmt::format("Saved {}, and copied the command that measures it", done.path.string()));
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
