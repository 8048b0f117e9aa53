#pragma once

#include "data/atomic_file.hpp"
#include "sim/head_group.hpp"

#include <string>
#include <vector>

namespace kvreplay {

/// A matrix as a picture: diverging colours centred at 0 over a symmetric range, labelled axes with ticks, a
/// title and a colour bar. NaN is grey. Texts are ASCII (another character is drawn as '?') and are broken
/// into lines where they are long. The cells fill some 640 x 640 pixels, more where that is less than one
/// pixel each.
struct Heatmap {
  std::string title;
  std::string x_label, y_label;
  std::string value_label;  ///< beside the colour bar
  Matrix<double> values;    ///< [rows, columns], row 0 at the top
  double limit = 0;         ///< colours end at +-limit, larger values are clipped and the bar says so; 0: the
                            ///< largest finite |x|
  std::vector<Index> x_marks;  ///< columns to draw a fine line before (the middle of a rotated head)
  std::vector<Index> y_marks;
};

/// Writes it whole or not at all; the same heatmap gives the same bytes. Throws InputError where it cannot be
/// written, has no values or more than 8192 on a side, or its limit is negative or not finite.
void write_png(AtomicFile file, const Heatmap& heatmap);

}  // namespace kvreplay
