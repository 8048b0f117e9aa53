#include "data/synth.hpp"

#include "analysis/commands/commands.hpp"
#include "data/console.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

namespace kvreplay {

namespace {

namespace synth_option {
constexpr OptionFacts layers{"layers", "N", "Layers", "", 1},
    q_heads{"q-heads", "N", "Query heads, a multiple of the KV heads", "", 1},
    kv_heads{"kv-heads", "N", "KV heads", "", 1}, head_dim{"head-dim", "N", "Head dimension", "", 1},
    prompt{"prompt", "N", "Prompt positions", "", 1}, decode{"decode", "N", "Decoding steps"},
    dtype{"dtype", "NAME", "float16, bfloat16, float32 or float64"},
    seed{"seed", "N", "The same seed gives the same bytes"},
    gradients{"gradients", "S", "Samples of random gradients, for a trial of what takes gradients", "none"};
}  // namespace synth_option

std::string text_of(const Planted& planted, const std::string& folder, const SynthOptions& options) {
  std::string text = fmt::format(
      "{}: {} layers, {} query heads on {} KV heads, head dimension {}, {} prompt positions and {} "
      "decoding steps, {}, seed {}\n\nplanted\n",
      folder, options.layers, options.q_heads, options.kv_heads, options.head_dim, options.prompt,
      options.decode, name_of(options.dtype), options.seed);
  text += fmt::format("  sinks             {}\n", fmt::join(planted.sinks, " "));
  text += fmt::format("  their KV heads    {} (one a layer)\n", fmt::join(planted.sink_kv_heads, " "));
  text += fmt::format("  heavy hitters     {}\n", fmt::join(planted.heavy_hitters, " "));
  text += fmt::format("  outlier channels  {}\n", fmt::join(planted.outlier_channels, " "));
  text += fmt::format("  needle            {}\n",
                      planted.needle < 0 ? "none" : fmt::format("{}", planted.needle));
  return text;
}

}  // namespace

int run_synth(const Arguments& arguments) {
  const auto app =
      make_app("synth",
               "Writes a seeded synthetic dump with sinks, heavy hitters, locality, outlier channels and\na "
               "needle at known places.",
               "kvreplay synth /tmp/dump --layers 4 --prompt 1024 --decode 64 --dtype float16 --seed 7");
  std::string folder;
  SynthOptions options;
  CommonOptions common;
  app->add_folders("DIR", folder, "The folder to write to; it must hold no dump yet");
  app->add(
      {bind_option(synth_option::layers, options.layers), bind_option(synth_option::q_heads, options.q_heads),
       bind_option(synth_option::kv_heads, options.kv_heads),
       bind_option(synth_option::head_dim, options.head_dim),
       bind_option(synth_option::prompt, options.prompt), bind_option(synth_option::decode, options.decode),
       bind_option(synth_option::dtype, options.dtype), bind_option(synth_option::seed, options.seed),
       bind_option(synth_option::gradients, options.gradients)});
  common.add_output(*app);
  if (parse(*app, arguments)) return 0;

  const Planted planted = write_synthetic_dump(folder, options);
  if (common.json) {
    print_json({{"dump", folder},
                {"planted",
                 {{"sinks", planted.sinks},
                  {"sink_kv_heads", planted.sink_kv_heads},
                  {"heavy_hitters", planted.heavy_hitters},
                  {"outlier_channels", planted.outlier_channels},
                  {"needle", planted.needle}}}});
  } else if (!common.quiet) {
    say("{}", text_of(planted, displayable(folder), options));
    common.dump = folder;
    say_next({analyze_command(common)});
  }
  return 0;
}

}  // namespace kvreplay
