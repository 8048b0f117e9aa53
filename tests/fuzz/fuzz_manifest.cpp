// Any text as manifest.json and as tokens.json: refused with an InputError, or usable for every layer.

#include "data/error.hpp"
#include "data/manifest.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

using namespace kvreplay;

namespace {

void use_manifest(std::string_view text) {
  const DumpShape shape{
      .layers = 2, .n_q = 4, .n_kv = 2, .d = 8, .d_v = 8, .d_model = 0, .T = 4, .T_q = 4, .l = 4};
  const Manifest manifest = parse_manifest(text, "manifest.json");
  check_manifest(manifest, shape);
  for (Index layer = 0; layer < shape.layers; ++layer) {
    const AttentionRule rule = attention_rule(manifest, shape, layer);
    if (!(rule.scale > 0) || (!rule.sink_logit.empty() && rule.sink_logit.size() != 4)) std::abort();
    const auto rope = layer_rope(manifest, shape, layer);
    if (rope && 2 * rope->inv_freq.size() != static_cast<std::size_t>(rope->rotary_dim)) std::abort();
    if (!rope && manifest.rope_note.empty()) std::abort();
  }
}

void use_tokens(std::string_view text) {
  const TokenLabels tokens = parse_tokens(text, "tokens.json");
  check_tokens(tokens, "tokens.json", 4);
  if ((!tokens.ids.empty() && tokens.ids.size() != 4) || (!tokens.text.empty() && tokens.text.size() != 4))
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  for (const auto use : {use_manifest, use_tokens}) {
    try {
      use(text);
    } catch (const InputError&) {
    }
  }
  return 0;
}
