#include "analysis/report/sections.hpp"
namespace kvreplay::report {
Section budget_section(const Tables&) { return {"budget", "budget", "later", {}, ""}; }
}
