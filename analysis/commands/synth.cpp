#include "data/synth.hpp"

#include "analysis/commands/arguments.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

namespace kvreplay {
namespace {

Dtype dtype_named(const std::string& name) {
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::f32, Dtype::f64})
    if (name == name_of(dtype)) return dtype;
  throw InputError("--dtype", "float16, bfloat16, float32 or float64", fmt::format("'{}'", name));
}

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
  std::string folder, dtype = "float32";
  SynthOptions options;
  CommonOptions common;
  app->add_option("DIR", folder, "The folder to write to; it must hold no dump yet")
      ->required()
      ->check(folder_name())
      ->option_text(" ");
  const auto count = [&](const char* name, Index& value, Index least, const char* what) {
    app->add_option(name, value, what)->check(whole_number(least))->option_text(fmt::format("N [{}]", value));
  };
  count("--layers", options.layers, 1, "Layers");
  count("--q-heads", options.q_heads, 1, "Query heads, a multiple of the KV heads");
  count("--kv-heads", options.kv_heads, 1, "KV heads");
  count("--head-dim", options.head_dim, 1, "Head dimension");
  count("--prompt", options.prompt, 1, "Prompt positions");
  count("--decode", options.decode, 0, "Decoding steps");
  app->add_option("--dtype", dtype, "float16, bfloat16, float32 or float64")->option_text("NAME [float32]");
  app->add_option("--seed", options.seed, "The same seed gives the same bytes")
      ->check(whole_number(0))
      ->option_text("N [1]");
  common.add_output(*app);
  if (parse(*app, arguments)) return 0;

  options.dtype = dtype_named(dtype);
  const Planted planted = write_synthetic_dump(folder, options);
  if (common.json) {
    const Json json = {{"dump", folder},
                       {"planted",
                        {{"sinks", planted.sinks},
                         {"sink_kv_heads", planted.sink_kv_heads},
                         {"heavy_hitters", planted.heavy_hitters},
                         {"outlier_channels", planted.outlier_channels},
                         {"needle", planted.needle}}}};
    fmt::print("{}\n", json.dump(1, ' ', false, Json::error_handler_t::replace));
  } else if (!common.quiet) {
    fmt::print("{}", text_of(planted, folder, options));
  }
  return 0;
}

}  // namespace kvreplay
