#pragma once

#include "analysis/options/option_text.hpp"
#include "analysis/run/left_out.hpp"

#include <nanobind/nanobind.h>
#include <vector>

namespace kvreplay::python {

namespace nb = nanobind;

inline nb::list texts_of(const std::vector<OptionText>& notes) {
  nb::list texts;
  for (const OptionText& note : notes) texts.append(note.plain().c_str());
  return texts;
}

/// Why, by what is left out.
inline nb::dict texts_of(const std::vector<LeftOut>& left_out) {
  nb::dict texts;
  for (const LeftOut& one : left_out) texts[one.what.c_str()] = one.why.c_str();
  return texts;
}

}  // namespace kvreplay::python
