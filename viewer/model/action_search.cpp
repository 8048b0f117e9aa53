#include "viewer/model/actions.hpp"
#include "viewer/model/typed_words.hpp"

#include <algorithm>
#include <cctype>
#include <string>

// The palette's search.

namespace kvreplay::viewer {
namespace {

constexpr int kNoMatch = -1;

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// How well the letters of `word` are found in order in `text`: the best of all ways to place them. Every
/// letter counts 1, 6 more at the start of a word, 4 more next to the one before.
int placed(std::string_view word, std::string_view text) {
  // best[j]: the letters so far, the last of them at j.
  std::vector<int> best(text.size(), kNoMatch), next(text.size(), kNoMatch);
  for (std::size_t i = 0; i < word.size(); ++i) {
    int before = i == 0 ? 0 : kNoMatch;  // the best that ends left of j - 1
    for (std::size_t j = 0; j < text.size(); ++j) {
      if (i > 0 && j > 1) before = std::max(before, best[j - 2]);
      const int beside = i > 0 && j > 0 && best[j - 1] != kNoMatch ? best[j - 1] + 4 : kNoMatch;
      const int reached = std::max(before, beside);
      const bool starts = j == 0 || !is_letter(text[j - 1]);
      next[j] =
          lower(word[i]) == lower(text[j]) && reached != kNoMatch ? reached + 1 + (starts ? 6 : 0) : kNoMatch;
    }
    best.swap(next);
  }
  return best.empty() ? kNoMatch : *std::max_element(best.begin(), best.end());
}

int score(std::string_view word, const Action& action) {
  const auto weighed = [&](std::string_view text, int weight) {
    const int found = placed(word, text);
    // Scattered letters are found in any long text: they must make up words there.
    if (found == kNoMatch || (weight < 3 && found < 3 * static_cast<int>(word.size()))) return kNoMatch;
    return weight * found;
  };
  return std::max({weighed(action.title, 3), weighed(action.menu, 2), weighed(action.hint, 1)});
}

}  // namespace

std::vector<const Action*> matching_actions(std::string_view typed) {
  struct Found {
    const Action* action;
    int score;
  };
  const std::vector<std::string> words = typed_words(typed);
  std::vector<Found> found;
  for (const Action& each : actions()) {
    int sum = 0;
    for (const std::string& word : words) {
      const int points = score(word, each);
      sum = points == kNoMatch || sum == kNoMatch ? kNoMatch : sum + points;
    }
    // Of equal matches the one that leaves less of the title unsaid, but only as far as that decides.
    const int unsaid = words.empty() ? 0 : static_cast<int>(each.title.size());
    if (sum != kNoMatch) found.push_back({&each, 64 * sum - unsaid});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& one, const Found& other) { return one.score > other.score; });
  std::vector<const Action*> matching;
  matching.reserve(found.size());
  for (const Found& each : found) matching.push_back(each.action);
  return matching;
}

}  // namespace kvreplay::viewer
