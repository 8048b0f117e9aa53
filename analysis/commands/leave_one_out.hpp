#pragma once

#include "analysis/commands/run_command.hpp"
#include "analysis/results/dump_set.hpp"

#include <string>
#include <vector>

// Head budgets of several dumps, each divided by the mean profile of the other ones: what a method can have
// that is not to know the decoding steps.

namespace kvreplay {

/// Which dumps have profiles of others to take, and under which orders.
struct LeaveOneOut {
  std::vector<std::string> names;   ///< in DumpSet, none or two and more
  std::vector<std::string> orders;  ///< that all of these dumps have
  std::vector<LeftOut> left_out;
};
LeaveOneOut leave_one_out_of(const DumpSet& set);

/// A run into `options.out`/leave_one_out/<name>/ for each, once the single folders hold the profiles; what
/// is there of other profiles is replaced. Returns the exit code.
int run_leave_one_out(const Invocation& invocation, const CommonOptions& options, const DumpSet& set,
                      const LeaveOneOut& which, const MakeByProfile& make);

}  // namespace kvreplay
