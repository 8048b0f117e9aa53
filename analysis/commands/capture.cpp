#include "analysis/capture/capture.hpp"

#include "analysis/capture/judge.hpp"
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
    chat{"chat", "", "The text is what a user says, in the model's chat template"},
    messages{"messages", "FILE",
             "Conversations in the model's chat template: a list of {\"role\", \"content\"} or requests,\n"
             "one per file or line; the assistant's last turn is decoded"},
    prompt_len{"prompt-len", "N", "The first N tokens are the prompt, those behind them decoding steps",
               "all", 1},
    decode{"decode", "N", "Decoding steps, greedy; at most so many of a text"},
    continued{"continue", "FILE", "Decode along this text, not greedily", "greedily"},
    dtype{"dtype", "NAME", "Of the files, to which q, k and v are rounded: float16 or float32"},
    threads{"threads", "N", "Threads", "all cores"},
    wo{"wo", "", "Write the output projections too, dequantized"},
    name{"name", "NAME", "The manifest's model name", "the GGUF's"},
    out{"out", "DUMP", "The dump to write; a folder of dumps with several prompts", "none"},
    force{"force", "", "Replace a dump, or a validation"},
    resume{"resume", "", "Keep the dumps of these prompts that are there"},
    estimate{"estimate", "", "Print tokens, bytes and minutes, and stop"},
    judge{"judge", "RESULTS",
          "Capture nothing: measure what llama.cpp's cache costs in each format of a result folder\n"
          "(evict --policy none --bits llama.cpp), as its validate.csv",
          "none"};
}  // namespace capture_option

std::string text_of(const CapturedDump& dump, bool estimate) {
  const std::string size = fmt::format("{} + {} positions, {}, {} bytes", dump.prompt, dump.decode,
                                       counted(dump.layers, "layer"), dump.bytes);
  if (dump.was_there) return fmt::format("{}: {}, there already\n", dump.folder.string(), size);
  if (estimate) return fmt::format("{}, about {:.1f} minutes\n", size, dump.seconds.value_or(0) / 60);
  return fmt::format(
      "{}: {}; o follows from the files within {:.1e}{}\n", dump.folder.string(), size, dump.deviation,
      dump.ended ? fmt::format("; the model ended its text at decoding step {}", *dump.ended) : "");
}

int run_judge(const JudgeOptions& asked, const CommonOptions& common) {
  JudgeOptions options = asked;
  Workers workers(static_cast<int>(common.threads));
  const InterruptGuard guard(workers, "interrupted; nothing was measured");
  Judgement found;
  {
    ProgressBar bar(!common.quiet);
    options.on_progress = [&](Index done, Index total) { bar.show(done, total); };
    found = judge(options, workers);
  }
  if (common.json) {
    Json cases = Json::object();
    for (const auto& [policy, kl] : found.cases) cases[policy] = kl;
    print_json({{"results", options.results.string()},
                {"kl", std::move(cases)},
                {"floor", found.floor},
                {"left_out", found.left_out}});
  } else if (!common.quiet) {
    say("nats a decoding step, from llama.cpp's 16-bit cache (that without flash attention: {:.3g})\n",
        found.floor);
    for (const auto& [policy, kl] : found.cases) say("{:<32} {:>10.3g}\n", policy, kl);
    for (const std::string& policy : found.left_out) say("{:<32} left out: no format of llama.cpp\n", policy);
    say_next({"kvreplay report " + options.results.string()});
  }
  return 0;
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
               "kvreplay capture MODEL.gguf --messages chat.json --out DUMP\n"
               "kvreplay capture MODEL.gguf --prompt text.txt --estimate\n"
               "kvreplay capture MODEL.gguf --judge RESULTS");
  std::string model, out;
  std::vector<std::string> prompts, messages;
  std::optional<std::string> continued, judged;
  CaptureOptions options;
  CommonOptions common;
  app->add_option("MODEL", model, "The GGUF file")->required()->option_text(" ");
  app->add(
      {bind_option(capture_option::prompt, prompts).naming_files(),
       bind_option(capture_option::chat, options.chat),
       bind_option(capture_option::messages, messages).naming_files(),
       bind_option(capture_option::prompt_len, options.prompt_len),
       bind_option(capture_option::decode, options.decode), bind_option(capture_option::continued, continued),
       bind_option(run_option::layers, common.layers), bind_option(capture_option::dtype, options.dtype),
       bind_option(capture_option::threads, common.threads), bind_option(capture_option::wo, options.wo),
       bind_option(capture_option::name, options.name), bind_option(capture_option::out, out),
       bind_option(capture_option::force, options.force), bind_option(capture_option::resume, options.resume),
       bind_option(capture_option::judge, judged), bind_option(capture_option::estimate, options.estimate)});
  common.add_output(*app);
  if (parse(*app, arguments)) return 0;
  if (judged) {
    if (!prompts.empty() || !messages.empty() || !out.empty())
      throw OptionError(capture_option::judge, "no prompt, messages and out: the results name the dump",
                        "some");
    return run_judge({.model = model, .results = *judged, .force = options.force, .on_progress = {}}, common);
  }
  if (prompts.empty() && messages.empty())
    throw OptionError(capture_option::prompt, "a text file (or messages)", "none");
  if (options.chat && prompts.empty())
    throw OptionError(capture_option::chat, "prompt with what the user says", "none");
  if (out.empty() && !options.estimate) throw OptionError(capture_option::out, "a folder to write", "none");
  if (options.dtype != Dtype::f16 && options.dtype != Dtype::f32)
    throw OptionError(capture_option::dtype, "float16 or float32", std::string(name_of(options.dtype)));
  if (continued && options.prompt_len)
    throw OptionError(capture_option::continued, "a whole prompt before it", "prompt-len");
  if (!messages.empty() && (continued || options.prompt_len))
    throw OptionError(capture_option::messages,
                      "no prompt-len and no continue: they end where the model answers", "one");
  if (options.chat && options.prompt_len)
    throw OptionError(capture_option::chat, "no prompt-len: a prompt ends where the model answers", "one");
  if (options.resume && options.force)
    throw OptionError(capture_option::resume, "no force, which replaces what is there", "both");
  options.model = model;
  options.prompts.assign(prompts.begin(), prompts.end());
  options.messages.assign(messages.begin(), messages.end());
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
