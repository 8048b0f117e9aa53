#include "analysis/eviction/cache_format.hpp"

#include "analysis/given/given_arrays.hpp"
#include "data/npy_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <filesystem>
#include <set>
#include <string_view>

namespace kvreplay {
namespace {

constexpr std::string_view kForms =
    "FORMAT or kFORMATvFORMAT, other layers' behind it as in k8v4;0-1,last:16 or k4v4;auto:2, or an engine "
    "(vllm, sglang, "
    "trtllm, modelopt, llama.cpp), and a format of ";

/// All words that may occur in the name of a cache format.
std::vector<std::string> format_words() {
  std::vector<std::string> words = kNumberFormats.names();
  for (const NumberFormatFacts& k : kNumberFormats)
    for (const NumberFormatFacts& v : kNumberFormats) words.push_back(fmt::format("k{}v{}", k.name, v.name));
  words.insert(words.end(), {"first", "last", "auto"});
  return words;
}

/// "4", "k8v4"; nothing where it is neither.
std::optional<KeyValueFormats> key_value_formats(std::string_view word) {
  if (const auto both = kNumberFormats.named(word)) return KeyValueFormats{*both, *both};
  if (!word.starts_with('k')) return std::nullopt;
  for (std::size_t at = word.find('v', 1); at != std::string_view::npos; at = word.find('v', at + 1)) {
    const auto k = kNumberFormats.named(word.substr(1, at - 1)),
               v = kNumberFormats.named(word.substr(at + 1));
    if (k && v) return KeyValueFormats{*k, *v};
  }
  return std::nullopt;
}

/// The format of 8 bits that is built like this one.
NumberFormat in_8_bits(NumberFormat format) {
  const NumberFormatFacts& facts = kNumberFormats[format];
  if (format == NumberFormat::exact) return format;
  if (facts.uniform) return NumberFormat::int8;
  return of_ggml(format) ? NumberFormat::q8_0 : NumberFormat::fp8;
}

/// "k8v4"; "8" where both are one.
std::string name_of_both(const KeyValueFormats& formats) {
  return formats.k == formats.v ? std::string(name_of(formats.k))
                                : fmt::format("k{}v{}", name_of(formats.k), name_of(formats.v));
}

constexpr std::string_view kAuto = "auto:";

/// "auto:2", "auto:2:k16v8" behind the formats of all layers.
std::optional<CacheFormat::Spared> spared_in(std::string_view word, const KeyValueFormats& of_all) {
  word.remove_prefix(kAuto.size());
  const std::size_t colon = word.find(':');
  const auto layers = index_in(word.substr(0, colon), kNoLimit);
  const auto formats = colon == std::string_view::npos
                           ? KeyValueFormats{in_8_bits(of_all.k), in_8_bits(of_all.v)}
                           : key_value_formats(word.substr(colon + 1));
  if (!layers || *layers == 0 || !formats) return std::nullopt;
  return CacheFormat::Spared{*layers, *formats};
}

/// "3", "first", "last", "-2".
std::optional<Index> layer_in(std::string_view word) {
  if (word == "first") return 0;
  if (word == "last") return -1;
  const bool from_end = word.starts_with('-');
  const auto number = index_in(word.substr(from_end ? 1 : 0), kNoLimit);
  if (!from_end) return number;
  return number && *number > 0 ? std::optional(-*number) : std::nullopt;
}

/// "3", "0-1", "-2--1".
std::optional<CacheFormat::Layers> layers_in(std::string_view word) {
  const std::size_t dash = word.find('-', 1);
  const auto first = layer_in(word.substr(0, dash)),
             last = dash == std::string_view::npos ? first : layer_in(word.substr(dash + 1));
  if (!first || !last || ((*first < 0) == (*last < 0) && *first > *last)) return std::nullopt;
  return CacheFormat::Layers{*first, *last, {}};
}

/// The number of a layer from the start; negative numbers count from the end.
Index from_start(Index layer, Index layers) { return layer < 0 ? layers + layer : layer; }

}  // namespace

KeyValueFormats CacheFormat::of(Index layer, Index layers) const {
  KeyValueFormats found = formats;
  for (const Layers& other : others)
    if (layer >= from_start(other.first, layers) && layer <= from_start(other.last, layers))
      found = other.formats;
  return found;
}

CacheFormat CacheFormat::sparing(std::vector<Index> chosen) const {
  assert(spared);
  static constexpr OptionFacts bits{.name = "bits"};
  std::ranges::sort(chosen);
  const std::size_t begin = name.find(kAuto), end = std::min(name.find(';', begin), name.size());
  const std::string layers =
      chosen.empty() ? "" : fmt::format(";{}:{}", fmt::join(chosen, ","), name_of_both(spared->formats));
  return OptionValue<CacheFormat>::parse(bits, name.substr(0, begin - 1) + layers + name.substr(end));
}

CacheFormat OptionValue<CacheFormat>::parse(const OptionFacts& option, const std::string& given) {
  const std::string word = in_known_spelling(given, format_words());
  const auto fail = [&] {
    return OptionError(option,
                       fmt::format("{}{}", kForms, names_text(kNumberFormats.names(), Listed::one_of)),
                       fmt::format("'{}'", word));
  };
  std::string_view rest = word;
  const auto taken_to = [&](char end) {
    const std::size_t at = rest.find(end);
    const std::string_view part = rest.substr(0, at);
    rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
    return part;
  };
  CacheFormat format;
  format.name = word;
  if (const auto engine = engine_named(word); engine && kEngines[*engine].of.size() > 1) {
    format.name = kEngines[*engine].name;
    format.engine = engine;
    return format;
  }
  const auto of_all = key_value_formats(taken_to(';'));
  if (!of_all || word.ends_with(';')) throw fail();
  format.formats = *of_all;
  while (!rest.empty()) {
    std::string_view other = taken_to(';');
    if (other.starts_with(kAuto)) {
      if (format.spared) throw fail();
      format.spared = spared_in(other, format.formats);
      if (!format.spared) throw fail();
      continue;
    }
    const std::size_t colon = other.find(':');
    if (colon == std::string_view::npos) throw fail();
    const auto formats = key_value_formats(other.substr(colon + 1));
    if (!formats) throw fail();
    other = other.substr(0, colon);
    while (true) {
      const std::size_t comma = other.find(',');
      auto layers = layers_in(other.substr(0, comma));
      if (!layers) throw fail();
      layers->formats = *formats;
      format.others.push_back(*layers);
      if (comma == std::string_view::npos) break;
      other = other.substr(comma + 1);
    }
  }
  return format;
}

Json OptionValue<CacheFormat>::json(const CacheFormat& format) {
  if (const auto bits = index_in(format.name, 16)) return *bits;
  return format.name;
}

CacheFormat OptionValue<CacheFormat>::from_json(const Json& json, const std::string& where) {
  static constexpr OptionFacts bits{.name = "bits"};
  const std::string word = json.is_number_integer() ? json.dump() : option_detail::word_of(json, where);
  try {
    return parse(bits, word);
  } catch (const OptionError& error) {
    throw InputError(option_detail::at(where, error));
  }
}

Rotation OptionValue<Rotation>::parse(const OptionFacts& option, const std::string& given) {
  const std::string word = in_known_spelling(given, {"none", "hadamard", "k", "v"});
  if (word == "none") return {};
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= word.size(); at += parts.back().size() + 1)
    parts.push_back(std::string_view(word).substr(at, word.find(':', at) - at));
  const std::string_view kind = parts.front();
  const bool both = kind == "hadamard";
  Rotation rotation{kind != "v", kind != "k", 0, 0, word};
  bool is_one = (both || kind == "k" || kind == "v") && parts.size() <= (both ? 3 : 2);
  for (std::size_t p = 1; is_one && p < parts.size(); ++p) {
    const auto block = index_in(parts[p], kNoLimit);
    is_one = block && *block >= 2 && turning_block(*block) == *block;
    if (is_one && p == 1) rotation.k_block = *block;
    if (is_one) rotation.v_block = *block;
  }
  if (!is_one)
    throw OptionError(option,
                      "none, hadamard, k or v, and behind a colon the size of the matrix, a power of two (of "
                      "keys and of values apart as in hadamard:128:64)",
                      fmt::format("'{}'", word));
  return rotation;
}

Centering OptionValue<Centering>::parse(const OptionFacts& option, const std::string& given) {
  if (given.ends_with(".npy")) return {0, given, given};
  const std::string word = in_known_spelling(given, {"none", "k"});
  if (word == "none") return {};
  const auto from = word == "k"              ? std::optional<Index>(0)
                    : word.starts_with("k:") ? index_in(std::string_view(word).substr(2), kNoLimit)
                                             : std::nullopt;
  if (!from)
    throw OptionError(option, "none, k, k:N for the mean without the first N tokens, or FILE.npy",
                      fmt::format("'{}'", word));
  return {from, {}, *from == 0 ? "k" : word};
}

Scaling OptionValue<Scaling>::parse(const OptionFacts& option, const std::string& given) {
  if (given.ends_with(".safetensors")) return {given, given};
  if (same_name(given, "none")) return {};
  throw OptionError(option, "none or FILE.safetensors", fmt::format("'{}'", given));
}

KeyGroups OptionValue<KeyGroups>::parse(const OptionFacts& option, const std::string& word) {
  for (const KeyGroups groups : {KeyGroups::channel, KeyGroups::token})
    if (same_name(word, text(groups))) return groups;
  throw OptionError(option, "channel or token", fmt::format("'{}'", word));
}

namespace {

/// Why heads of n numbers cannot be stored so, as what is expected of them.
std::optional<std::string> what_it_wants(const StoredAs& as, Index n) {
  const NumberFormatFacts& facts = kNumberFormats[as.format];
  if (facts.block > 0 && n % facts.block != 0)
    return fmt::format("heads of a multiple of {} numbers for {}", facts.block, facts.name);
  if (turns(as.format) && turning_block(n) != n)
    return fmt::format("heads of a power of two of numbers for {}", facts.name);
  return std::nullopt;
}

StoredAs turned(StoredAs as, bool turn, Index block, Index n, const OptionFacts& rotate,
                const std::string& name) {
  if (!turn || as.format == NumberFormat::exact || turns(as.format)) return as;
  as.turned = block > 0 ? block : turning_block(n);
  if (as.turned < 2 || n % as.turned != 0)
    throw OptionError(option_text("{} {}", rotate, name),
                      block > 0 ? fmt::format("heads of a multiple of {} numbers", block)
                                : std::string("heads of an even number of numbers"),
                      fmt::format("{}", n));
  return as;
}

/// True if two layers have equal storage. All layers without quantization count as equal.
bool is_alike(const Quantization& a, const Quantization& b) {
  return a == b || (a.stores_exactly() && b.stores_exactly());
}

/// Adds a run unless it is present. Throws OptionError if a different run has its name.
void add_run(std::vector<CacheFormatRun>& runs, CacheFormatRun run, const OptionFacts& bits) {
  const auto there = std::ranges::find(runs, run.name, &CacheFormatRun::name);
  if (there == runs.end())
    runs.push_back(std::move(run));
  else if (!std::ranges::equal(there->of_layers, run.of_layers, is_alike))
    throw OptionError(option_text("{} {}", bits, run.name), "one format of a name",
                      "an engine's, and another of your own");
}

/// The run of an engine's format, as the engine stores it: "ktq4v4;0,1,-2,-1:16", "q4_0+hadamard".
CacheFormatRun engine_run(Engine engine, const EngineFormat& format, const DumpShape& shape) {
  const Quantization stored = stored_by(engine, format, shape);
  Quantization exact;
  exact.residual = 0;
  CacheFormatRun run{format.k == format.v ? std::string(name_of(format.k))
                                          : fmt::format("k{}v{}", name_of(format.k), name_of(format.v)),
                     {}};
  const Index ends = ends_of(format, shape.layers);
  for (Index layer = 0; layer < shape.layers; ++layer)
    run.of_layers.push_back(layer < ends || layer >= shape.layers - ends ? exact : stored);
  if (ends > 0) {
    std::vector<Index> exact_layers;
    for (Index layer = 0; layer < ends; ++layer) exact_layers.push_back(layer);
    for (Index layer = ends; layer > 0; --layer) exact_layers.push_back(-layer);
    run.name += fmt::format(";{}:16", fmt::join(exact_layers, ","));
  }
  if (stored.k.turned + stored.v.turned > 0) {
    const Index k = turning_block(shape.d), v = kEngines[engine].turns;
    run.name += v == turning_block(shape.d_v) ? "+hadamard" : fmt::format("+hadamard:{}:{}", k, v);
  }
  return run;
}

/// Throws OptionError for options that have no effect because all formats are an engine's.
void require_other_formats(const CacheFormatOptions& asked, const OptionFacts& bits) {
  const CacheFormatOptions as_given;
  const auto is_engine = [](const CacheFormat& format) { return format.engine.has_value(); };
  if (asked.formats.empty() || !std::ranges::all_of(asked.formats, is_engine)) return;
  if (asked.rotations != as_given.rotations || asked.centerings != as_given.centerings ||
      asked.scales != as_given.scales || asked.keys != as_given.keys || asked.group != as_given.group ||
      asked.residual.value_or(0) != 0)
    throw OptionError(
        option_text("{} {}", bits, asked.formats.front().name),
        "no rotation, centering, scales, keys, group or residual, which the engine's table says", "some");
}

/// A format with the layers that it is to spare: those that lose most and have no exception of their own.
CacheFormat with_worst_layers(const CacheFormat& format, const std::string& how,
                              const CacheFormatOptions& asked, const DumpShape& shape,
                              const OptionFacts& bits) {
  const auto worst_first = asked.worst_first.find(format.sparing({}).name + how);
  if (worst_first == asked.worst_first.end())
    throw OptionError(option_text("{} {}", bits, format.name),
                      "the numbers of layers (evict finds those that lose most)", "auto");
  std::vector<Index> chosen = worst_first->second;
  std::erase_if(chosen, [&](Index layer) { return format.of(layer, shape.layers) != format.formats; });
  if (std::ssize(chosen) < format.spared->layers)
    throw OptionError(option_text("{} {}", bits, format.name),
                      fmt::format("at most {} layers to spare", chosen.size()),
                      fmt::format("{}", format.spared->layers));
  chosen.resize(static_cast<std::size_t>(format.spared->layers));
  return format.sparing(std::move(chosen));
}

}  // namespace

std::vector<CacheFormatRun> cache_format_runs(const CacheFormatOptions& asked, const DumpShape& shape,
                                              const OptionFacts& bits, const OptionFacts& rotate) {
  require_other_formats(asked, bits);
  std::vector<CacheFormatRun> runs;
  for (const CacheFormat& format : asked.formats) {
    if (format.engine) {
      for (const EngineFormat& one : formats_of(*format.engine))
        if (!why_not_stored(stored_by(*format.engine, one, shape), shape))
          add_run(runs, engine_run(*format.engine, one, shape), bits);
      continue;
    }
    for (const CacheFormat::Layers& other : format.others)
      for (const Index layer : {other.first, other.last})
        if (const Index number = from_start(layer, shape.layers); number < 0 || number >= shape.layers)
          throw OptionError(option_text("{} {}", bits, format.name),
                            fmt::format("layers 0 to {}", shape.layers - 1), fmt::format("{}", layer));
    bool all_uniform = true, has_scale = false;
    for (Index layer = 0; layer < shape.layers; ++layer)
      for (const NumberFormat one : {format.of(layer, shape.layers).k, format.of(layer, shape.layers).v}) {
        all_uniform = all_uniform && (kNumberFormats[one].uniform || one == NumberFormat::exact);
        has_scale = has_scale || kNumberFormats[one].tensor_scale;
      }
    const auto add_one = [&](const Rotation& rotation, const Centering& centering, const Scaling& scaling) {
      std::vector<TensorScales> scales(static_cast<std::size_t>(shape.layers));
      std::string how;
      if (rotation.name != "none") how += "+" + rotation.name;
      if (!centering.file.empty())
        how += "+center:" + as_own_name(std::filesystem::path(centering.file).stem().string());
      else if (centering.from)
        how += "+center" + centering.name.substr(1);
      if (has_scale && !scaling.file.empty()) {
        how += "+scales:" + as_own_name(std::filesystem::path(scaling.file).stem().string());
        scales = read_scales(scaling.file, shape.layers);
      }
      const CacheFormat resolved =
          format.spared ? with_worst_layers(format, how, asked, shape, bits) : format;
      CacheFormatRun run{resolved.name + how, {}};
      for (Index layer = 0; layer < shape.layers; ++layer) {
        const auto [k, v] = resolved.of(layer, shape.layers);
        Quantization as{{k, asked.keys == KeyGroups::channel && kNumberFormats[k].uniform}, {v}};
        for (const auto& [stored, n] : {std::pair(as.k, shape.d), std::pair(as.v, shape.d_v)})
          if (const auto wanted = what_it_wants(stored, n))
            throw OptionError(option_text("{} {}", bits, format.name), *wanted, fmt::format("{}", n));
        as.k = turned(as.k, rotation.k, rotation.k_block, shape.d, rotate, rotation.name);
        as.v = turned(as.v, rotation.v, rotation.v_block, shape.d_v, rotate, rotation.name);
        if (k != NumberFormat::exact) as.k.centered = centering.from, as.k.centers.file = centering.file;
        if (kNumberFormats[k].tensor_scale) as.k.scale = scales[static_cast<std::size_t>(layer)].k;
        if (kNumberFormats[v].tensor_scale) as.v.scale = scales[static_cast<std::size_t>(layer)].v;
        as.group = asked.group;
        as.residual = asked.residual.value_or(all_uniform ? Quantization{}.residual : 0);
        run.of_layers.push_back(as);
      }
      read_centers(run.of_layers, shape);
      add_run(runs, std::move(run), bits);
    };
    for (const Rotation& rotation : asked.rotations)
      for (const Centering& centering : asked.centerings)
        for (const Scaling& scaling : asked.scales) add_one(rotation, centering, scaling);
  }
  return runs;
}

std::vector<std::pair<std::string, std::string>> formats_left_out(const CacheFormatOptions& asked,
                                                                  const DumpShape& shape) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const CacheFormat& format : asked.formats)
    if (format.engine)
      for (const EngineFormat& one : formats_of(*format.engine))
        if (const auto wanted = why_not_stored(stored_by(*format.engine, one, shape), shape))
          found.push_back({fmt::format("{} of {}", engine_run(*format.engine, one, shape).name, format.name),
                           fmt::format("it needs {}", *wanted)});
  return found;
}

Json to_json(const Quantization& stored) {
  Json json = {{"k", name_of(stored.k.format)},
               {"v", name_of(stored.v.format)},
               {"keys", stored.k.per_channel ? "channel" : "token"},
               {"turned", {stored.k.turned, stored.v.turned}},
               {"group", stored.group},
               {"residual", stored.residual}};
  if (stored.k.centered) json["centered"] = *stored.k.centered;
  if (!stored.k.centers.file.empty()) json["centered"] = stored.k.centers.file;
  if (stored.k.scale != 1 || stored.v.scale != 1) json["scales"] = {stored.k.scale, stored.v.scale};
  return json;
}

Quantization quantization_in(const Json& json, const std::string& where) {
  if (!json.is_object()) throw InputError(where, "an object", json_text(json));
  const JsonFields fields(json, where);
  constexpr std::string_view kKnown[] = {"k",        "v",        "keys",   "turned",     "group",
                                         "residual", "centered", "scales", "interleaved"};
  fields.check_keys(kKnown);
  const auto format = [&](const char* key) {
    const std::string name = fields.text(key).value_or("16");
    const auto found = kNumberFormats.named(in_known_spelling(name, kNumberFormats.names()));
    if (!found)
      throw InputError(fields.where(key), names_text(kNumberFormats.names(), Listed::one_of),
                       fmt::format("'{}'", name));
    return *found;
  };
  const auto whole = [&](const Json& value, const char* key) {
    if (!value.is_number_integer() || value < 0 || value > kNoLimit)
      throw InputError(fields.where(key), "whole numbers of at least 0", json_text(value));
    return value.get<Index>();
  };
  const std::string keys = fields.text("keys").value_or("channel");
  if (keys != "channel" && keys != "token")
    throw InputError(fields.where("keys"), "channel or token", fmt::format("'{}'", keys));
  Quantization stored{{format("k")}, {format("v")}, fields.positive_integer("group").value_or(32), 0};
  stored.k.per_channel = keys == "channel" && kNumberFormats[stored.k.format].uniform;
  if (const Json& residual = fields.at("residual"); !residual.is_null())
    stored.residual = whole(residual, "residual");
  if (const Json& centered = fields.at("centered"); centered.is_string()) {
    stored.k.centered = 0;
    stored.k.centers.file = centered.get<std::string>();
  } else if (!centered.is_null()) {
    stored.k.centered = whole(centered, "centered");
  }
  if (const Json& scales = fields.at("scales"); !scales.is_null()) {
    const std::vector<double> both = fields.numbers(scales, fields.where("scales"), true);
    if (both.size() != 2 || both[0] == 0 || both[1] == 0)
      throw InputError(fields.where("scales"), "two numbers above 0, of keys and of values",
                       json_text(scales));
    stored.k.scale = both[0];
    stored.v.scale = both[1];
  }
  if (const Json& turned = fields.at("turned"); !turned.is_null()) {
    if (!turned.is_array() || turned.size() != 2)
      throw InputError(fields.where("turned"), "two sizes, of keys and of values", json_text(turned));
    for (const auto& [as, size] : {std::pair(&stored.k, turned[0]), std::pair(&stored.v, turned[1])}) {
      as->turned = whole(size, "turned");
      if (as->turned != 0 && (as->turned < 2 || turning_block(as->turned) != as->turned))
        throw InputError(fields.where("turned"), "0 or powers of two", json_text(size));
    }
  }
  return stored;
}

void read_centers(std::vector<Quantization>& of_layers, const DumpShape& shape) {
  std::map<std::string, std::shared_ptr<const std::vector<double>>> read;
  for (Quantization& stored : of_layers) {
    GivenCenters& centers = stored.k.centers;
    if (centers.file.empty()) continue;
    auto& vectors = read[centers.file];
    if (!vectors) {
      const std::array<Index, 3> expected{shape.layers, shape.n_kv, shape.d};
      std::vector<double> found = read_npy(centers.file, expected);
      if (!std::ranges::all_of(found, [](double x) { return std::isfinite(x); }))
        throw InputError(centers.file, "finite numbers", "some that are not");
      vectors = std::make_shared<const std::vector<double>>(std::move(found));
    }
    centers = {centers.file, shape.n_kv, shape.d, vectors};
  }
}

std::optional<std::string> why_not_stored(const Quantization& stored, const DumpShape& shape) {
  for (const auto& [as, n] : {std::pair(stored.k, shape.d), std::pair(stored.v, shape.d_v)}) {
    if (auto wanted = what_it_wants(as, n)) return wanted;
    if (as.turned > 0 && n % as.turned != 0)
      return fmt::format("heads of a multiple of {} numbers", as.turned);
  }
  return std::nullopt;
}

Json to_json(const CacheFormatRun& run) {
  Json layers = Json::array();
  for (const Quantization& stored : run.of_layers) layers.push_back(to_json(stored));
  return layers;
}

std::string format_text(const Quantization& quantization) {
  const auto side = [&](const char* what, const StoredAs& as) {
    const NumberFormatFacts& facts = kNumberFormats[as.format];
    std::string text = fmt::format(
        "{} {}", what, facts.uniform ? fmt::format("{} bits", facts.bits) : std::string(facts.name));
    if (as.format == NumberFormat::exact) text = fmt::format("{} as they are", what);
    if (facts.uniform)
      text += fmt::format(" per {} (groups of {} {})", as.per_channel ? "channel" : "token",
                          quantization.group, as.per_channel ? "tokens" : "numbers");
    if (as.scale != 1) text += fmt::format(" over a scale of {:.4g}", as.scale);
    if (as.turned > 0) text += fmt::format(", turned by a Hadamard matrix of {}", as.turned);
    if (as.centered) text += as.centers.file.empty() ? ", around their mean" : ", around given vectors";
    return text;
  };
  return side("keys", quantization.k) + "; " + side("values", quantization.v) +
         (quantization.residual > 0 ? fmt::format("; the last {} tokens exact", quantization.residual) : "");
}

}  // namespace kvreplay
