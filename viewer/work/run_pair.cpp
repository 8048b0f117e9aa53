#include "viewer/work/run_pair.hpp"

#include "analysis/results/result_reader.hpp"
#include "viewer/model/token_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace kvreplay::viewer {
namespace {

using Json = nlohmann::ordered_json;

/// Whether both are of one dump's numbers: the same folder, or results that noted the same of a layer. (The
/// fingerprint of a dump's make would be the same for two prompts of one length.)
bool of_one_dump(const Run& run, const Run& other) {
  if (run.dump() != nullptr && other.dump() != nullptr && run.dump()->folder() == other.dump()->folder())
    return true;
  if (run.results() == nullptr || other.results() == nullptr) return false;
  const auto noted = [](const Run& of) {
    return of.results()->summary().value("layer_fingerprints", Json::object());
  };
  const Json mine = noted(run), theirs = noted(other);
  return std::any_of(mine.items().begin(), mine.items().end(), [&](const auto& layer) {
    const auto found = theirs.find(layer.key());
    return found != theirs.end() && *found == layer.value();
  });
}

/// The first position at which two lists differ; their length where they do not.
template <class List>
Index first_difference(const List& one, const List& other) {
  return std::mismatch(one.begin(), one.end(), other.begin(), other.end()).first - one.begin();
}

}  // namespace

std::string why_not_comparable(const Run& run, const Run& other) {
  const DumpShape &a = run.shape(), &b = other.shape();
  const auto text = [](const DumpShape& s) {
    return fmt::format("{} layers x {} KV heads of {} query heads, prompt {} + {} decoded, {} queries",
                       s.layers, s.n_kv, s.group(), s.l, s.T - s.l, s.T_q);
  };
  const auto sizes = [](const DumpShape& s) {
    return std::array{s.layers, s.n_kv, s.group(), s.l, s.T, s.T_q};
  };
  if (sizes(a) != sizes(b))
    return fmt::format("{} is of another shape than {}: {}, not {}.", run.name(), other.name(), text(a),
                       text(b));
  if (run.labels() && other.labels()) {
    const TokenLabels &mine = *run.labels(), &theirs = *other.labels();
    const bool ids = !mine.ids.empty() && !theirs.ids.empty();
    if (ids || (!mine.text.empty() && !theirs.text.empty())) {
      const Index at =
          ids ? first_difference(mine.ids, theirs.ids) : first_difference(mine.text, theirs.text);
      if (at == a.T) return "";
      const auto named = [&](const Run& of) {
        const std::string its = token_text(of.labels(), at, 16);
        return its.empty() ? std::to_string(of.labels()->ids[static_cast<std::size_t>(at)])
                           : fmt::format("'{}'", its);
      };
      return fmt::format("{} is of another prompt than {}: token {} is {}, not {}.", run.name(), other.name(),
                         at, named(run), named(other));
    }
  }
  if (of_one_dump(run, other)) return "";
  return fmt::format(
      "Whether {} and {} are of one prompt cannot be told: their dumps do not both name their tokens.",
      run.name(), other.name());
}

const std::string& PinnedRun::why_not(const Run& run) {
  if (compared_ != run.id()) {
    compared_ = run.id();
    why_not_ = why_not_comparable(run, *run_);
  }
  return why_not_;
}

}  // namespace kvreplay::viewer
