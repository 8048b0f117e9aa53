#include "viewer/questions/user_scores.hpp"

#include "analysis/eviction/eviction_options.hpp"

#include <algorithm>
#include <cctype>
#include <system_error>
#include <utility>

namespace kvreplay::viewer {
namespace {

namespace fs = std::filesystem;

UserScore made(std::string name, const fs::path& file) {
  UserScore score{std::move(name), fs::absolute(file).lexically_normal(), {}};
  std::error_code ignored;
  const auto time = fs::last_write_time(score.file, ignored);
  if (!ignored) score.version = {time.time_since_epoch().count(), fs::file_size(score.file, ignored)};
  return score;
}

}  // namespace

UserScore user_score(const std::string& item) {
  const NamedFile named = OptionValue<NamedFile>::parse(evict_option::score, item);
  return made(named.name, named.file);
}

UserScore user_score_of(const fs::path& file) {
  std::string name = file.stem().string();
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.') c = '_';
  if (name.empty() || name.front() == '.') name.insert(name.begin(), '_');
  return made(std::move(name), file);
}

const UserScore* find_score(const std::vector<UserScore>& scores, const std::string& name) {
  const auto found =
      std::find_if(scores.begin(), scores.end(), [&](const UserScore& score) { return score.name == name; });
  return found == scores.end() ? nullptr : &*found;
}

UserScoreValues read_user_score(const UserScore& score, const Dump& dump) {
  UserScoreValues values{read_given<double>(evict_option::score, {score.named()}, dump)};
  join_readers(values.scores, dump);
  return values;
}

Answer<UserScoreValues> ask_user_score(JobQueue& queue, const std::shared_ptr<const Run>& run,
                                       const UserScore& score, Urgency urgency) {
  const JobRequest request{.key = {run->key(), "user_score", score.key()},
                           .title = "Score " + score.file.string(),
                           .urgency = urgency};
  return queue.ask<UserScoreValues>(
      request, [run, score](JobControl&) { return read_user_score(score, *run->dump()); });
}

}  // namespace kvreplay::viewer
