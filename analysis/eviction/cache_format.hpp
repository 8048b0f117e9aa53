#pragma once

#include "analysis/engine/engine.hpp"
#include "analysis/options/option.hpp"
#include "data/dump.hpp"
#include "sim/cache/quantize.hpp"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Cache formats as a user states them. Definitions: sim/cache/FORMATS.md.

namespace kvreplay {

/// Formats of keys and of values: "4", "k8v4", "kfp8vnvfp4".
struct KeyValueFormats {
  NumberFormat k = NumberFormat::exact, v = NumberFormat::exact;
  bool operator==(const KeyValueFormats&) const = default;
};

/// "k8v4;0-1,last:k16v16": the formats of all layers, then exceptions; "k4v4;auto:2" has one of the two
/// layers that lose most. Or "vllm": all formats of an engine.
struct CacheFormat {
  struct Layers {
    Index first = 0, last = 0;  ///< negative ones count from the end: -1 is the model's last layer
    KeyValueFormats formats;
    bool operator==(const Layers&) const = default;
  };
  std::string name;  ///< as it was asked for
  KeyValueFormats formats;
  std::vector<Layers> others;  ///< later entries override earlier ones
  /// "auto:2", "auto:2:16": the formats of so many layers, those that lose most in this one.
  struct Spared {
    Index layers = 0;
    KeyValueFormats formats;
    bool operator==(const Spared&) const = default;
  };
  std::optional<Spared> spared;
  std::optional<Engine> engine;  ///< set: the engine's formats replace these

  KeyValueFormats of(Index layer, Index layers) const;
  /// The format with these layers in place of `spared`: "k4v4;3,8:8". None: without an exception for them.
  CacheFormat sparing(std::vector<Index> chosen) const;
  bool operator==(const CacheFormat&) const = default;
};

/// Hadamard rotation of keys, values or both before they are stored: "none", "hadamard", "hadamard:64",
/// "hadamard:128:64", "k", "v:64".
struct Rotation {
  bool k = false, v = false;
  Index k_block = 0, v_block = 0;  ///< block sizes; 0: the largest power of two that divides the head size
  std::string name = "none";
  bool operator==(const Rotation&) const = default;
};

/// The mean of a head's prompt keys that is subtracted before they are stored: "none", "k", or "k:4" for
/// the mean without the first 4 tokens. Or "means.npy": vectors [layers, n_kv, d] in place of the means.
struct Centering {
  std::optional<Index> from;  ///< first position of the mean; unset: no centering
  std::string file = {};      ///< of the vectors; empty: the mean
  std::string name = "none";
  bool operator==(const Centering&) const = default;
};

/// The scales of formats with a tensor_scale: "none" for 1, or "scales.safetensors" with those of every
/// layer.
struct Scaling {
  std::string file = {};  ///< empty: 1
  std::string name = "none";
  bool operator==(const Scaling&) const = default;
};

/// The direction of the groups in uniform formats of keys: along a channel or along a token.
enum class KeyGroups { channel, token };

template <>
struct OptionValue<CacheFormat> {
  static CacheFormat parse(const OptionFacts& option, const std::string& given);
  static std::string text(const CacheFormat& format) { return format.name; }
  static Json json(const CacheFormat& format);  ///< plain bits as a number
  static CacheFormat from_json(const Json& json, const std::string& where);
};
template <>
struct OptionValue<Rotation> {
  static Rotation parse(const OptionFacts& option, const std::string& given);
  static std::string text(const Rotation& rotation) { return rotation.name; }
};
template <>
struct OptionValue<Centering> {
  static constexpr bool kFiles = true;
  static Centering parse(const OptionFacts& option, const std::string& given);
  static std::string text(const Centering& centering) { return centering.name; }
};
template <>
struct OptionValue<Scaling> {
  static constexpr bool kFiles = true;
  static Scaling parse(const OptionFacts& option, const std::string& given);
  static std::string text(const Scaling& scaling) { return scaling.name; }
};
template <>
struct OptionValue<KeyGroups> {
  static KeyGroups parse(const OptionFacts& option, const std::string& word);
  static std::string text(KeyGroups groups) { return groups == KeyGroups::channel ? "channel" : "token"; }
};

/// The storage of a run's caches: a format, a rotation and a centering.
struct CacheFormatRun {
  std::string name;                     ///< "k8v4", "k8v4+hadamard", "q4_0+center:4"
  std::vector<Quantization> of_layers;  ///< [layers]
};
struct CacheFormatOptions {
  std::vector<CacheFormat> formats;
  std::vector<Rotation> rotations = {{}};
  std::vector<Centering> centerings = {{}};
  std::vector<Scaling> scales = {{}};  ///< of formats with a tensor_scale; the others ignore them
  KeyGroups keys = KeyGroups::channel;
  Index group = Quantization{}.group;
  std::optional<Index> residual;  ///< unset: KIVI's 128 where all formats are uniform, else 0
  /// For each run that spares no layer, by its name: its layers, those that lose most first.
  /// CacheFormat::spared needs them.
  std::map<std::string, std::vector<Index>> worst_first = {};
};
/// Every format under every rotation, centering and scaling; a run whose layers were chosen names them. An
/// engine's formats are stored as the engine does, regardless of all other options. Throws OptionError for
/// layers or head sizes that the dump does not support, and for options that have no effect because only
/// engines' formats are given.
std::vector<CacheFormatRun> cache_format_runs(const CacheFormatOptions& asked, const DumpShape& shape,
                                              const OptionFacts& bits, const OptionFacts& rotate);

/// The formats of the engines given that heads of these sizes cannot have, each with the reason.
std::vector<std::pair<std::string, std::string>> formats_left_out(const CacheFormatOptions& asked,
                                                                  const DumpShape& shape);

/// {"k": "4", "v": "q8_0", "keys": "channel", "turned": [64, 0], "group": 32, "residual": 128}, and "scales":
/// [0.02, 0.01] of keys and values where they are not 1.
Json to_json(const Quantization& stored);
/// The inverse. "interleaved" is not read: the dump at hand says it. Throws InputError, which begins with
/// `where`.
Quantization quantization_in(const Json& json, const std::string& where);
/// Reads the vectors that keys are centered around, where a file has them. Throws InputError unless these are
/// finite numbers [layers, n_kv, d].
void read_centers(std::vector<Quantization>& of_layers, const DumpShape& shape);
/// Why a dump's heads cannot be stored so, as what is expected of them; nothing where they can.
std::optional<std::string> why_not_stored(const Quantization& stored, const DumpShape& shape);
/// A layer each.
Json to_json(const CacheFormatRun& run);

/// "keys 4 bits per channel (groups of 32 tokens); values q4_0": a layer's.
std::string format_text(const Quantization& quantization);

}  // namespace kvreplay
