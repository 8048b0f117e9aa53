#pragma once

#include "sim/head_matrix.hpp"
#include "sim/schedule.hpp"

namespace kvreplay {

/// The w >= 0 that makes w^T H w / 2 - f^T w smallest; H = A + ridge I [m, m] symmetric and positive
/// definite, f [m]. By block principal pivoting (Kim, Park: Fast Nonnegative Matrix Factorization, 2011),
/// which ends at the optimum: w >= 0, H w - f >= 0 where w is 0, and H w = f elsewhere. A Cholesky factor of
/// what is positive a step, of which a start from what is positive in a `near` solution (empty: from all)
/// needs fewer.
Vector<double> nonnegative_least_squares(const Matrix<double>& A, double ridge, const Vector<double>& f,
                                         const Vector<double>& near, Workers& workers);

}  // namespace kvreplay
