#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/text_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace kvreplay::report {
namespace {

Json run_json(const ResultReader& results) {
  // Results are complete without run.json.
  return json_object_in(results.folder() / "run.json").value_or(Json::object());
}

}  // namespace

std::string text_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? "" : unquoted(*found);
}

namespace {

/// "cpu", or "cuda: NVIDIA H200, compute capability 9.0, code for 9.0, driver's CUDA 13.0; what its note
/// says".
std::string hardware_in(const Json& run) {
  std::string text = text_in(run, "backend");
  const auto device = run.find("device");
  if (device == run.end() || !device->is_object()) return text;
  text += fmt::format(": {}, compute capability {}, code for {}, driver's CUDA {}", text_in(*device, "name"),
                      text_in(*device, "capability"), text_in(*device, "code"), text_in(*device, "driver"));
  if (const std::string note = text_in(run, "backend_note"); !note.empty()) text += "; " + note;
  return text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> facts_of(const ResultReader& results) {
  const auto& summary = results.summary();
  const auto run = run_json(results);
  std::vector<std::pair<std::string, std::string>> facts;
  const auto add = [&](const char* name, std::string value) {
    if (!value.empty()) facts.emplace_back(name, std::move(value));
  };
  std::string commands, window;
  const auto options = summary.find("options");
  if (options != summary.end() && options->is_object())
    for (const auto& [name, given] : options->items()) {
      commands += fmt::format("{}{}", commands.empty() ? "" : ", ", name);
      if (window.empty() && given.is_object()) window = text_in(given, "window");
    }
  add("analyses", commands);
  if (!window.empty()) add("window", fmt::format("last {} prompt queries", window));
  add("precision", text_in(summary, "precision"));
  add("computed on", hardware_in(run));
  add("host", text_in(run, "host"));
  add("started", text_in(run, "started"));
  if (const std::string version = text_in(run, "version"); !version.empty()) add("by", "kvreplay " + version);
  return facts;
}

std::string lead_of(const ResultReader& results) {
  const DumpShape& s = results.shape();
  const auto computed = std::ssize(results.layers());
  std::string layers = computed == s.layers ? counted(s.layers, "layer")
                                            : fmt::format("{} of {}", computed, counted(s.layers, "layer"));
  return fmt::format("{} x {}, {} to each, head dimension {}; prompt of {}, {}", layers,
                     counted(s.n_kv, "KV head"), counted(s.n_q / s.n_kv, "query head"), s.d,
                     counted(s.l, "token"), counted(s.T - s.l, "decoding step"));
}

std::vector<std::string> remarks_of(const ResultReader& results) {
  std::vector<std::string> remarks;
  const auto add = [&](std::string remark) {
    if (!is_in(remarks, remark)) remarks.push_back(std::move(remark));
  };
  const auto& summary = results.summary();
  if (const auto notes = summary.find("notes"); notes != summary.end() && notes->is_array())
    for (const auto& note : *notes)
      if (note.is_string()) add(note.get<std::string>());
  if (const auto left = summary.find("left_out"); left != summary.end() && left->is_array())
    for (const auto& one : *left)
      if (one.is_object()) add(fmt::format("left out: {}: {}", text_in(one, "what"), text_in(one, "why")));
  return remarks;
}

namespace {

std::string value_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.is_null() ? "off" : value.dump();
  std::string text;
  for (const Json& item : value) text += fmt::format("{}{}", text.empty() ? "" : ", ", value_text(item));
  return text.empty() ? "none" : text;
}

/// The letters of a dump's shape, as DumpShape has them.
constexpr std::pair<std::string_view, std::string_view> kInWords[] = {
    {"n_q", "query heads"},
    {"n_kv", "KV heads"},
    {"d", "channels of a query and a key"},
    {"d_v", "channels of a value"},
    {"d_model", "channels behind the output projection"},
    {"T", "positions"},
    {"T_q", "positions with a query"},
    {"l", "tokens of the prompt"}};

std::string in_words(const std::string& key) {
  const auto* const found = std::find_if(std::begin(kInWords), std::end(kInWords),
                                         [&](const auto& one) { return one.first == key; });
  return std::string(found == std::end(kInWords) ? key : found->second);
}

void add_rows(std::string& html, const std::string& prefix, const Json& object) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object())
      add_rows(html, prefix + key + " ", value);
    else
      html += fmt::format("<tr><th scope=\"row\">{}{}</th><td>{}</td></tr>", escaped(prefix),
                          escaped(prefix.empty() ? in_words(key) : key), escaped(value_text(value)));
  }
}

}  // namespace

std::string settings_table(const Json& summary, std::initializer_list<const char*> keys) {
  std::string html = "<div class=\"scroll\"><table>";
  for (const char* key : keys)
    if (const auto found = summary.find(key); found != summary.end() && found->is_object())
      add_rows(html, "", *found);
  return html + "</table></div>\n";
}

Section run_section(const Tables& tables) {
  return {"run", "How it was run", "", {}, settings_table(tables.results.summary(), {"dump", "options"})};
}

}  // namespace kvreplay::report
