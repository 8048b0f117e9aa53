#include "analysis/capture/judge.hpp"
#include "analysis/capture/llama_model.hpp"
#include "analysis/eviction/cache_format.hpp"
#include "analysis/findings/findings.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/recorded_files.hpp"
#include "analysis/results/result_reader.hpp"
#include "analysis/results/validation.hpp"
#include "data/error.hpp"
#include "data/mapped_file.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ggml.h>
#include <map>
#include <numeric>
#include <set>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhole = "none~";  // a policy that evicts nothing, in a format
constexpr std::uintmax_t kMostTokens = 1 << 28;

/// A cache of llama.cpp.
struct Cache {
  ggml_type k = GGML_TYPE_F16, v = GGML_TYPE_F16;
  bool rotated = true;  ///< llama.cpp's own rotation of what is quantized
  bool flash = true;    ///< quantized values need it
};

ggml_type type_of(NumberFormat format) {
  if (format == NumberFormat::exact) return GGML_TYPE_F16;
  for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
    const char* const name = ggml_type_name(static_cast<ggml_type>(type));
    if (name != nullptr && name_of(format) == name) return static_cast<ggml_type>(type);
  }
  throw InputError(std::string(name_of(format)), "a type of llama.cpp", "none");
}

/// llama.cpp's caches by the name of their format; without its rotation, the name ends before "+".
std::map<std::string, Cache> caches_of(const DumpShape& shape) {
  static constexpr OptionFacts bits{.name = "bits"}, rotate{.name = "rotate"};
  CacheFormatOptions asked;
  asked.formats = {OptionValue<CacheFormat>::parse(bits, "llama.cpp")};
  std::map<std::string, Cache> found;
  for (const CacheFormatRun& run : cache_format_runs(asked, shape, bits, rotate)) {
    const Quantization& stored = run.of_layers.front();
    Cache cache{type_of(stored.k.format), type_of(stored.v.format), true, true};
    found[run.name] = cache;
    cache.rotated = run.name.find('+') == std::string::npos;
    found.emplace(run.name.substr(0, run.name.find('+')), cache);
  }
  return found;
}

/// One row of validate.csv's keys, and its figures.
struct Case {
  std::vector<std::string> keys;
  Cache cache;
  std::vector<double> kl;  ///< [steps]
  std::array<double, kValidationFigures.size()> figures{};
};

/// log of the sum of exp(x).
double log_sum_exp(std::span<const float> x) {
  const double most = *std::ranges::max_element(x);
  double sum = 0;
  for (const float each : x) sum += std::exp(each - most);
  return most + std::log(sum);
}

double mean(std::span<const double> x) {
  return x.empty() ? kNan : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

class Judge {
 public:
  Judge(const JudgeOptions& options, Workers& workers)
      : options_(options), workers_(workers), results_(options.results) {
    if (!options.force && fs::exists(results_.folder() / "validate.csv"))
      throw InputError((results_.folder() / "validate.csv").string(), "none (or --force)", "a validation");
    find_cases();
    const std::optional<Dump> dump = dump_of(results_);
    if (!dump) throw InputError(results_.folder().string(), "its dump where run.json says", "none");
    model_ = load_model(options.model, false);
    vocabulary_ = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
    require_model(*dump);
    const std::string file = (dump->folder() / "tokens.json").string();
    const Json ids = parse_json_object(file_text(file, kMostTokens), file).value("ids", Json::array());
    for (const Json& id : ids) {
      if (!id.is_number_integer() || id < 0 || id >= vocabulary_)
        throw InputError(file, fmt::format("ids of 0 to {}", vocabulary_ - 1), json_text(id));
      ids_.push_back(id.get<llama_token>());
    }
    prompt_ = results_.shape().l;
    if (std::ssize(ids_) != results_.shape().T || prompt_ >= std::ssize(ids_))
      throw InputError(file,
                       fmt::format("ids of {} positions, decoding steps among them", results_.shape().T),
                       fmt::format("{}, a prompt of {}", ids_.size(), prompt_));
  }

  Judgement run() {
    const Index runs = std::ssize(cases_) + 2;
    options_.on_progress(0, runs);
    full_ = run_over({});
    options_.on_progress(1, runs);
    Case floor{{}, {.flash = false}, {}, {}};
    compare(floor);
    Judgement found{.cases = {}, .left_out = left_out_, .floor = mean(floor.kl)};
    for (Case& one : cases_) {
      options_.on_progress(2 + std::ssize(found.cases), runs);
      compare(one);
      found.cases.emplace_back(one.keys.front(), mean(one.kl));
    }
    options_.on_progress(runs, runs);
    write(found);
    return found;
  }

 private:
  void find_cases() {
    const std::map<std::string, Cache> caches = caches_of(results_.shape());
    std::set<std::string> seen;
    if (results_.has(Table::evictions))
      results_.each_row(Table::evictions, [&](const CsvReader& csv, const std::vector<std::string>& row) {
        const std::string& policy = row[csv.need("policy")];
        if (!row[csv.need("layer")].empty() || !row[csv.need("kv_head")].empty()) return;
        if (!policy.starts_with(kWhole) || !seen.insert(policy).second) return;
        const auto cache = caches.find(policy.substr(kWhole.size()));
        if (cache == caches.end()) {
          left_out_.push_back(policy);
          return;
        }
        Case one{{}, cache->second, {}, {}};
        for (const char* key : {"policy", "semantics", "phase", "budget", "kept"})
          one.keys.push_back(row[csv.need(key)]);
        cases_.push_back(std::move(one));
      });
    if (cases_.empty())
      throw InputError(results_.folder().string(),
                       "whole caches in llama.cpp's formats (evict --policy none --bits llama.cpp)",
                       left_out_.empty() ? "none" : left_out_.front());
  }

  void require_model(const Dump& dump) const {
    const DumpShape& shape = results_.shape();
    const Index n_q = llama_model_n_head(model_.get()), n_kv = llama_model_n_head_kv(model_.get());
    if (n_q != shape.n_q || n_kv != shape.n_kv)
      throw InputError(
          options_.model.string(),
          fmt::format("the {} and {} heads of {}", shape.n_q, shape.n_kv, dump.folder().string()),
          fmt::format("{} and {}", n_q, n_kv));
  }

  /// The logits behind the decoding steps, [steps, vocabulary].
  std::vector<float> run_over(const Cache& cache) {
    setenv("LLAMA_ATTN_ROT_DISABLE", cache.rotated ? "0" : "1", 1);  // read when a context is made
    llama_context_params params = llama_context_default_params();
    const Index rows = std::min<Index>(512, std::ssize(ids_));
    params.n_ctx = static_cast<std::uint32_t>(ids_.size());
    params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(rows);
    params.n_threads = params.n_threads_batch = workers_.threads();
    params.flash_attn_type = cache.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = cache.k;
    params.type_v = cache.v;
    params.abort_callback = [](void* data) { return static_cast<Workers*>(data)->stopping(); };
    params.abort_callback_data = &workers_;
    const Context context = new_context(*model_, params, options_.model.string());
    std::vector<float> logits;
    for (Index at = 0; at < std::ssize(ids_);) {
      const bool steps = at >= prompt_;
      const Index n = std::min(rows, (steps ? std::ssize(ids_) : prompt_) - at);
      const bool whole = decode(*context, std::span(ids_).subspan(at, n), at, steps);
      if (workers_.stopping()) throw Interrupted();
      if (!whole) throw InputError(options_.model.string() + ": llama.cpp cannot decode");
      for (Index row = 0; steps && row < n; ++row) {
        const float* const found = llama_get_logits_ith(context.get(), static_cast<int>(row));
        logits.insert(logits.end(), found, found + vocabulary_);
      }
      at += n;
    }
    return logits;
  }

  /// Fills a case's figures, as kvvalidate.py defines them (analysis/RESULTS-FORMAT.md).
  void compare(Case& one) {
    const std::vector<float> changed = run_over(one.cache);
    const Index steps = std::ssize(ids_) - prompt_;
    std::vector<double> added, nll, shared, full_nll;
    Index same = 0;
    for (Index step = 0; step < steps; ++step) {
      const auto row = [&](std::span<const float> all) {
        return all.subspan(step * vocabulary_, vocabulary_);
      };
      const std::span<const float> p = row(full_), q = row(changed);
      const double p_sum = log_sum_exp(p), q_sum = log_sum_exp(q);
      double kl = 0, both = 0;
      for (Index i = 0; i < vocabulary_; ++i) {
        const double log_p = p[i] - p_sum, log_q = q[i] - q_sum, chance = std::exp(log_p);
        kl += chance * (log_p - log_q);
        both += std::min(chance, std::exp(log_q));
      }
      one.kl.push_back(kl);
      shared.push_back(both);
      same += std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin() ? 1 : 0;
      if (step + 1 == steps) continue;
      const llama_token next = ids_[prompt_ + step + 1];
      full_nll.push_back(p_sum - p[next]);
      nll.push_back(q_sum - q[next]);
      added.push_back(nll.back() - full_nll.back());
    }
    nll_ = mean(full_nll);
    one.figures.fill(kNan);
    const auto set = [&](ValidationFigure figure, double value) {
      one.figures[static_cast<std::size_t>(figure)] = value;
    };
    std::vector<double> sorted = one.kl;
    set(ValidationFigure::kl, mean(one.kl));
    set(ValidationFigure::kl_median, quantile(sorted, 0.5));
    set(ValidationFigure::kl_p95, quantile(sorted, 0.95));
    set(ValidationFigure::dnll, mean(added));
    set(ValidationFigure::perplexity, std::exp(mean(nll)));
    set(ValidationFigure::same_top1, static_cast<double>(same) / static_cast<double>(steps));
    set(ValidationFigure::accept, mean(shared));
  }

  /// validate.csv last: without it there is no validation.
  void write(const Judgement& found) const {
    const fs::path& folder = results_.folder();
    const auto steps = static_cast<std::size_t>(std::ssize(ids_) - prompt_);
    fs::remove(folder / "validate.csv");
    std::vector<double> kl;
    for (const Case& one : cases_) kl.insert(kl.end(), one.kl.begin(), one.kl.end());
    const std::size_t shape[] = {cases_.size(), steps};
    write_npy(folder / "validate_steps.npy", shape, kl);
    Json left_out = Json::object();
    for (const std::string& policy : left_out_) left_out[policy] = "no format of llama.cpp's cache";
    const Json how = {
        {"model", options_.model.filename().string()},
        {"prompt_len", prompt_},
        {"steps", steps},
        {"nll", nll_},
        {"each_layer", false},
        {"results", results_.summary().value(kHashOfFiles, Json())},
        {"finished", true},
        {"left_out", std::move(left_out)},
        {"floor", found.floor},
        {"origin", fmt::format("kvreplay capture --judge: llama.cpp {}, {} weights", llama_version(),
                               llama_ftype_name(llama_model_ftype(model_.get())))}};
    write_file(folder / "validate.json", how.dump(1) + "\n");
    CsvFile csv(folder / "validate.csv", "policy,semantics,phase,budget,kept,protocol,metric,value");
    for (const Case& one : cases_)
      for (const auto& figure : kValidationFigures.all()) {
        if (figure >= ValidationFigure::right) break;
        for (const std::string& key : one.keys) csv.add(key);
        csv.add("written").add(name_of(figure)).add(one.figures[static_cast<std::size_t>(figure)]);
        csv.end_row();
      }
    csv.finish();
  }

  const JudgeOptions& options_;
  Workers& workers_;
  ResultReader results_;
  std::vector<Case> cases_;
  std::vector<std::string> left_out_;
  Model model_;
  Index vocabulary_ = 0, prompt_ = 0;
  std::vector<llama_token> ids_;
  std::vector<float> full_;
  double nll_ = 0;
};

}  // namespace

Judgement judge(const JudgeOptions& options, Workers& workers) { return Judge(options, workers).run(); }

}  // namespace kvreplay
