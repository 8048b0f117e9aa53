#include "analysis/measure/case_outputs.hpp"

#include "tests/support/catch.hpp"
#include "tests/support/index_sets.hpp"
#include "tests/support/random_group.hpp"

#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

const GroupSpec kSpec{.l = 60, .T = 70, .d = 8, .d_v = 8};

void check_each_alone(const std::vector<CacheCase>& cases) {
  Workers workers(2);
  const Compute compute(workers);
  const HeadGroup<float> group = converted<float>(random_group(kSpec));
  const RowRange window{40, 60}, future{60, 70};
  const CaseOutputs<float> all = case_outputs(group, window, future, cases, true, compute);
  for (std::size_t c = 0; c < cases.size(); ++c) {
    INFO("case " << c);
    const CaseOutputs<float> one =
        case_outputs(group, window, future, std::span(&cases[c], 1), true, compute);
    CHECK(all.window.change_sq.at(c) == one.window.change_sq[0]);
    CHECK(all.future.change_sq.at(c) == one.future.change_sq[0]);
    CHECK(all.window.change.at(c) == one.window.change[0]);
    CHECK(all.future.change.at(c) == one.future.change[0]);
  }
}

}  // namespace

TEST_CASE("cases that equal an earlier one, or differ in one thing, have figures of their own",
          "[case_outputs]") {
  const KeptSet all = every(kSpec.l, 1, 0), half = every(kSpec.l, 2, 0), third = every(kSpec.l, 3, 0);
  check_each_alone({{half}, {third}, {half}, {half}, {all}, {third}});

  const ChannelSet first{1, 1, 0, 0, 0, 0, 0, 0}, last{0, 0, 0, 0, 0, 0, 1, 1};
  const Quantization four = Quantization::kivi(4, 8, 4), two = Quantization::kivi(2, 8, 4);
  check_each_alone({{all, first, half},
                    {all, last, half},
                    {all, first, half},
                    {all, first, third},
                    {half, first, half},
                    {all, last, half, four},
                    {all, last, half, two},
                    {all, last, half},
                    {all, last, half, four}});
}
