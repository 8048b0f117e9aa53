#include "viewer/serve/web_event.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

namespace kvreplay::viewer {
namespace {

using Json = nlohmann::json;
using Kind = WebEvent::Kind;

constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"ArrowLeft", "Left"}, {"ArrowRight", "Right"}, {"ArrowUp", "Up"},
    {"ArrowDown", "Down"}, {" ", "Space"},          {"Escape", "Escape"},
    {"Enter", "Enter"},    {"Tab", "Tab"},          {"Backspace", "Backspace"},
    {"Delete", "Delete"},  {"Insert", "Insert"},    {"Home", "Home"},
    {"End", "End"},        {"PageUp", "PageUp"},    {"PageDown", "PageDown"}};

/// Control with these closes or changes the browser's tab.
constexpr std::string_view kKept[] = {"W", "Q", "Tab"};

constexpr std::pair<std::string_view, Kind> kKinds[] = {
    {"size", Kind::size},     {"move", Kind::move},   {"leave", Kind::leave},
    {"button", Kind::button}, {"wheel", Kind::wheel}, {"key", Kind::key},
    {"blur", Kind::blur},     {"paste", Kind::paste}, {"seen", Kind::seen}};

/// The code points of UTF-8 that is known to be valid.
std::vector<unsigned> code_points(const std::string& text) {
  std::vector<unsigned> points;
  for (const char byte : text) {
    const auto value = static_cast<unsigned char>(byte);
    if ((value & 0xC0U) == 0x80U && !points.empty())
      points.back() = points.back() << 6U | (value & 0x3FU);
    else
      points.push_back(value < 0x80   ? value
                       : value < 0xE0 ? value & 0x1FU
                       : value < 0xF0 ? value & 0x0FU
                                      : value & 0x07U);
  }
  return points;
}

/// A finite number of an object, within [low, high].
bool read(const Json& json, const char* key, double low, double high, double& into) {
  const auto at = json.find(key);
  if (at == json.end() || !at->is_number()) return false;
  into = at->get<double>();
  return into >= low && into <= high;
}

bool flag(const Json& json, const char* key) {
  const auto at = json.find(key);
  return at != json.end() && at->is_boolean() && at->get<bool>();
}

bool read_event(const Json& json, WebEvent& event) {
  constexpr double kMostPixels = 16384;
  double number = 0;
  switch (event.kind) {
    case Kind::leave:
    case Kind::blur:
      return true;
    case Kind::size:
      return read(json, "w", 320, kMostPixels, event.x) && read(json, "h", 240, kMostPixels, event.y) &&
             read(json, "scale", 0.5, 8, event.scale);
    case Kind::move:
      return read(json, "x", -kMostPixels, 2 * kMostPixels, event.x) &&
             read(json, "y", -kMostPixels, 2 * kMostPixels, event.y);
    case Kind::button:
      if (!read(json, "b", 0, 4, number)) return false;
      event.number = static_cast<int>(number);
      event.down = flag(json, "down");
      return read(json, "x", -kMostPixels, 2 * kMostPixels, event.x) &&
             read(json, "y", -kMostPixels, 2 * kMostPixels, event.y);
    case Kind::wheel:
      return read(json, "x", -100, 100, event.x) && read(json, "y", -100, 100, event.y);
    case Kind::seen:
      if (!read(json, "n", 0, 2147483647, number)) return false;
      event.number = static_cast<int>(number);
      return true;
    case Kind::paste:
    case Kind::key: {
      const auto text = json.find(event.kind == Kind::key ? "k" : "text");
      if (text == json.end() || !text->is_string()) return false;
      event.text = text->get<std::string>();
      event.down = flag(json, "down");
      if (event.kind == Kind::paste) return true;
      if (event.text.size() > 32) return false;
      event.shortcut = shortcut_of_web(event.text, event.control, event.shift, event.alt);
      if (const auto points = code_points(event.text); points.size() == 1 && event.down && !event.control &&
                                                       !event.alt && points.front() >= ' ' &&
                                                       points.front() != 127)
        event.characters = points;
      return true;
    }
  }
  return false;
}

}  // namespace

Shortcut shortcut_of_web(const std::string& name, bool control, bool shift, bool alt) {
  Shortcut shortcut{.key = {}, .control = control, .shift = shift, .alt = alt};
  for (const auto& [web, own] : kNames)
    if (name == web) shortcut.key = own;
  if (shortcut.key.empty() && name.size() > 1 && name.size() < 4 && name[0] == 'F' &&
      std::all_of(name.begin() + 1, name.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
    shortcut.key = name;
  if (shortcut.key.empty() && name.size() == 1 && name[0] > ' ' && name[0] < 127) {
    const auto sign = static_cast<unsigned char>(name[0]);
    shortcut.key = std::string(1, static_cast<char>(std::toupper(sign)));
    // Signs are as typed; zooming in is on the key of "=" on many keyboards.
    if (std::isalpha(sign) == 0) {
      shortcut.shift = false;
      if (control && sign == '=') shortcut.key = "+";
    }
  }
  if (shortcut.key.empty()) return {};
  if (alt && !control && std::ranges::count(kKept, shortcut.key) > 0) {
    shortcut.control = true;
    shortcut.alt = false;
  }
  return shortcut;
}

std::optional<WebEvent> web_event(std::string_view message) {
  if (message.size() > kMostMessage) return std::nullopt;
  const Json json = Json::parse(message, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto type = json.find("t");
  if (type == json.end() || !type->is_string()) return std::nullopt;
  const auto& name = type->get_ref<const std::string&>();
  const auto kind =
      std::ranges::find(kKinds, std::string_view(name), &std::pair<std::string_view, Kind>::first);
  if (kind == std::end(kKinds)) return std::nullopt;
  WebEvent event{.kind = kind->second};
  event.control = flag(json, "c");
  event.shift = flag(json, "s");
  event.alt = flag(json, "a");
  if (!read_event(json, event)) return std::nullopt;
  return event;
}

}  // namespace kvreplay::viewer
