#include "analysis/commands/part_options.hpp"

#include "analysis/results/figures.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay {
namespace {

const BoundOption* option_named(const OptionsOfPart& part, std::string_view name) {
  const auto found = std::find_if(part.options.begin(), part.options.end(),
                                  [&](const BoundOption& one) { return one.facts->name == name; });
  return found == part.options.end() ? nullptr : &*found;
}

}  // namespace

PartOptions::PartOptions(CommandLine& app, const std::vector<OptionsOfPart>& parts,
                         std::span<const SharedOption> shared) {
  const auto add = [&](const std::string& name, const OptionFacts& facts, std::vector<BoundOption> bound,
                       std::vector<std::string_view> of, const std::string& group) {
    CLI::Option* const option = app.add(name, facts, std::move(bound))->group(group);
    named_.push_back({option, name, std::move(of)});
    return option;
  };
  for (const SharedOption& one : shared) {
    std::vector<BoundOption> all;
    for (const OptionsOfPart& part : parts)
      if (const BoundOption* const option = option_named(part, one.facts.name);
          option != nullptr && is_in(one.parts, part.name))
        all.push_back(BoundOption(*option).saying(""));
    add(std::string(one.facts.name), one.facts, all, {one.parts.begin(), one.parts.end()},
        "Options of several parts (--PART.NAME for one alone)");
  }
  const auto group_of = [](const OptionsOfPart& part) {
    return fmt::format("Options of {} (--{}.NAME too)", part.name, part.name);
  };
  for (const OptionsOfPart& part : parts)
    for (const BoundOption& option : part.options) {
      const std::string name(option.facts->name);
      const auto have_it = std::count_if(parts.begin(), parts.end(), [&](const OptionsOfPart& other) {
        return option_named(other, name) != nullptr;
      });
      if (find(name) == nullptr && have_it == 1)
        add(name, *option.facts, {option}, {part.name}, group_of(part));
    }
  for (const OptionsOfPart& part : parts)
    for (const BoundOption& option : part.options) {
      const Named* const plain = find(std::string(option.facts->name));
      const bool has_plain = plain != nullptr && is_in(plain->parts, part.name);
      CLI::Option* const added = add(fmt::format("{}.{}", part.name, option.facts->name), *option.facts,
                                     {option}, {part.name}, group_of(part));
      if (has_plain) app.hide(added);  // the help has each once
    }
  for (const OptionsOfPart& part : parts)
    for (const BoundOption& option : part.options)
      for (const std::string& before : {std::string(), fmt::format("{}.", part.name)}) {
        const auto there = [&](const OptionFacts* facts) {
          return facts == nullptr ? nullptr
                                  : app.get_option_no_throw(fmt::format("--{}{}", before, facts->name));
        };
        CLI::Option* const mine = there(option.facts);
        if (mine == nullptr) continue;
        for (const OptionFacts* const excluded : option.excludes)
          if (CLI::Option* const other = there(excluded)) mine->excludes(other);
        if (CLI::Option* const other = there(option.needs)) mine->needs(other);
      }
}

const PartOptions::Named* PartOptions::find(const std::string& name) const {
  const auto found =
      std::find_if(named_.begin(), named_.end(), [&](const Named& one) { return one.name == name; });
  return found == named_.end() ? nullptr : &*found;
}

void PartOptions::require_used(const std::vector<std::string>& running) const {
  for (const Named& one : named_) {
    const bool used = std::any_of(running.begin(), running.end(),
                                  [&](const std::string& part) { return is_in(one.parts, part); });
    if (one.option->count() > 0 && !used)
      throw OptionError(option_text("{}: an option of {}, which {} not run", OptionFacts{.name = one.name},
                                    fmt::join(one.parts, ", "), one.parts.size() == 1 ? "does" : "do"));
  }
}

bool PartOptions::mention(std::string_view part) const {
  return std::any_of(named_.begin(), named_.end(), [&](const Named& one) {
    return one.option->count() > 0 && one.parts.size() == 1 && one.parts.front() == part;
  });
}

OptionText PartOptions::called_here(const OptionText& complaint, std::string_view part) const {
  OptionText text = complaint;
  for (const Named& one : named_) {
    if (!one.name.starts_with(fmt::format("{}.", part))) continue;
    const std::string own = one.name.substr(part.size() + 1);
    const Named* const plain = find(own);
    if (plain == nullptr || !is_in(plain->parts, part)) text = text.naming(own, one.name);
  }
  return text;
}

}  // namespace kvreplay
