#pragma once

#include "data/dump.hpp"

#include <optional>
#include <string>
#include <string_view>

// A place in the dashboard as a link: kvreplay://open?run=/data/x&panel=heads&layer=3&head=1. `kvreplay view`
// takes it in place of a path.

namespace kvreplay {

struct ViewLink {
  std::string run = {};   ///< of a dump or a result folder; in a part of a link empty
  std::string dump = {};  ///< the dump's fingerprint(): of what make it has to be; empty: any
  std::string panel = {}, score = {}, reference = {};  ///< names of the dashboard; empty: as it opens
  std::optional<Index> layer = {}, kv_head = {}, query_head = {}, row = {}, token = {}, window = {};
  bool operator==(const ViewLink&) const = default;
};

inline constexpr std::string_view kLinkBegin = "kvreplay://open?";

/// True if the text is intended as a link: it begins with kvreplay:
bool is_view_link(std::string_view text);
/// Keys that say nothing are left out.
std::string text_of(const ViewLink& link);
/// Throws InputError, one line, where it is no link: an unknown or doubled key, no run, a number that is
/// none, a broken escape.
ViewLink view_link(std::string_view text);

}  // namespace kvreplay
