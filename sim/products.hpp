#pragma once

namespace kvreplay {

/// How the products of a matrix product are formed on a device.
enum class Products {
  f32,    ///< as good as float32's own
  tensor  ///< one half-precision product: about 3 digits, enough to rank
};

}  // namespace kvreplay
