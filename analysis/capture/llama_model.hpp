#pragma once

#include "analysis/capture/conversation.hpp"
#include "data/dump.hpp"

#include <cstdint>
#include <filesystem>
#include <llama.h>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// llama.cpp's handles. Only the files llama_*.cpp include llama.cpp.

namespace kvreplay {

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct FreeContext {
  void operator()(llama_context* context) const { llama_free(context); }
};
using Model = std::unique_ptr<llama_model, FreeModel>;
using Context = std::unique_ptr<llama_context, FreeContext>;

/// Silences llama.cpp, finds its devices and reads a GGUF file, or all but its weights. Throws InputError
/// where that is not one.
Model load_model(const std::filesystem::path& path, bool vocabulary_only);
/// Throws InputError with llama.cpp's reason where there is no such context.
Context new_context(const llama_model& model, const llama_context_params& params, const std::string& where);
/// Adds tokens at the end of sequence 0; logits of the last one, or of all. Throws InputError with
/// llama.cpp's reason; returns false where the evaluation callback or the abort callback stopped it.
bool decode(llama_context& context, std::span<const llama_token> ids, Index position,
            bool all_logits = false);

std::optional<std::string> metadata(const llama_model& model, const std::string& key);
/// `begins`: with the token that opens a text; `special`: "<|im_end|>" is one token.
std::vector<llama_token> tokens_of(const llama_vocab* vocab, const std::string& text, bool begins,
                                   bool special);
std::string text_of(const llama_vocab* vocab, llama_token token);
/// Messages in the chat template of the model; `asks`: up to where the model answers. Throws InputError where
/// the model has no template or one that llama.cpp does not know.
std::string framed(const llama_model& model, std::span<const Message> messages, bool asks,
                   const std::string& where);

/// The output projection of one layer, dequantized: [n_q, d_v, d_model]. Throws InputError where the file has
/// none of n_q * d_v columns.
struct OutputProjection {
  Index width = 0;  ///< d_model
  std::vector<float> values;
};
OutputProjection output_projection(const std::filesystem::path& gguf, Index layer, Index heads, Index d_v);

}  // namespace kvreplay
