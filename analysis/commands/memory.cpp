#include "analysis/commands/commands.hpp"
#include "data/console.hpp"

#include <fmt/format.h>

namespace kvreplay {
namespace {

constexpr double kKept[] = {1, 0.5, 0.2, 0.1};
constexpr double kMiB = 1024.0 * 1024.0;

/// Of the prompt's keys and values in 16 bits, where every head keeps this share of its tokens; in MiB.
double cache_size(const DumpShape& shape, double kept) {
  const auto numbers = static_cast<double>(shape.layers * shape.n_kv * shape.l * (shape.d + shape.d_v));
  return kept * 2 * numbers / kMiB;
}

}  // namespace

int run_memory(const Arguments& arguments) {
  const auto app =
      make_app("memory", "Says what the cache of a dump's prompt takes in 16 bits, whole and cut.",
               "kvreplay memory data/samples/pystdlib-lm");
  CommonOptions options;
  options.add_dump(*app);
  options.add_output(*app);
  if (parse(*app, arguments)) return 0;
  const Dump dump = options.open();
  nlohmann::ordered_json json = {{"dump", options.dump}, {"cache", nlohmann::ordered_json::array()}};
  std::string text =
      fmt::format("{}\n\n{:<10}{:>12}\n", shape_line(dump, dump.shape().layers), "kept", "MiB");
  for (const double kept : kKept) {
    const double size = cache_size(dump.shape(), kept);
    json["cache"].push_back({{"kept", kept}, {"mib", size}});
    text += fmt::format("{:<10}{:>12.3f}\n", fmt::format("{:g} %", 100 * kept), size);
  }
  if (options.json)
    print_json(json);
  else if (!options.quiet)
    say("{}", text);
  return 0;
}

}  // namespace kvreplay
