#pragma once

#include "sim/head_group.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace kvreplay {

/// A matrix as a picture: diverging colours centred at 0 over a symmetric range, labelled axes with ticks, a
/// title and a colour bar.
struct Heatmap {
  std::string title;
  std::string x_label, y_label;
  std::string value_label;  ///< beside the colour bar
  Matrix<double> values;    ///< [rows, columns], row 0 at the top
  double limit = 0;  ///< colours end at +-limit, larger values are clipped and the bar says so; 0: max|x|
  std::vector<Index> x_marks;  ///< columns to draw a fine line before (the middle of a rotated head)
  std::vector<Index> y_marks;
};

/// Writes it whole or not at all; the same values give the same bytes. Throws InputError where it cannot be
/// written.
void write_png(const std::filesystem::path& path, const Heatmap& heatmap);

}  // namespace kvreplay
