#include "analysis/capture/capture.hpp"

#include "analysis/commands/commands.hpp"
#include "analysis/commands/under_way.hpp"
#include "data/console.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

namespace kvreplay {
namespace {

namespace capture_option {
constexpr OptionFacts prompt{"prompt", "FILE",
                             "A text; with several, the model is read once, and each becomes a dump in the\n"
                             "folder, named by its file"},
    prompt_len{"prompt-len", "N", "The first N tokens are the prompt, those behind them decoding steps",
               "all", 1},
    decode{"decode", "N", "Decoding steps, greedy; at most so many of a text"},
    continued{"continue", "FILE", "Decode along this text, not greedily", "greedily"},
    dtype{"dtype", "NAME", "Of the files, to which q, k and v are rounded: float16 or float32"},
    threads{"threads", "N", "Threads", "all cores"},
    name{"name", "NAME", "The manifest's model name", "the GGUF's"},
    out{"out", "DUMP", "The dump to write; a folder of dumps with several prompts", "none"},
    force{"force", "", "Replace a dump"}, estimate{"estimate", "", "Print tokens and bytes, and stop"};
}  // namespace capture_option

std::string text_of(const CapturedDump& dump, bool estimate) {
  const std::string size = fmt::format("{} + {} positions, {}, {} bytes", dump.prompt, dump.decode,
                                       counted(dump.layers, "layer"), dump.bytes);
  if (estimate) return fmt::format("{}\n", size);
  return fmt::format(
      "{}: {}; o follows from the files within {:.1e}{}\n", dump.folder.string(), size, dump.deviation,
      dump.ended ? fmt::format("; the model ended its text at decoding step {}", *dump.ended) : "");
}

}  // namespace

int run_capture(const Arguments& arguments) {
  const auto app =
      make_app("capture",
               "Runs a GGUF file with llama.cpp and writes what its attention read as a dump: q and "
               "k behind the\nrotation, v, and the heads' outputs. Each dump is checked: its outputs "
               "have to follow from its files.",
               "kvreplay capture MODEL.gguf --prompt text.txt --decode 128 --out DUMP\n"
               "kvreplay capture MODEL.gguf --prompt a.txt,b.txt --out dumps\n"
               "kvreplay capture MODEL.gguf --prompt text.txt --estimate");
  std::string model, out;
  std::vector<std::string> prompts;
  std::optional<std::string> continued;
  CaptureOptions options;
  CommonOptions common;
  app->add_option("MODEL", model, "The GGUF file")->required()->option_text(" ");
  app->add(
      {bind_option(capture_option::prompt, prompts).naming_files(),
       bind_option(capture_option::prompt_len, options.prompt_len),
       bind_option(capture_option::decode, options.decode), bind_option(capture_option::continued, continued),
       bind_option(run_option::layers, common.layers), bind_option(capture_option::dtype, options.dtype),
       bind_option(capture_option::threads, common.threads), bind_option(capture_option::name, options.name),
       bind_option(capture_option::out, out), bind_option(capture_option::force, options.force),
       bind_option(capture_option::estimate, options.estimate)});
  common.add_output(*app);
  if (parse(*app, arguments)) return 0;
  if (prompts.empty()) throw OptionError(capture_option::prompt, "a text file", "none");
  if (out.empty() && !options.estimate) throw OptionError(capture_option::out, "a folder to write", "none");
  if (options.dtype != Dtype::f16 && options.dtype != Dtype::f32)
    throw OptionError(capture_option::dtype, "float16 or float32", std::string(name_of(options.dtype)));
  if (continued && options.prompt_len)
    throw OptionError(capture_option::continued, "a whole prompt before it", "--prompt-len");
  options.model = model;
  options.prompts.assign(prompts.begin(), prompts.end());
  if (continued) options.continued = *continued;
  options.out = out;
  options.layers = [&](Index all) { return common.chosen_layers(all); };

  Workers workers(static_cast<int>(common.threads));
  const InterruptGuard guard(workers,
                             "interrupted; nothing was captured, but prompts that were finished before");
  std::vector<CapturedDump> dumps;
  {
    ProgressBar bar(!common.quiet);
    options.on_progress = [&](Index done, Index total) { bar.show(done, total); };
    dumps = capture(options, workers);
  }
  if (common.json) {
    Json list = Json::array();
    for (const CapturedDump& dump : dumps)
      list.push_back({{"dump", dump.folder.string()},
                      {"layers", dump.layers},
                      {"prompt_len", dump.prompt},
                      {"decode", dump.decode},
                      {"bytes", dump.bytes},
                      {"deviation", dump.deviation}});
    print_json({{"dumps", std::move(list)}});
  } else if (!common.quiet) {
    for (const CapturedDump& dump : dumps) say("{}", text_of(dump, options.estimate));
    common.dump = dumps.front().folder.string();
    if (!options.estimate) say_next({analyze_command(common)});
  }
  return 0;
}

}  // namespace kvreplay
