#include "analysis/report/sections.hpp"
namespace kvreplay::report {
Section eviction_section(const Tables&) { return {"eviction", "eviction", "later", {}, ""}; }
}
