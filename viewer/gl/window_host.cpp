#include "viewer/gl/window_host.hpp"

#include "data/error.hpp"
#include "viewer/gl/gl_object.hpp"
#include "viewer/gl/ui_context.hpp"

#include <fmt/format.h>

#include <GLFW/glfw3.h>
#include <algorithm>
#include <atomic>
#include <backends/imgui_impl_glfw.h>
#include <cctype>
#include <limits>
#include <mutex>
#include <utility>

namespace kvreplay::viewer {
namespace {

constexpr std::pair<int, const char*> kFixedNames[] = {
    {GLFW_KEY_LEFT, "Left"},           {GLFW_KEY_RIGHT, "Right"},   {GLFW_KEY_UP, "Up"},
    {GLFW_KEY_DOWN, "Down"},           {GLFW_KEY_ESCAPE, "Escape"}, {GLFW_KEY_ENTER, "Enter"},
    {GLFW_KEY_KP_ENTER, "Enter"},      {GLFW_KEY_TAB, "Tab"},       {GLFW_KEY_SPACE, "Space"},
    {GLFW_KEY_BACKSPACE, "Backspace"}, {GLFW_KEY_DELETE, "Delete"}, {GLFW_KEY_INSERT, "Insert"},
    {GLFW_KEY_HOME, "Home"},           {GLFW_KEY_END, "End"},       {GLFW_KEY_PAGE_UP, "PageUp"},
    {GLFW_KEY_PAGE_DOWN, "PageDown"}};

/// ASCII character of the key without modifiers, as a capital letter; 0 if it is not ASCII.
char plain_sign(int key, int scancode) {
  const char* name = glfwGetKeyName(key, scancode);
  if (name != nullptr && name[0] > ' ' && name[0] < 127 && name[1] == '\0')
    return static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  // Other scripts: the place on the keyboard counts.
  if ((key >= GLFW_KEY_A && key <= GLFW_KEY_Z) || (key >= GLFW_KEY_0 && key <= GLFW_KEY_9))
    return static_cast<char>(key);
  return 0;
}

/// Frames after the last input, until what it set off (hovering, windows that find their size) has settled.
constexpr int kSettling = 3;
/// Interval in seconds at which the cursor of a text field is redrawn while nothing else happens.
constexpr double kCursorBlink = 0.25, kForever = std::numeric_limits<double>::infinity();

std::atomic<bool> woken{false};
std::mutex window_mutex;  // GLFW must not end while another thread wakes it
bool there_is_a_window = false;

std::string& last_complaint() {
  static std::string text;
  return text;
}

void keep_complaint(int /*code*/, const char* text) { last_complaint() = text; }

[[noreturn]] void fail(const char* expected) {
  const std::string found = std::exchange(last_complaint(), {});
  glfwTerminate();
  throw InputError("the window", expected,
                   (found.empty() ? "none" : "none (GLFW: " + found + ")") +
                       "; --serve shows it in a browser, --screenshot FILE.png draws it without a display");
}

}  // namespace

Modifiers modifiers_of(int mods) {
  // Where Super is what others call Control (macOS), it counts as such.
  return {(mods & (GLFW_MOD_CONTROL | GLFW_MOD_SUPER)) != 0, (mods & GLFW_MOD_SHIFT) != 0,
          (mods & GLFW_MOD_ALT) != 0};
}

Shortcut shortcut_of(int key, int scancode, int mods) {
  const Modifiers held = modifiers_of(mods);
  Shortcut shortcut{.key = {}, .control = held.control, .shift = held.shift, .alt = held.alt};
  for (const auto& [fixed, name] : kFixedNames)
    if (fixed == key) {
      shortcut.key = name;
      return shortcut;
    }
  if (key >= GLFW_KEY_F1 && key <= GLFW_KEY_F25) {
    shortcut.key = fmt::format("F{}", key - GLFW_KEY_F1 + 1);
    return shortcut;
  }
  if (key == GLFW_KEY_UNKNOWN) return {};
  const char sign = plain_sign(key, scancode);
  if (sign >= 'A' && sign <= 'Z') {
    shortcut.key = std::string(1, sign);
    return shortcut;
  }
  if (sign == 0 || (!held.control && !held.alt)) return {};
  // No character follows while control is held. Zooming in is on the key of "=" on many keyboards.
  shortcut.key = std::string(1, sign == '=' ? '+' : sign);
  if (sign == '=') shortcut.shift = false;
  return shortcut;
}

Shortcut shortcut_of_character(unsigned code_point) {
  if (code_point <= ' ' || code_point >= 127 || std::isalpha(static_cast<int>(code_point)) != 0) return {};
  return {.key = std::string(1, static_cast<char>(code_point))};
}

/// GLFW's callbacks only note what came: nothing may be thrown through its frames.
struct WindowHost::Callbacks {
  static WindowHost& of(GLFWwindow* window) {
    auto& host = *static_cast<WindowHost*>(glfwGetWindowUserPointer(window));
    host.frames_due_ = kSettling;
    return host;
  }

  static void move(GLFWwindow* window, double x, double y) {
    int width = 0, height = 0, pixel_width = 0, pixel_height = 0;
    glfwGetWindowSize(window, &width, &height);
    glfwGetFramebufferSize(window, &pixel_width, &pixel_height);
    const double rx = width > 0 ? static_cast<double>(pixel_width) / width : 1;
    const double ry = height > 0 ? static_cast<double>(pixel_height) / height : 1;
    of(window).input_.move(static_cast<float>(x * rx), static_cast<float>(y * ry));
  }
  static void enter(GLFWwindow* window, int entered) {
    WindowHost& host = of(window);
    // A drag may go beyond the window.
    if (entered == GLFW_FALSE && !any_button(window)) host.input_.leave();
  }
  static void button(GLFWwindow* window, int button, int action, int mods) {
    WindowHost& host = of(window);
    host.input_.modifiers(modifiers_of(mods));
    host.input_.button(button, action == GLFW_PRESS);
    if (!any_button(window) && glfwGetWindowAttrib(window, GLFW_HOVERED) == GLFW_FALSE) host.input_.leave();
  }
  static void wheel(GLFWwindow* window, double dx, double dy) {
    of(window).input_.wheel(static_cast<float>(dx), static_cast<float>(dy));
  }
  static void key(GLFWwindow* window, int key, int scancode, int action, int mods) {
    WindowHost& host = of(window);
    if (action == GLFW_RELEASE) {
      // Under the name it had when it went down, whatever modifiers are held by now.
      for (const auto& held : host.held_)
        if (held.first == key) host.input_.key(held.second, false);
      std::erase_if(host.held_, [key](const auto& held) { return held.first == key; });
      host.input_.modifiers(modifiers_now(window));
      return;
    }
    host.last_key_ = key;
    host.input_.modifiers(modifiers_now(window));
    if (const Shortcut shortcut = shortcut_of(key, scancode, mods); !shortcut.empty())
      host.down(key, shortcut);
  }
  static void character(GLFWwindow* window, unsigned code_point) {
    WindowHost& host = of(window);
    if (const Shortcut shortcut = shortcut_of_character(code_point); !shortcut.empty())
      host.down(host.last_key_, shortcut);
    host.input_.character(code_point);
  }
  static void focus(GLFWwindow* window, int focused) {
    WindowHost& host = of(window);
    if (focused != GLFW_FALSE) return;
    host.held_.clear();
    host.input_.release_all();
  }
  static void drop(GLFWwindow* window, int count, const char** paths) {
    WindowHost& host = of(window);
    for (int i = 0; i < count; ++i) host.dropped_.emplace_back(paths[i]);
  }
  static void changed(GLFWwindow* window) { of(window); }
  static void resized(GLFWwindow* window, int /*width*/, int /*height*/) { of(window); }

  static bool any_button(GLFWwindow* window) {
    for (int i = 0; i <= GLFW_MOUSE_BUTTON_LAST; ++i)
      if (glfwGetMouseButton(window, i) == GLFW_PRESS) return true;
    return false;
  }
  /// The modifier bits of a key event leave out the key itself.
  static Modifiers modifiers_now(GLFWwindow* window) {
    const auto down = [window](int left, int right) {
      return glfwGetKey(window, left) == GLFW_PRESS || glfwGetKey(window, right) == GLFW_PRESS;
    };
    return {down(GLFW_KEY_LEFT_CONTROL, GLFW_KEY_RIGHT_CONTROL) ||
                down(GLFW_KEY_LEFT_SUPER, GLFW_KEY_RIGHT_SUPER),
            down(GLFW_KEY_LEFT_SHIFT, GLFW_KEY_RIGHT_SHIFT), down(GLFW_KEY_LEFT_ALT, GLFW_KEY_RIGHT_ALT)};
  }
};

void WindowHost::down(int key, const Shortcut& shortcut) {
  std::erase_if(held_, [key](const auto& held) { return held.first == key; });
  held_.emplace_back(key, shortcut);
  input_.key(shortcut, true);
}

WindowHost::WindowHost(Client& client, WindowSize size) : client_(&client), title_(client.title()) {
  glfwSetErrorCallback(keep_complaint);
  if (glfwInit() == GLFW_FALSE) fail("a display");
  make_window(size);
  try {
    check_gl_version();
    ui_ = std::make_unique<UiContext>();
    // Without its callbacks: input goes through the queue. It keeps the clipboard and the mouse's shape.
    ImGui_ImplGlfw_InitForOpenGL(window_, false);
  } catch (...) {
    ui_.reset();
    glfwDestroyWindow(window_);
    glfwTerminate();
    throw;
  }
  glfwSetWindowUserPointer(window_, this);
  glfwSetCursorPosCallback(window_, Callbacks::move);
  glfwSetCursorEnterCallback(window_, Callbacks::enter);
  glfwSetMouseButtonCallback(window_, Callbacks::button);
  glfwSetScrollCallback(window_, Callbacks::wheel);
  glfwSetKeyCallback(window_, Callbacks::key);
  glfwSetCharCallback(window_, Callbacks::character);
  glfwSetWindowFocusCallback(window_, Callbacks::focus);
  glfwSetDropCallback(window_, Callbacks::drop);
  glfwSetWindowRefreshCallback(window_, Callbacks::changed);
  glfwSetFramebufferSizeCallback(window_, Callbacks::resized);
  frames_due_ = kSettling;
  const std::scoped_lock lock(window_mutex);
  there_is_a_window = true;
}

void WindowHost::make_window(WindowSize size) {
  glfwWindowHint(GLFW_CONTEXT_VERSION_MAJOR, 3);
  glfwWindowHint(GLFW_CONTEXT_VERSION_MINOR, 3);
  glfwWindowHint(GLFW_OPENGL_PROFILE, GLFW_OPENGL_CORE_PROFILE);
  glfwWindowHint(GLFW_OPENGL_FORWARD_COMPAT, GLFW_TRUE);
  glfwWindowHint(GLFW_SCALE_TO_MONITOR, GLFW_TRUE);
  glfwWindowHint(GLFW_DEPTH_BITS, 0);
  glfwWindowHint(GLFW_STENCIL_BITS, 0);
  glfwWindowHintString(GLFW_X11_CLASS_NAME, "kvreplay");
  window_ = glfwCreateWindow(std::max(size.width, 320), std::max(size.height, 240), title_.c_str(), nullptr,
                             nullptr);
  if (window_ == nullptr) fail("OpenGL 3.3");
  glfwMakeContextCurrent(window_);
  glfwSwapInterval(1);
}

WindowHost::~WindowHost() {
  {
    const std::scoped_lock lock(window_mutex);
    there_is_a_window = false;
  }
  ui_->make_current();
  client_->closing();
  ImGui_ImplGlfw_Shutdown();
  ui_.reset();
  glfwDestroyWindow(window_);
  glfwTerminate();
}

void WindowHost::wake() {
  woken = true;
  const std::scoped_lock lock(window_mutex);
  if (there_is_a_window) glfwPostEmptyEvent();
}

WindowSize WindowHost::size() const {
  int width = 0, height = 0;
  glfwGetWindowSize(window_, &width, &height);
  float x = 1, y = 1;
  glfwGetWindowContentScale(window_, &x, &y);
  int pixels = 0;
  glfwGetFramebufferSize(window_, &pixels, nullptr);
  // Where the window's unit is the pixel, a point is `x` of them; elsewhere it is the point itself.
  const float unit = pixels == width && x > 0 ? x : 1;
  return {static_cast<int>(static_cast<float>(width) / unit),
          static_cast<int>(static_cast<float>(height) / unit)};
}

void WindowHost::run() {
  while (step()) continue;
}

bool WindowHost::step() {
  wait();
  if (woken.exchange(false)) frames_due_ = kSettling;
  int width = 0, height = 0;
  glfwGetFramebufferSize(window_, &width, &height);
  if (width > 0 && height > 0) draw();
  const bool goes_on = glfwWindowShouldClose(window_) == GLFW_FALSE && !client_->quit();
  // The window is hidden while remaining jobs and writes finish.
  if (!goes_on) glfwHideWindow(window_);
  return goes_on;
}

void WindowHost::wait() {
  const bool hidden = glfwGetWindowAttrib(window_, GLFW_ICONIFIED) == GLFW_TRUE;
  const bool due = frames_due_ > 0 || client_->needs_frame() || !input_.empty() || !dropped_.empty();
  if (due && !hidden)
    glfwPollEvents();
  else if (const double wait = hidden                         ? kForever
                               : ImGui::GetIO().WantTextInput ? kCursorBlink
                                                              : client_->changes_in();
           wait < kForever)
    glfwWaitEventsTimeout(std::max(wait, kCursorBlink / 10));
  else if (!woken)
    glfwWaitEvents();
  if (frames_due_ > 0) --frames_due_;
}

void WindowHost::follow_scale() {
  float x = 1, y = 1;
  glfwGetWindowContentScale(window_, &x, &y);
  const float scale = std::clamp(x, 0.5F, 8.0F);
  if (scale != scale_) client_->scale(scale);
  scale_ = scale;
}

void WindowHost::draw() {
  glfwMakeContextCurrent(window_);
  ui_->make_current();
  follow_scale();
  ui_->set_text(client_->text_points(), scale_);
  if (const std::string title = client_->title(); title != title_) {
    title_ = title;
    glfwSetWindowTitle(window_, title_.c_str());
  }
  if (!dropped_.empty()) client_->dropped(std::exchange(dropped_, {}));
  int width = 0, height = 0;
  glfwGetFramebufferSize(window_, &width, &height);
  ImGui_ImplGlfw_NewFrame();
  // Everything is in pixels, whatever unit the window has.
  ImGuiIO& io = ImGui::GetIO();
  io.DisplaySize = {static_cast<float>(width), static_cast<float>(height)};
  io.DisplayFramebufferScale = {1, 1};
  input_.feed(*client_);
  ui_->new_frame();
  client_->frame();
  ui_->end_frame();
  glBindFramebuffer(GL_FRAMEBUFFER, 0);
  ui_->paint(width, height);
  client_->drawn(width, height);
  glfwSwapBuffers(window_);
}

}  // namespace kvreplay::viewer
