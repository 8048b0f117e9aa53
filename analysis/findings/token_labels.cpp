#include "analysis/findings/token_labels.hpp"

#include "analysis/run/run.hpp"
#include "data/console.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

namespace kvreplay {

std::optional<Dump> dump_of(const ResultReader& results) {
  const auto& stated = results.summary()["dump"];
  for (const std::filesystem::path& candidate : results.dump_paths()) {
    try {
      DumpOptions options;
      options.prompt_len = results.shape().l;
      Dump dump = Dump::open(candidate, options);
      if (dump.shape().T == results.shape().T &&
          fingerprint(dump) == stated.value("fingerprint", std::string()))
        return dump;
    } catch (const InputError&) {  // results are complete without their dump
    }
  }
  return std::nullopt;
}

std::optional<TokenLabels> token_labels_of(const ResultReader& results) {
  const std::optional<Dump> dump = dump_of(results);
  return dump ? dump->tokens() : std::nullopt;
}

std::string quoted_token(const std::optional<TokenLabels>& labels, Index token) {
  constexpr std::size_t kLongest = 40;
  if (!labels || token < 0 || token >= std::ssize(labels->text)) return "";
  return fmt::format("'{}'", displayable(labels->text[static_cast<std::size_t>(token)], kLongest));
}

}  // namespace kvreplay
