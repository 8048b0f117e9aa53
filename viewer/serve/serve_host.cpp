#include "viewer/serve/serve_host.hpp"

#include "analysis/drawing/picture.hpp"
#include "viewer/serve/changed_areas.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <semaphore.h>
#include <utility>

namespace kvreplay::viewer {
namespace {

using Clock = std::chrono::steady_clock;

/// Frames after the last input, until what it set off has settled, as in a window.
constexpr int kSettling = 3;
/// No more than sixty pictures a second.
constexpr auto kFrame = std::chrono::milliseconds(16);
constexpr double kCursorBlink = 0.25;

/// A semaphore may be posted by a signal's handler, too.
struct Wake {
  sem_t semaphore{};
  std::atomic<bool> stopped = false;
  Wake() { sem_init(&semaphore, 0, 0); }
};
Wake& the_wake() {
  static Wake made;
  return made;
}

const char* css_cursor(int cursor) {
  switch (cursor) {
    case ImGuiMouseCursor_None:
      return "none";
    case ImGuiMouseCursor_TextInput:
      return "text";
    case ImGuiMouseCursor_ResizeAll:
      return "move";
    case ImGuiMouseCursor_ResizeNS:
      return "ns-resize";
    case ImGuiMouseCursor_ResizeEW:
      return "ew-resize";
    case ImGuiMouseCursor_ResizeNESW:
      return "nesw-resize";
    case ImGuiMouseCursor_ResizeNWSE:
      return "nwse-resize";
    case ImGuiMouseCursor_Hand:
      return "pointer";
    case ImGuiMouseCursor_NotAllowed:
      return "not-allowed";
    default:
      return "default";
  }
}

void put(std::vector<std::byte>& bytes, int value) {
  bytes.push_back(static_cast<std::byte>(value & 0xFF));
  bytes.push_back(static_cast<std::byte>(value >> 8 & 0xFF));
}

}  // namespace

ServeHost::ServeHost(Client& client, int port, std::string behind)
    : HeadlessHost(client, 1280, 800), server_(port, dashboard_page(), &ServeHost::wake, std::move(behind)) {
  ImGuiIO& io = ImGui::GetIO();
  io.ClipboardUserData = this;
  io.GetClipboardTextFn = &ServeHost::pasted;
  io.SetClipboardTextFn = &ServeHost::copied;
  io.ConfigInputTextCursorBlink = true;
  title_ = client.title();
  greet();
}

void ServeHost::wake() { sem_post(&the_wake().semaphore); }
void ServeHost::stop() {
  the_wake().stopped = true;
  sem_post(&the_wake().semaphore);
}

const char* ServeHost::pasted(void* host) { return static_cast<ServeHost*>(host)->clipboard_.c_str(); }

void ServeHost::copied(void* host, const char* text) {
  auto& self = *static_cast<ServeHost*>(host);
  self.clipboard_ = text;
  self.server_.send(
      nlohmann::json{{"copy", text}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), true);
}

void ServeHost::offer(const std::filesystem::path& file) {
  const nlohmann::json said = {{"file", server_.offer(file)}, {"name", file.filename().string()}};
  server_.send(said.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), true);
}

void ServeHost::run() {
  Clock::time_point last = Clock::now();
  while (!quit() && !the_wake().stopped) {
    wait();
    for (const WebEvent& event : server_.take_events()) take(event);
    if (!server_.anybody()) continue;
    if (const auto since = Clock::now() - last; since < kFrame) {
      const timespec left{0, std::chrono::duration_cast<std::chrono::nanoseconds>(kFrame - since).count()};
      nanosleep(&left, nullptr);
    }
    const Clock::time_point now = Clock::now();
    frame(std::chrono::duration<float>(
              std::clamp<Clock::duration>(now - last, std::chrono::milliseconds(1), std::chrono::seconds(1)))
              .count());
    last = now;
    send_picture();
    tell_changes();
  }
}

/// Until something comes, or until the picture changes by itself.
void ServeHost::wait() {
  sem_t* const semaphore = &the_wake().semaphore;
  const bool due = server_.anybody() && (frames_due_ > 0 || !input_.empty() || client_->needs_frame() ||
                                         server_.somebody_lacks_picture());
  if (frames_due_ > 0) --frames_due_;
  double seconds = ImGui::GetIO().WantTextInput ? kCursorBlink : client_->changes_in();
  if (due)
    while (sem_trywait(semaphore) == 0) frames_due_ = kSettling;
  if (due) return;
  seconds = std::clamp(seconds, 0.025, 3600.0);
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += static_cast<time_t>(seconds);
  until.tv_nsec += static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  if (until.tv_nsec >= 1000000000) {
    until.tv_nsec -= 1000000000;
    ++until.tv_sec;
  }
  if (sem_timedwait(semaphore, &until) != 0) return;
  frames_due_ = kSettling;
  while (sem_trywait(semaphore) == 0) continue;
}

void ServeHost::take(const WebEvent& event) {
  frames_due_ = kSettling;
  const auto x = static_cast<float>(event.x), y = static_cast<float>(event.y);
  if (event.kind == WebEvent::Kind::move || event.kind == WebEvent::Kind::button ||
      event.kind == WebEvent::Kind::wheel || event.kind == WebEvent::Kind::key)
    input_.modifiers({event.control, event.shift, event.alt});
  switch (event.kind) {
    case WebEvent::Kind::size:
      context_.make_current();
      buffer_.resize(static_cast<int>(event.x), static_cast<int>(event.y));
      scale_ = static_cast<float>(event.scale);
      shown_.clear();
      greet();
      break;
    case WebEvent::Kind::move:
      input_.move(x, y);
      break;
    case WebEvent::Kind::leave:
      input_.leave();
      break;
    case WebEvent::Kind::button:
      input_.move(x, y);
      input_.button(event.number, event.down);
      break;
    case WebEvent::Kind::wheel:
      input_.wheel(x, y);
      break;
    case WebEvent::Kind::key:
      if (!event.shortcut.empty()) input_.key(event.shortcut, event.down);
      for (const unsigned character : event.characters) input_.character(character);
      break;
    case WebEvent::Kind::blur:
      input_.release_all();
      break;
    case WebEvent::Kind::paste:
      clipboard_ = event.text;
      input_.modifiers({.control = true});
      input_.key({.key = "V", .control = true}, true);
      input_.key({.key = "V", .control = true}, false);
      input_.modifiers({});
      break;
    case WebEvent::Kind::seen:
      break;
  }
}

/// Each is x and y, 16 bits little endian, and a PNG.
WebServer::Parts ServeHost::parts_of(const std::vector<Rgb>& picture,
                                     const std::vector<PixelArea>& areas) const {
  WebServer::Parts parts;
  for (const PixelArea& area : areas) {
    const std::vector<std::byte> png =
        png_bytes(cut_out(picture, width(), area), area.width, area.height, /*fast=*/true);
    std::vector<std::byte>& part = parts.emplace_back();
    put(part, area.x);
    put(part, area.y);
    part.insert(part.end(), png.begin(), png.end());
  }
  return parts;
}

/// Sends size and title of the picture to all pages, now and to each page that connects later.
void ServeHost::greet() {
  const std::string text = nlohmann::json{{"size", {width(), height()}}, {"title", title_}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
  server_.greet_with(text);
  server_.send(text);
}

void ServeHost::send_picture() {
  std::vector<Rgb> picture = pixels();
  const WebServer::Parts changes = parts_of(picture, changed_areas(shown_, picture, width(), height()));
  if (changes.empty() && !server_.somebody_lacks_picture()) return;
  server_.send_picture(changes, [&] { return parts_of(picture, {{0, 0, width(), height()}}); });
  shown_ = std::move(picture);
}

void ServeHost::tell_changes() {
  if (const int cursor = ImGui::GetMouseCursor(); cursor != cursor_) {
    cursor_ = cursor;
    server_.send(nlohmann::json{{"cursor", css_cursor(cursor)}}.dump());
  }
  if (std::string title = client_->title(); title != title_) {
    title_ = std::move(title);
    greet();
  }
}

}  // namespace kvreplay::viewer
