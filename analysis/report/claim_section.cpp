#include "analysis/report/sections.hpp"
namespace kvreplay::report {
Section claim_section(const Tables&) { return {"claim", "claim", "later", {}, ""}; }
}
