// Cost of a KV cache's formats in llama.cpp itself: KL(16-bit cache || cache in a format) of forced
// tokens, in nats.
//
//   engine_kl MODEL.gguf IDS PROMPT_LEN KEYS:VALUES:ROTATE ...
//   engine_kl --float32 MODEL.gguf OUT.gguf      the same weights in 32 bits: llama.cpp then multiplies in
//                                                float32, and does not round activations to 8 bits
//
// IDS is a file of token numbers; the prompt is its first PROMPT_LEN tokens, and each further token is
// a decoding step. KEYS and VALUES are ggml's names of types (f16, q4_0, ...). ROTATE is 1 for
// llama.cpp's default, 0 for LLAMA_ATTN_ROT_DISABLE=1, and - for the latter without flash attention:
// f16:f16:- has the KL of arithmetic alone. Prints a CSV row per case and step: case, step, KL, and 1
// if both put the same token first. Quantized values require flash attention.

#include "ggml-backend.h"
#include "llama.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

ggml_type type_of(const std::string& name) {
  for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
    const char* found = ggml_type_name(static_cast<ggml_type>(type));
    if (found != nullptr && name == found) return static_cast<ggml_type>(type);
  }
  throw std::runtime_error("expected a type of ggml, found " + name);
}

struct Case {
  ggml_type keys, values;
  bool rotated, flash;
};

Case parse(const std::string& text) {
  std::istringstream in(text);
  std::string keys, values, rotated;
  if (!std::getline(in, keys, ':') || !std::getline(in, values, ':') || !(in >> rotated) ||
      (rotated != "0" && rotated != "1" && rotated != "-"))
    throw std::runtime_error("expected KEYS:VALUES:1, 0 or -, found " + text);
  return {type_of(keys), type_of(values), rotated == "1", rotated != "-"};
}

// Logits [steps, vocabulary] behind the tokens from `l` on.
std::vector<float> logits_of(llama_model* model, const std::vector<llama_token>& ids, int l, const Case& in) {
  setenv("LLAMA_ATTN_ROT_DISABLE", in.rotated ? "0" : "1", 1);  // read when a context is made
  const int count = static_cast<int>(ids.size());
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(count + 32);
  params.n_batch = static_cast<uint32_t>(count);
  params.n_threads = params.n_threads_batch =
      std::max(1, std::atoi(std::getenv("OMP_NUM_THREADS") ? std::getenv("OMP_NUM_THREADS") : "2"));
  params.flash_attn_type = in.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = in.keys;
  params.type_v = in.values;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) throw std::runtime_error("expected a context with these types, found none");
  llama_batch batch = llama_batch_init(count, 0, 1);
  const auto decode = [&](int from, int to, bool read) {
    batch.n_tokens = 0;
    for (int i = from; i < to; ++i) {
      const int at = batch.n_tokens++;
      batch.token[at] = ids[static_cast<size_t>(i)];
      batch.pos[at] = i;
      batch.n_seq_id[at] = 1;
      batch.seq_id[at][0] = 0;
      batch.logits[at] = read;
    }
    if (llama_decode(context, batch) != 0) throw std::runtime_error("llama_decode failed");
  };
  decode(0, l, false);
  decode(l, count, true);
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  std::vector<float> found;
  for (int i = 0; i < count - l; ++i) {
    const float* row = llama_get_logits_ith(context, i);
    found.insert(found.end(), row, row + vocabulary);
  }
  llama_batch_free(batch);
  llama_free(context);
  return found;
}

double log_sum_exp(const float* x, int n) {
  const double most = *std::max_element(x, x + n);
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += std::exp(x[i] - most);
  return most + std::log(sum);
}

int run(int count, char** arguments) {
  if (count == 4 && arguments[1] == std::string("--float32")) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = LLAMA_FTYPE_ALL_F32;
    params.allow_requantize = true;
    params.nthread = 1;
    if (llama_model_quantize(arguments[2], arguments[3], &params) != 0)
      throw std::runtime_error("expected a GGUF model, found another file");
    return 0;
  }
  if (count < 5) throw std::runtime_error("expected MODEL.gguf IDS PROMPT_LEN KEYS:VALUES:ROTATE ...");
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  ggml_backend_load_all();
  std::vector<Case> cases;
  for (int i = 4; i < count; ++i) cases.push_back(parse(arguments[i]));
  std::ifstream file(arguments[2]);
  const std::vector<llama_token> ids{std::istream_iterator<llama_token>(file), {}};
  const int l = std::atoi(arguments[3]);
  if (l < 1 || static_cast<size_t>(l) >= ids.size())
    throw std::runtime_error("expected a prompt shorter than the tokens");
  llama_model* model = llama_model_load_from_file(arguments[1], llama_model_default_params());
  if (model == nullptr) throw std::runtime_error("expected a GGUF model, found another file");
  const int n = llama_vocab_n_tokens(llama_model_get_vocab(model));
  const std::vector<float> full = logits_of(model, ids, l, {GGML_TYPE_F16, GGML_TYPE_F16, false, true});
  std::printf("case,step,kl,same_top1\n");
  for (size_t c = 0; c < cases.size(); ++c) {
    const std::vector<float> changed = logits_of(model, ids, l, cases[c]);
    for (size_t step = 0; step * static_cast<size_t>(n) < full.size(); ++step) {
      const float *p = full.data() + step * static_cast<size_t>(n),
                  *q = changed.data() + step * static_cast<size_t>(n);
      const double p_sum = log_sum_exp(p, n), q_sum = log_sum_exp(q, n);
      double kl = 0;
      for (int i = 0; i < n; ++i) kl += std::exp(p[i] - p_sum) * ((p[i] - p_sum) - (q[i] - q_sum));
      std::printf("%s,%zu,%.9g,%d\n", arguments[4 + c], step, kl,
                  std::max_element(p, p + n) - p == std::max_element(q, q + n) - q);
    }
    std::fflush(stdout);
  }
  llama_model_free(model);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "engine_kl: %s\n", error.what());
    return 2;
  }
}
