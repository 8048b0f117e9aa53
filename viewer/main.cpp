#include "analysis/options/option.hpp"
#include "analysis/run/compute_choice.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "sim/freed_memory.hpp"
#include "viewer/app/app.hpp"
#include "viewer/app/screenshot.hpp"
#include "viewer/questions/folder_listing.hpp"
#ifdef KVREPLAY_WINDOW
#include "viewer/gl/window_host.hpp"
#endif
#ifdef KVREPLAY_SERVE
#include "viewer/serve/serve_host.hpp"
#endif

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <new>
#include <optional>
#include <regex>
#include <string>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

using namespace kvreplay;
using namespace kvreplay::viewer;

constexpr int kBadUsage = 2;

struct Arguments {
  std::vector<std::string> open, scores;
  std::string theme;  // empty: a dark window, and light figures
  std::string size;   // empty: 1280x800, or the session's
  float text = 13;
  int threads = 0;
  int cache = 1024;
  std::string backend = "auto";
  std::optional<Index> device;
  std::string screenshot, panel, keep;
  std::vector<std::string> policies;
  std::string serve;  // the port; none: a window
  std::string behind;
  bool attached = false;
  std::string session;
  bool fresh = false;
  std::optional<float> scale;
  ScreenshotOptions picture;
};

#ifdef KVREPLAY_SERVE
std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != 0 ? name.data() : "HOST";
}
#endif

int complain(const std::string& line) {
  to_stderr(complaint("kvreplay-viewer", line));
  return kBadUsage;
}

/// As browsers write an origin: without a path, in small letters.
void check_origin(const std::string& text) {
  static const std::regex origin("https?://[a-z0-9.-]+(:[0-9]+)?");
  if (!text.empty() && !std::regex_match(text, origin))
    throw InputError("--behind", "https://HOST or http://HOST:PORT", fmt::format("'{}'", text));
}

void parse_size(const std::string& text, int& width, int& height) {
  char end = 0;
  if (std::sscanf(text.c_str(), "%dx%d%c", &width, &height, &end) != 2 || width < 320 || height < 240 ||
      width > 16384 || height > 16384)
    throw InputError("--size", "WIDTHxHEIGHT from 320x240 to 16384x16384", "'" + text + "'");
}

void check_picture_name(const std::string& path, bool figure) {
  if (std::filesystem::path(path).extension() == ".svg" && !figure)
    throw InputError("--screenshot", "a PNG, or a figure's SVG (--panel NAME --figure)", "'" + path + "'");
}

/// A GPU takes its time to start, and the first picture does not wait for it. What is asked for and cannot be
/// had is said before there is a window.
ComingBackend backend_of(const Arguments& given) {
  const ComputeWish wish{.backend = OptionValue<BackendChoice>::parse(compute_option::backend, given.backend),
                         .device = given.device};
  const bool may_wait = wish.backend == BackendChoice::automatic && !wish.device;
  ComingBackend backend = std::async(may_wait ? std::launch::async : std::launch::deferred,
                                     [wish] { return choose_compute(wish).backend; });
  if (!may_wait) backend.get();
  return backend;
}

AppOptions app_options(const Arguments& given) {
  AppOptions options;
  options.open.assign(given.open.begin(), given.open.end());
  for (const std::string& list : given.scores)
    for (std::string& score : items_of(list, true)) options.scores.push_back(std::move(score));
  options.dark = given.theme != "light";
  options.dark_figures = given.theme == "dark";
  options.text_points = given.text;
  std::error_code ignored;
  options.sample = find_sample({std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path(),
                                std::filesystem::current_path(ignored)});
  options.threads = given.threads;
  options.backend = backend_of(given);
  options.cache_bytes = static_cast<std::size_t>(given.cache) << 20;
  return options;
}

/// The session that is to be restored, if any. A file that the user names is one: it is replaced in the end.
std::optional<ReadSession> session_at_start(const Arguments& given, const std::filesystem::path& file) {
  if (file.empty()) return {};
  auto read = read_session_file(file);
  if (!given.session.empty() && read && !read->is_session)
    throw InputError(file.string(), "a session of the dashboard", "another file");
  if (read)
    for (const std::string& note : read->notes) to_stderr(fmt::format("{}: {}\n", file.string(), note));
  return read;
}

#ifdef KVREPLAY_WINDOW
int show_window(const Arguments& given, AppOptions options) {
  options.wake = WindowHost::wake;
  std::filesystem::path file;
  if (!given.fresh)
    file = given.session.empty() ? default_session_file() : std::filesystem::path(given.session);
  const bool opens_anew = !options.open.empty();
  const auto read = session_at_start(given, file);
  App app(std::move(options));
  WindowSize size{given.picture.width, given.picture.height};
  if (read) {
    app.restore(read->session, !opens_anew);
    if (given.size.empty()) size = {read->session.window_width, read->session.window_height};
    if (!read->remarks.empty()) app.state().say(file.string() + ": " + read->remarks.front(), true);
  }
  select_at_start(app, given.picture);
  const auto keep = [&](const WindowHost& host) {
    if (file.empty()) return;
    Session session = app.save();
    session.window_width = host.size().width;
    session.window_height = host.size().height;
    write_session_file(file, session);
  };
  WindowHost host(app, size);
  while (host.step())
    if (app.take_save_request()) {
      keep(host);
      app.state().say(file.empty() ? "This start keeps no session." : "Saved " + file.string());
    }
  keep(host);
  return 0;
}
#else
int show_window(const Arguments&, const AppOptions&) {
  throw InputError(
      "built without GLFW: --serve shows it in a browser, --screenshot FILE.png draws a picture");
}
#endif

#ifdef KVREPLAY_SERVE
/// However the program ends that holds the other end.
void stop_with_input() {
  std::array<char, 256> ignored{};
  while (read(STDIN_FILENO, ignored.data(), ignored.size()) > 0) continue;
  ServeHost::stop();
}

/// In browsers, until it is interrupted.
int serve(const Arguments& given, AppOptions options) {
  const bool opens_anew = !options.open.empty();
  const std::filesystem::path file = given.session;
  const auto read = session_at_start(given, file);
  std::function<void(const std::filesystem::path&)> offer;
  options.wake = ServeHost::wake;
  options.wrote = [&offer](const std::filesystem::path& written) {
    if (offer) offer(written);
  };
  App app(std::move(options));
  if (read) app.restore(read->session, !opens_anew);
  select_at_start(app, given.picture);
  ServeHost host(app, static_cast<int>(*index_in(given.serve)), given.behind);
  offer = [&host](const std::filesystem::path& written) { host.offer(written); };
  say("{}\n", host.server().address());
  say("from another machine: ssh -L {0}:127.0.0.1:{0} {1}, then the same address there; Ctrl-C ends it\n",
      host.server().port(), host_name());
  std::fflush(stdout);
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { ServeHost::stop(); });
  if (given.attached) std::thread(stop_with_input).detach();
  host.run();
  if (!file.empty()) write_session_file(file, app.save());
  return 0;
}
#else
int serve(const Arguments&, const AppOptions&) {
  throw InputError(
      "--serve: built without civetweb (libcivetweb-dev): --screenshot FILE.png draws a picture without a "
      "display, kvreplay report writes a page of results");
}
#endif

/// "--serve 9000" as "--serve=9000": what follows --serve is a dump where it is no number.
std::vector<std::string> arguments_of(int argc, char** argv) {
  std::vector<std::string> all;
  for (int i = argc - 1; i > 0; --i) {
    const std::string word = argv[i];
    if (word == "--serve" && !all.empty() && index_in(all.back(), 65535)) {
      all.back() = word + "=" + all.back();
      continue;
    }
    all.push_back(word);
  }
  return all;
}

int run(int argc, char** argv) {
  Arguments given;
  CLI::App parser(
      "Shows dumps and result folders: which heads, tokens and channels an approximation gets wrong, and "
      "what a\n"
      "setting costs. Needs OpenGL 3.3; --screenshot needs no display.\n\n"
      "  kvreplay-viewer data/samples/pystdlib-lm\n"
      "  kvreplay-viewer data/samples/pystdlib-lm --screenshot channels.png --panel channels --layer 3 "
      "--head 1\n",
      "kvreplay-viewer");
  parser.add_option("PATH", given.open,
                    "dumps and result folders to open, side by side, or a kvreplay:// link");
  parser.add_option("--score", given.scores, "name=FILE.npy: your score, [layers, kv_heads, l], for What if")
      ->allow_extra_args(false);
  parser.add_option("--theme", given.theme, "dark or light (dark; figures are light)")
      ->check(CLI::IsMember({"dark", "light"}));
  parser.add_option("--size", given.size, "of the window, in points (1280x800)");
  parser.add_option("--text", given.text, "size of the text in points")
      ->check(CLI::Range(9, 28))
      ->capture_default_str();
  parser.add_option("--threads", given.threads, "for computing; 0: one a core")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  parser.add_option("--backend", given.backend, std::string(compute_option::backend.meaning))
      ->check(CLI::Validator(
          [](std::string& word) {
            return OptionValue<BackendChoice>::complaint(compute_option::backend, word);
          },
          "auto|cpu|cuda"))
      ->capture_default_str();
  parser.add_option("--device", given.device, std::string(compute_option::device.meaning))
      ->check(CLI::NonNegativeNumber);
  parser.add_option("--cache", given.cache, "MiB of answers to keep")
      ->check(CLI::Range(16, 1 << 22))
      ->capture_default_str();
  CLI::Option* picture =
      parser.add_option("--screenshot", given.screenshot, std::string(start_option::screenshot.meaning));
  CLI::Option* serving =
      parser
          .add_flag("--serve{8765}", given.serve,
                    "shows it in a browser: prints the address; of another port with --serve PORT, 0 is any")
          ->check(CLI::Range(0, 65535))
          ->excludes(picture);
  parser
      .add_option("--behind", given.behind,
                  "https://HOST of a proxy (JupyterHub's) through which the browser comes, as it has it")
      ->needs(serving);
  parser.add_flag("--attached", given.attached, "ends with its standard input, as a part of another program")
      ->needs(serving);
  parser.add_option("--scale", given.scale, "pixels a point of the screenshot (1; of a figure 2)")
      ->check(CLI::Range(0.5, 4.0));
  const auto at_start = [&](const OptionFacts& option, auto& value, const std::string& more = "") {
    return parser.add_option(fmt::format("--{}", option.name), value, std::string(option.meaning) + more);
  };
  CLI::Option* panel = at_start(start_option::panel, given.panel, ": " + panel_names())->needs(picture);
  parser
      .add_flag(fmt::format("--{}", start_option::figure.name), given.picture.figure,
                std::string(start_option::figure.meaning))
      ->needs(picture)
      ->needs(panel);
  for (const auto& [option, value] : {std::pair(&start_option::layer, &given.picture.layer),
                                      {&start_option::head, &given.picture.kv_head},
                                      {&start_option::query_head, &given.picture.query_head},
                                      {&start_option::row, &given.picture.row},
                                      {&start_option::token, &given.picture.token}})
    at_start(*option, *value)->check(CLI::NonNegativeNumber);
  at_start(start_option::policy, given.policies)->delimiter(',')->allow_extra_args(false);
  at_start(start_option::keep, given.keep);
  parser.set_version_flag("--version", "kvreplay-viewer " KVREPLAY_VERSION);
  parser.add_option("--session", given.session,
                    "file in which the session is kept, in place of the user's own");
  parser.add_flag("--fresh", given.fresh, "neither restores nor keeps a session");
  try {
    parser.parse(arguments_of(argc, argv));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return parser.exit(error);
    throw InputError(error.what());
  }
  if (panel->count() > 0) given.picture.panel = panel_by_name(given.panel);
  given.picture.policies = policies_at_start(given.policies);
  if (!given.keep.empty()) {
    if (const std::string wrong = OptionValue<Budget>::complaint(start_option::keep, given.keep);
        !wrong.empty())
      throw InputError("--keep: " + wrong);
    given.picture.keep = OptionValue<Budget>::parse(start_option::keep, given.keep);
  }
  bool linked = false;
  for (std::string& path : given.open) {
    if (!is_view_link(path)) continue;
    if (std::exchange(linked, true)) throw InputError("PATH", "one link at most", fmt::format("'{}'", path));
    path = follow(view_link(path), given.picture).string();
  }
  for (const CLI::Option* option : parser.get_options())
    for (const std::string& value : option->results())
      if (value.empty()) throw InputError(option->get_name(), "a value", "''");
  check_origin(given.behind);
  check_picture_name(given.screenshot, given.picture.figure);
  if (given.scale && given.screenshot.empty())
    throw InputError("--scale: of --screenshot, and there is none");
  if (!given.size.empty()) parse_size(given.size, given.picture.width, given.picture.height);
  given.picture.scale = given.scale.value_or(given.picture.figure ? 2 : 1);
  AppOptions options = app_options(given);
  if (!given.screenshot.empty()) {
    if (const auto read = session_at_start(given, given.session)) {
      given.picture.session = read->session;
      if (given.size.empty()) {
        given.picture.width = read->session.window_width;
        given.picture.height = read->session.window_height;
      }
      if (!read->remarks.empty()) throw InputError(given.session + ": " + read->remarks.front());
    }
    take_screenshot(std::move(options), given.picture, given.screenshot);
    return 0;
  }
  if (!given.serve.empty()) return serve(given, std::move(options));
  return show_window(given, std::move(options));
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_streams();
  keep_freed_memory();
  try {
    return run(argc, argv);
  } catch (const OptionError& error) {
    return complain(error.line().dashed());
  } catch (const std::bad_alloc&) {
    return complain("out of memory");
  } catch (const std::exception& error) {
    return complain(error.what());
  }
}
