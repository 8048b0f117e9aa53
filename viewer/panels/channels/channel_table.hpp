#pragma once

#include "viewer/questions/channels.hpp"
#include "viewer/widgets/plot.hpp"

#include <imgui.h>
#include <string>

namespace kvreplay::viewer {

/// What each method's pruning costs, the least of each column in bold; a click chooses the method. Errors on
/// both sets of rows where there is room for them, else on those of `future`, with a switch and `beside` it;
/// `fixed`: with their name in place of the switch.
void draw_channel_table(const ChannelAnswers& answers, std::string& method, bool& future,
                        const std::string& beside, bool fixed);
/// What it takes with errors on one set of rows, in pixels.
float least_table_width();

inline constexpr double kMostChannelRatio = 0.95;
/// A slider for the pruning ratio, or a choice among those that there are.
void edit_ratio(const ChannelAnswers& answers, Semantics semantics, double& ratio);

/// The eigenvalues by rank, on a log axis.
void draw_spectrum(const Vector<double>& spectrum, ImVec2 size, PlotView& view);
/// Mean and spread of every channel of one of the head's queries, on the window and on the decoding steps.
void draw_queries(const ChannelHead& head, Index query_head, ImVec2 size, PlotView& view);

}  // namespace kvreplay::viewer
