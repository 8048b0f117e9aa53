#include "sim/tokens/triattention.hpp"

#include "sim/rotation.hpp"
#include "sim/simd/panel.hpp"

#include <algorithm>
#include <cmath>
#include <complex>

namespace kvreplay {
namespace {

constexpr Index kQueriesAtOnce = 512;
constexpr double kLeastDeviation = 1e-6;

/// Channels behind those that rotate.
Index lone_channels(const Rope& rope, Index d) { return d - rope.rotary_dim; }

/// Sums over some of one query head's un-rotated queries.
struct CentreSums {
  Vector<double> re, im, abs;
};

/// Each row less its mean, over its standard deviation; the largest of every column.
Vector<double> largest_standardised(Matrix<double> scores) {
  for (Index g = 0; g < scores.rows(); ++g) {
    scores.row(g).array() -= scores.row(g).mean();
    const double deviation = std::sqrt(scores.row(g).squaredNorm() / static_cast<double>(scores.cols()));
    scores.row(g) /= std::max(deviation, kLeastDeviation);
  }
  return scores.colwise().maxCoeff().transpose();
}

}  // namespace

template <class T>
TriAttention<T>::TriAttention(const HeadGroup<T>& group, Workers& workers) : group_(group) {
  const Rope& rope = *group.rope;
  const Index pairs = rope.rotary_dim / 2, terms = pairs + lone_channels(rope, group.d()), G = group.G();
  const Index first = group.first_query(), items = div_up(group.l - first, kQueriesAtOnce);
  std::vector<std::vector<CentreSums>> sums(static_cast<std::size_t>(items));
  workers.parallel_for(items, [&](Index item) {
    const Vector<double> zero = Vector<double>::Zero(terms);
    auto& mine = sums[static_cast<std::size_t>(item)];
    mine.assign(static_cast<std::size_t>(G), {zero, zero, zero});
    const Index begin = first + item * kQueriesAtOnce;
    for (Index p = begin; p < std::min(begin + kQueriesAtOnce, group.l); ++p)
      for (Index f = 0; f < terms; ++f) {
        const std::complex<double> back =
            f < pairs ? std::polar(1 / rope.attention_factor, -static_cast<double>(p) * rope.inv_freq[f])
                      : std::complex<double>(1);
        for (Index g = 0; g < G; ++g) {
          const auto q = group.q[static_cast<std::size_t>(g)].row(p - first);
          const RotatedPair at = f < pairs ? rotated_pair(rope, f) : RotatedPair{pairs + f, -1};
          const std::complex<double> x =
              back * std::complex<double>(q[at.first], f < pairs ? q[at.second] : T{0});
          CentreSums& sum = mine[static_cast<std::size_t>(g)];
          sum.re[f] += x.real();
          sum.im[f] += x.imag();
          sum.abs[f] += std::abs(x);
        }
      }
  });
  for (Index g = 0; g < G; ++g) {
    CentreSums all = sums.front()[static_cast<std::size_t>(g)];
    for (Index item = 1; item < items; ++item) {
      const CentreSums& part = sums[static_cast<std::size_t>(item)][static_cast<std::size_t>(g)];
      all.re += part.re;
      all.im += part.im;
      all.abs += part.abs;
    }
    const double n = static_cast<double>(group.l - first);
    const Vector<double> length = (all.re.array().square() + all.im.array().square()).sqrt();
    centres_.push_back({all.re / n, all.im / n, (all.abs - length) / n});
  }
  offset_re_ = offset_im_ = Vector<double>::Zero(pairs);
  for (Index f = 0; f < pairs; ++f)
    for (Index n = 0; n < kTriAttentionOffsets; ++n) {
      const double angle = static_cast<double>(Index{1} << n) * rope.inv_freq[f];
      offset_re_[f] += std::cos(angle) / static_cast<double>(kTriAttentionOffsets);
      offset_im_[f] += std::sin(angle) / static_cast<double>(kTriAttentionOffsets);
    }
}

template <class T>
Vector<double> TriAttention<T>::scores(std::span<const Index> tokens, Index next) const {
  const Rope& rope = *group_.rope;
  const Index pairs = rope.rotary_dim / 2, terms = centres_.front().re.size(), n = std::ssize(tokens);
  // A key as it is stored holds its own rotation: what is left to do is one vector for all of them.
  Matrix<double> stored(group_.G(), group_.d()), spread(group_.G(), terms);
  for (Index g = 0; g < group_.G(); ++g) {
    const Centre& centre = centres_[static_cast<std::size_t>(g)];
    for (Index f = 0; f < terms; ++f) {
      std::complex<double> c(centre.re[f], centre.im[f]);
      if (f < pairs) {
        c *= std::polar(rope.attention_factor, static_cast<double>(next) * rope.inv_freq[f]) *
             std::complex<double>(offset_re_[f], offset_im_[f]);
        const auto [a, b] = rotated_pair(rope, f);
        stored(g, a) = c.real();
        stored(g, b) = c.imag();
      } else {
        stored(g, pairs + f) = c.real();
      }
      spread(g, f) = centre.spread[f] * (f < pairs ? rope.attention_factor : 1);
    }
  }
  Matrix<double> scores(group_.G(), n);
  Vector<double> length(terms);
  for (Index t = 0; t < n; ++t) {
    const Vector<double> k = group_.k.row(tokens[t]).transpose().template cast<double>();
    for (Index f = 0; f < terms; ++f) {
      if (f < pairs) {
        const auto [a, b] = rotated_pair(rope, f);
        length[f] = std::sqrt(k[a] * k[a] + k[b] * k[b]);
      } else {
        length[f] = std::abs(k[pairs + f]);
      }
    }
    scores.col(t) = stored * k + spread * length;
  }
  return largest_standardised(std::move(scores));
}

Vector<double> triattention_reference(const HeadGroup<double>& group, std::span<const Index> tokens,
                                      Index next) {
  using Complex = std::complex<double>;
  const Rope& rope = *group.rope;
  const double n = static_cast<double>(group.l - group.first_query());
  Matrix<double> scores = Matrix<double>::Zero(group.G(), std::ssize(tokens));
  // A head's numbers as complex ones, un-rotated.
  const auto back = [&](Vector<double> x, Index p) {
    rotate_by(rope, -p, x.data());
    x.head(rope.rotary_dim) /= rope.attention_factor;
    return x;
  };
  const auto term = [&](const Vector<double>& x, Index f) {
    if (f >= rope.rotary_dim / 2) return Complex(x[rope.rotary_dim / 2 + f], 0);
    const auto [a, b] = rotated_pair(rope, f);
    return Complex(x[a], x[b]);
  };
  for (Index g = 0; g < group.G(); ++g)
    for (Index f = 0; f < group.d() - rope.rotary_dim / 2; ++f) {
      Complex mean = 0;
      double mean_abs = 0;
      for (Index p = group.first_query(); p < group.l; ++p) {
        const Complex q = term(back(group.q[g].row(p - group.first_query()).transpose(), p), f);
        mean += q / n;
        mean_abs += std::abs(q) / n;
      }
      const bool turns = f < rope.rotary_dim / 2;
      const double w = turns ? rope.inv_freq[f] : 0,
                   factor = turns ? rope.attention_factor * rope.attention_factor : 1;
      for (Index t = 0; t < std::ssize(tokens); ++t) {
        const Complex k = term(back(group.k.row(tokens[t]).transpose(), tokens[t]), f);
        double cosines = 0;
        for (Index offset = 1; offset <= 65536; offset *= 2)
          cosines +=
              std::cos(w * static_cast<double>(next - tokens[t] + offset) + std::arg(mean) - std::arg(k)) /
              17.0;
        scores(g, t) += factor * std::abs(k) * (std::abs(mean) * cosines + mean_abs - std::abs(mean));
      }
    }
  for (Index g = 0; g < group.G(); ++g) {
    const double mean = scores.row(g).mean();
    double square = 0;
    for (const double s : scores.row(g)) square += (s - mean) * (s - mean);
    scores.row(g) = (scores.row(g).array() - mean) /
                    std::max(std::sqrt(square / static_cast<double>(scores.cols())), 1e-6);
  }
  return scores.colwise().maxCoeff().transpose();
}

template class TriAttention<float>;
template class TriAttention<double>;

}  // namespace kvreplay
