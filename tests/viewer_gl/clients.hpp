#pragma once

#include "viewer/gl/host.hpp"

#include <imgui.h>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

/// A window over everything with a button at (20, 20), 120 x 40 pixels, and a text field at (20, 80).
class ButtonClient : public Client {
 public:
  int pressed = 0, frames = 0;
  std::vector<std::pair<std::string, bool>> keys;
  std::vector<float> scales;
  float points = 13;
  bool closing = false;
  char text[64] = "";

  void frame() override {
    ++frames;
    const ImGuiIO& io = ImGui::GetIO();
    ImGui::SetNextWindowPos({0, 0});
    ImGui::SetNextWindowSize(io.DisplaySize);
    ImGui::Begin("all", nullptr, ImGuiWindowFlags_NoDecoration);
    ImGui::SetCursorPos({20, 20});
    if (ImGui::Button("Press", {120, 40})) ++pressed;
    ImGui::SetCursorPos({20, 80});
    ImGui::SetNextItemWidth(200);
    ImGui::InputText("##text", text, sizeof(text));
    ImGui::End();
  }
  void key(const Shortcut& shortcut, bool down) override {
    std::string name = shortcut.key;
    if (shortcut.shift) name = "Shift+" + name;
    if (shortcut.alt) name = "Alt+" + name;
    if (shortcut.control) name = "Ctrl+" + name;
    keys.emplace_back(name, down);
  }
  bool quit() const override { return closing; }
  float text_points() const override { return points; }
  void scale(float pixels_per_point) override { scales.push_back(pixels_per_point); }
};

}  // namespace kvreplay::viewer
