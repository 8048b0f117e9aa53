#include "analysis/commands/leave_one_out.hpp"

#include "data/console.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace kvreplay {
namespace {

constexpr const char* kWhat = "budgets divided by the profile of the other prompts";

/// The orders of a dump's budgets; none where the run has none of it.
std::vector<std::string> orders_of(const DumpSet::Entry& entry) {
  const Json::json_pointer orders("/options/budget/orders");
  return entry.settings.contains(orders) ? entry.settings[orders].get<std::vector<std::string>>()
                                         : std::vector<std::string>();
}

}  // namespace

LeaveOneOut leave_one_out_of(const DumpSet& set) {
  LeaveOneOut which;
  std::vector<std::string> any, without;
  std::size_t with = 0;
  for (const DumpSet::Entry& entry : set.entries()) {
    const std::vector<std::string> orders = orders_of(entry);
    (orders.empty() ? without : which.names).push_back(entry.name);
    if (orders.empty()) continue;
    for (const std::string& order : orders)
      if (std::find(any.begin(), any.end(), order) == any.end()) any.push_back(order);
    if (++with == 1) which.orders = orders;
    std::erase_if(which.orders, [&](const std::string& order) {
      return std::find(orders.begin(), orders.end(), order) == orders.end();
    });
  }
  if (with == 0) return which;  // such is the command, or every dump says why
  if (with == 1 || which.orders.empty()) {
    which.left_out.push_back({kWhat, with == 1 ? fmt::format("{} alone has budgets", which.names.front())
                                               : "the dumps have no order in common"});
    which.names.clear();
    return which;
  }
  for (const std::string& name : without)
    which.left_out.push_back({fmt::format("{}, of {}", kWhat, name), "it has no budgets"});
  for (const std::string& order : any)
    if (std::find(which.orders.begin(), which.orders.end(), order) == which.orders.end())
      which.left_out.push_back({fmt::format("{}, under the order {}", kWhat, order), "some dumps lack it"});
  return which;
}

int run_leave_one_out(const Invocation& invocation, const CommonOptions& options, const DumpSet& set,
                      const LeaveOneOut& which, const MakeByProfile& make) {
  const std::filesystem::path out = options.out;
  std::size_t at = 0;
  for (const DumpSet::Entry& entry : set.entries()) {
    if (std::find(which.names.begin(), which.names.end(), entry.name) == which.names.end()) continue;
    std::vector<std::string> files;
    for (const std::string& other : which.names)
      if (other != entry.name) files.push_back((out / other / "curves" / "{order}~lu.npy").string());
    CommonOptions one = options;
    one.dump = entry.path;
    one.out = (out / kLeaveOneOut / entry.name).string();
    one.label = fmt::format("others' profiles {}/{} {}", ++at, which.names.size(), displayable(entry.name));
    one.renew = true;
    const int code = run_into_folder(invocation, one, [&](const Dump& dump, const Compute& compute) {
      ChosenStages chosen;
      chosen.stages.push_back(make(dump, compute, which.orders, files));
      return chosen;
    });
    if (code != 0) return code;
  }
  return 0;
}

}  // namespace kvreplay
