#include "sim/tokens/token_metrics.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/compare.hpp"

#include <map>
#include <string>
#include <vector>

// Absolute values. The literals were computed from the definitions in 60-digit arithmetic (mpmath), exact
// errors by recomputing the attention; each case states its numbers in full.

using namespace kvreplay;
using namespace kvreplay::test;

namespace {

Matrix<double> matrix(const std::vector<std::vector<double>>& rows) {
  Matrix<double> out(std::ssize(rows), std::ssize(rows.front()));
  for (Index r = 0; r < out.rows(); ++r) {
    for (Index c = 0; c < out.cols(); ++c) {
      out(r, c) = rows[r][c];
    }
  }
  return out;
}

/// Five positions, two query heads, d = d_v = 2, scale 1/2.
HeadGroup<double> five_positions(Index l) {
  HeadGroup<double> group;
  group.l = l;
  group.rule.scale = 0.5;
  group.k = matrix({{2, 0}, {0, 2}, {1, -1}, {1, 1}, {-1, 2}});
  group.v = matrix({{1, 0}, {0, 2}, {-1, 1}, {3, -1}, {0, 1}});
  group.q = {matrix({{1, 1}, {1, 2}, {2, -1}, {0, 1}, {1, 1}}),
             matrix({{-1, 1}, {1, 0}, {0, -2}, {1, 1}, {2, 0}})};
  group.wo = {matrix({{1, 2, 0}, {0, 1, -1}}), matrix({{0, 1, 1}, {2, 0, 1}})};
  return group;
}

/// The first head alone, without output projection.
HeadGroup<double> first_head_of(HeadGroup<double> group) {
  group.q.resize(1);
  group.wo.clear();
  return group;
}

/// Three positions, one query of 1 at the last, d = 1: the keys are the logits.
HeadGroup<double> three_logits(const std::vector<double>& logits) {
  HeadGroup<double> group;
  group.l = 3;
  group.rule.scale = 1;
  group.k = matrix({{logits[0]}, {logits[1]}, {logits[2]}});
  group.v = matrix({{1, 2}, {3, -1}, {-2, 0.5}});
  group.q = {matrix({{1}})};
  return group;
}

using Expected = std::map<TokenMetric, std::vector<double>>;

/// Every metric in `expected`, to 1e-12 of the largest, and to 1e-12 of itself above `floor` times the
/// largest.
void check(const HeadGroup<double>& group, Index window, const Expected& expected, double floor = 1e-12) {
  TokenOptions options{window, false, {}};
  for (const auto& [metric, values] : expected) options.metrics.insert(metric);
  const TokenMetrics got = token_metrics_reference(group, options);
  for (const auto& [metric, values] : expected) {
    const Tolerance tolerance{1e-12, 1e-12, floor, 0.0};
    CHECK(mismatch(std::string(name_of(metric)), matrix({values}), got[metric], tolerance) == "");
  }
}

}  // namespace

TEST_CASE("one head, causal, three candidates, rows 1 and 2", "[token_metrics]") {
  check(first_head_of(five_positions(3)), 2,
        {
            {TokenMetric::attn, {0.8726903175186209, 0.7611174661995789, 0.3661922162818002}},
            {TokenMetric::attn_sq, {0.43684221772919739, 0.53535018211044332, 0.13409673926537674}},
            {TokenMetric::value, {0.43684221772919739, 2.1414007284417733, 0.26819347853075347}},
            {TokenMetric::key, {1.3058616320055376, 0.77541364421753063, 0.56139602764588208}},
            {TokenMetric::joint, {2.960139218453475, 5.2108842731280651, 1.5582363309540471}},
            {TokenMetric::caote, {0.93191762390729471, 0.66702992269746162, 0.28117413785861358}},
            {TokenMetric::fastcaote, {1.0947927636618187, 0.6143580569053303, 0.22413420962435644}},
            {TokenMetric::knorm, {-2.0, -2.0, -1.414213562373095}},
            {TokenMetric::keydiff, {-0.98559855965348878, -0.16910197872576275, -0.57735026918962576}},
            {TokenMetric::exact_value, {0.43684221772919739, 2.1414007284417733, 0.26819347853075347}},
            {TokenMetric::exact_key, {1.0224078791217749, 1.0738709836176839, 0.29413334519759223}},
            {TokenMetric::exact_joint, {1.3862662548203192, 2.3575749805866057, 0.48468692654164503}},
            {TokenMetric::exact_remove, {2.1331036944999669, 2.6746658725585755, 0.62111451767302484}},
            {TokenMetric::oracle_next, {0.022332919172140208, 1.6718675746916768, 0.046701206688457594}},
            {TokenMetric::oracle_future, {0.05106638210836923, 2.021680900724541, 0.087447816957558443}},
            {TokenMetric::oracle_importance, {0.25160966649555314, 0.91010846784682249, 0.14359404660378259}},
        });
}

TEST_CASE("two heads with a soft cap, sink logits and an output projection", "[token_metrics]") {
  HeadGroup<double> group = five_positions(3);
  group.rule.softcap = 3.0;
  group.rule.sink_logit = {0.5, -1.0};
  check(group, 2,
        {
            {TokenMetric::attn, {1.647164369034551, 0.89820362334956714, 0.96954796005264355}},
            {TokenMetric::attn_sq, {0.79630983362091025, 0.39447849040399873, 0.51209532650427619}},
            {TokenMetric::value, {0.79630983362091025, 1.5779139616159949, 1.0241906530085524}},
            {TokenMetric::key, {0.59980350158356474, 0.46445283616836273, 0.4136428233102905}},
            {TokenMetric::joint, {2.2880245159238995, 3.5066643117406597, 2.5505967195324778}},
            {TokenMetric::caote, {1.9962541428797896, 0.8747293768469113, 0.94418027097171832}},
            {TokenMetric::fastcaote, {2.4975796852183586, 0.74751270899154097, 0.77999712072283012}},
            {TokenMetric::knorm, {-2.0, -2.0, -1.414213562373095}},
            {TokenMetric::keydiff, {-0.98559855965348878, -0.16910197872576275, -0.57735026918962576}},
            {TokenMetric::exact_value, {0.79630983362091025, 1.5779139616159949, 1.0241906530085524}},
            {TokenMetric::exact_key, {0.6479539474525566, 0.70078431244429667, 0.3809994771100277}},
            {TokenMetric::exact_joint, {1.3144233123118047, 1.6684542697372515, 1.3030792871430441}},
            {TokenMetric::exact_remove, {2.6405488778497101, 1.7453646199771986, 1.7587123466673551}},
            {TokenMetric::oracle_next, {0.03372402430453698, 1.3102092134631983, 0.09013666997721553}},
            {TokenMetric::oracle_future, {0.087805045696049461, 1.5714200492205656, 0.39593452375730464}},
            {TokenMetric::oracle_importance, {1.1200918362583484, 2.2564089635928561, 0.60286229600318013}},
        });
}

TEST_CASE("two heads, sliding window 2, no output projection, two candidates", "[token_metrics]") {
  HeadGroup<double> group = five_positions(2);
  group.rule.sliding_window = 2;
  group.wo.clear();
  group.k = group.k.topRows(4);
  group.v = group.v.topRows(4);
  for (HeadMatrix<double>& q : group.q) q = q.topRows(4);
  check(group, 2,
        {
            {TokenMetric::attn, {3.0, 1.0}},
            {TokenMetric::attn_sq, {2.6067761335170363, 0.60677613351703629}},
            {TokenMetric::value, {2.6067761335170363, 2.4271045340681452}},
            {TokenMetric::key, {0.38656252292952917, 0.77312504585905833}},
            {TokenMetric::joint, {3.3865625229295292, 5.4999870272426456}},
            {TokenMetric::caote, {3.3541019662496845, 1.1180339887498948}},
            {TokenMetric::fastcaote, {9.1369343659206171, 0.81781870634438428}},
            {TokenMetric::knorm, {-2.0, -2.0}},
            {TokenMetric::keydiff, {-0.70710678118654752, -0.70710678118654752}},
            {TokenMetric::exact_value, {2.6067761335170363, 2.4271045340681452}},
            {TokenMetric::exact_key, {0.37904842472736239, 1.0677613351703629}},
            {TokenMetric::exact_joint, {2.9100148732989262, 2.6406568011022178}},
            {TokenMetric::exact_remove, {5.0338806675851815, 3.0338806675851815}},
            {TokenMetric::oracle_next, {0.0, 0.016007353845580085}},
            {TokenMetric::oracle_future, {0.0, 0.016007353845580085}},
            {TokenMetric::oracle_importance, {0.0, 0.24656810639762066}},
        });
}

TEST_CASE("one head, not causal", "[token_metrics]") {
  HeadGroup<double> group = first_head_of(five_positions(3));
  group.rule.causal = false;
  check(group, 2,
        {
            {TokenMetric::attn, {0.665079444334171, 0.40174730332889942, 0.35042682433732082}},
            {TokenMetric::attn_sq, {0.29674519129866483, 0.14169804410553333, 0.10309610758863012}},
            {TokenMetric::value, {0.29674519129866483, 0.56679217642213333, 0.20619221517726025}},
            {TokenMetric::key, {0.30496007898144963, 1.191813500536107, 0.68457301529393769}},
            {TokenMetric::joint, {1.0983162173026612, 3.1279961667649191, 1.5924110691434509}},
            {TokenMetric::caote, {0.99573669638390619, 0.47727098932069333, 0.40601606083745414}},
            {TokenMetric::fastcaote, {1.250460944663501, 0.39561282458105777, 0.32847585149598635}},
            {TokenMetric::knorm, {-2.0, -2.0, -1.414213562373095}},
            {TokenMetric::keydiff, {-0.98559855965348878, -0.16910197872576275, -0.57735026918962576}},
            {TokenMetric::exact_value, {0.29674519129866483, 0.56679217642213333, 0.20619221517726025}},
            {TokenMetric::exact_key, {0.19045598359097572, 0.4937244982412671, 0.32584590009115295}},
            {TokenMetric::exact_joint, {0.30942013175736627, 0.69087155577623864, 0.48877025829749084}},
            {TokenMetric::exact_remove, {0.3435421818896977, 0.7649605334956214, 0.6597716168859507}},
            {TokenMetric::oracle_next, {0.01383245751835391, 0.36730355923954702, 0.014851325333006471}},
            {TokenMetric::oracle_future, {0.042565920454582932, 0.71711688527241119, 0.05559793560210732}},
            {TokenMetric::oracle_importance, {0.25160966649555314, 0.625480787333132, 0.13090246899965386}},
        });
}

TEST_CASE("a sink of weight 1 - 2e-13", "[token_metrics]") {
  check(three_logits({30, 0.5, -1}), 1,
        {
            {TokenMetric::attn, {0.99999999999981129, 1.5428112031915967e-13, 3.4424771084693268e-14}},
            {TokenMetric::attn_sq, {0.99999999999962259, 2.3802664086935023e-26, 1.1850648642335337e-27}},
            {TokenMetric::value, {4.9999999999981129, 2.3802664086935023e-25, 5.0365256729925184e-27}},
            {TokenMetric::key, {2.7615000249327193e-22, 7.7358658282515568e-26, 1.3331979722626885e-26}},
            {TokenMetric::joint, {5.0000000000475333, 5.2960927593425409e-25, 5.9253243211657165e-27}},
            {TokenMetric::caote, {2.9353900106151234, 5.5626849014676155e-13, 1.1546419238286735e-13}},
            {TokenMetric::fastcaote, {8142780977586.82, 4.2795826484220514e-13, 9.1799389559185209e-14}},
            {TokenMetric::knorm, {-30.0, -0.5, -1.0}},
            {TokenMetric::keydiff, {-1.0, -1.0, 1.0}},
            {TokenMetric::exact_value, {4.9999999999981129, 2.3802664086935023e-25, 5.0365256729925184e-27}},
            {TokenMetric::exact_key, {3.8506655347204291, 4.790608870441894e-26, 3.9362569368115925e-26}},
            {TokenMetric::exact_joint, {6.3346899196765563, 2.3772082253108774e-25, 1.8458450104187061e-26}},
            {TokenMetric::exact_remove, {8.6165145144190541, 3.0943463313015775e-25, 1.3331979722627803e-26}},
        });
}

TEST_CASE("a sink of weight 1 - 1e-13 among logits of -200", "[token_metrics]") {
  check(three_logits({-170, -200, -201}), 1,
        {
            {TokenMetric::attn, {0.999999999999872, 9.3576229688389768e-14, 3.4424771084695358e-14}},
            {TokenMetric::attn_sq, {0.999999999999744, 8.7565107626942787e-27, 1.1850648642336776e-27}},
            {TokenMetric::value, {4.99999999999872, 8.7565107626942787e-26, 5.0365256729931299e-27}},
            {TokenMetric::key, {3.3958251047318659e-21, 4.5533855966002089e-21, 5.3862531277390547e-22}},
            {TokenMetric::joint, {4.9999999998012298, 4.5219497229621385e-21, 5.3612926990361312e-22}},
            {TokenMetric::caote, {2.6779987549978981, 3.3739389430608629e-13, 1.1546419238287343e-13}},
            {TokenMetric::fastcaote, {12004521320938.386, 2.5956980870421658e-13, 9.1799389559190782e-14}},
            {TokenMetric::knorm, {-170.0, -200.0, -201.0}},
            {TokenMetric::keydiff, {-1.0, -1.0, -1.0}},
            {TokenMetric::exact_value, {4.99999999999872, 8.7565107626942787e-26, 5.0365256729931299e-27}},
            {TokenMetric::exact_key, {1.1750259877967942e-25, 12.99999999999767, 11.249999999999506}},
            {TokenMetric::exact_joint, {4.9999999999988383, 4.9999999999988383, 4.9999999999988383}},
            {TokenMetric::exact_remove, {7.1716773317702921, 1.1383463991502653e-25, 1.3331979722629206e-26}},
        });
}

TEST_CASE("a sink logit that leaves 1e-16 for the tokens", "[token_metrics]") {
  HeadGroup<double> group = three_logits({1, -2, 3});
  group.rule.sink_logit = {40.0};
  check(
      group, 1,
      {
          {TokenMetric::attn, {1.1548224173015785e-17, 5.7495222642935592e-19, 8.533047625744065e-17}},
          {TokenMetric::attn_sq, {1.3336148155022611e-34, 3.3057006267607337e-37, 7.2812901783216424e-33}},
          {TokenMetric::value, {6.6680740775113054e-34, 3.3057006267607337e-36, 3.094548325786698e-32}},
          {TokenMetric::key, {6.6680740775113055e-34, 1.3222802507042936e-35, 2.7850934932080278e-31}},
          {TokenMetric::joint, {2.6672296310045222e-33, 3.3057006267607344e-36, 4.9512773212587162e-31}},
          {TokenMetric::caote, {0.39445530465245574, 0.029124804019068305, 2.9591566133152043}},
          {TokenMetric::fastcaote, {0.20656313197152337, 0.016462359818053027, 18.769663097282237}},
          {TokenMetric::knorm, {-1.0, -2.0, -3.0}},
          {TokenMetric::keydiff, {-1.0, 1.0, -1.0}},
          {TokenMetric::exact_value, {6.6680740775113054e-34, 3.3057006267607337e-36, 3.094548325786698e-32}},
          {TokenMetric::exact_key, {2.6644050407847333e-34, 1.3493882465649169e-34, 2.7940819660578386e-32}},
          {TokenMetric::exact_joint, {6.6680740775113056e-34, 3.3057006267607314e-36, 3.094548325786698e-32}},
          {TokenMetric::exact_remove, {6.6680740775113056e-34, 3.305700626760734e-36, 3.094548325786698e-32}},
      });
}

TEST_CASE("expected attention", "[token_metrics]") {
  HeadGroup<double> group;
  group.l = 7;
  group.rule.scale = 0.5;
  group.k = matrix({{1, 0, 2, -1},
                    {0, 1, 1, 1},
                    {2, -1, 0, 1},
                    {1, 1, -1, 0},
                    {0.5, 2, 1, -1},
                    {-1, 0, 1, 2},
                    {1, -2, 0.5, 1}});
  group.v = matrix({{1, 2}, {0, 1}, {3, -1}, {1, 1}, {2, 0}, {0, -3}, {1, -2}});
  group.q = {matrix({{1, 1, 0, 0},
                     {0, 1, 2, 1},
                     {1, 0, 0, -1},
                     {2, 1, 1, 0},
                     {1, -1, 0, 2},
                     {0, 2, 1, 1},
                     {-1, 1, 1, 0}}),
             matrix({{0, 1, 1, 0},
                     {1, 1, -1, 1},
                     {0, 0, 2, 1},
                     {1, 0, 0, 1},
                     {-1, 2, 1, 0},
                     {1, 0, -2, 1},
                     {2, 1, 0, 1}})};
  group.rope = Rope{Rope::Style::half, 4, {0.3, 0.001}, 1.0};
  check(group, 7,
        {{TokenMetric::expected_attention,
          {1.2622023847959797, 1.2622023847959797, 1.2622023847959797, 1.2622023847959797,
           0.67623551228216391, 1.2622023847959797, 0.67338765776323499}}});
  group.rope->style = Rope::Style::interleaved;
  check(group, 7,
        {{TokenMetric::expected_attention,
          {1.6494248902197111, 1.6494248902197111, 1.6494248902197111, 1.6494248902197111,
           0.36329584284490164, 1.6494248902197111, 0.73464622977383605}}});
}

TEST_CASE("expected attention with a fifth channel that is not rotated, and an attention factor",
          "[token_metrics]") {
  HeadGroup<double> group;
  group.l = 7;
  group.rule.scale = 0.5;
  group.k = matrix({{1, 0, 2, -1, 1},
                    {0, 1, 1, 1, -1},
                    {2, -1, 0, 1, 0},
                    {1, 1, -1, 0, 2},
                    {0.5, 2, 1, -1, 1},
                    {-1, 0, 1, 2, 1},
                    {1, -2, 0.5, 1, -2}});
  group.v = matrix({{1, 2}, {0, 1}, {3, -1}, {1, 1}, {2, 0}, {0, -3}, {1, -2}});
  group.q = {matrix({{1, 1, 0, 0, 1},
                     {0, 1, 2, 1, 0},
                     {1, 0, 0, -1, 1},
                     {2, 1, 1, 0, -1},
                     {1, -1, 0, 2, 2},
                     {0, 2, 1, 1, 1},
                     {-1, 1, 1, 0, 1}}),
             matrix({{0, 1, 1, 0, 0},
                     {1, 1, -1, 1, 1},
                     {0, 0, 2, 1, 1},
                     {1, 0, 0, 1, 1},
                     {-1, 2, 1, 0, -1},
                     {1, 0, -2, 1, 2},
                     {2, 1, 0, 1, 0}})};
  group.rope = Rope{Rope::Style::half, 4, {0.3, 0.002}, 1.25};
  check(group, 7,
        {{TokenMetric::expected_attention,
          {2.1159668547328331, 2.1159668547328331, 2.1159668547328331, 2.1159668547328331,
           0.46762917166432114, 2.1159668547328331, 0.270258172991761}}});
  group.rope->style = Rope::Style::interleaved;
  check(group, 7,
        {{TokenMetric::expected_attention,
          {1.6408162691729491, 1.6408162691729491, 1.6408162691729491, 1.6408162691729491,
           0.32366405287076541, 1.6408162691729491, 0.78537240528428279}}});
  group.q.erase(group.q.begin());
  check(group, 7,
        {{TokenMetric::expected_attention,
          {1.3862074508360806, 1.3862074508360806, 1.3862074508360806, 1.3862074508360806,
           0.31928280281890899, 0.84128334117993214, 1.3862074508360806}}});
}

// The literals below are what the authors' own PyTorch functions give in float64.

TEST_CASE("R-KV of three candidates before a window of two", "[token_metrics]") {
  check(five_positions(5), 2,
        {{TokenMetric::rkv,
          {-0.14834367991555525, -0.11347914512333915, -0.10577206391999405, -0.23097168587882394,
           -0.15166807270968555}}});
}

TEST_CASE("TriAttention of a pair that rotates, the larger of two heads", "[token_metrics]") {
  HeadGroup<double> group = five_positions(5);
  group.rope = Rope{Rope::Style::half, 2, {0.7}, 1.25};
  // Angles of 45,000 radians have lost five digits.
  const TokenMetrics got = token_metrics_reference(group, {2, false, {TokenMetric::triattention}});
  const std::vector<double> want = {0.9584604134717429, 0.8109028355563488, -0.41431626446302877,
                                    -0.6601200086117338, 1.4974527269037856};
  for (Index p = 0; p < 5; ++p)
    CHECK(got[TokenMetric::triattention](0, p) == Approx(want[static_cast<std::size_t>(p)]).epsilon(1e-10));
}
