#include "viewer/gl/headless_host.hpp"

#include "data/error.hpp"
#include "viewer/gl/gl_object.hpp"

#include <fmt/format.h>

namespace kvreplay::viewer {
namespace {

float checked_scale(float scale) {
  if (!(scale >= 0.25F && scale <= 8)) throw InputError("the scale", "0.25 to 8", fmt::format("{}", scale));
  return scale;
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
  // Input is fed only after the first frame: before it, no widget can be hit.
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

std::vector<Rgb> HeadlessHost::pixels() const {
  paint();
  context_.make_current();
  return buffer_.pixels(FirstRow::last);
}

}  // namespace kvreplay::viewer
