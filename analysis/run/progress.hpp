#pragma once

#include "data/dump.hpp"

#include <string>

namespace kvreplay {

/// "0:07", "12:34", "3:05:10".
std::string clock_text(double seconds);

/// One line about work under way: a bar, the share done, the rate and the time left (from the rate so far).
///   [=========>                    ]  32 %  31/96 heads  4.1 heads/s  0:16 left
std::string progress_line(Index done, Index total, double seconds);

}  // namespace kvreplay
