#pragma once

#include "viewer/model/layout.hpp"
#include "viewer/model/tour.hpp"

namespace kvreplay::viewer {

/// Draws the step's card over `at`, within `window`, and a frame around what it speaks of; moves the tour on
/// as its buttons say. Last in a frame.
void draw_tour(Tour& tour, const Area& at, const Area& window);

}  // namespace kvreplay::viewer
