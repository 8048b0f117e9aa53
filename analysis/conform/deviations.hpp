#pragma once

#include "analysis/conform/reading.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

// The ways in which implementations depart from a policy, and those of them that explain what one of them
// keeps.

namespace kvreplay::conform {

/// One departure from a reading.
struct Deviation {
  std::string aspect;  ///< what it is about; a reading departs once in each
  std::string text;    ///< "pool = max:5"
  std::function<void(Reading&)> apply;
  bool is_name = false;  ///< the text is the name of another policy, which it is then
};

/// Counts of the tokens that departing caches keep. Settings are guessed from these counts.
struct FoundShape {
  std::optional<Index> tokens;  ///< the number kept, if equal in all caches
  Index leading = 0,
        trailing = 0;  ///< lengths of the kept runs at either end, common to all caches
};

/// Deviations that implementations of the policy are known to have, in the order in which they are applied to
/// `meant`.
std::vector<Deviation> known_deviations(const ReadingSetting& setting, const Reading& meant,
                                        const FoundShape& found);

/// Some departures together, by their numbers, ascending.
struct Departures {
  std::vector<std::size_t> chosen;
  Index apart = 0;  ///< tokens that still differ
};

struct ReadingSearch {
  Index at_first = 0;             ///< tokens that the reading as it is meant leaves
  std::size_t tried = 0;          ///< readings
  std::vector<Departures> found;  ///< those that explain most, the best first
};
/// Tries every departure from `meant`, then extends the best ones while one more explains much. `apart_of`
/// returns the number of tokens where a reading differs from the implementation. It may return any number
/// above `before`, the number to beat, as soon as the reading cannot beat it.
ReadingSearch search_readings(const std::vector<Deviation>& deviations, const Reading& meant,
                              const std::function<Index(const Reading&, Index before)>& apart_of);
/// `meant` with the chosen deviations applied.
Reading reading_with(const Reading& meant, const std::vector<Deviation>& deviations,
                     const std::vector<std::size_t>& chosen);

/// "snapkv with pool = max:5 and window = 16".
std::string reading_text(const std::string& policy, const std::vector<Deviation>& deviations,
                         const std::vector<std::size_t>& chosen);

}  // namespace kvreplay::conform
