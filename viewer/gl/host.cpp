#include "viewer/gl/host.hpp"

#include <algorithm>
#include <cfloat>
#include <imgui.h>
#include <string_view>
#include <utility>

namespace kvreplay::viewer {
namespace {

constexpr std::pair<std::string_view, ImGuiKey> kNamedKeys[] = {{"Tab", ImGuiKey_Tab},
                                                                {"Left", ImGuiKey_LeftArrow},
                                                                {"Right", ImGuiKey_RightArrow},
                                                                {"Up", ImGuiKey_UpArrow},
                                                                {"Down", ImGuiKey_DownArrow},
                                                                {"PageUp", ImGuiKey_PageUp},
                                                                {"PageDown", ImGuiKey_PageDown},
                                                                {"Home", ImGuiKey_Home},
                                                                {"End", ImGuiKey_End},
                                                                {"Insert", ImGuiKey_Insert},
                                                                {"Delete", ImGuiKey_Delete},
                                                                {"Backspace", ImGuiKey_Backspace},
                                                                {"Space", ImGuiKey_Space},
                                                                {"Enter", ImGuiKey_Enter},
                                                                {"Escape", ImGuiKey_Escape},
                                                                {"A", ImGuiKey_A},
                                                                {"C", ImGuiKey_C},
                                                                {"V", ImGuiKey_V},
                                                                {"X", ImGuiKey_X},
                                                                {"Y", ImGuiKey_Y},
                                                                {"Z", ImGuiKey_Z}};

/// Text fields take letters as characters; their keys matter with control only.
int key_to_tell(const Shortcut& shortcut, bool down) {
  const int key = toolkit_key(shortcut.key);
  if (shortcut.key.size() == 1 && down && !shortcut.control) return -1;
  return key;
}

}  // namespace

int toolkit_key(const std::string& name) {
  for (const auto& [known, key] : kNamedKeys)
    if (name == known) return key;
  return -1;
}

InputQueue::InputQueue() : x_(-FLT_MAX), y_(-FLT_MAX) {}

void InputQueue::move(float x, float y) { events_.push_back({.kind = Kind::move, .x = x, .y = y}); }
void InputQueue::leave() { move(-FLT_MAX, -FLT_MAX); }
void InputQueue::button(int button, bool down) {
  if (button < 0 || button >= static_cast<int>(buttons_.size())) return;
  events_.push_back({.kind = Kind::button, .button = button, .down = down});
}
void InputQueue::wheel(float dx, float dy) { events_.push_back({.kind = Kind::wheel, .x = dx, .y = dy}); }
void InputQueue::modifiers(Modifiers held) {
  events_.push_back({.kind = Kind::modifiers, .modifiers = held});
}
void InputQueue::key(const Shortcut& shortcut, bool down) {
  std::erase(keys_down_, shortcut);
  if (down) keys_down_.push_back(shortcut);
  events_.push_back({.kind = Kind::key, .down = down, .shortcut = shortcut});
}
void InputQueue::character(unsigned code_point) {
  events_.push_back({.kind = Kind::character, .code_point = code_point});
}

void InputQueue::release_all() {
  for (const Shortcut& shortcut : std::exchange(keys_down_, {})) key(shortcut, false);
  for (int i = 0; i < static_cast<int>(buttons_.size()); ++i) button(i, false);
  modifiers({});
}

bool InputQueue::must_wait(const Event& event, const Frame& frame) const {
  switch (event.kind) {
    case Kind::move:
      return frame.button || frame.wheel;
    // A drag that ends where it just arrived would not be seen as one.
    case Kind::button:
      return frame.button || (frame.move && std::ranges::count(buttons_, true) > 0);
    case Kind::wheel:
      return frame.button;
    case Kind::modifiers:
      return frame.button || frame.wheel || frame.key;
    // A text field takes a frame's characters before its keys.
    case Kind::character:
      return frame.key;
    case Kind::key: {
      const int key = key_to_tell(event.shortcut, event.down);
      return key >= 0 && frame.keys[key];
    }
  }
  return false;
}

void InputQueue::tell(const Event& event, Frame& frame, Client& client) {
  ImGuiIO& io = ImGui::GetIO();
  switch (event.kind) {
    case Kind::move:
      x_ = event.x;
      y_ = event.y;
      frame.move = true;
      break;
    case Kind::button: {
      bool& state = buttons_[event.button];
      frame.button = frame.button || state != event.down;
      state = event.down;
      break;
    }
    case Kind::wheel:
      io.MouseWheelH += event.x;
      io.MouseWheel += event.y;
      frame.wheel = true;
      break;
    case Kind::modifiers:
      held_ = event.modifiers;
      break;
    case Kind::character:
      io.AddInputCharacter(event.code_point);
      break;
    case Kind::key: {
      if (const int key = key_to_tell(event.shortcut, event.down); key >= 0) {
        io.KeysDown[io.KeyMap[key]] = event.down;
        frame.key = frame.keys[key] = true;
      }
      client.key(event.shortcut, event.down);
      break;
    }
  }
}

void InputQueue::feed(Client& client) {
  Frame frame;
  while (!events_.empty() && !must_wait(events_.front(), frame)) {
    const Event event = std::move(events_.front());
    events_.pop_front();
    tell(event, frame, client);
  }
  ImGuiIO& io = ImGui::GetIO();
  io.MousePos = {x_, y_};
  std::copy(buttons_.begin(), buttons_.end(), io.MouseDown);
  io.KeyCtrl = held_.control;
  io.KeyShift = held_.shift;
  io.KeyAlt = held_.alt;
  io.KeySuper = false;
}

}  // namespace kvreplay::viewer
