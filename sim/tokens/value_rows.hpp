#pragma once

#include "sim/simd/panel.hpp"

// Passes over rows of values (or keys), each row d_v long and the rows one behind the other: memory-bound, so
// each does all it can on one read.

namespace kvreplay {

/// Kernels for one instruction set.
template <class T>
struct ValueRowsSimd {
  /// centred[r] = v[r] - centre, and for each row ||v||^2, ||v - centre||^2 and centre . (v - centre); sum +=
  /// the centred rows.
  void (*centre_rows)(const T* v, const T* centre, Index rows, Index d_v, T* centred, T* value_sq,
                      T* centred_sq, T* centre_dot, T* sum);

  /// sum += weights[r] * v[r].
  void (*add_weighted_rows)(const T* v, const T* weights, Index rows, Index d_v, T* sum);

  /// squares [n][rows]: ||points[p] - v[r]||^2 for points [n][d_v].
  void (*row_distances)(const T* v, const T* points, Index n, Index rows, Index d_v, T* squares);

  /// dots [n][rows]: points[p] . v[r].
  void (*row_dots)(const T* v, const T* points, Index n, Index rows, Index d_v, T* dots);

  // Squares and products in float64, whatever the rows are in:

  /// ||v[r]||^2.
  void (*row_squares)(const T* v, Index rows, Index d_v, double* squares);

  /// w . v[which[r]].
  void (*row_products)(const T* v, const Index* which, const double* w, Index rows, Index d_v,
                       double* products);

  /// sum += weights[r] * v[which[r]].
  void (*add_weighted_rows_f64)(const T* v, const Index* which, const double* weights, Index rows, Index d_v,
                                double* sum);

  /// sum += v[which[r]]^2, entry by entry.
  void (*add_squared_rows)(const T* v, const Index* which, Index rows, Index d_v, double* sum);
};
/// Kernels for the best instruction set of this machine.
template <class T>
ValueRowsSimd<T> value_rows_simd();

}  // namespace kvreplay
