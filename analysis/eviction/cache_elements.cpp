#include "analysis/eviction/cache_elements.hpp"

#include <algorithm>

namespace kvreplay {

CacheElements cache_elements(const Dump& dump) {
  const auto size = [&](Tensor tensor) {
    const auto& files = dump.files();
    const auto file =
        std::find_if(files.begin(), files.end(), [&](const DumpFile& f) { return f.tensor == tensor; });
    return file == files.end() ? Index{0} : static_cast<Index>(size_of(file->dtype));
  };
  return {size(Tensor::k), size(Tensor::v)};
}

}  // namespace kvreplay
