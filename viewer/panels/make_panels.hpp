#pragma once

#include "viewer/panels/panel.hpp"

#include <memory>

// One function a panel, each defined in the panel's file.

namespace kvreplay::viewer {

std::unique_ptr<Panel> make_head_map_panel();
std::unique_ptr<Panel> make_token_map_panel();
std::unique_ptr<Panel> make_channel_panel();
std::unique_ptr<Panel> make_scatter_panel();
std::unique_ptr<Panel> make_curves_panel();
std::unique_ptr<Panel> make_what_if_panel();
std::unique_ptr<Panel> make_budgets_panel();
std::unique_ptr<Panel> make_decode_panel();
std::unique_ptr<Panel> make_inspector_panel();
std::unique_ptr<Panel> make_jobs_panel();

}  // namespace kvreplay::viewer
