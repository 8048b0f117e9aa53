#include "analysis/recommend/levers.hpp"

#include "analysis/eviction/eviction_options.hpp"
#include "analysis/results/dump_set.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/validation.hpp"
#include "sim/cache/cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

namespace kvreplay::recommend {
namespace {

/// The options of evict. Throws InputError if recipes cannot have the policies that were measured.
Json options_of(const ResultReader& results) {
  const std::string where = results.folder().string();
  if (!results.has(Table::evictions))
    throw InputError(where, "results of evict or analyze", "none of evictions");
  const Index layers = results.shape().layers;
  if (std::ssize(results.layers()) != layers)
    throw InputError(where, fmt::format("all {} of the dump", counted(layers, "layer")),
                     fmt::format("{}", results.layers().size()));
  if (!results.summary().at("totals").value("prompt_bytes", Json()).is_number())
    throw InputError(where, "results that say what the whole prompt takes",
                     "none (of an earlier version; evict writes them: --force)");
  Json options = results.summary().at("options").value("evict", Json::object());
  for (const char* key : {"window", "sinks", "recent", "pool", "by", "channels"})
    if (const Json& value = options.value(key, Json()); !value.is_null())
      throw InputError(where,
                       "policies with options of their own, as snapkv[window=64], and no pruned channels",
                       fmt::format("{} {} of all of them", key, json_text(value)));
  if (options.value("per_query_head", false))
    throw InputError(where, "a cache for every KV head", "one for every query head");
  return options;
}

/// True if a recipe may contain the policy of this name.
bool may_have(const std::string& policy) { return !knows_the_future(policy) && !evicts_nothing(policy); }

/// One result folder, and what its levers come to.
class Folder {
 public:
  explicit Folder(const ResultReader& results)
      : results_(results), layers_(results.shape().layers), n_kv_(results.shape().n_kv) {
    const std::string where = results.folder().string();
    const Json options = options_of(results);
    prompt_bytes_ = results.summary().at("totals").at("prompt_bytes").get<double>();
    const Json all_stored = options.value("stored", Json::object());
    for (const auto& [name, of_layers] : all_stored.items()) {
      std::vector<Quantization>& stored = formats_[name];
      for (const Json& layer : of_layers)
        stored.push_back(quantization_in(layer, where + ": options: stored"));
      if (std::ssize(stored) != layers_)
        throw InputError(where + ": options: stored", "every layer's", fmt::format("{}", stored.size()));
    }
    read();
  }

  struct Found {
    Lever lever;
    Vector<double> bytes, row, error;  ///< [layers x n_kv]
    Vector<double> step;               ///< [layers]
    ModelFigures model;
  };
  const std::map<std::string, Found>& found() const { return found_; }
  const std::vector<std::string>& order() const { return order_; }  ///< as in the table
  double prompt_bytes() const { return prompt_bytes_; }
  struct Other {
    std::string text;
    bool recipe = false;
    ModelFigures model;
  };
  const std::deque<Other>& others() const { return others_; }

 private:
  void read() {
    rows_ = results_.shape().T > results_.shape().l ? "future" : "window";
    const MetricTable table = table_and_measured(results_, Table::evictions);
    for (const MetricEntry& entry : table.entries()) {
      const auto [found, model] = place_of(table, entry);
      if (has_row(entry.model)) take(table, entry, *model);
      if (found == nullptr) continue;
      const auto heads = Eigen::Map<const Vector<double>>(entry.heads.data(), layers_ * n_kv_);
      const std::string& metric = entry.metric();
      if (metric == "bytes") found->bytes = heads;
      if (table.key(entry, "rows") != rows_ || !entry.any()) continue;
      if (metric == "loss_row") found->row = heads;
      if (metric == "output_error") found->error = heads;
      if (metric == "loss_step") found->step = Eigen::Map<const Vector<double>>(entry.layers.data(), layers_);
    }
    for (const ValidatedCase& one : read_validation(results_).cases) {
      const auto at = places_.find({one.policy, one.semantics, one.phase, one.budget});
      if (one.table != Table::evictions || at == places_.end() || at->second.model == nullptr) continue;
      ModelFigures& model = *at->second.model;
      const double kl = one.measured_as(ValidationFigure::kl),
                   same_top1 = one.measured_as(ValidationFigure::same_top1);
      if (one.is_written()) {
        model.written = kl;
        model.written_same_top1 = same_top1;
      } else {
        model.same_top1 = same_top1;
      }
    }
    // Cases that have figures of the whole model only.
    for (const Table which : {Table::budgets, Table::compensation}) {
      const MetricTable others = table_and_measured(results_, which);
      for (const MetricEntry& entry : others.entries())
        if (ModelFigures* const model = has_row(entry.model) ? other_of(others, entry) : nullptr)
          take(others, entry, *model);
    }
  }

  /// A figure of the whole model.
  void take(const MetricTable& table, const MetricEntry& entry, ModelFigures& model) const {
    const std::string& metric = entry.metric();
    if (metric == "bytes") model.bytes = entry.model / prompt_bytes_;
    if (metric == "budget")
      model.bytes = entry.model / static_cast<double>(results_.shape().l * layers_ * n_kv_);
    if (is_in(table.key_columns(), "rows") && table.key(entry, "rows") != rows_) return;
    for (const auto& [name, value] :
         {std::pair("output_error", &model.output_error), std::pair("loss_step", &model.nats),
          std::pair("kl", &model.kl), std::pair("right", &model.right)})
      if (metric == name) *value = entry.model;
  }

  struct Place {
    Found* found = nullptr;  ///< null for what no recipe can do
    ModelFigures* model = nullptr;
  };
  Place place_of(const MetricTable& table, const MetricEntry& entry) {
    const auto key = [&](std::string_view column) { return table.key(entry, column); };
    const auto [at, is_new] =
        places_.try_emplace({key("policy"), key("semantics"), key("phase"), key("budget")});
    if (!is_new) return at->second;
    auto lever = lever_of(table, entry);
    if (!lever) return at->second = {nullptr, other_of(table, entry)};
    // The key that identifies the lever, also among those of other folders.
    std::string name = fmt::format("{}|{}|{}", lever->evicts ? lever->evicts->name : "",
                                   lever->evicts ? key("semantics") : "", lever->budget);
    for (const Quantization& stored : lever->stored) name += to_json(stored).dump();
    const Vector<double> none = Vector<double>::Constant(layers_ * n_kv_, kNan);
    const auto [found, first] = found_.try_emplace(
        name, Found{std::move(*lever), none, none, none, Vector<double>::Constant(layers_, kNan), {}});
    if (!first) return at->second = {nullptr, &unused_};  // turning what is stored exactly changes nothing
    order_.push_back(name);
    return at->second = {&found->second, &found->second.model};
  }

  /// Null for oracles.
  ModelFigures* other_of(const MetricTable& table, const MetricEntry& entry) {
    const auto key = [&](std::string_view column) { return table.key(entry, column); };
    std::string text;
    bool recipe = false;
    if (table.table() == Table::budgets) {
      if (is_oracle(Table::budgets, "method", key("method"))) return nullptr;
      text = fmt::format("{} divided by {}, {}", key("order"), key("method"), kept_text(key("sigma")));
    } else {
      const std::string policy = key("policy");
      recipe = policy.starts_with(kRecipe) && key("semantics") == "given";
      text = recipe ? policy.substr(kRecipe.size()) : policy;
      if (!key("budget").empty()) text += ", " + kept_text(key("budget"));
      if (key("semantics") != "paper" && key("semantics") != "given")
        text += fmt::format(" ({})", key("semantics"));
      if (key("phase") != "prefill") text += fmt::format(", {}", key("phase"));
      if (table.table() == Table::compensation) text += fmt::format(", {}", key("method"));
      if (knows_the_future(policy.substr(0, policy.find('~')))) return &unused_;
      if (table.table() == Table::compensation && key("method") == "none") return &unused_;
    }
    auto at = std::ranges::find(others_, text, &Other::text);
    if (at == others_.end()) at = others_.insert(at, {text, recipe, {}});
    return &at->model;
  }

  std::optional<Lever> lever_of(const MetricTable& table, const MetricEntry& entry) const {
    const auto key = [&](std::string_view column) { return table.key(entry, column); };
    Lever lever;
    lever.policy = key("policy");
    lever.budget = key("budget");
    const std::size_t tilde = lever.policy.find('~');
    std::string name = lever.policy.substr(0, tilde),
                format = tilde == std::string::npos ? "" : lever.policy.substr(tilde + 1);
    if (key("phase") != "prefill" || !may_have(name)) return std::nullopt;
    const auto semantics = kSemantics.named(key("semantics"));
    if (!semantics) return std::nullopt;  // a kept set of the user's, or a recipe
    lever.semantics = *semantics;
    if (name != "none") {
      try {
        lever.evicts = parse_policy(name, {});
      } catch (const OptionError&) {
        return std::nullopt;  // by a score of the user's
      }
      const auto budget = budget_labelled(lever.budget);
      if (!budget || kBases[lever.evicts->base].searches) return std::nullopt;
      lever.keeps = *budget;
      if (const double sigma = budget->ratio(results_.shape().l); sigma <= 0 || sigma >= 1)
        return std::nullopt;
    }
    if (format.empty() && formats_.size() == 1) format = formats_.begin()->first;
    if (const auto stored = formats_.find(format); stored != formats_.end()) {
      lever.format = format;
      lever.stored = stored->second;
    } else if (format.empty()) {
      lever.format = "16";
      lever.stored.assign(static_cast<std::size_t>(layers_), exact());
    } else {
      return std::nullopt;
    }
    if (std::ranges::all_of(lever.stored, &Quantization::stores_exactly)) {
      lever.format = "16";
      lever.stored.assign(lever.stored.size(), exact());
    }
    return lever;
  }

  static Quantization exact() {
    Quantization stored;
    stored.residual = 0;
    return stored;
  }

  const ResultReader& results_;
  Index layers_, n_kv_;
  double prompt_bytes_ = 0;
  std::map<std::string, std::vector<Quantization>> formats_;
  static constexpr std::string_view kRecipe = "recipe~";
  std::string rows_;  // the rows of the figures
  std::map<std::string, Found> found_;
  std::map<std::vector<std::string>, Place> places_;
  std::vector<std::string> order_;
  std::deque<Other> others_;
  ModelFigures unused_;
};

/// The costs of heads, scaled so that a lever applied everywhere costs what was measured of the model.
Vector<double> with_interactions(const Folder::Found& found, Index n_kv) {
  Vector<double> nats = found.row;
  double of_layers = 0;
  for (Index layer = 0; layer < found.step.size(); ++layer) {
    auto heads = nats.segment(layer * n_kv, n_kv);
    const double sum = heads.sum();
    if (sum > 0 && std::isfinite(found.step[layer])) heads *= found.step[layer] / sum;
    of_layers += heads.sum();
  }
  if (of_layers > 0 && std::isfinite(found.model.nats)) nats *= found.model.nats / of_layers;
  return nats;
}

/// The folders of single dumps, each with the name of its dump.
std::vector<std::pair<std::string, std::vector<ResultReader>>> by_prompt(
    std::span<const std::filesystem::path> folders) {
  std::vector<std::pair<std::string, std::vector<ResultReader>>> prompts;
  std::map<std::string, std::size_t> at;  // by what the dump holds
  const auto add = [&](const std::string& name, const ResultReader& results) {
    const Json& dump = results.summary().at("dump");
    const auto [place, is_new] = at.emplace(
        results.summary().value("layer_fingerprints", Json::object()).dump() + dump.dump(), prompts.size());
    if (is_new) prompts.push_back({name, {}});
    prompts[place->second].second.push_back(results);
  };
  for (const std::filesystem::path& folder : folders) {
    if (!OverDumpsReader::is_over_dumps(folder)) {
      const auto name = std::filesystem::absolute(folder).lexically_normal();
      add((name.has_filename() ? name.filename() : name.parent_path().filename()).string(),
          ResultReader(folder));
      continue;
    }
    const OverDumpsReader reader(folder);
    for (std::size_t d = 0; d < reader.dumps().size(); ++d) add(reader.names()[d], reader.dumps()[d]);
  }
  return prompts;
}

/// A prompt's levers, of all its folders.
struct FoundOfPrompt {
  std::map<std::string, std::pair<const Folder::Found*, double>> levers;  ///< with the whole prompt's bytes
  std::vector<std::string> order;
};

void add_others(const Folder& folder, std::size_t prompt, std::size_t prompts,
                std::vector<OtherCase>& others) {
  for (const Folder::Other& other : folder.others()) {
    auto at = std::ranges::find(others, other.text, &OtherCase::text);
    if (at == others.end())
      at = others.insert(at, {other.text, other.recipe, std::vector<ModelFigures>(prompts)});
    at->of_prompts[prompt] = other.model;
  }
}

/// The tokens kept of `held` positions, and the ratio of the unrounded number to the rounded one, at most 1.
struct KeptOf {
  Index tokens = 0;
  double asked = 1;
};
KeptOf kept_of(const Lever& lever, const Budget& keeps, Index held) {
  if (lever.keeps_all()) return {held, 1};
  const Index kept = tokens_within(*lever.evicts, std::min(keeps.kept(held, lever.semantics), held), held);
  const double exact =
      keeps.tokens ? static_cast<double>(kept) : rest_of(keeps.sigma) * static_cast<double>(held);
  return {kept, exact < static_cast<double>(kept) ? exact / static_cast<double>(kept) : 1};
}

/// Bytes of one head's cache of `held` positions.
CountedBytes bytes_of_head(const MeasuredLevers& measured, const Lever& lever, const Budget& keeps,
                           Index layer, Index held) {
  const KeptOf kept = kept_of(lever, keeps, held);
  const double bytes = cache_bytes(kept.tokens, lever.stored[static_cast<std::size_t>(layer)],
                                   measured.shape.d, measured.shape.d_v);
  return {bytes, bytes * kept.asked};
}

std::vector<std::optional<Index>> windows_of(const ResultReader& results) {
  std::vector<std::optional<Index>> windows;
  const Json& dump = results.summary().at("dump");
  const auto stated = dump.find("sliding_window");
  if (stated == dump.end()) return windows;
  const auto is_window = [](const Json& one) {
    return one.is_null() || (one.is_number_integer() && one.get<Index>() >= 1);
  };
  if (!stated->is_array() || std::ssize(*stated) != results.shape().layers ||
      !std::ranges::all_of(*stated, is_window))
    throw InputError((results.folder() / "summary.json").string() + ": dump: sliding_window",
                     "the positions that every layer sees, or null", json_text(*stated));
  for (const Json& one : *stated)
    windows.push_back(one.is_null() ? std::optional<Index>() : std::optional(one.get<Index>()));
  return windows;
}

/// Reads the sliding windows. If the results count reserved bytes, every position counts.
void take_windows(const ResultReader& results, MeasuredLevers& measured) {
  measured.windows = windows_of(results);
  const auto windowed =
      std::ranges::count_if(measured.windows, [](const auto& one) { return one.has_value(); });
  if (windowed == 0) return;
  const bool all = results.option("evict", "window_bytes") == "reserved";
  measured.notes.push_back(fmt::format("bytes count {} of {} with a sliding window",
                                       all ? "all positions" : "the positions that later rows see",
                                       counted(windowed, "layer")));
  if (all) measured.windows.clear();
}

}  // namespace

bool Lever::is_exact() const { return std::ranges::all_of(stored, &Quantization::stores_exactly); }

Index MeasuredLevers::held(Index layer, Index tokens) const {
  AttentionRule rule;
  if (!windows.empty()) rule.sliding_window = windows[static_cast<std::size_t>(layer)];
  return rule.held(tokens);
}

double MeasuredLevers::whole_bytes(Index tokens) const {
  double bytes = 0;
  for (Index layer = 0; layer < shape.layers; ++layer)
    bytes += static_cast<double>(shape.n_kv) *
             cache_bytes(held(layer, tokens), Quantization{}, shape.d, shape.d_v);
  return bytes;
}

CountedBytes counted_bytes(const MeasuredLevers& measured, const Lever& lever, const Budget& keeps,
                           Index tokens) {
  CountedBytes sum;
  for (Index layer = 0; layer < measured.shape.layers; ++layer) {
    const CountedBytes head = bytes_of_head(measured, lever, keeps, layer, measured.held(layer, tokens));
    sum.bytes += static_cast<double>(measured.shape.n_kv) * head.bytes;
    sum.asked += static_cast<double>(measured.shape.n_kv) * head.asked;
  }
  const double whole = measured.whole_bytes(tokens);
  return {sum.bytes / whole, sum.asked / whole};
}

LeverBytes bytes_at(const MeasuredLevers& measured, Index tokens) {
  const DumpShape& shape = measured.shape;
  LeverBytes at;
  at.bytes = at.asked = Matrix<double>(std::ssize(measured.levers), shape.layers * shape.n_kv);
  const double whole = measured.whole_bytes(tokens);
  for (Index n = 0; n < at.bytes.rows(); ++n)
    for (Index layer = 0; layer < shape.layers; ++layer) {
      const Lever& lever = measured.levers[static_cast<std::size_t>(n)];
      const CountedBytes head =
          bytes_of_head(measured, lever, lever.keeps, layer, measured.held(layer, tokens));
      at.bytes.row(n).segment(layer * shape.n_kv, shape.n_kv).setConstant(head.bytes / whole);
      at.asked.row(n).segment(layer * shape.n_kv, shape.n_kv).setConstant(head.asked / whole);
    }
  return at;
}

double Lever::kept_share(Index held) const { return std::min(rest_of(keeps.ratio(held)), 1.0); }

std::string Lever::text() const { return text(kept_text(budget)); }

std::string Lever::text(std::string_view kept) const {
  std::string text = evicts ? fmt::format("{}, {}", evicts->name, kept) : "all tokens";
  if (evicts && semantics != Semantics::paper) text += fmt::format(" ({})", name_of(semantics));
  return text + (format == "16" ? "" : " in " + format);
}

bool use_written(MeasuredLevers& measured, const std::function<bool(const Lever&)>& is_used) {
  std::vector<std::size_t> used;
  for (std::size_t n = 0; n < measured.levers.size(); ++n)
    if (!measured.levers[n].is_exact() && is_used(measured.levers[n])) used.push_back(n);
  for (const std::size_t n : used)
    for (const MeasuredPrompt& prompt : measured.prompts)
      if (!std::isfinite(prompt.everywhere[n].written)) return false;
  if (used.empty()) return false;
  for (MeasuredPrompt& prompt : measured.prompts)
    for (const std::size_t n : used) {
      auto heads = prompt.nats.row(static_cast<Index>(n));
      ModelFigures& figures = prompt.everywhere[n];
      if (heads.sum() > 0)
        heads *= figures.written / heads.sum();
      else
        heads.setConstant(figures.written / static_cast<double>(heads.size()));
      figures.nats = figures.written;
      figures.kl = kNan;
    }
  return measured.in_nats = measured.written = true;
}

bool recommendable(const ResultReader& results) {
  try {
    const Json options = options_of(results);
    const auto is_usable = [](const Json& name) {
      try {
        return name.is_string() && may_have(name) && (name == "none" || !parse_policy(name, {}).name.empty());
      } catch (const OptionError&) {
        return false;  // ranked by a user score
      }
    };
    const Json phases = options.value("phases", Json::array()),
               policies = options.value("policies", Json::array());
    return std::ranges::find(phases, Json("prefill")) != phases.end() &&
           std::ranges::any_of(policies, is_usable);
  } catch (const InputError&) {
    return false;
  }
}

MeasuredLevers read_levers(std::span<const std::filesystem::path> folders) {
  MeasuredLevers measured;
  std::vector<std::vector<Folder>> read;
  std::vector<FoundOfPrompt> prompts;
  const auto by = by_prompt(folders);
  for (const auto& [name, results] : by) {
    const ResultReader& first = results.front();
    const std::string model = model_of(first.summary().at("dump").value("model", ""));
    const DumpShape& shape = first.shape();
    if (read.empty()) {
      measured.model = model;
      measured.shape = shape;
      take_windows(first, measured);
    }
    const DumpShape& of = measured.shape;
    if (model != measured.model || shape.layers != of.layers || shape.n_kv != of.n_kv || shape.d != of.d ||
        shape.d_v != of.d_v)
      throw InputError(first.folder().string(), fmt::format("results of {}, as the others", measured.model),
                       model);
    std::vector<Folder>& mine = read.emplace_back();
    for (const ResultReader& one : results) mine.emplace_back(one);
  }
  for (const std::vector<Folder>& mine : read) {
    FoundOfPrompt& prompt = prompts.emplace_back();
    for (const Folder& folder : mine) {
      for (const std::string& name : folder.order())
        if (prompt.levers.emplace(name, std::pair(&folder.found().at(name), folder.prompt_bytes())).second)
          prompt.order.push_back(name);
      add_others(folder, prompts.size() - 1, read.size(), measured.others);
    }
  }
  std::vector<std::string> names;
  std::size_t some = 0;
  for (const std::string& name : prompts.front().order) {
    const bool everywhere = std::ranges::all_of(
        prompts, [&](const FoundOfPrompt& prompt) { return prompt.levers.contains(name); });
    if (everywhere)
      names.push_back(name);
    else
      ++some;
  }
  if (names.empty())
    throw InputError(folders.front().string(),
                     "a policy and budget, or a format, that recipes can have, in all prompts", "none");
  if (some > 0)
    measured.notes.push_back(
        fmt::format("{} not in all prompts, left out", counted(static_cast<std::ptrdiff_t>(some), "case")));
  for (const std::string& name : names)
    measured.levers.push_back(prompts.front().levers.at(name).first->lever);
  for (const FoundOfPrompt& prompt : prompts)
    for (const std::string& name : names)
      measured.in_nats = measured.in_nats && prompt.levers.at(name).first->row.allFinite();

  const auto count = static_cast<Index>(names.size()), heads = measured.shape.layers * measured.shape.n_kv;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    MeasuredPrompt& prompt = measured.prompts.emplace_back();
    prompt.name = by[p].first;
    prompt.results = by[p].second.front().folder();
    prompt.l = by[p].second.front().shape().l;
    if (const auto dumps = by[p].second.front().dump_paths(); !dumps.empty())
      prompt.dump = dumps.front().string();
    prompt.bytes = prompt.asked = prompt.nats = Matrix<double>(count, heads);
    for (Index n = 0; n < count; ++n) {
      const auto& [found, whole] = prompts[p].levers.at(names[static_cast<std::size_t>(n)]);
      prompt.bytes.row(n) = found->bytes.transpose() / whole;
      prompt.asked.row(n) = prompt.bytes.row(n);
      const Lever& lever = found->lever;
      for (Index layer = 0; layer < measured.shape.layers; ++layer)
        prompt.asked.row(n).segment(layer * measured.shape.n_kv, measured.shape.n_kv) *=
            kept_of(lever, lever.keeps, measured.held(layer, prompt.l)).asked;
      if (measured.in_nats)
        prompt.nats.row(n) = with_interactions(*found, measured.shape.n_kv).transpose();
      else
        prompt.nats.row(n) = found->error.transpose() / static_cast<double>(heads);
      prompt.everywhere.push_back(found->model);
    }
    if (!prompt.bytes.allFinite() || !prompt.nats.allFinite())
      throw InputError(by[p].second.front().folder().string(), "the bytes and losses of every head",
                       "some without");
    // Its bytes are another layer's, and so is the choice.
    if (measured.shape.layers > 1 && (prompt.bytes.colwise().sum().array() == 0).any())
      throw InputError(by[p].second.front().folder().string(), "layers that each have a cache",
                       "some that read another's");
  }
  return measured;
}

}  // namespace kvreplay::recommend
