#include "viewer/app/state.hpp"

#include <utility>

namespace kvreplay::viewer {

const std::shared_ptr<const Run>& AppState::run() const {
  static const std::shared_ptr<const Run> none;
  const std::size_t which = selection().run;
  return which < runs.size() ? runs[which] : none;
}

void AppState::select(Selection selection, const std::string& kind) {
  if (selection.run < runs.size()) {
    const DumpShape& shape = runs[selection.run]->shape();
    selection = within(std::move(selection), shape);
  }
  ViewState next = history_.now();
  next.selection = std::move(selection);
  history_.record(std::move(next), kind);
}

void AppState::select_head(Index layer, Index kv_head) {
  Selection next = selection();
  next.layer = layer;
  next.kv_head = kv_head;
  select(std::move(next));
}

void AppState::select_cell(std::optional<Index> row, std::optional<Index> token) {
  Selection next = selection();
  next.row = row;
  next.token = token;
  select(std::move(next), "cell");
}

void AppState::select_tokens(std::vector<Index> tokens) {
  Selection next = selection();
  next.tokens = std::move(tokens);
  select(std::move(next), "tokens");
}

void AppState::say(std::string line, bool is_error) {
  message_ = std::move(line);
  message_is_error_ = is_error;
}

}  // namespace kvreplay::viewer
