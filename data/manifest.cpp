#include "data/manifest.hpp"

#include "data/console.hpp"
#include "data/error.hpp"
#include "data/json_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

namespace kvreplay {
namespace {

constexpr std::string_view kKeys[] = {"model",
                                      "prompt_len",
                                      "prompt_ends",
                                      "scale",
                                      "causal",
                                      "logit_softcap",
                                      "sliding_window",
                                      "sink_logit",
                                      "rope",
                                      "layers",
                                      "dtype",
                                      "incomplete",
                                      "rope_note",
                                      "wo_note",
                                      "gradients",
                                      "reference_rows",
                                      "n_layers",
                                      "n_q_heads",
                                      "n_kv_heads",
                                      "head_dim",
                                      "total_len",
                                      "origin",
                                      "planted",
                                      "task",
                                      "sliding_window_two_sided",
                                      "output_multiplier",
                                      "residual_note",
                                      "cache_of",
                                      "output_norm"};
constexpr std::string_view kRopeKeys[] = {
    "style", "theta", "inv_freq", "rotary_dim", "attention_factor", "scaling", "ggml_style"};

/// Keys of Hugging Face's configurations that mean what ours mean.
constexpr std::pair<const char*, const char*> kSynonyms[] = {
    {"attn_logit_softcapping", "logit_softcap"}, {"is_causal", "causal"},
    {"num_hidden_layers", "n_layers"},           {"num_attention_heads", "n_q_heads"},
    {"num_key_value_heads", "n_kv_heads"},
};

/// Keys that others have and ours say otherwise, or that say what no dump can.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"softcap", "logit_softcap"},
    {"logits_soft_cap", "logit_softcap"},
    {"attn_softcap", "logit_softcap"},
    {"softcapping", "logit_softcap"},
    {"two_sided", "sliding_window_two_sided"},
    {"window", "sliding_window"},
    {"window_size", "sliding_window"},
    {"local_attention", "sliding_window"},
    {"attention_window", "sliding_window"},
    {"use_sliding_window", "sliding_window, null in layers of full attention"},
    {"max_window_layers", "sliding_window, one entry a layer"},
    {"layer_types", "sliding_window, one entry a layer"},
    {"sliding_window_pattern", "sliding_window, one entry a layer"},
    {"attention_chunk_size", "none: chunks of attention are not read"},
    {"sinks", "sink_logit"},
    {"s_aux", "sink_logit"},
    {"attention_sinks", "sink_logit"},
    {"bidirectional", "causal, false"},
    {"is_decoder", "causal"},
    {"softmax_scale", "scale"},
    {"scaling", "scale, or rope's scaling"},
    {"sm_scale", "scale"},
    {"attention_multiplier", "scale"},
    {"attn_sub_norm", "output_norm, {\"kind\": \"rms\", \"eps\": ...}"},
    {"query_pre_attn_scalar", "scale, 1 / sqrt of it"},
    {"rope_theta", "rope, {\"style\": \"half\", \"theta\": ...}"},
    {"rope_scaling", "rope, with inv_freq"},
    {"rope_parameters", "rope, with inv_freq"},
    {"partial_rotary_factor", "rope, with rotary_dim"},
    {"no_rope_layers", "rope, with inv_freq of zeros in those layers"},
    {"base", "theta"},
    {"dim", "rotary_dim"},
    {"factor", "inv_freq of the scaled rotation"},
    {"rope_type", "scaling, or inv_freq of the scaled rotation"},
    {"num_heads", "n_q_heads"},
    {"seq_len", "total_len"},
    {"residual_multiplier", "output_multiplier"},
    {"attention_out_multiplier", "output_multiplier"},
    {"shared_kv_layers", "cache_of, one entry a layer"},
    {"num_kv_shared_layers", "cache_of, one entry a layer"},
    {"torch_dtype", "none: the files' own dtype, or dtype"},
};

/// True if the name of a manifest key suggests that it affects which tokens a row attends to, or with which
/// weight.
bool is_about_attention(std::string_view key) {
  constexpr std::string_view kWords[] = {
      "mask", "window", "causal", "directional", "cap",      "sink",   "rope",      "rotary", "theta",
      "scal", "bias",   "alibi",  "chunk",       "head",     "dtype",  "attention", "attn",   "temperature",
      "gate", "shar",   "layer",  "softmax",     "position", "prefix", "prompt"};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return key.find(word) != std::string_view::npos; });
}

/// Moves a value from a synonym to our key.
void take_synonyms(Json& json, const std::string& where) {
  for (const auto& [theirs, ours] : kSynonyms) {
    const auto found = json.find(theirs);
    if (found == json.end()) continue;
    Json value = std::move(*found);
    json.erase(found);
    Json& own = json[ours];
    if (!own.is_null() && !value.is_null() && own != value)
      throw InputError(fmt::format("{}: {}", where, theirs),
                       fmt::format("{}, as {} says", json_text(own), ours), json_text(value));
    if (own.is_null()) own = std::move(value);
  }
}

/// Refuses a key that others call otherwise, and a misspelt one.
void check_key(const JsonFields& fields, const std::string& key, std::span<const std::string_view> known) {
  std::string lower = key;
  for (char& c : lower) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [theirs, ours] : kElsewhere)
    if (lower == theirs) fields.refuse_key(key, fmt::format("; the key for it is {}", ours));
  constexpr std::size_t kLongest = 64;  // of a key that may be a misspelt one
  const std::string near = lower.size() > kLongest ? "" : did_you_mean(lower, {known.begin(), known.end()});
  if (!near.empty()) fields.refuse_key(key, near);
}

void check_keys(const JsonFields& fields, const Json& json, Manifest& manifest) {
  manifest.other_keys = fields.keys_beside(kKeys);
  std::vector<std::string> noted;
  for (const std::string& key : manifest.other_keys) {
    check_key(fields, key, kKeys);
    const bool about_attention = is_about_attention(key), text = json.at(key).is_string();
    if (about_attention && !text && !json.at(key).is_null())
      fields.refuse_key(key, fmt::format("; there are: {}", fmt::join(kKeys, ", ")));
    if (about_attention || !text) noted.push_back(json_text(key));
  }
  if (noted.empty()) return;
  manifest.notes.push_back("manifest.json has keys that are not used: " + first_names(noted, 8));
}

std::optional<Dtype> parse_dtype(const JsonFields& fields) {
  const auto name = fields.text("dtype");
  if (!name) return std::nullopt;
  std::string_view word = *name;
  if (word.starts_with("torch.")) word.remove_prefix(6);
  for (const auto& [text, dtype] : {std::pair{"bf16", Dtype::bf16},
                                    {"fp16", Dtype::f16},
                                    {"half", Dtype::f16},
                                    {"fp32", Dtype::f32},
                                    {"float", Dtype::f32},
                                    {"fp64", Dtype::f64}})
    if (word == text) return dtype;
  if (const auto dtype = kDtypes.named(word)) return dtype;
  throw InputError(fields.where("dtype"), "float16, bfloat16, float32 or float64", json_text(*name));
}

void parse_sliding_window(const JsonFields& fields, Manifest& manifest) {
  const auto& value = fields.at("sliding_window");
  if (value.is_null()) return;
  manifest.sliding_window_per_layer = value.is_array();
  if (!value.is_array()) {
    manifest.sliding_window.push_back(fields.positive_integer("sliding_window"));
    return;
  }
  for (const auto& entry : value) {
    const auto window = as_positive_index(entry);
    if (!window && !entry.is_null()) {
      throw InputError(fields.where("sliding_window"), "null or a whole number of at least 1 for each layer",
                       json_text(entry) + " in it");
    }
    manifest.sliding_window.push_back(window);
  }
}

void parse_sink_logit(const JsonFields& fields, Manifest& manifest) {
  const auto& value = fields.at("sink_logit");
  if (value.is_null()) return;
  if (!value.is_array() || value.empty()) {
    throw InputError(fields.where("sink_logit"), "a list of lists, [layers][n_q]", json_text(value));
  }
  for (const auto& row : value) {
    if (row.is_array() && row.empty())
      throw InputError(fields.where("sink_logit"), "null or n_q numbers a layer", "[]");
    manifest.sink_logit.push_back(row.is_null() ? std::vector<double>{}
                                                : fields.numbers(row, fields.where("sink_logit"), false));
  }
}

void parse_layers(const JsonFields& fields, Manifest& manifest) {
  const auto& value = fields.at("layers");
  if (value.is_null()) return;
  constexpr const char* kWanted = "the model's numbers of the layers, ascending from at least 0";
  if (!value.is_array()) throw InputError(fields.where("layers"), kWanted, json_text(value));
  for (const auto& entry : value) {
    const bool first = entry.is_number_integer() && entry == 0;
    const auto number = first ? std::optional<Index>(0) : as_positive_index(entry);
    if (!number || (!manifest.layers.empty() && *number <= manifest.layers.back()))
      throw InputError(fields.where("layers"), kWanted, json_text(entry) + " in it");
    manifest.layers.push_back(*number);
  }
}

void parse_output_multiplier(const JsonFields& fields, Manifest& manifest) {
  const auto& value = fields.at("output_multiplier");
  if (value.is_null()) return;
  const std::string where = fields.where("output_multiplier");
  if (value.is_array() && value.empty())
    throw InputError(where, "a number, or one for each layer", json_text(value));
  manifest.output_multiplier = fields.numbers(value.is_array() ? value : Json::array({value}), where, false);
  for (const double number : manifest.output_multiplier)
    if (number == 0) throw InputError(where, "numbers other than 0", "0");
}

/// {"kind": "rms", "eps": 1e-5}: what divides the heads' outputs before wo. There is no other kind.
void parse_output_norm(const JsonFields& fields, Manifest& manifest) {
  const auto norm = fields.object("output_norm");
  if (!norm) return;
  constexpr std::string_view kNormKeys[] = {"kind", "eps"};
  norm->check_keys(kNormKeys);
  if (norm->text("kind") != "rms")
    throw InputError(norm->where("kind"), "\"rms\"", json_text(norm->at("kind")));
  manifest.output_norm = norm->positive_number("eps");
  if (!manifest.output_norm) throw InputError(norm->where("eps"), "a positive number", "none");
}

void parse_cache_of(const JsonFields& fields, Manifest& manifest) {
  const auto& value = fields.at("cache_of");
  if (value.is_null()) return;
  const std::string where = fields.where("cache_of");
  constexpr const char* kWanted = "for each layer its own number, or that of an earlier one that has a cache";
  if (!value.is_array() || value.empty()) throw InputError(where, kWanted, json_text(value));
  for (const auto& entry : value) {
    const Index layer = std::ssize(manifest.cache_of);
    const Index of = entry.is_null()            ? layer
                     : entry == 0               ? 0
                     : as_positive_index(entry) ? *as_positive_index(entry)
                                                : layer + 1;
    if (of > layer || (of < layer && manifest.cache_of[static_cast<std::size_t>(of)] != of))
      throw InputError(where, kWanted, fmt::format("{} for layer {}", json_text(entry), layer));
    manifest.cache_of.push_back(of);
  }
}

Rope::Style parse_style(const JsonFields& fields, const char* key) {
  const auto style = fields.text(key);
  if (style == "half") return Rope::Style::half;
  if (style == "interleaved") return Rope::Style::interleaved;
  throw InputError(fields.where(key), "\"half\" or \"interleaved\"", json_text(fields.at(key)));
}

/// Hugging Face's "scaling" changes the frequencies in ways that differ from model to model; the one that
/// changes nothing is known. A list of frequencies makes it irrelevant.
bool scaling_is_understood(const Json& scaling) {
  if (scaling.is_null()) return true;
  if (!scaling.is_object()) return false;
  for (const char* key : {"rope_type", "type"}) {
    if (const auto type = scaling.find(key); type != scaling.end()) return *type == "default";
  }
  return false;
}

/// Why a capture left something out, as one clause; empty where it does not say.
std::string reason(const JsonFields& fields, const char* key, std::string_view lead) {
  const std::string note = fields.text(key).value_or("");
  return note.starts_with(lead) ? note.substr(lead.size()) : note;
}

void parse_rope(const JsonFields& fields, Manifest& manifest) {
  const auto found = fields.object("rope");
  if (!found) {
    const std::string why = reason(fields, "rope_note", "no rope: ");
    manifest.rope_note = "the manifest has no rope" + (why.empty() ? "" : fmt::format(" ({})", why));
    return;
  }
  const JsonFields& rope = *found;
  for (const std::string& key : rope.keys_beside(kRopeKeys)) check_key(rope, key, kRopeKeys);
  rope.check_keys(kRopeKeys);
  Manifest::RopeKeys keys;
  keys.style = parse_style(rope, "style");
  if (!rope.at("ggml_style").is_null()) {
    const Rope::Style in_ggml = parse_style(rope, "ggml_style");
    keys.interleaved_in_ggml = in_ggml != keys.style;
    if (in_ggml == Rope::Style::half && keys.interleaved_in_ggml)
      throw InputError(rope.where("ggml_style"), "\"interleaved\", as style", "\"half\"");
  }
  keys.theta = rope.positive_number("theta");
  keys.rotary_dim = rope.positive_integer("rotary_dim");
  keys.attention_factor = rope.positive_number("attention_factor").value_or(1.0);
  const auto& inv_freq = rope.at("inv_freq");
  if (!inv_freq.is_null()) {
    keys.inv_freq_per_layer = inv_freq.is_array() && !inv_freq.empty() && inv_freq.front().is_array();
    if (keys.inv_freq_per_layer) {
      for (const auto& row : inv_freq)
        keys.inv_freq.push_back(rope.numbers(row, rope.where("inv_freq"), true));
    } else {
      keys.inv_freq.push_back(rope.numbers(inv_freq, rope.where("inv_freq"), true));
    }
  } else if (!scaling_is_understood(rope.at("scaling"))) {
    const auto& scaling = rope.at("scaling");
    manifest.rope_note =
        fmt::format("the manifest's rope is scaled ({}) and has no inv_freq to say by how much",
                    scaling.is_object() ? json_text(scaling.value("rope_type", scaling.value("type", Json())))
                                        : json_text(scaling));
    return;
  } else if (!keys.theta) {
    throw InputError(fields.where("rope"), "theta or inv_freq", "neither");
  }
  manifest.rope = std::move(keys);
}

void parse_gradients(const JsonFields& fields, Manifest& manifest) {
  const auto gradients = fields.object("gradients");
  if (!gradients) return;
  constexpr std::string_view kGradientKeys[] = {"samples", "labels", "seed"};
  gradients->check_keys(kGradientKeys);
  manifest.gradients = {gradients->positive_integer("samples"), gradients->text("labels").value_or(""), {}};
  const auto& seed = gradients->at("seed");
  if (seed.is_null()) return;
  if (!seed.is_number_integer() || seed < 0)
    throw InputError(gradients->where("seed"), "a whole number of at least 0", json_text(seed));
  manifest.gradients->seed = seed.get<Index>();
}

/// [begin, end), as [begin, end].
QuestionFacts::Span parse_span(const Json& value, const std::string& where) {
  const bool two = value.is_array() && value.size() == 2 && value[0].is_number_unsigned();
  const std::optional<Index> end = two ? as_positive_index(value[1]) : std::nullopt;
  if (!end || value[0].get<std::uint64_t>() >= static_cast<std::uint64_t>(*end))
    throw InputError(where, "two positions, [begin, end]", json_text(value));
  return {value[0].get<Index>(), *end};
}

/// Parses a `task` that has `spans`. Any other `task` belongs to another program and is ignored.
void parse_question(const JsonFields& fields, Manifest& manifest) {
  if (!fields.at("task").is_object()) return;
  const auto task = fields.object("task");
  const auto spans = task->object("spans");
  if (!spans) return;
  QuestionFacts& question = manifest.question.emplace();
  question.task = task->text("name").value_or("");
  question.text = task->text("question").value_or("");
  question.answer = task->text("answer").value_or("");
  const Json& needles = spans->at("needles");
  if (!needles.is_array()) throw InputError(spans->where("needles"), "a list of spans", json_text(needles));
  for (const Json& needle : needles) question.needles.push_back(parse_span(needle, spans->where("needles")));
  question.asked = parse_span(spans->at("question"), spans->where("question"));
  question.answered = parse_span(spans->at("answer"), spans->where("answer"));
}

/// Checks {"kind": "repeat"}: the origin of q_ref. No other kind exists.
void check_reference_rows(const JsonFields& fields) {
  const auto rows = fields.object("reference_rows");
  constexpr std::string_view kRowsKeys[] = {"kind"};
  if (rows) rows->check_keys(kRowsKeys);
  if (rows && rows->text("kind").value_or("repeat") != "repeat")
    throw InputError(rows->where("kind"), "\"repeat\"", json_text(rows->at("kind")));
}

void expect_extent(const Manifest& manifest, const char* key, const std::optional<Index>& stated,
                   Index found) {
  if (stated && *stated != found) {
    throw InputError(fmt::format("{}: {}", manifest.where, key), fmt::format("{}, as the files have", found),
                     std::to_string(*stated));
  }
}

void expect_per_layer(const Manifest& manifest, const char* key, std::size_t entries, Index layers) {
  if (entries != static_cast<std::size_t>(layers)) {
    throw InputError(fmt::format("{}: {}", manifest.where, key),
                     fmt::format("one entry for each of {} layers", layers),
                     fmt::format("{} entries", entries));
  }
}

void check_rope(const Manifest& manifest, const DumpShape& shape) {
  const auto& rope = *manifest.rope;
  const std::string where = manifest.where + ": rope";
  if (rope.inv_freq_per_layer)
    expect_per_layer(manifest, "rope: inv_freq", rope.inv_freq.size(), shape.layers);
  Index rotary_dim = rope.rotary_dim.value_or(shape.d);
  if (!rope.inv_freq.empty() && !rope.rotary_dim) rotary_dim = 2 * std::ssize(rope.inv_freq.front());
  if (rotary_dim < 2 || rotary_dim % 2 != 0 || rotary_dim > shape.d) {
    throw InputError(where + ": rotary_dim", fmt::format("an even number from 2 to head_dim {}", shape.d),
                     std::to_string(rotary_dim));
  }
  for (const auto& row : rope.inv_freq) {
    if (std::ssize(row) != rotary_dim / 2) {
      throw InputError(where + ": inv_freq",
                       fmt::format("{} frequencies for rotary_dim {}", rotary_dim / 2, rotary_dim),
                       std::to_string(row.size()));
    }
  }
}

/// The list under `key`, empty where absent.
Json list_of(const JsonFields& fields, const char* key) {
  const auto& list = fields.at(key);
  if (list.is_null()) return Json::array();
  if (!list.is_array()) throw InputError(fields.where(key), "a list", json_text(list));
  return list;
}

}  // namespace

Manifest parse_manifest(std::string_view text, const std::string& where) {
  Json json = parse_json_object(text, where);
  take_synonyms(json, where);
  const JsonFields fields(json, where);
  Manifest manifest;
  manifest.where = where;
  check_keys(fields, json, manifest);
  manifest.model = fields.text("model");
  manifest.prompt_len = fields.positive_integer("prompt_len");
  if (const auto ends = fields.object("prompt_ends"))
    for (const std::string& name : ends->keys_beside({}))
      if (const auto end = ends->positive_integer(name.c_str()))
        manifest.prompt_ends.emplace_back(name, *end);
  manifest.scale = fields.positive_number("scale");
  manifest.causal = fields.boolean("causal");
  manifest.logit_softcap = fields.positive_number("logit_softcap");
  manifest.dtype = parse_dtype(fields);
  manifest.n_layers = fields.positive_integer("n_layers");
  manifest.n_q_heads = fields.positive_integer("n_q_heads");
  manifest.n_kv_heads = fields.positive_integer("n_kv_heads");
  manifest.head_dim = fields.positive_integer("head_dim");
  manifest.total_len = fields.positive_integer("total_len");
  parse_layers(fields, manifest);
  parse_sliding_window(fields, manifest);
  manifest.two_sided = fields.boolean("sliding_window_two_sided");
  parse_sink_logit(fields, manifest);
  parse_rope(fields, manifest);
  parse_gradients(fields, manifest);
  parse_question(fields, manifest);
  check_reference_rows(fields);
  parse_output_norm(fields, manifest);
  parse_output_multiplier(fields, manifest);
  parse_cache_of(fields, manifest);
  manifest.residual_note = reason(fields, "residual_note", "no residual_norm: ");
  manifest.wo_note = reason(fields, "wo_note", "no wo: ");
  manifest.incomplete = fields.boolean("incomplete").value_or(false);
  return manifest;
}

void check_manifest(const Manifest& manifest, const DumpShape& shape) {
  expect_extent(manifest, "n_layers", manifest.n_layers, shape.layers);
  expect_extent(manifest, "n_q_heads", manifest.n_q_heads, shape.n_q);
  expect_extent(manifest, "n_kv_heads", manifest.n_kv_heads, shape.n_kv);
  expect_extent(manifest, "head_dim", manifest.head_dim, shape.d);
  expect_extent(manifest, "total_len", manifest.total_len, shape.T);
  if (manifest.prompt_len && *manifest.prompt_len > shape.T) {
    throw InputError(manifest.where + ": prompt_len",
                     fmt::format("at most the {} positions in the files", shape.T),
                     std::to_string(*manifest.prompt_len));
  }
  if (const auto& question = manifest.question) {
    Index last = std::max(question->asked.end, question->answered.end);
    for (const QuestionFacts::Span& needle : question->needles) last = std::max(last, needle.end);
    if (last > shape.T)
      throw InputError(manifest.where + ": task: spans",
                       fmt::format("positions up to {}, as the files have", shape.T), std::to_string(last));
  }
  if (manifest.two_sided == true && manifest.causal.value_or(true))
    throw InputError(manifest.where + ": sliding_window_two_sided",
                     "\"causal\": false, for a row that sees what is ahead", "causal attention");
  if (!manifest.layers.empty()) expect_per_layer(manifest, "layers", manifest.layers.size(), shape.layers);
  if (manifest.output_multiplier.size() > 1)
    expect_per_layer(manifest, "output_multiplier", manifest.output_multiplier.size(), shape.layers);
  if (!manifest.cache_of.empty())
    expect_per_layer(manifest, "cache_of", manifest.cache_of.size(), shape.layers);
  if (manifest.sliding_window_per_layer) {
    expect_per_layer(manifest, "sliding_window", manifest.sliding_window.size(), shape.layers);
    for (std::size_t layer = 0; layer < manifest.cache_of.size(); ++layer)
      if (const auto of = static_cast<std::size_t>(manifest.cache_of[layer]);
          manifest.sliding_window[layer] != manifest.sliding_window[of])
        throw InputError(manifest.where + ": cache_of", "layers of one sliding window that share a cache",
                         fmt::format("layer {}, whose window is not that of layer {}", layer, of));
  }
  if (!manifest.sink_logit.empty()) {
    expect_per_layer(manifest, "sink_logit", manifest.sink_logit.size(), shape.layers);
    for (const auto& row : manifest.sink_logit) {
      if (!row.empty() && std::ssize(row) != shape.n_q) {
        throw InputError(manifest.where + ": sink_logit",
                         fmt::format("{} query heads in each layer", shape.n_q), std::to_string(row.size()));
      }
    }
  }
  if (manifest.rope) check_rope(manifest, shape);
}

AttentionRule attention_rule(const Manifest& manifest, const DumpShape& shape, Index layer) {
  const std::size_t i = static_cast<std::size_t>(layer);
  AttentionRule rule;
  rule.scale = manifest.scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.d)));
  rule.causal = manifest.causal.value_or(true);
  rule.softcap = manifest.logit_softcap;
  if (!manifest.sliding_window.empty()) {
    rule.sliding_window = manifest.sliding_window[manifest.sliding_window_per_layer ? i : 0];
    // "None" is sometimes written as the largest integer there is. Positions are below all of these.
    if (rule.sliding_window >= std::numeric_limits<std::int32_t>::max()) rule.sliding_window.reset();
    rule.two_sided = rule.sliding_window && manifest.two_sided.value_or(false);
  }
  if (!manifest.sink_logit.empty()) rule.sink_logit = manifest.sink_logit[i];
  return rule;
}

std::optional<Rope> layer_rope(const Manifest& manifest, const DumpShape& shape, Index layer) {
  if (!manifest.rope) return std::nullopt;
  const auto& keys = *manifest.rope;
  Rope rope;
  rope.style = keys.style;
  rope.attention_factor = keys.attention_factor;
  rope.interleaved_in_ggml = keys.interleaved_in_ggml;
  if (!keys.inv_freq.empty()) {
    rope.inv_freq = keys.inv_freq[keys.inv_freq_per_layer ? static_cast<std::size_t>(layer) : 0];
    rope.rotary_dim = 2 * std::ssize(rope.inv_freq);
    return rope;
  }
  rope.rotary_dim = keys.rotary_dim.value_or(shape.d);
  for (Index c = 0; c < rope.rotary_dim; c += 2) {
    rope.inv_freq.push_back(
        std::pow(*keys.theta, -static_cast<double>(c) / static_cast<double>(rope.rotary_dim)));
  }
  return rope;
}

TokenLabels parse_tokens(std::string_view text, const std::string& where) {
  constexpr std::string_view kTokenKeys[] = {"ids", "text"};
  const Json json = parse_json_object(text, where);
  const JsonFields fields(json, where);
  for (const std::string& key : fields.keys_beside(kTokenKeys))  // a text may say whose tokens they are
    if (!json.at(key).is_string()) fields.refuse_key(key, "; there are: ids, text");
  TokenLabels labels;
  for (const auto& id : list_of(fields, "ids")) {
    if (!id.is_number_integer())
      throw InputError(fields.where("ids"), "whole numbers", json_text(id) + " in it");
    labels.ids.push_back(id.get<std::int64_t>());
  }
  for (const auto& label : list_of(fields, "text")) {
    if (!label.is_string()) throw InputError(fields.where("text"), "strings", json_text(label) + " in it");
    labels.text.push_back(label.get<std::string>());
  }
  return labels;
}

void check_tokens(const TokenLabels& labels, const std::string& where, Index T) {
  for (const auto& [key, count] :
       {std::pair("ids", std::ssize(labels.ids)), {"text", std::ssize(labels.text)}})
    if (count != 0 && count != T)
      throw InputError(fmt::format("{}: {}", where, key), fmt::format("{} entries, one a position", T),
                       std::to_string(count));
}

}  // namespace kvreplay
