// The panel that holds what the model lost against what was predicted.

#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"

#include <filesystem>
#include <string>

using namespace kvreplay;
using namespace kvreplay::viewer;
using test::kSample;

TEST_CASE("the validation panel has every case of its setting, by every figure", "[panels]") {
  const test::TempDir dir;
  const std::filesystem::path results = test::validated_results(dir.path());
  test::OnePanelDashboard panel(PanelKind::validation, results, 700, 420, 0, 0);
  CHECK(panel.failed_job().empty());
  const std::string csv = panel.csv();
  CHECK(csv.starts_with(
      "policy,semantics,phase,budget,metric,predicted,kl\nh2o,paper,prefill,0.5,output_error,"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 1 + 3 * 3);
  CHECK(csv.find("oracle,paper,prefill,0.5,eviction_loss,") != std::string::npos);
  CHECK(csv.find(",0.08\n") != std::string::npos);

  std::filesystem::remove(results / "validate.csv");  // seen while the dashboard is open
  panel.perform(ActionId::reload);
  CHECK(panel.csv().empty());
}

TEST_CASE("the validation panel of what was not measured says so", "[panels]") {
  test::OnePanelDashboard panel(PanelKind::validation, kSample, 700, 420, 0, 0);
  CHECK(panel.failed_job().empty());
  CHECK(panel.csv().empty());
}
