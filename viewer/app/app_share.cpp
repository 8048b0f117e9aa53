// A place as one page: the panels in view, settings, commands.

#include "analysis/options/option.hpp"
#include "data/atomic_file.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "viewer/app/app.hpp"
#include "viewer/model/token_text.hpp"
#include "viewer/questions/command_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <utility>

namespace kvreplay::viewer {
namespace {

constexpr std::size_t kMostOfToken = 60;  // characters of a token
constexpr const char* kSessionFile = "place.json";

}  // namespace

void App::share(const std::filesystem::path& path) {
  if (!state_.run()) return state_.say("There is nothing to share: open a dump or a result folder.");
  if (figure_ || sharing_) return state_.say("A figure is being drawn: share the place once it is saved.");
  Sharing sharing{
      .path = std::filesystem::absolute(path), .selection = state_.selection(), .settings = state_};
  for (const PanelFacts& each : kPanels)
    if (each.id != PanelKind::jobs && area(each.id).width > 0) sharing.panels.push_back(each.id);
  sharing.contents = std::async(std::launch::async,
                                [run = state_.run(), layer = state_.selection().layer, wake = options_.wake] {
                                  std::string found = run->contents_of_layer(layer);
                                  if (wake) wake();
                                  return found;
                                });
  sharing_ = std::move(sharing);
}

/// Draws the next figure, or writes the page where all are drawn.
void App::go_on_sharing() {
  if (!sharing_ || figure_) return;
  Sharing& sharing = *sharing_;
  if (sharing.selection != state_.selection() ||
      sharing.settings != static_cast<const SharedSettings&>(state_)) {
    sharing_.reset();
    return state_.say("The page was not written: another place is in view.", true);
  }
  if (sharing.drawn.size() < sharing.panels.size())
    return begin_figure(sharing.panels[sharing.drawn.size()], {}, 2);
  if (sharing.contents.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  try {
    const std::filesystem::path path = sharing.path;
    write_output(path, html_of(shared_place(sharing.contents.get())));
    sharing_.reset();
    state_.say("Saved " + path.string());
    if (options_.wrote) options_.wrote(path);
  } catch (const InputError& error) {
    sharing_.reset();
    state_.say(error.what(), true);
  }
}

void App::take_shared(const Figure& figure) {
  const PanelFacts& facts = facts_of(figure.panel());
  sharing_->drawn.push_back({std::string(facts.name), std::string(facts.title), std::string(facts.question),
                             figure.png(), static_cast<int>(std::lround(figure.width()))});
}

/// Files of this machine by their names alone.
std::string App::without_folders(std::string text) const {
  std::vector<std::filesystem::path> files;
  for (const auto& run : state_.runs) {
    files.push_back(run->path());
    files.emplace_back(run->model());  // which a capture may have named by where it lay
    if (run->dump() != nullptr) files.push_back(run->dump()->folder());
  }
  for (const UserScore& score : state_.scores) files.push_back(score.file);
  // Of two, one of which lies in the other, the inner one first.
  std::ranges::sort(files,
                    [](const auto& a, const auto& b) { return a.native().size() > b.native().size(); });
  for (const std::filesystem::path& file : files) {
    const std::string whole = file.string(), name = file.filename().string();
    if (!file.is_absolute() || name.empty()) continue;
    for (std::size_t at = 0; (at = text.find(whole, at)) != std::string::npos; at += name.size())
      text.replace(at, whole.size(), name);
  }
  return text;
}

SharedPlace App::shared_place(const std::string& contents) const {
  const Run& run = *state_.run();
  const Selection& s = state_.selection();
  const auto text_at = [&](Index position) {
    const std::string text = token_text(run.labels(), position, kMostOfToken);
    return text.empty() ? std::to_string(position) : fmt::format("{} \"{}\"", position, text);
  };
  SharedPlace place;
  place.panels = sharing_->drawn;
  const std::string head = fmt::format("layer {}, KV head {}{}", run.layer_number(s.layer), s.kv_head,
                                       s.query_head ? fmt::format(", query head {}", *s.query_head) : "");
  const std::string model = without_folders(run.model());
  place.title = fmt::format("{}: {}", model.empty() ? run.name() : model, head);
  const DumpShape& shape = run.shape();
  place.lead = fmt::format("A place in the dashboard of kvreplay. {} of {}, a prompt of {}, {}.",
                           counted(shape.layers, "layer"), counted(shape.n_kv, "KV head"),
                           counted(shape.l, "token"), counted(shape.T - shape.l, "decoding step"));
  const auto fact = [&](const char* name, std::string value) {
    if (!value.empty()) place.facts.emplace_back(name, std::move(value));
  };
  fact("model", model);
  fact(run.results() != nullptr ? "results" : "dump", run.name());
  fact("dump's fingerprint", run.fingerprint());
  if (!contents.empty()) fact("contents", fmt::format("{} (layer {})", contents, run.layer_number(s.layer)));
  fact("head", head);
  if (s.token) fact("token", text_at(*s.token));
  if (s.row) fact("query", text_at(*s.row));
  if (!s.tokens.empty()) fact("chosen", chosen_text(s.tokens));
  fact("made", fmt::format("{}, kvreplay {}", figure_date(), KVREPLAY_VERSION));
  add_shared_settings(place);
  add_shared_commands(place);
  return place;
}

void App::add_shared_settings(SharedPlace& place) const {
  const auto [a, b] = state_.settings();
  const auto set = [&](std::string name, std::string value) {
    place.settings.emplace_back(std::move(name), std::move(value));
  };
  for (const auto& [name, settings] : {std::pair("A", &a), std::pair("B", &b)}) {
    std::string text =
        without_folders(evict_options_text(*settings, find_score(state_.scores, settings->score)));
    if (!settings->painted.empty()) text += "; by hand: " + settings->painted;
    set(fmt::format("{}{}", name, (settings == &b) == state_.shows_b() ? ", in view" : ""), std::move(text));
  }
  const Index l = state_.run()->shape().l;
  set("budget of all panels",
      fmt::format("{} of {} tokens a head", state_.budget.tokens(l, Semantics::paper), l));
  set("window w", std::to_string(state_.comparison.window));
  set("score", std::string(name_of(state_.comparison.score)));
  set("held against", std::string(name_of(state_.comparison.reference)));
}

void App::add_shared_commands(SharedPlace& place) const {
  const Run& run = *state_.run();
  ViewLink there = link();
  there.run = run.name();
  there.dump = run.fingerprint();
  std::string drawing, measuring;
  for (const SharedPanel& panel : sharing_->drawn)
    drawing += shell_line({"kvreplay-viewer", "--session", kSessionFile, "--screenshot",
                           export_stem(panel.name) + ".png", "--panel", panel.name, "--figure"}) +
               '\n';
  for (const auto& [name, command] : measuring_commands()) measuring += without_folders(command) + '\n';
  place.commands = {
      {fmt::format("To open this place, in the folder that holds {}:", run.name()),
       shell_line({"kvreplay", "view", text_of(there)})},
      {fmt::format("To draw these pictures there, with {} of what stands below:", kSessionFile), drawing}};
  if (!measuring.empty()) place.commands.emplace_back("To measure A and B over all heads:", measuring);
  Session session = save();
  session.recent.clear();
  session.theme = ThemeChoice::light;
  place.session = without_folders(nlohmann::json::parse(text_of(session)).dump());
}

}  // namespace kvreplay::viewer
