// Scores of the user's: each is offered once it was read against an open dump.

#include "viewer/app/app.hpp"

#include <algorithm>

namespace kvreplay::viewer {

void App::take_scores() {
  if (adding_.empty() || !opening_.empty()) return;
  std::erase_if(adding_, [&](const UserScore& score) {
    bool pending = false, fits = false;
    std::string error = score.file.string() + ": open the dump first that this score is of";
    for (std::size_t i = 0; i < state_.runs.size(); ++i) {
      const std::shared_ptr<const Run>& run = state_.runs[i];
      if (run->dump() == nullptr) continue;
      const Answer<UserScoreValues> read = ask_user_score(desk_, run, score, Urgency::now);
      pending = pending || read.pending;
      fits = fits || read;
      // Of several dumps, the selected one says why.
      if (i == 0 || i == state_.selection().run) error = read.error;
    }
    if (pending && !fits) return false;
    if (!fits) {
      const bool names_file = error.find(score.file.string()) != std::string::npos;
      state_.say((names_file ? std::string() : score.file.string() + ": ") + error, true);
      return true;
    }
    std::erase_if(state_.scores, [&](const UserScore& other) { return other.name == score.name; });
    state_.scores.push_back(score);
    state_.say("What if offers the score " + score.name + ": " + score.file.string());
    return true;
  });
}

}  // namespace kvreplay::viewer
