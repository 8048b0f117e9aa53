#include "viewer/app/app.hpp"
#include "viewer/gl/ui_context.hpp"
#include "viewer/model/layout.hpp"
#include "viewer/model/tour.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <imgui_internal.h>
#include <imgui_stdlib.h>
#include <string>
#include <utility>

// Parts of the dashboard for new users: the start page, the findings, the tour, and arrangements of panels
// for a question.

namespace kvreplay::viewer {
namespace {

struct Completing {
  const FolderListing* listing;
  bool* to_end;
};

int on_edit(ImGuiInputTextCallbackData* data) {
  auto* const completing = static_cast<Completing*>(data->UserData);
  if (data->EventFlag == ImGuiInputTextFlags_CallbackCompletion && completing->listing != nullptr) {
    const std::string_view typed(data->Buf, static_cast<std::size_t>(data->BufTextLen));
    const std::string whole = completed(typed, *completing->listing);
    if (whole != typed) {
      data->DeleteChars(0, data->BufTextLen);
      data->InsertChars(0, whole.c_str());
    }
  }
  if (data->EventFlag == ImGuiInputTextFlags_CallbackAlways && std::exchange(*completing->to_end, false)) {
    data->CursorPos = data->BufTextLen;
    data->SelectionStart = data->SelectionEnd = data->CursorPos;
  }
  return 0;
}

constexpr const char* kCapture =
    "python3 data/capture/kvcapture.py --model Qwen/Qwen3-0.6B --prompt text.txt --decode 128 --out DUMP";

struct Kinds {
  std::vector<PathKind> list;
};

void gap() { ImGui::Dummy({0, theme().px(6)}); }

/// Draws the list of recently opened paths, newest first. Returns the path that was chosen.
std::optional<std::filesystem::path> draw_recent(JobQueue& queue, const std::vector<std::string>& recent) {
  if (recent.empty()) return std::nullopt;
  const Theme& t = theme();
  heading("Opened before");
  const JobRequest request{
      .key = {"recent", recent}, .title = "Looking for what was opened before", .urgency = Urgency::now};
  const auto kinds = queue.ask<Kinds>(request, [recent](JobControl&) {
    Kinds found;
    for (const std::string& path : recent) found.list.push_back(path_kind(path));
    return found;
  });
  std::optional<std::filesystem::path> chosen;
  for (std::size_t i = 0; i < recent.size(); ++i) {
    const std::filesystem::path path(recent[i]);
    const PathKind kind = kinds ? kinds->list[i] : PathKind::folder;
    ImGui::PushID(static_cast<int>(i));
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float width = ImGui::GetContentRegionAvail().x;
    if (ImGui::Selectable("##recent", false, 0, {0, ImGui::GetTextLineHeight()})) chosen = path;
    tip(recent[i]);
    ImGui::PopID();
    const std::string word(name_of(kind)), name = elided(path.filename().string(), width * 0.4F);
    ImDrawList* list = ImGui::GetWindowDrawList();
    list->AddText(at, kind == PathKind::missing ? t.faint : t.text, name.c_str());
    const float word_at = width - ImGui::CalcTextSize("missing").x - t.px(4);
    const float folder_at = ImGui::CalcTextSize(name.c_str()).x + t.px(12);
    list->AddText({at.x + folder_at, at.y}, t.dim,
                  elided(path.parent_path().string(), word_at - folder_at - t.px(12)).c_str());
    list->AddText({at.x + word_at, at.y}, kind == PathKind::missing ? t.error : t.accent, word.c_str());
  }
  gap();
  return chosen;
}

/// Where a card goes that speaks of `at`: beside it where the window has room there, else over its lower
/// half, so that what is pointed at stays in view.
ImVec2 place_beside(ImVec2 card, const Area& at, const Area& window) {
  const float gap = theme().px(8);
  const float right = window.x + window.width, foot = window.y + window.height;
  const auto along = [](float wanted, float low, float high) {
    return std::clamp(wanted, low, std::max(low, high));
  };
  const float x = along(at.x + (at.width - card.x) / 2, window.x, right - card.x);
  const float y = along(at.y + (at.height - card.y) / 2, window.y, foot - card.y);
  if (at.y + at.height + gap + card.y <= foot) return {x, at.y + at.height + gap};
  if (at.x + at.width + gap + card.x <= right) return {at.x + at.width + gap, y};
  if (at.x - gap - card.x >= window.x) return {at.x - gap - card.x, y};
  if (at.y - gap - card.y >= window.y) return {x, at.y - gap - card.y};
  return {x, along(at.y + at.height - card.y - theme().px(12), window.y, foot - card.y)};
}

/// Draws the step's card beside `at`, within `window`, and a frame around what it speaks of; moves the tour
/// on as its buttons say. Last in a frame.
void draw_tour(Tour& tour, const Area& at, const Area& window) {
  if (!tour.running()) return;
  const Theme& t = theme();
  const TourStep step = tour.step();
  const float width = std::min(t.px(330), window.width * 0.9F);
  const float wrap = width - 2 * t.px(14);
  const std::string text(step.text);
  const ImGuiStyle& style = ImGui::GetStyle();
  const float height = ImGui::CalcTextSize(text.c_str(), nullptr, false, wrap).y +
                       ImGui::GetTextLineHeightWithSpacing() + 2 * style.ItemSpacing.y +
                       ImGui::GetFrameHeight() + t.px(2 + 24);
  ImGui::SetNextWindowPos(place_beside({width, height}, at, window));
  ImGui::SetNextWindowSize({width, height});
  ImGui::PushStyleVar(ImGuiStyleVar_WindowPadding, {t.px(14), t.px(12)});
  ImGui::PushStyleVar(ImGuiStyleVar_WindowBorderSize, t.px(2));
  ImGui::PushStyleColor(ImGuiCol_Border, t.accent);
  ImGui::PushStyleColor(ImGuiCol_WindowBg, t.raised);
  ImGui::Begin("tour", nullptr,
               ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoMove | ImGuiWindowFlags_NoSavedSettings |
                   ImGuiWindowFlags_NoFocusOnAppearing | ImGuiWindowFlags_NoNav);
  heading(std::string(step.title).c_str());
  wrapped_text(text, t.text, wrap);
  ImGui::Dummy({0, t.px(2)});
  ImGui::AlignTextToFramePadding();
  dim_text(fmt::format("{} of {}", tour.number() + 1, kTour.size()));
  const bool last = tour.number() + 1 == kTour.size();
  const char *skip = "Skip", *back = "Back", *next = last ? "Done" : "Next";
  float buttons = 0;
  for (const char* name : {skip, back, next})
    buttons += ImGui::CalcTextSize(name).x + 2 * style.FramePadding.x + style.ItemSpacing.x;
  ImGui::SameLine(width - t.px(14) - buttons + style.ItemSpacing.x);
  if (ImGui::Button(skip)) tour.end();
  ImGui::SameLine();
  ImGui::BeginDisabled(tour.number() == 0);
  if (ImGui::Button(back)) tour.back();
  ImGui::EndDisabled();
  ImGui::SameLine();
  if (ImGui::Button(next)) tour.next();
  ImGui::BringWindowToDisplayFront(ImGui::GetCurrentWindow());
  ImGui::End();
  ImGui::PopStyleColor(2);
  ImGui::PopStyleVar(2);
  if (at.width > 0)
    ImGui::GetForegroundDrawList()->AddRect({at.x, at.y}, {at.x + at.width, at.y + at.height}, t.accent,
                                            t.px(5), 0, t.px(2));
}

}  // namespace

void PathPrompt::begin() {
  if (reason_.empty()) typed_.clear();
  to_end_ = !typed_.empty();
  ++begun_;
}

void PathPrompt::failed(const std::filesystem::path& path, const std::string& reason) {
  typed_ = path.string();
  reason_ = reason;
}

std::optional<std::filesystem::path> PathPrompt::draw(JobQueue& queue, const char* hint, float height,
                                                      bool take_keyboard) {
  const JobRequest request{.key = {"folder", begun_, typed_},
                           .title = "Looking into a folder",
                           .urgency = Urgency::now,
                           .slot = {"folder", begun_}};
  const auto listing =
      queue.ask<FolderListing>(request, [typed = typed_](JobControl&) { return folder_listing(typed); });
  if (take_keyboard) ImGui::SetKeyboardFocusHere();
  ImGui::SetNextItemWidth(-1);
  Completing completing{listing && !listing.stale ? listing.value.get() : nullptr, &to_end_};
  const bool enter =
      ImGui::InputTextWithHint("##path", hint, &typed_,
                               ImGuiInputTextFlags_EnterReturnsTrue | ImGuiInputTextFlags_CallbackCompletion |
                                   ImGuiInputTextFlags_CallbackAlways,
                               on_edit, &completing);
  std::optional<std::filesystem::path> chosen;
  if (enter && !typed_.empty()) chosen = path_of(typed_);
  const Theme& t = theme();
  if (ImGui::IsItemEdited()) reason_.clear();
  if (!reason_.empty()) wrapped_text(reason_, t.error);
  const float line = ImGui::GetTextLineHeight() + t.px(3);
  const std::size_t count = listing ? listing->entries.size() : 0;
  const float rows = static_cast<float>(std::clamp<std::size_t>(count, 1, 40)) * line + t.px(2);
  ImGui::PushStyleVar(ImGuiStyleVar_ItemSpacing, {t.px(6), t.px(3)});
  ImGui::BeginChild("entries", {0, std::min(rows, height)});
  if (listing && !listing->readable)
    dim_text("There is no such folder.");
  else if (listing && count == 0)
    dim_text("No folder or .npz begins like that.");
  for (std::size_t i = 0; i < count; ++i) {
    const FolderEntry& entry = listing->entries[i];
    const bool opens = entry.kind != PathKind::folder;
    ImGui::PushID(static_cast<int>(i));
    const std::string name = entry.name + (opens ? "" : "/");
    const std::string kind(name_of(entry.kind));
    const float room = ImGui::GetContentRegionAvail().x - ImGui::CalcTextSize("results").x - t.px(12);
    if (ImGui::Selectable(elided(name, room).c_str())) {
      const std::string whole = std::string(folder_part(typed_)) + entry.name;
      if (opens) {
        chosen = path_of(whole);
      } else {
        typed_ = whole + "/";
        to_end_ = true;
      }
    }
    if (opens) {
      ImGui::SameLine(room + t.px(8));
      colored_text(kind, t.accent);
    }
    ImGui::PopID();
  }
  if (listing && listing->more) dim_text("and more: type on");
  ImGui::EndChild();
  ImGui::PopStyleVar();
  if (chosen) reason_.clear();
  return chosen;
}

/// Start page, shown while no run is open: the sample, recently opened paths, a field for a path, and an
/// explanation of dumps.
void App::draw_start(const Area& area) {
  const Theme& t = theme();
  const float width = std::min(t.px(640), area.width * 0.94F);
  ImGui::SetCursorScreenPos(
      {area.x + (area.width - width) / 2, area.y + std::min(t.px(40), area.height * 0.06F)});
  ImGui::BeginChild("start", {width, area.height * 0.92F});
  if (!opening_.empty()) {
    wrapped_text("Opening " + opening_.back().path.string() + " ...", t.dim);
    ImGui::EndChild();
    return;
  }
  if (!open_error_.empty()) {
    error_line(open_error_);
    gap();
  }
  std::optional<std::filesystem::path> chosen;
  bool sample = false;
  wrapped_text(
      "A dump is a folder with the queries, keys and values that a language model really computed. Open one "
      "to see "
      "which heads, tokens and channels an approximation gets wrong, and what a policy would cost.",
      t.text);
  gap();
  if (!options_.sample.empty()) {
    if (ImGui::Button("Open the sample")) sample = true;
    tip(options_.sample.string());
    ImGui::SameLine();
    ImGui::AlignTextToFramePadding();
    dim_text(elided("a small Llama that read 896 tokens of hashlib.py and wrote 128",
                    ImGui::GetContentRegionAvail().x));
    gap();
  }
  if (const auto path = draw_recent(queue_, recent_)) chosen = path;
  heading("Open a dump or a result folder");
  const float below = 5 * ImGui::GetTextLineHeightWithSpacing() + t.px(40);
  const float room = std::max(ImGui::GetContentRegionAvail().y - ImGui::GetFrameHeight() - below, t.px(60));
  if (const auto path = start_prompt_.draw(queue_, "its path; Tab completes; or drop it on the window",
                                           std::min(room, t.px(190)), false))
    chosen = path;
  gap();
  heading("A dump of your own");
  wrapped_text("One script writes it while a Hugging Face model runs:", t.dim);
  const bool copy = small_button("Copy");
  if (copy) ImGui::SetClipboardText(kCapture);
  ImGui::SameLine();
  ImGui::PushFont(mono_font());
  wrapped_text(kCapture, t.text);
  ImGui::PopFont();
  ImGui::EndChild();
  if (sample) chosen = options_.sample;
  if (!chosen) return;
  open_error_.clear();
  open(*chosen);
  if (sample && !tour_seen_) perform(ActionId::tour);
}

/// Draws the findings above the panels. Returns the height that they take; 0 if one panel fills the window.
float App::draw_findings(const Area& area) {
  finding_area_ = {};
  if (layout_.maximised()) return 0;
  PanelContext context{state_, queue_};
  findings_.look(context);
  const float height = findings_.height({area.width, area.height});
  if (height <= 0) return 0;
  finding_area_ = {area.x, area.y, area.width, height};
  ImGui::SetCursorScreenPos({area.x, area.y});
  ImGui::PushID("findings");
  if (const auto panel = findings_.draw(context, {area.width, area.height})) show(*panel);
  ImGui::PopID();
  return height;
}

void App::draw_tour() {
  if (!tour_.running() || !state_.run()) return;
  const std::size_t before = tour_.number();
  const ImGuiViewport* view = ImGui::GetMainViewport();
  const Area window{view->Pos.x, view->Pos.y, view->Size.x, view->Size.y};
  const TourStep& step = tour_.step();
  const Area at = step.panel ? area(*step.panel) : step.findings ? finding_area_ : Area{};
  viewer::draw_tour(tour_, at.width > 0 ? at : window, window);
  if (tour_.running() && tour_.number() != before && tour_.step().panel) show(*tour_.step().panel);
}

/// The preset determines the panels; the selected head stays.
void App::arrange(Preset preset) {
  layout_ = layout_for(preset);
  show(kPresets[preset].panel);
  if (const std::string_view head_map = kPresets[preset].head_map; !head_map.empty())
    panel(PanelKind::heads).load(nlohmann::json::parse(head_map));
  switch (preset) {
    case Preset::loss:
      return;
    case Preset::bad_heads:
      state_.comparison.score = TokenMetric::attn;
      state_.comparison.reference = TokenMetric::exact_remove;
      return;
    case Preset::policies: {
      WhatIfSettings other;
      other.base = name_of(EvictionBase::h2o);
      state_.setting_a = {};
      state_.setting_b = std::move(other);
      state_.show_b = false;
      state_.show_kept = true;
      return;
    }
    case Preset::channels:
    case Preset::decode:
      return;
  }
}

}  // namespace kvreplay::viewer
