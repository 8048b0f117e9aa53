#include "data/synth/portable_math.hpp"

namespace kvreplay {

SinCos portable_sincos(double angle) {
  // pi/2 in two parts, of which the first has 33 bits: times a quarter-turn count below 2^20 it is exact.
  constexpr double half_pi_high = 0x1.921fb544p+0, half_pi_low = 0x1.0b4611a626331p-34;
  const std::int64_t quarter = static_cast<std::int64_t>(angle * 0x1.45f306dc9c883p-1 + 0.5);
  const double n = static_cast<double>(quarter);
  const double r = (angle - n * half_pi_high) - n * half_pi_low;
  const double square = r * r;
  double sine = 0, cosine = 0;
  for (int k = 18; k >= 2; k -= 2) {
    cosine = (cosine + 1.0) * (-square / (k * (k - 1)));
    sine = (sine + 1.0) * (-square / (k * (k + 1)));
  }
  sine = r + r * sine;
  cosine = 1.0 + cosine;
  switch (quarter & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

}  // namespace kvreplay
