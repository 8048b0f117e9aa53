#include "data/error.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/what_if.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

// Data that all requests about one setting of What if share, independent of the head.

/// Settings made into a plan, or why they cannot be.
struct SettledWhatIf {
  WhatIfSettings settings;
  Key key, plain_key, ranking_key;           ///< of all, of what is kept, of what ranks it
  std::shared_ptr<const EvictionPlan> plan;  ///< null where `error` says why
  std::shared_ptr<const CompensationPlan> compensation;
  KeptPaint paint;
  std::optional<UserScore> score;  ///< that the settings name
  std::string error;
};

/// State of one run's requests that is kept for the next frame. Drawing thread only.
class WhatIfMemo {
 public:
  /// Settings without a score of the user's.
  std::shared_ptr<const SettledWhatIf> settle(const WhatIfSettings& settings, const Dump& dump);
  /// The last answer given in a slot; null where none was.
  void remember(const Key& slot, const std::shared_ptr<const WhatIf>& answer);
  std::shared_ptr<const WhatIf> last_of(const Key& slot) const;

 private:
  static constexpr std::size_t kSettled = 32, kLast = 16;
  std::vector<std::shared_ptr<const SettledWhatIf>> settled_;        // newest first
  std::vector<std::pair<Key, std::shared_ptr<const WhatIf>>> last_;  // of each slot, newest first
};

SettledWhatIf settled(const WhatIfSettings& settings, const Dump& dump, const UserScore* score) {
  SettledWhatIf made;
  made.settings = settings;
  if (score != nullptr) made.score = *score;
  const Key given = score != nullptr ? score->key() : Key();
  made.key = {to_json(settings).dump(), given};
  made.plain_key = {to_json(settings.without_compensation()).dump(), given};
  try {
    made.paint = KeptPaint::of_text(settings.painted);
    const auto plan = std::make_shared<const EvictionPlan>(what_if_plan(settings, dump, score));
    made.compensation =
        std::make_shared<const CompensationPlan>(what_if_compensation(settings, dump, *plan, score));
    made.plan = plan;
    made.ranking_key = {score_key(*made.plan), given};
  } catch (const InputError& error) {
    made.error = error.what();
  }
  return made;
}

std::shared_ptr<const SettledWhatIf> WhatIfMemo::settle(const WhatIfSettings& settings, const Dump& dump) {
  const auto known =
      std::find_if(settled_.begin(), settled_.end(), [&](const auto& s) { return s->settings == settings; });
  if (known != settled_.end()) {
    std::rotate(settled_.begin(), known, known + 1);
    return settled_.front();
  }
  settled_.insert(settled_.begin(), std::make_shared<const SettledWhatIf>(settled(settings, dump, nullptr)));
  if (settled_.size() > kSettled) settled_.pop_back();
  return settled_.front();
}

void WhatIfMemo::remember(const Key& slot, const std::shared_ptr<const WhatIf>& answer) {
  if (slot.empty()) return;
  std::erase_if(last_, [&](const auto& item) { return item.first == slot; });
  last_.insert(last_.begin(), {slot, answer});
  if (last_.size() > kLast) last_.pop_back();
}

std::shared_ptr<const WhatIf> WhatIfMemo::last_of(const Key& slot) const {
  for (const auto& [name, answer] : last_)
    if (name == slot) return answer;
  return nullptr;
}

/// The queue keeps it, so that it goes with the run: the queue's own slots know nothing of a request that
/// cannot be put yet, because another must be answered first. Null for the moment that it takes to make it.
std::shared_ptr<WhatIfMemo> what_if_memo(PanelContext& context, const Run& run) {
  const JobRequest request{
      .key = {run.key(), "what_if_memo"}, .title = "Settings of What if", .urgency = Urgency::now};
  const auto answer = context.queue.ask<std::shared_ptr<WhatIfMemo>>(
      request, [](JobControl&) { return std::make_shared<WhatIfMemo>(); });
  return answer ? *answer : nullptr;
}

/// With a score of the user's: its file is read, which is a job.
Answer<SettledWhatIf> ask_settled(PanelContext& context, const std::shared_ptr<const Run>& run,
                                  const WhatIfSettings& settings, const UserScore& score, Urgency urgency) {
  const JobRequest request{.key = {run->key(), "what_if_settings", to_json(settings).dump(), score.key()},
                           .title = fmt::format("Settings with the score {}", score.name),
                           .urgency = urgency};
  return context.queue.ask<SettledWhatIf>(
      request, [run, settings, score](JobControl&) { return settled(settings, *run->dump(), &score); });
}

/// One head's request and what all its steps have in common.
struct Asked {
  /// Budgets that are looked at to find the one that evicts a token; few where each ranks anew.
  static constexpr std::size_t kLooks = 48, kFewLooks = 2;
  /// A KV head's part of the user's score; empty where the settings name none.
  using GivenOfHead = std::function<GivenScores(Index)>;

  PanelContext& context;
  std::shared_ptr<const Run> run;
  std::shared_ptr<const SettledWhatIf> settled;
  Index layer, kv_head;
  Urgency urgency;

  std::string where() const { return run->head_text(layer, kv_head); }
  JobRequest request(const Key& key, std::string title) const {
    return {.key = {run->key(), key},
            .title = std::move(title),
            .urgency = urgency,
            .all_cores = urgency < Urgency::background};
  }

  Answer<WhatIfLayer> layer_scores(const GivenOfHead& given) const {
    return context.queue.ask<WhatIfLayer>(
        request({"what_if_layer", layer, settled->ranking_key},
                fmt::format("Ranking, layer {}", run->layer_number(layer))),
        [run = run, plan = settled->plan, layer = layer, given](JobControl& job) {
          return what_if_layer(
              *plan, run->shape(), [&](Index g) { return run->readers(layer, g); }, given, job);
        });
  }

  Answer<WhatIfRanking> ranking(std::shared_ptr<const WhatIfLayer> shared, const GivenOfHead& given) const {
    return context.queue.ask<WhatIfRanking>(
        request({"what_if_ranking", layer, kv_head, settled->ranking_key}, "Ranking, " + where()),
        [run = run, plan = settled->plan, layer = layer, kv_head = kv_head, shared = std::move(shared),
         given](JobControl& job) {
          return what_if_ranking(*run->readers(layer, kv_head), *plan, shared.get(), given(kv_head), job);
        });
  }

  Answer<WhatIfImportance> importance() const {
    return context.queue.ask<WhatIfImportance>(
        request({"what_if_importance", layer, kv_head}, "Importance, " + where()),
        [run = run, layer = layer, kv_head = kv_head](JobControl& job) {
          return what_if_importance(*run->head(layer, kv_head), job, run->readers(layer, kv_head).get());
        });
  }

  Answer<WhatIf> plain(std::shared_ptr<const WhatIfRanking> ranking,
                       std::shared_ptr<const WhatIfImportance> importance) const {
    return context.queue.ask<WhatIf>(
        request({"what_if", layer, kv_head, settled->plain_key},
                fmt::format("What if {}, {}", settled->settings.policy(), where())),
        [run = run, settled = settled, layer = layer, kv_head = kv_head, ranking = std::move(ranking),
         importance = std::move(importance)](JobControl& job) {
          return what_if(*run->head(layer, kv_head), *settled->plan, *ranking, *importance, job,
                         settled->paint.of_head({layer, kv_head}), run->readers(layer, kv_head).get());
        });
  }

  bool compensates() const { return !settled->compensation->cases.empty(); }

  /// True if the rows are cached for the next budget: those of one head, or of all heads in the background,
  /// must not take more than half of the cache's limit.
  bool rows_stay() const {
    const DumpShape& shape = run->shape();
    const auto heads =
        static_cast<std::size_t>(urgency >= Urgency::background ? shape.layers * shape.n_kv : 1);
    return rows_bytes(*settled->compensation, shape) <= context.queue.cache_limit() / 2 / heads;
  }

  Answer<WhatIfRows> rows() const {
    return context.queue.ask<WhatIfRows>(
        request({"what_if_rows", layer, kv_head, rows_key(*settled->compensation)},
                "Queries to compensate on, " + where()),
        [run = run, settled = settled, layer = layer, kv_head = kv_head](JobControl& job) {
          return what_if_rows(run->head(layer, kv_head), *settled->compensation, job,
                              run->readers(layer, kv_head));
        });
  }

  /// Null `rows` are computed with it.
  Answer<WhatIf> compensated(std::shared_ptr<const WhatIf> plain,
                             std::shared_ptr<const WhatIfRows> rows) const {
    return context.queue.ask<WhatIf>(
        request({"what_if", layer, kv_head, settled->key},
                fmt::format("What if {} with {}, {}", settled->settings.policy(),
                            name_of(settled->settings.compensation), where())),
        [run = run, settled = settled, layer = layer, kv_head = kv_head, plain = std::move(plain),
         rows = std::move(rows)](JobControl& job) {
          const CompensationPlan& plan = *settled->compensation;
          if (rows != nullptr) return what_if_compensated(*settled->plan, plan, *rows, *plain, job);
          return what_if_compensated(
              *settled->plan, plan,
              what_if_rows(run->head(layer, kv_head), plan, job, run->readers(layer, kv_head)), *plain, job);
        });
  }

  /// True if a step has no value: it is pending or has failed. Then copies its state into the answer to the
  /// whole.
  template <class Whole>
  static bool waits_for(const auto& step, Answer<Whole>& whole) {
    if (step) return false;
    whole.pending = step.pending;
    whole.error = step.error;
    return true;
  }

  /// The steps to the ranking, in turn.
  Answer<WhatIfRanking> ask_ranking() const {
    Answer<WhatIfRanking> found;
    GivenOfHead given = [](Index) { return GivenScores{}; };
    if (settled->score) {
      const Answer<UserScoreValues> read = ask_user_score(context.queue, run, *settled->score, urgency);
      if (waits_for(read, found)) return found;
      given = [values = read.value, first = layer * run->shape().n_kv, l = run->shape().l](Index g) {
        return values->of_head(first + g, l);
      };
    }
    Answer<WhatIfLayer> shared;
    if (ranks_by_layer(*settled->plan)) {
      shared = layer_scores(given);
      if (waits_for(shared, found)) return found;
    }
    return ranking(shared.value, given);
  }

  Answer<WhatIfScores> ask_scores() const {
    Answer<WhatIfScores> found;
    const Answer<WhatIfRanking> ranked = ask_ranking();
    if (waits_for(ranked, found)) return found;
    return context.queue.ask<WhatIfScores>(
        request({"what_if_scores", layer, kv_head, settled->plain_key},
                fmt::format("Scores of {}, {}", settled->settings.policy(), where())),
        [plan = settled->plan, ranking = ranked.value](JobControl&) {
          return what_if_scores(*plan, *ranking);
        });
  }

  /// Settings must have the whole prompt as budget: all other budgets share the ranking.
  Answer<LeastBudget> ask_least_budget(Index token) const {
    Answer<LeastBudget> found;
    const EvictionPlan& whole = *settled->plan;
    const EvictionRule& rule = whole.runs.front().rules.front();
    if (rule.exchanges()) {
      found.error = "searches anew at every budget";
      return found;
    }
    const Answer<WhatIfRanking> ranked = ask_ranking();
    if (waits_for(ranked, found)) return found;
    const bool costly = rule.block > 0 || whole.cases.front().phase.kind == Phase::Kind::blockwise;
    return context.queue.ask<LeastBudget>(
        request({"least_budget", layer, kv_head, settled->plain_key, token},
                fmt::format("Budgets of {} that keep token {}, {}", settled->settings.policy(), token,
                            run->head_text(layer, kv_head))),
        [run = run, settled = settled, layer = layer, kv_head = kv_head, token, costly,
         ranking = ranked.value](JobControl& job) {
          const std::shared_ptr<const HeadGroup<float>> readers = run->readers(layer, kv_head);
          const std::vector<MarkedToken> marks = settled->paint.of_head({layer, kv_head});
          const UserScore* score = settled->score ? &*settled->score : nullptr;
          WhatIfSettings at = settled->settings;
          return least_budget(run->shape().l, costly ? kFewLooks : kLooks, [&](Index budget) {
            job.check();
            at.budget = budget;
            return keeps(*readers, at, *run->dump(), score, *ranking, marks, token, job);
          });
        });
  }

  /// True if the settings keep the token; a budget below the number of pinned tokens keeps nothing.
  static bool keeps(const HeadGroup<float>& readers, const WhatIfSettings& settings, const Dump& dump,
                    const UserScore* score, const WhatIfRanking& ranking,
                    const std::vector<MarkedToken>& marks, Index token, JobControl& job) {
    try {
      const EvictionPlan plan = what_if_plan(settings, dump, score);
      return what_if_kept(readers, plan, ranking, marks, job)[token] != 0;
    } catch (const InputError&) {
      return false;
    }
  }

  /// All steps in turn; what needs nothing else is asked for at once.
  Answer<WhatIf> ask() const {
    Answer<WhatIf> found;
    Answer<WhatIfRows> looked_at;
    const bool asks_rows = compensates() && rows_stay();
    if (asks_rows) looked_at = rows();
    const Answer<WhatIfImportance> needed = importance();
    const Answer<WhatIfRanking> ranked = ask_ranking();
    if (waits_for(ranked, found) || waits_for(needed, found)) return found;
    Answer<WhatIf> kept = plain(ranked.value, needed.value);
    if (!compensates()) return kept;
    if (waits_for(kept, found)) return found;
    if (asks_rows && waits_for(looked_at, found)) return found;
    return compensated(kept.value, looked_at.value);
  }
};

/// A request about one head, once its settings are settled; until then, or where they cannot be followed,
/// the answer says so.
struct Put {
  std::shared_ptr<WhatIfMemo> memo;  // null where nothing can be asked
  std::optional<Asked> asked;

  template <class R>
  Put(PanelContext& context, const WhatIfSettings& settings, Index layer, Index kv_head, Urgency urgency,
      Answer<R>& found) {
    const std::shared_ptr<const Run>& run = context.run();
    if (run == nullptr) return;
    if (run->dump() == nullptr) {
      found.error = run->why_no_dump();
      return;
    }
    memo = what_if_memo(context, *run);
    if (memo == nullptr) {
      found.pending = true;
      return;
    }
    Answer<SettledWhatIf> settled;
    if (const UserScore* score = find_score(context.state.scores, settings.score))
      settled = ask_settled(context, run, settings, *score, urgency);
    else
      settled.value = memo->settle(settings, *run->dump());
    if (settled && settled->plan != nullptr) {
      asked.emplace(Asked{context, run, settled.value, layer, kv_head, urgency});
    } else {
      found.pending = settled.pending;
      found.error = settled ? settled->error : settled.error;
    }
  }
};

}  // namespace

Answer<WhatIf> ask_what_if(PanelContext& context, const WhatIfSettings& settings, Index layer, Index kv_head,
                           Urgency urgency, const Key& slot) {
  Answer<WhatIf> found;
  const Put put(context, settings, layer, kv_head, urgency, found);
  if (put.memo == nullptr) return found;
  if (put.asked) found = put.asked->ask();
  if (found) {
    put.memo->remember(slot, found.value);
  } else {
    found.value = put.memo->last_of(slot);
    found.stale = found.value != nullptr;
  }
  return found;
}

Answer<WhatIfScores> ask_scores(PanelContext& context, const WhatIfSettings& settings, Index layer,
                                Index kv_head, Urgency urgency) {
  Answer<WhatIfScores> found;
  const Put put(context, settings.without_compensation(), layer, kv_head, urgency, found);
  return put.asked ? put.asked->ask_scores() : found;
}

Answer<LeastBudget> ask_least_budget(PanelContext& context, const WhatIfSettings& settings, Index layer,
                                     Index kv_head, Index token, Urgency urgency) {
  Answer<LeastBudget> found;
  WhatIfSettings whole = settings.without_compensation();
  whole.linked = false;
  whole.sigma_budget = false;
  whole.sigma = WhatIfSettings().sigma;
  whole.budget = context.run()->shape().l;
  const Put put(context, whole, layer, kv_head, urgency, found);
  return put.asked ? put.asked->ask_least_budget(token) : found;
}

Answer<WhatIf> ask_kept_set(PanelContext& context, const WhatIfSettings& settings, Index layer, Index kv_head,
                            Urgency urgency, const Key& slot) {
  return ask_what_if(context, settings.without_compensation(), layer, kv_head, urgency, slot);
}

}  // namespace kvreplay::viewer
