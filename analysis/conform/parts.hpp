#pragma once

#include "analysis/conform/reading.hpp"
#include "analysis/eviction/cache_format.hpp"
#include "analysis/given/given_arrays.hpp"
#include "data/dump.hpp"
#include "sim/cache/cache.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

// The keys and values that an implementation holds of a prompt, against those that the model made.

namespace kvreplay::conform {

/// A folder of caches: layer_XX/k.npy [kv_heads, n, d] and layer_XX/v.npy [kv_heads, n, d_v], of every layer
/// with a cache of its own; with or without a batch of 1, as long in every head of a layer.
class HeldCaches {
 public:
  /// Throws InputError where a file is missing, or of other heads or channels than the dump's.
  HeldCaches(std::filesystem::path folder, const Dump& dump);

  struct Layer {
    std::vector<Matrix<double>> k, v;  ///< of every KV head: [n, d], [n, d_v]
  };
  /// Throws InputError at a number that is not finite.
  Layer layer(Index layer) const;

 private:
  std::filesystem::path file_of(Index layer, const char* name) const;

  std::filesystem::path folder_;
  const Dump& dump_;
};

/// Explanation of a head's cached keys or values, in comparison with the model's at the same positions.
struct HeldAs {
  std::string text;  ///< "as the model made them", "turned on by 12 positions", "in 2"
  bool as_meant = false;
  double distance = 0;  ///< squared norm of (cached - the model's) over the squared norm of the model's
};

/// One head's cache.
struct HeldHead {
  std::vector<Index> positions;  ///< of every row; if not given, those of the nearest keys and values
  bool in_order = true;          ///< ascending
  HeldAs keys, values;
};

/// Loader of any head of the model, one at a time: cached rows may come from another head.
using AnyHead = std::function<const HeadGroup<double>&(Index layer, Index kv_head)>;

/// The format in which rows of an earlier head were stored, tried first on the next.
struct FoundFormat {
  std::string text;
  Quantization as;
};
struct FoundFormats {
  std::optional<FoundFormat> keys, values;
};

/// `kept`: the prompt's positions of the rows, in any order; without it rows may be of any position, decoded
/// ones included. If several positions have equal keys and values, as equal tokens in a first layer do, those
/// in `wanted` are matched first. `meant`: the expected format of the cache; empty: exact numbers. `numbers`:
/// the dtype of the cached numbers.
HeldHead held_head(const Matrix<double>& k, const Matrix<double>& v, const HeadGroup<double>& group,
                   const std::optional<KeptSet>& kept, const KeptSet& wanted,
                   const std::optional<Quantization>& meant, Dtype numbers, const AnyHead& others,
                   const std::vector<Index>& layers, Index n_kv, FoundFormats& formats);

/// The cache for output_changes(): positions without a row are evicted, all others have the rows of the
/// cache.
Cache<double> cache_of(const HeldHead& head, const Matrix<double>& k, const Matrix<double>& v,
                       const HeadGroup<double>& group);

/// Reads the tokens of a dump's prompt that an implementation kept, in any of these forms:
///   .npy   booleans [layers, heads, l]; or positions [layers, heads, n], in any order, -1 where a head has
///          fewer than n
///   .npz   one such array a layer, [heads, l] or [heads, n], or one a head, [l] or [n], where layers or
///          heads keep different numbers; the numbers in a member's name are its layer and its head
///   .json  lists of positions [layers][heads][..]; or {"page": N, "pages": [..]}: a table of blocks of N
///          tokens, where such lists count pages
/// Heads are KV heads; with as many as query heads each has a cache of its own. Lists [layers][..] apply to
/// all heads of a layer, a single list to all layers. A leading batch of 1 is accepted. Throws InputError for
/// other shapes, positions outside the prompt, and duplicates.
GivenArray<std::uint8_t> read_engine_kept(const std::filesystem::path& file, const Dump& dump);

// The ways in which implementations depart from a policy, and those of them that explain what one of them
// keeps.

/// One departure from a reading.
struct Deviation {
  std::string aspect;  ///< the aspect of the policy; a variant departs once in each
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
  std::vector<Departures> found;  ///< the departures that explain most, the best first
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
