#include "analysis/commands/commands.hpp"
#include "analysis/run/run.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "sim/backend/backend_cuda.hpp"
#include "sim/cuda/runtime.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>

namespace kvreplay {
namespace {

std::string bytes_text(std::uintmax_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < std::size(kUnits); ++unit) size /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", size, kUnits[unit]);
}

/// All files of one tensor together.
struct TensorSummary {
  std::set<Dtype> dtypes;
  std::vector<Index> shape;  // of the first
  std::size_t files = 0;
  std::uintmax_t bytes = 0;

  std::string dtypes_text() const {
    std::string text;
    for (const Dtype dtype : dtypes) text += fmt::format("{}{}", text.empty() ? "" : ", ", name_of(dtype));
    return text;
  }
};

std::map<Tensor, TensorSummary> by_tensor(const Dump& dump) {
  std::map<Tensor, TensorSummary> tensors;
  for (const DumpFile& file : dump.files()) {
    TensorSummary& summary = tensors[file.tensor];
    if (summary.files++ == 0) summary.shape = file.shape;
    summary.dtypes.insert(file.dtype);
    summary.bytes += file.bytes;
  }
  return tensors;
}

/// Layers that share one value, as "0-3, 5: full"; one value for all as it is.
template <class Value>
std::string by_layer(Index layers, const Value& value_of) {
  std::vector<std::pair<std::string, std::string>> groups;  // value, layers
  for (Index first = 0; first < layers;) {
    const std::string value = value_of(first);
    Index last = first;
    while (last + 1 < layers && value_of(last + 1) == value) ++last;
    const std::string range = first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
    const auto found = std::ranges::find_if(groups, [&](const auto& g) { return g.first == value; });
    if (found == groups.end())
      groups.emplace_back(value, range);
    else
      found->second += "," + range;
    first = last + 1;
  }
  if (groups.size() == 1) return groups.front().first;
  std::string text;
  for (const auto& [value, range] : groups)
    text += fmt::format("{}{} (layers {})", text.empty() ? "" : "; ", value, range);
  return text;
}

std::string window_text(const Dump& dump) {
  return by_layer(dump.shape().layers, [&](Index layer) {
    const AttentionRule rule = dump.rule(layer);
    if (!rule.sliding_window) return std::string("full");
    return rule.two_sided ? fmt::format("fewer than {} positions away", *rule.sliding_window)
                          : fmt::format("last {} positions", *rule.sliding_window);
  });
}

std::string logits_text(const Dump& dump) {
  return by_layer(dump.shape().layers, [&](Index layer) {
    const AttentionRule rule = dump.rule(layer);
    std::string text = fmt::format("scale {:.6g}, {}", rule.scale, rule.causal ? "causal" : "not causal");
    text += rule.softcap ? fmt::format(", soft cap {:g}", *rule.softcap) : ", no soft cap";
    return text + (rule.sink_logit.empty() ? ", no sink logit" : ", sink logits");
  });
}

std::string rope_text(const Dump& dump) {
  if (!dump.rope_note().empty()) return dump.rope_note();
  return by_layer(dump.shape().layers, [&](Index layer) {
    const auto rope = dump.rope(layer);
    if (!rope) return std::string("none");
    return fmt::format("{} of {} channels, {}", rope->rotary_dim, dump.shape().d,
                       rope->style == Rope::Style::half ? "half" : "interleaved");
  });
}

std::string tokens_text(const Dump& dump) {
  const auto& tokens = dump.tokens();
  if (!tokens) return "no labels";
  return fmt::format("{} ids, {} texts", tokens->ids.size(), tokens->text.size());
}

/// "24 samples, labels model, seed 0; g_window on positions 992-1023".
std::string gradients_text(const Dump& dump) {
  const DumpShape& s = dump.shape();
  std::string text = s.S > 0 ? counted(s.S, "sample") : "no samples";
  if (const auto& facts = dump.gradients()) {
    if (!facts->labels.empty()) text += fmt::format(", labels {}", displayable(facts->labels));
    if (facts->seed) text += fmt::format(", seed {}", *facts->seed);
  }
  for (const Tensor tensor : kTensors.all()) {
    if (!kTensors[tensor].of_gradients || !dump.has(tensor)) continue;
    const Index rows = tensor == Tensor::g_window ? s.R_W : s.R_F;
    text += fmt::format("; {} on positions {}-{}", name_of(tensor), s.first_row(tensor),
                        s.first_row(tensor) + rows - 1);
  }
  return text;
}

/// "64 queries on positions 1024-1087".
std::string second_reading_text(const Dump& dump) {
  const DumpShape& s = dump.shape();
  const Index first = s.first_row(Tensor::q_ref);
  const std::string counted_rows = s.R_ref == 1 ? std::string("1 query") : fmt::format("{} queries", s.R_ref);
  return fmt::format("{} on positions {}-{}{}", counted_rows, first, first + s.R_ref - 1,
                     why_no_second_reading(dump) ? fmt::format(", of a prompt of {} tokens", first) : "");
}

std::string span_text(const QuestionFacts::Span& span) {
  return span.end == span.begin + 1 ? fmt::format("{}", span.begin)
                                    : fmt::format("{}-{}", span.begin, span.end - 1);
}

/// "niah_multikey_1 on positions 1970-1992, answered on 2003-2011; needles on 512-530".
std::string question_text(const QuestionFacts& question) {
  std::string text = fmt::format("{} on positions {}, answered on {}", displayable(question.task),
                                 span_text(question.asked), span_text(question.answered));
  for (const auto& needle : question.needles)
    text +=
        fmt::format("{}{}", &needle == question.needles.data() ? "; needles on " : ", ", span_text(needle));
  return text;
}

bool has_gradients(const Dump& dump) { return dump.shape().R_F > 0 || dump.shape().R_W > 0; }

std::string text_of(const Dump& dump) {
  const DumpShape& s = dump.shape();
  std::string text;
  const auto line = [&](const char* what, const std::string& value) {
    text += fmt::format("{:<12}{}\n", what, value);
  };
  line("dump", displayable(dump.folder().string()));
  line("model", dump.model());
  line("heads",
       fmt::format("{} layers, {} query heads on {} KV heads (group of {}), head dimension {}{}", s.layers,
                   s.n_q, s.n_kv, s.group(), s.d, s.d_v == s.d ? "" : fmt::format(" (values {})", s.d_v)));
  line("positions", fmt::format("{}: {} prompt, {} decoding steps; queries of {}", s.T, s.l, s.T - s.l,
                                s.T_q == s.T ? "all" : fmt::format("the last {}", s.T_q)));
  line("logits", logits_text(dump));
  line("attention", window_text(dump));
  line("rope", rope_text(dump));
  line("tokens", tokens_text(dump));
  if (has_gradients(dump)) line("gradients", gradients_text(dump));
  if (dump.has(Tensor::q_ref)) line("read again", second_reading_text(dump));
  if (const auto& question = dump.question()) {
    line("question", question_text(*question));
    constexpr int kLongest = 300;
    if (!question->text.empty()) line("", displayable(question->text, kLongest));
    if (!question->answer.empty()) line("answer", displayable(question->answer, kLongest));
  }
  if (!dump.prompt_ends().empty()) {
    std::string ends;
    for (const auto& [name, end] : dump.prompt_ends())
      ends += fmt::format("{}{} ({})", ends.empty() ? "--prompt-len " : ", ", displayable(name), end);
    line("prompt ends", ends);
  }
  text += '\n';
  std::uintmax_t bytes = 0;
  std::size_t files = 0;
  const auto array_line = [&](std::string_view what, const std::string& value) {
    text += fmt::format("{:<15}{}\n", what, value);
  };
  const auto tensors = by_tensor(dump);
  for (const Tensor tensor : kTensors.all()) {
    const auto found = tensors.find(tensor);
    if (found == tensors.end()) {
      if (tensor <= Tensor::o) array_line(name_of(tensor), "-");
      continue;
    }
    const TensorSummary& t = found->second;
    array_line(name_of(tensor), fmt::format("{:<9} {:<18} {:>10} in {} {}", t.dtypes_text(),
                                            fmt::format("[{}]", fmt::join(t.shape, ", ")),
                                            bytes_text(t.bytes), t.files, t.files == 1 ? "array" : "arrays"));
    bytes += t.bytes;
    files += t.files;
  }
  array_line("total", fmt::format("{:<9} {:<18} {:>10} in {} arrays", "", "", bytes_text(bytes), files));
  std::vector<LeftOut> unavailable;
  for (const TokenMetric m : kTokenMetrics.all())
    if (const auto why = why_unavailable(m, dump)) unavailable.push_back({std::string(name_of(m)), *why});
  if (!unavailable.empty() || !dump.notes().empty()) text += '\n';
  for (const std::string& note : dump.notes()) text += fmt::format("note: {}\n", note);
  const std::vector<std::string>& keys = dump.other_keys();
  constexpr std::size_t kMostKeys = 8;
  if (!keys.empty())
    text += fmt::format("manifest.json's other keys: {}{}\n",
                        fmt::join(keys.begin(), keys.begin() + std::min(keys.size(), kMostKeys), ", "),
                        keys.size() > kMostKeys ? ", ..." : "");
  for (const std::string& metrics : left_out_lines(unavailable))
    text += fmt::format("unavailable: {}\n", metrics);
  return text;
}

Json json_of(const Dump& dump) {
  const DumpShape& s = dump.shape();
  Json json = {{"dump", dump.folder().string()},
               {"model", dump.model()},
               {"incomplete", false},
               {"fingerprint", fingerprint(dump)}};
  json.update(shape_json(s));
  json["tensors"] = Json::object();
  for (const auto& [tensor, t] : by_tensor(dump))
    json["tensors"][std::string(name_of(tensor))] = {
        {"dtype", t.dtypes_text()}, {"shape", t.shape}, {"arrays", t.files}, {"bytes", t.bytes}};
  json["rules"] = Json::array();
  for (Index layer = 0; layer < s.layers; ++layer) {
    const AttentionRule rule = dump.rule(layer);
    Json entry = {{"scale", rule.scale},
                  {"causal", rule.causal},
                  {"sliding_window", nullptr},
                  {"softcap", nullptr},
                  {"sink_logit", !rule.sink_logit.empty()},
                  {"rope", dump.rope(layer).has_value()}};
    if (rule.sliding_window) entry["sliding_window"] = *rule.sliding_window;
    if (rule.softcap) entry["softcap"] = *rule.softcap;
    json["rules"].push_back(std::move(entry));
  }
  json["rope_note"] = dump.rope_note().empty() ? Json() : Json(dump.rope_note());
  json["tokens"] = dump.tokens().has_value();
  if (has_gradients(dump)) {
    Json& gradients = json["gradients"] = {{"samples", s.S}, {"labels", nullptr}, {"seed", nullptr}};
    if (const auto& facts = dump.gradients()) {
      if (!facts->labels.empty()) gradients["labels"] = facts->labels;
      if (facts->seed) gradients["seed"] = *facts->seed;
    }
  }
  if (dump.has(Tensor::q_ref))
    json["reference_rows"] = {{"kind", "repeat"}, {"first", s.first_row(Tensor::q_ref)}, {"rows", s.R_ref}};
  if (const auto& question = dump.question()) {
    const auto span = [](const QuestionFacts::Span& of) { return Json{of.begin, of.end}; };
    Json& found = json["question"] = {
        {"task", question->task},   {"text", question->text},         {"answer", question->answer},
        {"needles", Json::array()}, {"asked", span(question->asked)}, {"answered", span(question->answered)}};
    for (const auto& needle : question->needles) found["needles"].push_back(span(needle));
  }
  for (const auto& [name, end] : dump.prompt_ends()) json["prompt_ends"][name] = end;
  json["unavailable"] = Json::object();
  for (const TokenMetric m : kTokenMetrics.all())
    if (const auto why = why_unavailable(m, dump)) json["unavailable"][std::string(name_of(m))] = *why;
  json["notes"] = dump.notes();
  json["other_keys"] = dump.other_keys();
  return json;
}

/// Reads every head of every tensor once; a value that is NaN or infinite is an InputError, and so is a
/// member of an archive that does not agree with its checksum.
void read_all_values(const Dump& dump, Workers& workers) {
  const DumpShape& s = dump.shape();
  workers.parallel_for(std::ssize(dump.files()),
                       [&](Index file) { dump.contents(static_cast<std::size_t>(file)); });
  workers.parallel_for(s.layers * s.n_q, [&](Index item) {
    const Index layer = item / s.n_q, head = item % s.n_q;
    std::vector<float> values;
    for (const TensorFacts& tensor : kTensors) {
      if (!dump.has(tensor.id) || head >= s.heads(tensor.id)) continue;
      values.resize(s.head_size(tensor.id));
      dump.read(tensor.id, layer, head, values.data());
    }
  });
}

Json json_of(const std::vector<ComputeDevice>& devices) {
  Json all = Json::array();
  for (const ComputeDevice& device : devices)
    all.push_back({{"number", device.number},
                   {"name", device.name},
                   {"capability", cuda::dotted(device.capability)},
                   {"memory", device.memory},
                   {"code", device.code > 0 ? Json(code_text(device)) : Json()},
                   {"usable", device.why_not.empty()},
                   {"why_not", device.why_not}});
  return {{"devices", all}, {"why_none", why_no_cuda()}};
}

std::string text_of(const std::vector<ComputeDevice>& devices) {
  if (devices.empty()) return fmt::format("no GPU: {}\n", why_no_cuda());
  std::vector<std::array<std::string, 6>> rows = {{"GPU", "name", "capability", "memory", "code", "usable"}};
  for (const ComputeDevice& device : devices)
    rows.push_back({fmt::format("{}", device.number), displayable(device.name),
                    cuda::dotted(device.capability), bytes_text(device.memory),
                    device.code > 0 ? code_text(device) : "none",
                    device.why_not.empty() ? "yes" : "no: " + device.why_not});
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t column = 0; column < row.size(); ++column) {
      std::size_t width = 0;
      for (const auto& each : rows) width = std::max(width, each[column].size());
      line += fmt::format("{:<{}}", row[column], column + 1 < row.size() ? width + 2 : 0);
    }
    text += line + "\n";
  }
  const ComputeDevice& first = devices.front();
  if (first.runtime > 0)
    text += fmt::format("CUDA {}; the driver supports {}\n", cuda::dotted(first.runtime),
                        cuda::dotted(first.driver));
  return text;
}

constexpr OptionFacts kValues{"values", "", "Read every value too, in search of NaN and infinity"},
    kDevices{"devices", "", "Instead of a dump: the GPUs, and whether this build can compute on them"};

}  // namespace

int run_info(const Arguments& arguments) {
  const auto app =
      make_app("info", "Says what a dump holds, and checks the header, size and shape of every file.",
               "kvreplay info data/samples/pystdlib-lm\nkvreplay info --devices");
  CommonOptions options;
  bool values = false, devices = false;
  options.add_dump(*app);
  app->get_option("DUMP")->required(false);
  app->add({bind_option(kValues, values), bind_option(kDevices, devices)});
  options.add_output(*app);
  if (parse(*app, arguments)) return 0;
  if (devices) {
    if (app->count("DUMP") > 0) throw InputError("info: --devices takes no DUMP");
    const std::vector<ComputeDevice> all = cuda_devices();
    if (options.json)
      print_json(json_of(all));
    else if (!options.quiet)
      say("{}", text_of(all));
    return 0;
  }
  if (app->count("DUMP") == 0) throw InputError("info: DUMP is required");
  const Dump dump = options.open();
  if (values) {
    Workers workers;
    read_all_values(dump, workers);
  }
  if (options.json)
    print_json(json_of(dump));
  else if (!options.quiet) {
    say("{}{}", text_of(dump), values ? "\nevery value is finite\n" : "");
    say_next({analyze_command(options)});
  }
  return 0;
}

}  // namespace kvreplay
