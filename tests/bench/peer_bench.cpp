// Answers timing requests about layer 0 of a dump, so that a script can time another program's turn between
// them (tests/peers/peers.py):
//   peer_bench DUMP [--threads N] [--backend cpu|cuda]
// A line of standard input is one request, a line of standard output its reply, both JSON:
//   {"ask": "evict", "policy": "snapkv", "window": 32, "sigma": 0.5}   what --semantics kvpress keeps: scores
//   and kept sets
//   {"ask": "tokens", "metrics": ["attn", "joint"], "window": 32}      metrics summed over each group's query
//   heads
//   {"ask": "channels", "ratio": 0.5, "window": 32}                    the channels that --semantics kvpress
//   prunes by think
// with "seconds", which the runs go on for (0.5), and "runs", how many there are at least (3). The reply
// holds the "seconds" of every run after a warm-up and that one's "answer": the positions kept or the
// channels pruned of every KV head. Tensors are float32 in memory; reading the dump is not timed. Standard
// input's end ends it.

#include "data/error.hpp"
#include "sim/backend_cuda.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/eviction/prompt_eviction.hpp"
#include "sim/freed_memory.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace kvreplay;
using Json = nlohmann::json;

/// Layer 0 and what computes with it.
struct Bench {
  std::vector<HeadGroup<float>> groups;  ///< one a KV head
  Workers workers;
  std::shared_ptr<const Backend> device;  ///< null: the CPU

  explicit Bench(int threads) : workers(threads) {}
  const Backend& backend() const { return device ? *device : cpu_backend(); }
  Index l() const { return groups.front().l; }

  /// body(g) for every KV head, [n_kv] in order.
  template <class T>
  std::vector<T> each(const std::function<T(const HeadGroup<float>&)>& body) {
    std::vector<T> all(groups.size());
    workers.parallel_for(std::ssize(groups), [&](std::ptrdiff_t g) { all[g] = body(groups[g]); });
    return all;
  }
};

template <class T>
T known(const std::optional<T>& found, const std::string& what, const std::string& name) {
  if (!found) throw InputError(what, "a name of kvreplay's", fmt::format("'{}'", name));
  return *found;
}

/// What is in every KV head's set, [l] or [d]: positions or channels.
using Sets = std::vector<std::vector<std::uint8_t>>;

Json members(const Sets& sets) {
  Json all = Json::array();
  for (const std::vector<std::uint8_t>& set : sets) {
    Json at = Json::array();
    for (std::size_t i = 0; i < set.size(); ++i)
      if (set[i] != 0) at.push_back(i);
    all.push_back(std::move(at));
  }
  return all;
}

using Question = std::function<Sets()>;

Question evict(Bench& bench, const Json& request) {
  const std::string name = request.at("policy");
  const Policy policy{name, known(kBases.named(name), "policy", name), {}, {}, {}};
  const Index keep = kept_tokens(request.at("sigma"), bench.l(), Semantics::kvpress);
  PolicyOverrides overrides;
  if (policy.base == EvictionBase::snapkv) overrides.window = request.at("window").get<Index>();
  const EvictionRule rule = rule_of(policy, Semantics::kvpress, overrides, bench.l(), keep, false);
  return [&bench, rule, keep] {
    const std::vector<EvictionRule> rules{rule};
    auto scores = bench.each<Vector<double>>([&](const HeadGroup<float>& group) {
      return rule_scores(group, rules, {}, {bench.workers, bench.backend()}).front();
    });
    if (rule.shared_by_layer) {
      Vector<double> sum = Vector<double>::Zero(bench.l());
      for (const Vector<double>& one : scores) sum += one;
      for (Vector<double>& one : scores) one = sum;
    }
    Sets kept;
    for (Vector<double>& one : scores) kept.push_back(keep_by(rule, std::move(one), keep));
    return kept;
  };
}

Question tokens(Bench& bench, const Json& request) {
  TokenOptions options{.window = request.at("window"), .metrics = {}};
  for (const std::string name : request.at("metrics"))
    options.metrics.insert(known(kTokenMetrics.named(name), "metrics", name));
  return [&bench, options] {
    bench.each<TokenMetrics>([&](const HeadGroup<float>& group) {
      return bench.backend().token_metrics(group, options, bench.workers);
    });
    return Sets();
  };
}

Question channels(Bench& bench, const Json& request) {
  const ChannelRule think = channel_rule_named("think").value();
  const Index n = pruned_channels(request.at("ratio"), bench.groups.front().d(), Semantics::kvpress);
  const ChannelSetting setting{Semantics::kvpress, default_recent(Semantics::kvpress), request.at("window"),
                               std::nullopt};
  const KeptSet cache(static_cast<std::size_t>(bench.l()), 1);
  return [&bench, think, n, setting, cache] {
    return bench.each<ChannelSet>([&](const HeadGroup<float>& group) {
      const ChannelBasis basis =
          channel_basis(group, cache, setting, false, {bench.workers, bench.backend()});
      return select_channels(think, basis.scores, channel_order(think, basis.scores), n).pruned;
    });
  };
}

Question question(Bench& bench, const Json& request) {
  const std::string ask = request.at("ask");
  if (ask == "evict") return evict(bench, request);
  if (ask == "tokens") return tokens(bench, request);
  if (ask == "channels") return channels(bench, request);
  throw InputError("ask", "evict, tokens or channels", fmt::format("'{}'", ask));
}

Json reply(Bench& bench, const Json& request) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const Question ask = question(bench, request);
  const double least_seconds = request.value("seconds", 0.5);
  const std::size_t least_runs = request.value("runs", std::size_t{3});
  const Json answer = members(ask());
  std::vector<double> seconds;
  for (const auto start = Clock::now(); seconds.size() < least_runs || since(start) < least_seconds;) {
    const auto begin = Clock::now();
    ask();
    seconds.push_back(since(begin));
  }
  return {{"seconds", seconds}, {"answer", answer}};
}

int run(int argc, char** argv) {
  CLI::App app{"Answers timing requests about layer 0 of a dump, one JSON object a line"};
  std::string folder, backend = "cpu";
  int threads = 0;
  app.add_option("DUMP", folder, "A dump")->required();
  app.add_option("--threads", threads, "Threads (all cores)");
  app.add_option("--backend", backend, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  CLI11_PARSE(app, argc, argv);

  Bench bench(threads);
  if (backend == "cuda") {
    if (const std::string why = why_no_cuda(); !why.empty()) throw InputError("no GPU here: " + why);
    bench.device = cuda_backend(false);
  }
  const Dump dump = Dump::open(folder);
  for (Index g = 0; g < dump.shape().n_kv; ++g) bench.groups.push_back(load_head_group<float>(dump, 0, g));
  const Json ready = {{"threads", bench.workers.threads()}, {"backend", backend}};
  std::cout << ready << std::endl;
  for (std::string line; std::getline(std::cin, line);)
    std::cout << reply(bench, Json::parse(line)) << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();  // as the program does
  try {
    return run(argc, argv);
  } catch (const InputError& error) {
    std::fprintf(stderr, "peer_bench: %s\n", error.what());
  } catch (const Json::exception& error) {
    std::fprintf(stderr, "peer_bench: not a request: %s\n", error.what());
  }
  return 2;
}
