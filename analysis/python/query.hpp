#pragma once

#include "analysis/eviction/eviction_options.hpp"
#include "analysis/python/calls.hpp"
#include "analysis/python/layer.hpp"
#include "analysis/run/stage.hpp"

#include <functional>
#include <map>
#include <nanobind/stl/string.h>
#include <string>
#include <vector>

namespace kvreplay::python {

/// Everything that a query reads besides its options.
struct Request {
  const Layer* layer;      ///< null for queries on arrays without a layer
  const nb::dict& inputs;  ///< arrays, texts and flags by name

  const Dump& dump() const { return layer->dump(); }
};

/// One query of the package. The entry ask(query, layer, inputs, options) finds it by name.
struct Query {
  std::function<nb::list()> options;  ///< as described() lists them
  /// Throws for inputs and options that the query rejects for every layer.
  std::function<void(const nb::dict& inputs, const nb::dict& keywords)> check;
  std::function<nb::dict(const Request&, const nb::dict& keywords)> answer;  ///< results by name
};
using Queries = std::map<std::string, Query>;

/// Adds a query: `read` turns inputs and keywords into its arguments, from which `answer` computes.
template <class Options, class Read, class Answer>
void add_query(Queries& queries, const char* name, Keywords<Options>& keywords, const Read& read,
               const Answer& answer) {
  queries[name] = {
      [&keywords] { return keywords.described(); },
      [&keywords, read](const nb::dict& inputs, const nb::dict& options) { read(keywords, inputs, options); },
      [&keywords, read, answer](const Request& request, const nb::dict& options) {
        return answer(request, read(keywords, request.inputs, options));
      }};
}

void add_layer_queries(Queries& queries);  ///< of one layer's heads
void add_array_queries(Queries& queries);  ///< of curves and interactions, without a layer
void add_growing_options(Queries& queries);
void bind_growing_caches(nb::module_& module);

inline nb::list texts_of(const std::vector<OptionText>& notes) {
  nb::list texts;
  for (const OptionText& note : notes) texts.append(note.plain().c_str());
  return texts;
}

/// Options of a call with one policy, one budget and one phase, of which policy and budget have no default.
BoundOptions options_of_one_case(CallArgs<EvictionOptions>& args);

/// Throws OptionError unless there is one case, of a policy.
void require_one_case(const EvictionOptions& options);

}  // namespace kvreplay::python
