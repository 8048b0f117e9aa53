#pragma once

#include "analysis/options/option.hpp"

#include <cstddef>
#include <nanobind/nanobind.h>
#include <string>
#include <vector>

namespace kvreplay::python {

namespace nb = nanobind;

/// Sets what Python's keywords say of a command's options, which they name with '_' for '-': text, numbers,
/// booleans for flags, a sequence or commas for a list; None is not given. What the command line refuses is
/// refused in the same words, but for the dashes. Throws OptionError.
void read_keywords(const BoundOptions& options, const nb::dict& keywords);

/// Those of `options` that keep(const OptionFacts*) holds for.
template <class Keep>
BoundOptions those_of(BoundOptions options, const Keep& keep) {
  std::erase_if(options, [&](const BoundOption& option) { return !keep(option.facts); });
  return options;
}

/// The same options joined.
BoundOptions joined(BoundOptions one, const BoundOptions& other);

/// Throws OptionError where a list that a call wants one of has `found`.
void require_one(const OptionFacts& option, std::size_t found);

/// "name: takes [otherwise]: meaning", a line each, of the options that a call takes: for its docstring.
std::string described(const BoundOptions& options);

}  // namespace kvreplay::python
