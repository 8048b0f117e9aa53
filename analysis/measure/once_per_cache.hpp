#pragma once

#include "data/dump.hpp"
#include "sim/head_group.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace kvreplay {

/// use() of the group with all that read its cache: itself, where it is alone.
template <class T, class Use>
auto with_readers(const Dump& dump, const HeadGroup<T>& group, const Use& use) {
  if (dump.readers(group.layer).size() == 1) return use(group);
  return use(load_readers<T>(dump, group.layer, group.kv_head));
}

/// Results computed once per cache, for every layer that reads it. Several threads may call at once, each for
/// another head.
template <class Found>
class OncePerCache {
 public:
  explicit OncePerCache(const Dump& dump) : dump_(dump) {}

  /// The result of make(), or of make() of an earlier reader of the cache. Kept until the last reader
  /// requests it.
  template <class Make>
  std::shared_ptr<const Found> of(Index layer, Index kv_head, const Make& make) {
    const std::pair key(dump_.cache_of(layer), kv_head);
    const bool last = dump_.readers(layer).back() == layer;
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = found_.find(key); at != found_.end())
        return last ? std::move(found_.extract(at).mapped()) : at->second;
    }
    auto made = std::make_shared<const Found>(make());
    const std::lock_guard lock(mutex_);
    if (!last) found_[key] = made;
    return made;
  }

 private:
  const Dump& dump_;
  std::mutex mutex_;
  std::map<std::pair<Index, Index>, std::shared_ptr<const Found>> found_;
};

}  // namespace kvreplay
