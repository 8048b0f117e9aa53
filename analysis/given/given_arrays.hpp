#pragma once

#include "analysis/options/option.hpp"
#include "data/dump.hpp"
#include "sim/eviction/prompt_eviction.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Scores and kept sets that a user brings along.

namespace kvreplay {

/// name=PATH: an array of the user's, or one for each of several dumps.
struct NamedFile {
  std::string name, file;

  /// PATH with the dump's name for every {dump}; where that is a folder, <dump>.npy in it.
  std::string of_dump(const std::string& dump) const;
};
std::vector<std::string> names_of(const std::vector<NamedFile>& files);

template <>
struct OptionValue<NamedFile> {
  static constexpr bool kFiles = true;
  /// Splits it; whether the name can be used is found when the file is read.
  static NamedFile parse(const OptionFacts& option, const std::string& word);
  static std::string text(const NamedFile& named) { return named.name + "=" + named.file; }
};

/// Throws OptionError for the name of a score or kept set that is one of ours, and for one of other
/// characters than letters, digits, '_' and '.'.
void require_own_name(const OptionFacts& option, const std::string& name);

/// A text as such a name: '_' in place of other characters.
std::string as_own_name(std::string text);

/// Throws OptionError where one of the files would stand for all of several dumps.
void require_one_a_dump(const OptionFacts& option, const std::vector<NamedFile>& files, std::size_t dumps);

/// Scores, [heads, l] and any leading dimensions, count by their ranks only. Infinities, with which code
/// marks pinned and masked tokens, are therefore replaced by numbers beyond the others of their head, so that
/// pooling has finite sums. Throws InputError for a NaN, naming `where`.
void take_infinities(std::vector<double>& values, Index heads, Index l, const std::string& where);

/// A score or a kept set of the user's, [layers, n_kv, l] or [layers, n_q, l].
template <class T>
struct GivenArray {
  std::string name;
  std::vector<T> values;
  Index parts = 1;  ///< rows a KV head has: 1, or one for each of its query heads

  /// The `l` values of a KV head, counted over all layers, or of its query head `part`.
  std::span<const T> of(Index head, Index part, Index l) const {
    return std::span(values).subspan((head * parts + (parts > 1 ? part : 0)) * l, l);
  }
};

/// Reads scores of every candidate, [layers, n_kv, l] numbers, higher is kept, infinite ones first and last;
/// or kept sets, booleans. The shape is [layers, n_q, l] if query heads are distinguished. Throws InputError
/// for a name that is taken, that tables cannot contain, or that has characters other than letters, digits,
/// '_' and '.'; and for a file that is missing or of another shape.
template <class T>
std::vector<GivenArray<T>> read_given(const OptionFacts& option, const std::vector<NamedFile>& files,
                                      const Dump& dump, bool per_query_head = false);

/// Layers that read one cache choose together: a score of the cache is the sum of theirs, as one over query
/// heads is, and stands with each. Throws OptionError for kept sets that keep other tokens of it in one than
/// in another. Arrays that tell query heads apart, whose caches are their own, stay as they are.
void join_readers(std::vector<GivenArray<double>>& scores, const Dump& dump);
void require_joint(const OptionFacts& option, const std::vector<GivenArray<std::uint8_t>>& kept,
                   const Dump& dump);

/// One KV head's part of every score, [l] each, or its query head's; `head` counts all heads of all layers of
/// the dump. Without a part, the sum of a head's.
GivenScores scores_of_head(const std::vector<GivenArray<double>>& scores, Index head, Index l,
                           std::optional<Index> part = {});

/// Number of tokens that every head keeps; empty if heads differ.
std::optional<Index> common_count(const GivenArray<std::uint8_t>& kept, const DumpShape& shape);

/// 16 hex digits that identify the contents of arrays.
std::string contents_fingerprint(std::span<const std::byte> bytes);
/// Writes the fingerprints of all arrays by name to json[key]; without arrays json has no such key.
template <class T>
void add_fingerprints(Json& json, const char* key, const std::vector<GivenArray<T>>& arrays) {
  for (const GivenArray<T>& array : arrays)
    json[key][array.name] = contents_fingerprint(std::as_bytes(std::span(array.values)));
}

/// Scales of a layer's keys and values: a stored number is x / scale, rounded.
struct TensorScales {
  double k = 1, v = 1;
};

/// The scales of all layers as vLLM and SGLang read them from a checkpoint: tensors of one number in a
/// safetensors file, `model.layers.N.self_attn.k_scale` and `v_scale`, in float32, float16 or bfloat16; other
/// tensors are not looked at. Throws InputError that names the file unless there are both for each of
/// `layers` layers, all positive.
std::vector<TensorScales> read_scales(const std::string& file, Index layers);

}  // namespace kvreplay
