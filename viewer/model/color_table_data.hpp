#pragma once

#include <string_view>

namespace kvreplay::viewer {

// 256 colours each from the low end to the high one, sRGB, six hexadecimal digits a colour.
extern const std::string_view kViridisHex, kMagmaHex, kCividisHex, kRdBuHex;

}  // namespace kvreplay::viewer
