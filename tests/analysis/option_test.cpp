#include "analysis/options/option.hpp"

#include "analysis/budgets/budget_options.hpp"
#include "analysis/eviction/eviction_options.hpp"
#include "data/atomic_file.hpp"
#include "tests/support/temp_dir.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
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
