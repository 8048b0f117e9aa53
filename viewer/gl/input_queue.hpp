#pragma once

#include "viewer/gl/host.hpp"

#include <array>
#include <deque>

namespace kvreplay::viewer {

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
