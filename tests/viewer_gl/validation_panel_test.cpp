// The panel that holds what the model lost against what was predicted.

#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer_gl/dashboard.hpp"
#include "tests/viewer_gl/drawn_frame.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
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
  CHECK(
      csv.starts_with("policy,semantics,phase,budget,metric,predicted,kl,kl_answer,right\nh2o,paper,prefill,"
                      "0.5,output_error,"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 1 + 3 * 3);
  CHECK(csv.find("oracle,paper,prefill,0.5,eviction_loss,") != std::string::npos);
  CHECK(csv.find(",0.08,,\n") != std::string::npos);

  std::filesystem::remove(results / "validate.csv");  // seen while the dashboard is open
  panel.perform(ActionId::reload);
  CHECK(panel.csv().empty());
}

TEST_CASE("of a question the validation panel says over which cases the answer stays right", "[panels]") {
  const test::TempDir dir;
  const std::filesystem::path results = test::validated_results(dir.path());
  test::OnePanelDashboard plain(PanelKind::validation, results, 700, 420, 0, 0);
  const auto drawn = [](const std::string& text) {
    return std::ranges::any_of(test::drawn_texts(), [&](const test::DrawnText& one) {
      return one.text.find(text) != std::string::npos;
    });
  };
  CHECK_FALSE(drawn("theanswer"));
  test::write_file(
      results / "answers.csv",
      "policy,semantics,phase,budget,kept,right,score,first_other,nll,margin,kl_question,kl_answer,"
      "needles_kept,needles_anywhere,answer\n"
      "streaming,paper,prefill,0.5,30,0,0.5,2,1.5,-0.25,0.1,0.4,0.25,1,no\n"
      "h2o,paper,prefill,0.5,30,1,1,,0.1,2,0.1,0.002,1,1,yes\n"
      "oracle,paper,prefill,0.5,30,1,1,,0.1,2,0.1,0.001,1,1,yes\n");
  test::OnePanelDashboard panel(PanelKind::validation, results, 700, 420, 0, 0);
  const std::string csv = panel.csv();
  CHECK(csv.find(",0.08,0.4,0\n") != std::string::npos);
  CHECK(csv.find(",0.04,0.002,1\n") != std::string::npos);
  CHECK(drawn("answer2of3"));
  CHECK(drawn("theanswer"));
  const auto before = panel.host.pixels();
  CHECK(before != plain.host.pixels());
  panel.app.panel(panel.kind).load({{"measured", "kl_answer"}});
  panel.settle();
  CHECK(panel.host.pixels() != before);
  CHECK(drawn("KLmeasuredontheanswer,"));
  CHECK(test::layout_defects().empty());
  CHECK(panel.failed_job().empty());
}

TEST_CASE("the validation panel of what was not measured says so", "[panels]") {
  test::OnePanelDashboard panel(PanelKind::validation, kSample, 700, 420, 0, 0);
  CHECK(panel.failed_job().empty());
  CHECK(panel.csv().empty());
}

TEST_CASE("validation and recipes have tabs only where there are data", "[panels]") {
  const test::TempDir dir;
  const auto has_tab = [](const std::string& title) {
    return std::ranges::any_of(test::drawn_texts(),
                               [&](const test::DrawnText& one) { return one.text == title; });
  };
  {
    const test::Dashboard dump(kSample, 1900, 1000);
    CHECK(has_tab("Decode"));
    CHECK_FALSE(has_tab("Validation"));
    CHECK_FALSE(has_tab("Recipes"));
  }
  const std::filesystem::path folder = test::validated_results(dir.path());
  test::Dashboard results(folder, 1900, 1000);
  CHECK(has_tab("Validation"));
  CHECK(has_tab("Recipes"));
  std::filesystem::remove(folder / "validate.csv");
  results.app.show(PanelKind::validation);  // an empty panel can still be looked for
  results.settle();
  CHECK(has_tab("Validation"));
}
