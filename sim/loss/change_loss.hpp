#pragma once

#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/simd/panel.hpp"

#include <vector>

// Loss, in nats, that a change of the outputs causes, predicted from the model's gradients
// (sim/loss/LOSS.md).

namespace kvreplay {

/// The loss at one query head, or added up over several; not yet divided by the number of rows.
struct ChangeLoss {
  double row = 0;               ///< sum over the rows of 1/2 mean_s (g_is . D_i)^2
  double head = 0;              ///< 1/2 mean_s (sum over the rows of g_is . D_i)^2
  std::vector<double> samples;  ///< [S], sum over the rows of g_is . D_i
  std::vector<double> steps;    ///< [S, rows], g_is . D_i
};

/// The loss by the change D of query head g's outputs on `rows`, which are among `changed` and among the
/// gradients'. `change` has D on the rows `changed`, in panels [panels][d_v][W]. Products over d_v in T, all
/// sums in float64. Cost: 2 S |rows| d_v flops, and as many numbers read as there are gradients.
template <class T>
ChangeLoss change_loss(const RowGradients<T>& gradients, Index g, RowRange rows, const std::vector<T>& change,
                       RowRange changed);

/// Losses of all query heads of a group in every case, `changes` [cases][G]: the cases of a head follow
/// each other, g * cases + c. A case without vectors has nothing; there is nothing where `rows` is empty.
template <class T>
std::vector<ChangeLoss> change_losses(const RowGradients<T>& gradients, RowRange rows,
                                      const std::vector<PanelRows<T>>& changes, RowRange changed,
                                      Workers& workers);

/// Reference: D [|changed|, d_v] in float64, from the definition.
ChangeLoss change_loss_reference(const RowGradients<double>& gradients, Index g, RowRange rows,
                                 const Matrix<double>& change, RowRange changed);

}  // namespace kvreplay
