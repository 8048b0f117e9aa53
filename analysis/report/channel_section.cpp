#include "analysis/report/sections.hpp"
namespace kvreplay::report {
Section channel_section(const Tables&) { return {"channel", "channel", "later", {}, ""}; }
}
