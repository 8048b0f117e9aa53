#include "viewer/panels/text/text_lines.hpp"

#include "data/utf8.hpp"
#include "viewer/gl/ui_context.hpp"

#include <imgui.h>
#include <string_view>
#include <utility>

namespace kvreplay::viewer {

Answer<TextLayout> TextLines::ask(PanelContext& context, float width) {
  const ImFont* font = ui_font();
  if (advances_ == nullptr || advances_->em != font->FontSize) {
    Advances now{font->FontSize, {}, font->FallbackAdvanceX};
    now.of.assign(font->IndexAdvanceX.begin(), font->IndexAdvanceX.end());
    advances_ = std::make_shared<const Advances>(std::move(now));
  }
  const std::shared_ptr<const Run>& run = context.run();
  const Question question{.key = {run->key(), "text_layout", width, advances_->em},
                          .title = "Lines of the text",
                          .urgency = Urgency::now,
                          .slot = {run->key(), "text_layout"}};
  return context.desk.ask<TextLayout>(question, [run, width, advances = advances_](JobControl&) {
    return TextLayout(reading_texts(run->labels(), run->shape().T), width, [&](std::string_view text) {
      float sum = 0;
      while (!text.empty()) {
        const Character next = first_character(text);
        sum += next.code < advances->of.size() ? advances->of[next.code] : advances->others;
        text.remove_prefix(next.bytes.size());
      }
      return sum;
    });
  });
}

}  // namespace kvreplay::viewer
