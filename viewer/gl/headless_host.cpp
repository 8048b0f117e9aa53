#include "viewer/gl/headless_host.hpp"

#include "data/error.hpp"
#include "data/utf8.hpp"

#include <fmt/format.h>

#include <cctype>
#include <cmath>

namespace kvreplay::viewer {
namespace {

float checked_scale(float scale) {
  if (!(scale >= 0.25F && scale <= 8)) throw InputError("the scale", "0.25 to 8", fmt::format("{}", scale));
  return scale;
}

/// The character that a key types; 0 for none.
unsigned typed_by(const Shortcut& shortcut) {
  if (shortcut.control || shortcut.alt) return 0;
  if (shortcut.key == "Space") return ' ';
  if (shortcut.key.size() != 1) return 0;
  const auto sign = static_cast<unsigned char>(shortcut.key[0]);
  return std::isalpha(sign) != 0 && !shortcut.shift ? static_cast<unsigned>(std::tolower(sign)) : sign;
}

}  // namespace

HeadlessHost::HeadlessHost(Client& client, int width, int height, float scale)
    : client_(&client), buffer_(width, height), scale_(checked_scale(scale)) {
  ImGuiIO& io = ImGui::GetIO();
  for (int key = 0; key < ImGuiKey_COUNT; ++key) io.KeyMap[key] = key;
  io.ConfigInputTextCursorBlink = false;  // pictures must not depend on when they are taken
}

HeadlessHost::~HeadlessHost() {
  try {
    context_.make_current();
  } catch (const InputError&) {
    return;  // what the context held goes with it
  }
  ui_.make_current();
  client_->closing();
}

void HeadlessHost::frame(float seconds) {
  context_.make_current();
  ui_.make_current();
  if (told_scale_ != scale_) {
    told_scale_ = scale_;
    client_->scale(scale_);
  }
  ui_.set_text(client_->text_points(), scale_);
  ImGuiIO& io = ImGui::GetIO();
  io.DisplaySize = {static_cast<float>(width()), static_cast<float>(height())};
  io.DeltaTime = seconds;
  // What has not been drawn yet cannot be hit.
  if (drawn_) input_.feed(*client_);
  drawn_ = true;
  ui_.new_frame();
  client_->frame();
  ui_.end_frame();
  painted_ = false;
  client_->drawn(width(), height());
  // Nothing swaps buffers here: a renderer in software would queue dozens of frames, and wait for all of them
  // at once some time.
  glFinish();
}

void HeadlessHost::paint() const {
  if (painted_) return;
  context_.make_current();
  ui_.make_current();
  buffer_.bind();
  ui_.paint(width(), height());
  glFinish();
  painted_ = true;
}

void HeadlessHost::settle(int after) {
  while (!input_.empty()) frame();
  for (int i = 0; i < after; ++i) frame();
}

void HeadlessHost::resize(int width, int height, float scale) {
  context_.make_current();
  buffer_.resize(width, height);
  scale_ = checked_scale(scale);
}

std::vector<Rgb> HeadlessHost::pixels() const {
  paint();
  context_.make_current();
  return buffer_.pixels(FirstRow::last);
}

void HeadlessHost::click(float x, float y, int button) {
  move_mouse(x, y);
  press_button(button);
  release_button(button);
}

void HeadlessHost::drag(float from_x, float from_y, float to_x, float to_y, int button) {
  move_mouse(from_x, from_y);
  press_button(button);
  settle(0);
  constexpr int steps = 8;
  for (int i = 1; i <= steps; ++i) {
    const float part = static_cast<float>(i) / steps;
    move_mouse(from_x + (to_x - from_x) * part, from_y + (to_y - from_y) * part);
    frame();
  }
  release_button(button);
}

void HeadlessHost::hold(Modifiers modifiers) {
  held_ = modifiers;
  input_.modifiers(modifiers);
}

void HeadlessHost::press_key(const Shortcut& shortcut) {
  const Modifiers with{shortcut.control || held_.control, shortcut.shift || held_.shift,
                       shortcut.alt || held_.alt};
  input_.modifiers(with);
  input_.key(shortcut, true);
  if (const unsigned character = typed_by(shortcut); character != 0) input_.character(character);
}

void HeadlessHost::release_key(const Shortcut& shortcut) {
  input_.key(shortcut, false);
  input_.modifiers(held_);
}

void HeadlessHost::tap_key(const Shortcut& shortcut) {
  press_key(shortcut);
  release_key(shortcut);
}

void HeadlessHost::type(std::string_view utf8) {
  while (!utf8.empty()) {
    const Character next = first_character(utf8);
    utf8.remove_prefix(next.bytes.size());
    if (next.code >= 0x80) {
      input_.character(next.code);
      continue;
    }
    const auto typed = static_cast<int>(next.code);
    const std::string key = typed == ' ' ? "Space" : std::string(1, static_cast<char>(std::toupper(typed)));
    tap_key({.key = key, .shift = std::isupper(typed) != 0});
  }
}

}  // namespace kvreplay::viewer
