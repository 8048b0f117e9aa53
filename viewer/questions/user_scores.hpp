#pragma once

#include "analysis/given/given_arrays.hpp"
#include "data/dump.hpp"
#include "viewer/questions/job_queue.hpp"
#include "viewer/questions/run.hpp"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

// Scores of the user's own, as `kvreplay evict --score NAME=FILE.npy` takes them.

namespace kvreplay::viewer {

struct UserScore {
  std::string name;
  std::filesystem::path file;  ///< absolute
  Key version;                 ///< another one whenever the file was another when it was named

  NamedFile named() const { return {name, file.string()}; }
  /// NAME=FILE, as the command takes it.
  std::string item() const { return OptionValue<NamedFile>::text(named()); }
  /// For the keys of questions.
  Key key() const { return {item(), version}; }
};

/// The score that "NAME=FILE.npy" names. Throws InputError where it is not of this form; all else is found
/// when it is read.
UserScore user_score(const std::string& item);
/// Named after its file; what a name cannot have becomes '_'.
UserScore user_score_of(const std::filesystem::path& file);
/// The one of this name, or null.
const UserScore* find_score(const std::vector<UserScore>& scores, const std::string& name);

/// [layers, n_kv, l], higher is kept.
struct UserScoreValues {
  std::vector<GivenArray<double>> scores;  ///< one
  /// A head's part; `head` counts all heads of all layers.
  GivenScores of_head(Index head, Index l) const { return scores_of_head(scores, head, l); }
};
inline std::size_t bytes_of(const UserScoreValues& answer) {
  return bytes_with(answer, answer.scores.front().values);
}
/// By the command's reader: throws InputError, one line, for a name that is taken and a file that is missing
/// or does not fit.
UserScoreValues read_user_score(const UserScore& score, const Dump& dump);
/// As above, in the background, for a run that has its dump.
Answer<UserScoreValues> ask_user_score(JobQueue& queue, const std::shared_ptr<const Run>& run,
                                       const UserScore& score, Urgency urgency);

}  // namespace kvreplay::viewer
