#pragma once

#include <string>

namespace kvreplay {

/// The shortest decimal that reads back as the same double; "nan", "inf" and "-inf" where it is none.
std::string shortest(double value);

}  // namespace kvreplay
