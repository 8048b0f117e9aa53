#include "analysis/options/option.hpp"

#include "analysis/budgets/budget_options.hpp"
#include "analysis/channels/channel_options.hpp"
#include "analysis/engine/engine.hpp"
#include "analysis/eviction/eviction_options.hpp"
#include "analysis/tokens/token_stage.hpp"
#include "data/atomic_file.hpp"
#include "tests/support/temp_dir.hpp"

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

namespace kvreplay {
namespace {

const BoundOption& option_of(const BoundOptions& options, const OptionFacts& facts) {
  return *std::find_if(options.begin(), options.end(),
                       [&](const BoundOption& option) { return option.facts == &facts; });
}

TEST_CASE("option: a message names the concept, and a command line puts dashes before it", "[options]") {
  const OptionError error(option_text("{} and {}", evict_option::sinks, evict_option::recent),
                          option_text("at most 4 (see {})", evict_option::decode_window), "5 --really");
  CHECK(std::string(error.what()) ==
        "sinks and recent: expected at most 4 (see decode-window), found 5 --really");
  CHECK(error.line().dashed() ==
        "--sinks and --recent: expected at most 4 (see --decode-window), found 5 --really");
  CHECK(option_text("x: {}", error.line()).dashed() == "x: " + error.line().dashed());
}

TEST_CASE("option: a line may call an option by another name", "[options]") {
  const OptionText line =
      option_text("{} and {}: no method", evict_option::decode_window, evict_option::window);
  CHECK(line.naming("window", "evict.window").dashed() == "--decode-window and --evict.window: no method");
  CHECK(line.naming("decode", "x").dashed() == line.dashed());
}

TEST_CASE("option: commas within brackets do not split a list", "[options]") {
  using Words = std::vector<std::string>;
  CHECK(items_of("h2o,snapkv[window=64,pool=7],tova") == Words{"h2o", "snapkv[window=64,pool=7]", "tova"});
  CHECK(items_of("a[b=1],c[d=1,e=2,f=3]") == Words{"a[b=1]", "c[d=1,e=2,f=3]"});
  CHECK(items_of("a[b=1,c,d") == Words{"a[b=1", "c", "d"});
  CHECK(items_of("a[b=1,c[d=2]") == Words{"a[b=1", "c[d=2]"});
  CHECK(items_of("") == Words{""});
  CHECK(items_of("a,,b,") == Words{"a", "", "b", ""});
  CHECK(items_of(R"(a=x\,y.npy,b="p,q.npy",'c,d')") == Words{"a=x,y.npy", "b=p,q.npy", "c,d"});
  CHECK(items_of("it's,5\\ok") == Words{"it's", "5\\ok"});
}

TEST_CASE("option: commas in the names of files that are there do not split a list", "[options]") {
  using Words = std::vector<std::string>;
  const test::TempDir temp;
  const std::string run = temp / "lr=0.1,bs=32", plain = temp / "b.npy";
  write_file(std::filesystem::path(run), "");
  write_file(std::filesystem::path(plain), "");
  CHECK(items_of("a=" + run + ",b=" + plain, true) == Words{"a=" + run, "b=" + plain});
  CHECK(items_of(plain + "," + run, true) == Words{plain, run});
  CHECK(items_of("a=" + run, false).size() == 2);
  CHECK(items_of("a=" + plain + ",b=none.npy", true) == Words{"a=" + plain, "b=none.npy"});
}

TEST_CASE("option: alternatives within brackets stand for one word each", "[options]") {
  using Words = std::vector<std::string>;
  CHECK(with_each_alternative("a") == Words{"a"});
  CHECK(with_each_alternative("a/b") == Words{"a/b"});
  CHECK(with_each_alternative("a[b=1]") == Words{"a[b=1]"});
  CHECK(with_each_alternative("a[b=1/2,c=3/4]") ==
        Words{"a[b=1,c=3]", "a[b=1,c=4]", "a[b=2,c=3]", "a[b=2,c=4]"});
  CHECK(with_each_alternative("a[b=1,c=max:3/avg:5/none]") ==
        Words{"a[b=1,c=max:3]", "a[b=1,c=avg:5]", "a[b=1,c=none]"});
  CHECK(with_each_alternative("a[b=1/]") == Words{"a[b=1]", "a[b=]"});
  EvictionOptions options;
  const BoundOptions all = bound(options);
  option_of(all, evict_option::policy)
      .read({"snapkv[window=8/5%]", "expected_attention[n_future=64/512,epsilon=0]"});
  CHECK(to_json(all)["policies"] ==
        Json({"snapkv[window=8]", "snapkv[window=5%]", "expected_attention[n_future=64,epsilon=0]",
              "expected_attention[n_future=512,epsilon=0]"}));
  CHECK(options.policies.at(1)->own.window == Positions::share(5));
  CHECK(options.policies.at(2)->own.n_future == 64);
  CHECK(options.policies.at(3)->own.epsilon == 0.0);
}

TEST_CASE("option: a policy reads back with options of its own", "[options]") {
  const Policy policy = parse_policy("snapkv+mine[window=64,pool=7]", {"other", "mine"});
  CHECK(policy.name == "snapkv+mine[window=64,pool=7]");
  CHECK(policy.given == std::size_t{1});
  CHECK(policy.own.window == 64);
  CHECK(policy.own.pool == Pooling{Pooling::Kind::max, 7});
  CHECK_FALSE(policy.own.sinks);
  const Policy pages = parse_policy("h2o+joint[page=32,page_by=max,page_heads=layer]", {});
  CHECK(pages.own.page == 32);
  CHECK(pages.own.page_by == PageScore::max);
  CHECK(pages.own.page_heads == PageHeads::layer);
  CHECK(parse_policy("score:caote", {}).metric == TokenMetric::caote);
  EvictionOptions given, read;
  given.policies = policies_named(
      {"snapkv[window=64,pool=7]", "score:value", "exchange+snapkv[recent=3]", "tova[page=16,page_by=sum]"});
  read_json(bound(read), {{"policies", to_json(bound(given))["policies"]}}, "options");
  CHECK(read.policies == given.policies);
}

/// A name in a different spelling.
std::string respelled(std::string_view name) {
  std::string other(name);
  for (char& c : other) c = c == '_' ? '-' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return other;
}

template <class Value, class Table>
void check_respelled(const Table& table) {
  for (const auto& facts : table) {
    INFO(facts.name);
    CHECK(OptionValue<Value>::text(OptionValue<Value>::parse({}, respelled(facts.name))) == facts.name);
  }
}

TEST_CASE("option: names are understood in another spelling, and keep their own", "[options]") {
  for (const EvictionBaseFacts& facts : kBases)
    if (!facts.alone) {
      INFO(facts.name);
      CHECK(parse_policy(respelled(facts.name), {}).name == facts.name);
      CHECK(parse_policy(respelled(facts.name), {}).base == facts.id);
    }
  for (const TokenMetricFacts& facts : kTokenMetrics)
    CHECK(parse_policy("Score:" + respelled(facts.name), {}).name == "score:" + std::string(facts.name));
  check_respelled<TokenMetric>(kTokenMetrics);
  check_respelled<CacheFormat>(kNumberFormats);
  check_respelled<Semantics>(kSemantics);
  check_respelled<Compensation>(kCompensations);
  check_respelled<Reference>(kReferences);
  check_respelled<BudgetSemantics>(kBudgetSemantics);
  check_respelled<Engine>(kEngines);
  for (const char* engine : {"llamacpp", "llama-cpp", "llama_cpp", "Llama.cpp"})
    CHECK(OptionValue<Engine>::parse({}, engine) == Engine::llama_cpp);
  for (const BudgetMethodFacts& facts : kBudgetMethods)
    if (!facts.needs_profile)
      CHECK(OptionValue<BudgetDivision>::parse({}, respelled(facts.name)).name == facts.name);
  for (const char* phase : {"prefill", "blockwise:32", "decode", "decode:8", "append-only"})
    CHECK(OptionValue<Phase>::parse({}, respelled(phase)).name() == phase);
  CHECK(OptionValue<Phase>::parse({}, "appendonly").name() == "append-only");
  const auto policy = [](const char* text) { return parse_policy(text, {"KNorm", "mine"}).name; };
  CHECK(policy("SnapKV+Joint[Window=64,POOL=AVG:5]") == "snapkv+joint[window=64,pool=avg:5]");
  CHECK(policy("H2O+Joint[page=32,Page-By=Max]") == "h2o+joint[page=32,page_by=max]");
  CHECK(policy("Exchange+SnapKV[by=LOSS]") == "exchange+snapkv[by=loss]");
  CHECK(policy("score:MINE") == "score:mine");
  CHECK(policy("score:KNorm") == "score:KNorm");  // a user score keeps its spelling
  CHECK(policy("knorm") == "knorm");
  const auto format = [](const char* text) { return OptionValue<CacheFormat>::parse({}, text).name; };
  CHECK(format("K8V4;0-1,LAST:KFP8VTQ4") == "k8v4;0-1,last:kfp8vtq4");
  CHECK(format("Q4-0") == "q4_0");
  CHECK(OptionValue<ChannelRule>::parse({}, "Exchange+Think[RECENT=8]").name == "exchange+think[recent=8]");
  CHECK(OptionValue<Rotation>::parse({}, "Hadamard:16").name == "hadamard:16");
  CHECK(parse_order("SnapKV+Joint[Window=16]", {}).name == "snapkv+joint[window=16]");
  CHECK(parse_order("Attn_SQ", {}).name == "attn_sq");
  // A wrong letter is not a different spelling, nor is a point in a number.
  for (const char* text : {"snapkvs", "snap+kv", "snapk"})
    CHECK_THROWS_AS(parse_policy(text, {}), OptionError);
  for (const char* text : {"1.6", "-4", "4.0", ".4"})
    CHECK_THROWS_AS(OptionValue<CacheFormat>::parse({}, text), OptionError);
  // A name that fits two scores is ambiguous.
  CHECK_THROWS_AS(parse_policy("score:MINE", {"mine", "Mine"}), OptionError);
  CHECK(parse_policy("score:Mine", {"mine", "Mine"}).given == std::size_t{1});
}

TEST_CASE("option: a number is all of its word, decimal and finite", "[options]") {
  const OptionFacts count{.name = "count", .least = 0};
  for (const char* word : {"1.5", "0x10", "3abc", "1e3", " 5", "5 ", "+5", "", "-", "-1", "nan",
                           "99999999999999999999", "\xd9\xa5"}) {
    const std::string found = fmt::format("found '{}'", word);
    CHECK(OptionValue<Index>::complaint(count, word).ends_with(found));
    CHECK_THROWS_WITH(OptionValue<Index>::parse(count, word), Catch::Matchers::EndsWith(found));
  }
  CHECK(OptionValue<Index>::parse(count, "007") == 7);
  for (const char* word : {"0x10", "3abc", "1e999", "1e-999", " 5", "5 ", "+5", "", ".", "1,5", "nan", "NaN",
                           "inf", "-inf", "infinity", "0x1p-1"}) {
    const std::string found = fmt::format("found '{}'", word);
    CHECK(OptionValue<double>::complaint(count, word).ends_with(found));
    CHECK_THROWS_WITH(OptionValue<double>::parse(count, word), Catch::Matchers::EndsWith(found));
    CHECK_THROWS_WITH(OptionValue<Budget>::parse(evict_option::sigma, word),
                      Catch::Matchers::Contains(found));
  }
  for (const auto& [word, value] : {std::pair{"1e3", 1000.0}, {".5", 0.5}, {"5.", 5.0}, {"-1.25", -1.25}})
    CHECK(OptionValue<double>::parse(count, word) == value);
}

TEST_CASE("option: a value reads back as itself from its words and from JSON", "[options]") {
  EvictionOptions given, read;
  given.policies = policies_named({"snapkv+joint", "exchange+h2o"});
  given.policies.emplace_back();
  given.phases = {{Phase::Kind::blockwise, 32}, {Phase::Kind::append_only}};
  given.window = Positions::share(2.5);
  given.recent = Positions::share(100);
  given.sinks = 3;
  given.pool = Pooling{Pooling::Kind::avg, 5};
  given.on = SearchRows::future;
  given.per_query_head = true;
  given.channels = RuleAndRatio{*channel_rule_named("exchange+think"), 0.25};
  given.stored.formats = {OptionValue<CacheFormat>::parse({}, "4")};
  const Json json = to_json(bound(given));
  CHECK(json["policies"] == Json({"snapkv+joint", "exchange+h2o", "none"}));
  CHECK(json["budgets"] == Json({0.5, 0.8, 0.9}));
  CHECK(json["phases"] == Json({"blockwise:32", "append-only"}));
  CHECK(json["channels"] == "exchange+think:0.25");
  CHECK(json["group"] == 32);
  CHECK(json["window"] == "2.5%");
  CHECK(json["recent"] == "all");
  CHECK(json["sinks"] == 3);
  CHECK_FALSE(json.contains("decode_window"));
  CHECK_FALSE(to_json(bound(read)).contains("group"));

  const BoundOptions from = bound(given), to = bound(read);
  for (const OptionFacts* facts :
       {&evict_option::phase, &evict_option::window, &evict_option::sinks, &evict_option::recent,
        &evict_option::pool, &evict_option::on, &evict_option::channels, &evict_option::bits}) {
    const BoundOption& option = option_of(to, *facts);
    INFO(facts->name);
    option.read_json(json[option.key], "JSON");
    CHECK(option.write() == option_of(from, *facts).write());
  }
  option_of(to, evict_option::phase).read({"prefill", "decode"});
  CHECK(to_json(to)["phases"] == Json({"prefill", "decode"}));
  option_of(to, evict_option::policy).read({"none", "tova+key"});
  CHECK(to_json(to)["policies"] == Json({"none", "tova+key"}));
}

TEST_CASE("option: a budget is tokens or a ratio by its option, and its label says which", "[options]") {
  EvictionOptions options;
  const BoundOptions all = bound(options);
  option_of(all, evict_option::budget).read({"1", "80"});
  CHECK(to_json(all)["budgets"] == Json({1, 80}));
  option_of(all, evict_option::sigma).read({"0.8"});
  CHECK(to_json(all)["budgets"] == Json({0.8}));
  CHECK(budget_labelled("80")->tokens == 80);
  CHECK(budget_labelled("0")->tokens == 0);
  CHECK(budget_labelled("1e-05")->sigma == 1e-05);
  CHECK(budget_labelled("0.8")->kept(100, Semantics::paper) == 20);
  CHECK_FALSE(budget_labelled("mixed"));
}

TEST_CASE("option: no two of an analysis share a name or a key", "[options]") {
  EvictionOptions evict;
  BudgetOptions budget;
  ChannelOptions channels;
  for (const BoundOptions& options : {bound(evict), bound(budget), bound(channels)}) {
    std::set<std::string_view> names;
    std::set<std::string> keys;
    for (const BoundOption& option : options) {
      INFO(option.facts->name);
      CHECK(names.insert(option.facts->name).second);
      if (!option.key.empty()) CHECK(keys.insert(option.key).second);
      CHECK_FALSE(option.facts->meaning.empty());
      std::vector<const OptionFacts*> others = option.excludes;
      others.push_back(option.needs);
      for (const OptionFacts* other : others)
        if (other != nullptr)
          CHECK(std::any_of(options.begin(), options.end(),
                            [&](const BoundOption& o) { return o.facts == other; }));
    }
  }
}

}  // namespace
}  // namespace kvreplay
