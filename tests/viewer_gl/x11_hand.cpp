#include "tests/viewer_gl/x11_hand.hpp"

#include "tests/support/catch.hpp"

#include <fmt/format.h>

#include <X11/Xatom.h>
#include <X11/Xlib.h>
#include <X11/Xutil.h>
#include <X11/extensions/XTest.h>
#include <cctype>
#include <string_view>
#include <vector>

namespace kvreplay::test {
namespace {

constexpr long kXdndVersion = 5;
constexpr int kFramesOfPatience = 400;

std::string uri_of(const std::filesystem::path& file) {
  std::string uri = "file://";
  for (const char c : file.string())
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 ||
        std::string_view("/-_.~").find(c) != std::string::npos)
      uri += c;
    else
      uri += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return uri + "\r\n";
}

}  // namespace

struct X11Hand::Connection {
  Display* display = XOpenDisplay(nullptr);
  Window window = None;

  Atom atom(const char* name) const { return XInternAtom(display, name, False); }

  Window find(Window parent, const std::string& window_class) const {
    Window root = None, up = None, found = None;
    Window* children = nullptr;
    unsigned count = 0;
    XQueryTree(display, parent, &root, &up, &children, &count);
    for (unsigned i = 0; i < count && found == None; ++i) {
      XClassHint hint{};
      if (XGetClassHint(display, children[i], &hint) == 0) continue;
      if (hint.res_class == window_class) found = children[i];
      XFree(hint.res_name);
      XFree(hint.res_class);
    }
    if (children != nullptr) XFree(children);
    return found;
  }

  void send(const char* type, Window source, const std::vector<long>& data) const {
    XEvent event{};
    event.xclient.type = ClientMessage;
    event.xclient.window = window;
    event.xclient.message_type = atom(type);
    event.xclient.format = 32;
    event.xclient.data.l[0] = static_cast<long>(source);
    for (std::size_t i = 0; i < data.size(); ++i) event.xclient.data.l[i + 1] = data[i];
    XSendEvent(display, window, False, NoEventMask, &event);
    XFlush(display);
  }

  /// The next event of this client; what is asked of the selection on the way is answered with `text`.
  bool wait_for_message(const char* type, const std::string& text, const std::function<void()>& frame) const {
    for (int i = 0; i < kFramesOfPatience; ++i) {
      frame();
      XSync(display, False);
      while (XPending(display) > 0) {
        XEvent event{};
        XNextEvent(display, &event);
        if (event.type == ClientMessage && event.xclient.message_type == atom(type)) return true;
        if (event.type == SelectionRequest) answer(event.xselectionrequest, text);
      }
    }
    return false;
  }

  void answer(const XSelectionRequestEvent& asked, const std::string& text) const {
    XChangeProperty(display, asked.requestor, asked.property, asked.target, 8, PropModeReplace,
                    reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
    XEvent reply{};
    reply.xselection.type = SelectionNotify;
    reply.xselection.requestor = asked.requestor;
    reply.xselection.selection = asked.selection;
    reply.xselection.target = asked.target;
    reply.xselection.property = asked.property;
    reply.xselection.time = asked.time;
    XSendEvent(display, asked.requestor, False, NoEventMask, &reply);
    XFlush(display);
  }
};

X11Hand::X11Hand(const std::string& window_class) : x_(std::make_unique<Connection>()) {
  REQUIRE(x_->display != nullptr);
  x_->window = x_->find(DefaultRootWindow(x_->display), window_class);
  REQUIRE(x_->window != None);
  // There is no window manager to give it the keyboard.
  XSetInputFocus(x_->display, x_->window, RevertToPointerRoot, CurrentTime);
  XSync(x_->display, False);
}

X11Hand::~X11Hand() {
  if (x_->display != nullptr) XCloseDisplay(x_->display);
}

void X11Hand::move(float x, float y) {
  int root_x = 0, root_y = 0;
  Window child = None;
  XTranslateCoordinates(x_->display, x_->window, DefaultRootWindow(x_->display), static_cast<int>(x),
                        static_cast<int>(y), &root_x, &root_y, &child);
  XTestFakeMotionEvent(x_->display, -1, root_x, root_y, CurrentTime);
  XSync(x_->display, False);
}

void X11Hand::button(unsigned button, bool down) {
  XTestFakeButtonEvent(x_->display, button, down ? True : False, CurrentTime);
  XSync(x_->display, False);
}

void X11Hand::key(const char* name, bool down) {
  const KeyCode code = XKeysymToKeycode(x_->display, XStringToKeysym(name));
  REQUIRE(code != 0);
  XTestFakeKeyEvent(x_->display, code, down ? True : False, CurrentTime);
  XSync(x_->display, False);
}

void X11Hand::tap(const char* name) {
  key(name, true);
  key(name, false);
}

bool X11Hand::drop(const std::filesystem::path& file, const std::function<void()>& frame) {
  const Connection& x = *x_;
  const std::string text = uri_of(file);
  const Window source = XCreateSimpleWindow(x.display, DefaultRootWindow(x.display), 0, 0, 1, 1, 0, 0, 0);
  XSetSelectionOwner(x.display, x.atom("XdndSelection"), source, CurrentTime);
  const auto list = static_cast<long>(x.atom("text/uri-list"));
  x.send("XdndEnter", source, {kXdndVersion << 24, list, 0, 0});
  constexpr long kAt = 200L << 16 | 200L;
  x.send("XdndPosition", source, {0, kAt, CurrentTime, static_cast<long>(x.atom("XdndActionCopy"))});
  bool taken = x.wait_for_message("XdndStatus", text, frame);
  if (taken) {
    x.send("XdndDrop", source, {0, CurrentTime});
    taken = x.wait_for_message("XdndFinished", text, frame);
  }
  XDestroyWindow(x.display, source);
  XSync(x.display, False);
  return taken;
}

}  // namespace kvreplay::test
