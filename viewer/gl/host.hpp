#pragma once

#include "viewer/model/actions.hpp"

#include <array>
#include <deque>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// Content of a host's window (window_host.hpp, headless_host.hpp). All functions are called on the host's
/// thread, with the toolkit's and OpenGL's contexts current. All lengths are pixels of the host's
/// framebuffer.
class Client {
 public:
  virtual ~Client() = default;

  /// Draws one frame with the toolkit, between its NewFrame() and Render().
  virtual void frame() = 0;
  /// The frame is finished. In a window it lies in the framebuffer that is bound for reading:
  /// read_pixels(width, height, FirstRow::last) gives its pixels.
  virtual void drawn(int /*width*/, int /*height*/) {}

  /// A key went down (again, while it is held) or up; between frames, in the order of typing, also while a
  /// text field has the keyboard (ImGui::GetIO().WantTextInput). Signs that are no letter ("?", "+", "7")
  /// come as typed, without the shift that the keyboard may take for them.
  virtual void key(const Shortcut& /*shortcut*/, bool /*down*/) {}
  virtual void dropped(const std::vector<std::filesystem::path>& /*paths*/) {}

  /// The last call: what the client holds of OpenGL must go now, while the context is there.
  virtual void closing() {}

  /// Asked after each frame.
  virtual bool quit() const { return false; }
  /// True if the picture changes without input, so that another frame is due at once.
  virtual bool needs_frame() const { return false; }
  /// Seconds after which the picture changes without input; infinite if no change is due.
  virtual double changes_in() const { return std::numeric_limits<double>::infinity(); }
  /// Title of the window.
  virtual std::string title() const { return "kvreplay"; }
  /// Size of the text, in points of 1/scale pixels; asked before each frame.
  virtual float text_points() const { return 13; }
  /// Pixels per point: before the first frame and whenever the window comes to another display.
  virtual void scale(float /*pixels_per_point*/) {}
};

struct Modifiers {
  bool control = false, shift = false, alt = false;
  bool operator==(const Modifiers&) const = default;
};

/// Input on its way to the toolkit, in the order in which it came. The toolkit sees states once a frame, so a
/// button that goes down and up between two frames would be lost; what cannot be told within one frame waits
/// for the next.
class InputQueue {
 public:
  InputQueue();
  void move(float x, float y);  ///< pixels from the top left corner
  void leave();                 ///< no mouse
  void button(int button, bool down);
  void wheel(float dx, float dy);  ///< steps; dy > 0: away from the user
  void modifiers(Modifiers held);
  void key(const Shortcut& shortcut, bool down);
  void character(unsigned code_point);
  /// Lets go of everything that is held, as when the window loses the keyboard.
  void release_all();

  bool empty() const { return events_.empty(); }
  /// Gives the toolkit as much as one frame can take and the client its keys; call it between frames, after
  /// the toolkit's window backend. ImGuiIO::KeyMap must be set.
  void feed(Client& client);

 private:
  enum class Kind { move, button, wheel, modifiers, key, character };
  struct Event {
    Kind kind;
    float x = 0, y = 0;
    int button = 0;
    bool down = false;
    unsigned code_point = 0;
    Modifiers modifiers = {};
    Shortcut shortcut = {};
  };
  struct Frame {
    bool move = false, button = false, wheel = false, key = false;  ///< have been told
    std::array<bool, 32> keys{};                                    ///< by ImGuiKey
  };

  bool must_wait(const Event& event, const Frame& frame) const;
  void tell(const Event& event, Frame& frame, Client& client);

  std::deque<Event> events_;
  float x_, y_;
  std::array<bool, 5> buttons_{};
  Modifiers held_;
  std::vector<Shortcut> keys_down_;
};

/// The toolkit's key (an ImGuiKey) of that name, -1 where it does not know it.
int toolkit_key(const std::string& name);

}  // namespace kvreplay::viewer
