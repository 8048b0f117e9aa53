#include "data/error.hpp"
#include "sim/channels/output_interaction.hpp"
#include "tests/sim/output_interaction_cases.hpp"
#include "tests/support/catch.hpp"

#include <vector>

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

void check_interaction(const HeadGroup<float>& group, RowRange rows, const PrunableKeys& keys) {
  Workers workers(1);
  const Matrix<double> got = output_interaction_cuda(group, rows, keys, workers);
  CHECK(mismatch("M", output_interaction_reference(to_double(group), rows, keys), got, kInteractionSingle) ==
        "");
  CHECK(same_bytes(got, got.transpose()));
}

}  // namespace

TEST_CASE("CUDA output interactions agree with the definition", "[cuda]") {
  for (const InteractionCase& c : interaction_cases()) {
    const HeadGroup<double> wide = random_group(c.spec);
    const HeadGroup<float> group = to_float(wide);
    const std::vector<RowRange> sets = row_sets(wide);
    std::size_t number = 0;
    for (const PrunableKeys& keys : key_sets(c.spec.l)) {
      const RowRange rows = sets[number++ % sets.size()];
      INFO(c.name << ", keys " << number << ", rows " << rows.begin << " to " << rows.end);
      check_interaction(group, rows, keys);
    }
  }
}

TEST_CASE("CUDA output interactions agree with the definition across tiles and blocks of rows", "[cuda]") {
  // Tiles are 64 wide; 256 rows are worked on at once.
  for (const GroupSpec& spec : std::vector<GroupSpec>{
           {.l = 90, .T = 92, .T_q = 70, .G = 4, .d = 3, .d_v = 5, .seed = 861},
           {.l = 140, .T = 141, .T_q = 3, .d = 65, .d_v = 130, .attention_sink = 0, .seed = 862},
           {.l = 70, .T = 70, .T_q = 2, .G = 1, .d = 129, .d_v = 64, .sink_logit = 1.0, .seed = 863}}) {
    const HeadGroup<float> group = to_float(random_group(spec));
    INFO("d = " << spec.d << ", d_v = " << spec.d_v);
    check_interaction(group, {group.first_query(), group.T_all()}, prompt_keys(spec.l, 4));
  }
}

TEST_CASE("CUDA output interactions are the same to the bit in two runs", "[cuda]") {
  Workers workers(1);
  const HeadGroup<float> group = to_float(random_group({.T_q = 12, .d = 33, .d_v = 17}));
  const RowRange rows{group.first_query(), group.T_all()};
  const PrunableKeys keys = prompt_keys(group.l, 8);
  CHECK(same_bytes(output_interaction_cuda(group, rows, keys, workers),
                   output_interaction_cuda(group, rows, keys, workers)));
}

TEST_CASE("CUDA output interactions refuse numbers beyond float32", "[cuda]") {
  Workers workers(1);
  const HeadGroup<double> sound = random_group({.T_q = 12});
  const RowRange rows{sound.first_query(), sound.T_all()};
  const PrunableKeys keys = prompt_keys(sound.l, 8);
  HeadGroup<double> large = sound;
  large.k.row(5) *= 1e37;
  for (HeadMatrix<double>& q : large.q) q *= 1e10;
  CHECK_THROWS_AS(output_interaction_cuda(to_float(large), rows, keys, workers), InputError);
  large = sound;
  large.v *= 1e30;
  CHECK_THROWS_AS(output_interaction_cuda(to_float(large), rows, keys, workers), InputError);
}
