#pragma once

#include "analysis/options/option.hpp"

#include <cstddef>
#include <memory>
#include <nanobind/nanobind.h>
#include <string>
#include <utility>
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

/// The keywords of one kind of call. To bind options takes longer than to read them, so that they are bound
/// once, and set back to what they were for every call.
template <class Options>
class Keywords {
 public:
  using Bind = BoundOptions (*)(Options&);
  constexpr explicit Keywords(Bind bind) : bind_(bind) {}

  /// What the keywords say, after first(Options&). Behind Python's lock; the text of a value may be Python's
  /// own code, which comes back here.
  template <class First>
  Options read(const nb::dict& keywords, const First& first) {
    std::unique_ptr<Bound> bound = idle_ ? std::move(idle_) : std::make_unique<Bound>(bind_);
    first(bound->options);
    read_keywords(bound->all, keywords);
    Options said = std::exchange(bound->options, bound->initial);
    idle_ = std::move(bound);
    return said;
  }
  Options read(const nb::dict& keywords) {
    return read(keywords, [](Options&) {});
  }
  std::string described() const { return python::described(Bound(bind_).all); }

 private:
  struct Bound {
    explicit Bound(Bind bind) : all(bind(options)), initial(options) {}
    Options options;
    BoundOptions all;
    Options initial;
  };
  Bind bind_;
  std::unique_ptr<Bound> idle_;
};

}  // namespace kvreplay::python
