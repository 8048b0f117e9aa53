#pragma once

#include "viewer/panels/channel_question.hpp"
#include "viewer/widgets/plot.hpp"

#include <imgui.h>
#include <string>

namespace kvreplay::viewer {

/// What a method prunes, in a few words.
const char* meaning_of(ChannelMethod method);

/// What each method's pruning costs, the least of each column in bold; a click chooses the method. Errors on
/// both sets of rows where there is room for them, else on those of `future`, with a switch.
void draw_channel_table(const ChannelAnswers& answers, std::string& method, bool& future);

/// The eigenvalues by rank, on a log axis.
void draw_spectrum(const Vector<double>& spectrum, ImVec2 size, PlotView& view);

}  // namespace kvreplay::viewer
