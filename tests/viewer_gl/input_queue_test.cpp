#include "tests/support/catch.hpp"
#include "tests/viewer_gl/clients.hpp"
#include "viewer/gl/host.hpp"

#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

/// The toolkit's input state without a window or a frame.
struct Toolkit {
  Toolkit() {
    context = ImGui::CreateContext();
    ImGui::SetCurrentContext(context);
    for (int key = 0; key < ImGuiKey_COUNT; ++key) io().KeyMap[key] = key;
  }
  Toolkit(const Toolkit&) = delete;
  Toolkit& operator=(const Toolkit&) = delete;
  ~Toolkit() { ImGui::DestroyContext(context); }
  static ImGuiIO& io() { return ImGui::GetIO(); }
  ImGuiContext* context;
};

TEST_CASE("input: a press and a release between two frames are both told", "[viewer][gl]") {
  const Toolkit toolkit;
  ButtonClient client;
  InputQueue input;
  input.move(10, 20);
  input.button(0, true);
  input.button(0, false);
  input.move(30, 40);
  input.feed(client);
  CHECK(Toolkit::io().MouseDown[0]);
  CHECK(Toolkit::io().MousePos.x == 10);
  CHECK_FALSE(input.empty());
  input.feed(client);
  CHECK_FALSE(Toolkit::io().MouseDown[0]);
  CHECK(Toolkit::io().MousePos.x == 10);
  input.feed(client);
  CHECK(Toolkit::io().MousePos.x == 30);
  CHECK(input.empty());
}

TEST_CASE("input: many moves cost one frame", "[viewer][gl]") {
  const Toolkit toolkit;
  ButtonClient client;
  InputQueue input;
  for (int i = 0; i < 1000; ++i) input.move(static_cast<float>(i), 0);
  input.wheel(0, 1);
  input.wheel(0, 2);
  input.feed(client);
  CHECK(input.empty());
  CHECK(Toolkit::io().MousePos.x == 999);
  CHECK(Toolkit::io().MouseWheel == 3);
}

TEST_CASE("input: keys go down and up, with the modifiers of their time", "[viewer][gl]") {
  const Toolkit toolkit;
  ButtonClient client;
  InputQueue input;
  input.modifiers({.control = true});
  input.key({.key = "C", .control = true}, true);
  input.key({.key = "C", .control = true}, false);
  input.modifiers({});
  input.key({"Enter"}, true);
  input.feed(client);
  CHECK(Toolkit::io().KeyCtrl);
  CHECK(Toolkit::io().KeysDown[ImGuiKey_C]);
  input.feed(client);
  CHECK_FALSE(Toolkit::io().KeysDown[ImGuiKey_C]);
  CHECK(Toolkit::io().KeyCtrl);
  input.feed(client);
  CHECK_FALSE(Toolkit::io().KeyCtrl);
  CHECK(Toolkit::io().KeysDown[ImGuiKey_Enter]);
  CHECK(client.keys ==
        std::vector<std::pair<std::string, bool>>{{"Ctrl+C", true}, {"Ctrl+C", false}, {"Enter", true}});
}

TEST_CASE("input: losing the keyboard lets go of everything", "[viewer][gl]") {
  const Toolkit toolkit;
  ButtonClient client;
  InputQueue input;
  input.modifiers({.shift = true});
  input.key({.key = "F", .shift = true}, true);
  input.key({"Left"}, true);
  input.button(1, true);
  input.feed(client);
  input.release_all();
  while (!input.empty()) input.feed(client);
  CHECK_FALSE(Toolkit::io().KeysDown[ImGuiKey_LeftArrow]);
  CHECK_FALSE(Toolkit::io().MouseDown[1]);
  CHECK_FALSE(Toolkit::io().KeyShift);
  CHECK(client.keys == std::vector<std::pair<std::string, bool>>{
                           {"Shift+F", true}, {"Left", true}, {"Shift+F", false}, {"Left", false}});
}

TEST_CASE("input: buttons that the toolkit does not know are ignored", "[viewer][gl]") {
  const Toolkit toolkit;
  ButtonClient client;
  InputQueue input;
  input.button(-1, true);
  input.button(5, true);
  CHECK(input.empty());
  input.leave();
  input.feed(client);
  CHECK_FALSE(ImGui::IsMousePosValid(&Toolkit::io().MousePos));
}

}  // namespace
}  // namespace kvreplay::viewer
