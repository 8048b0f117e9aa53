#include "viewer/model/session.hpp"

#include "tests/support/catch.hpp"

#include <algorithm>
#include <limits>

using namespace kvreplay;
using namespace kvreplay::viewer;
using Json = nlohmann::json;

namespace {

Session full_session() {
  Session session;
  session.runs = {"/data/dump one", "results/größe", "../x.npz"};
  session.recent = {"/data/newest", "/gone/\xC3\xA9"};
  session.tour_seen = true;
  session.selection.run = 1;
  session.selection.layer = 31;
  session.selection.kv_head = 7;
  session.selection.query_head = 3;
  session.selection.row = 131071;
  session.selection.token = 0;
  session.selection.channels = ChannelPair{5, 127};
  session.selection.tokens = {1, 2, 100000};
  session.layout.show(PanelKind::channels);
  session.layout.drag(0, 33, {0, 0, 1280, 800}, 6, {100, 100});
  session.layout.maximise(PanelKind::channels);
  session.theme = ThemeChoice::dark;
  session.text_size = 15.3F;
  session.window_width = 1917;
  session.window_height = 1003;
  session.ranges_locked = true;
  session.joint_zoom = true;
  session.cameras[PanelKind::tokens] = {{-1.0 / 3, 0.1}, {131071.99999999997, 2.0 / 3}};
  session.panels = {{"what-if", {{"budget", 0.3}, {"policies", {"snapkv", "h2o"}}}}, {"unknown", nullptr}};
  return session;
}

bool remarks_on(const ReadSession& read, const std::string& key) {
  return std::any_of(read.remarks.begin(), read.remarks.end(),
                     [&](const std::string& remark) { return remark.find(key) != std::string::npos; });
}

}  // namespace

TEST_CASE("a session comes back exactly", "[viewer][session]") {
  for (const Session& session : {Session{}, full_session()}) {
    const ReadSession read = session_of_text(text_of(session));
    CHECK(read.session == session);
    CHECK(read.remarks.empty());
    CHECK(read.is_session);
    CHECK(text_of(read.session) == text_of(session));
    CHECK(session_from_json(to_json(session)).session == session);
  }
  CHECK_FALSE(full_session() == Session{});
}

TEST_CASE("a session from before there was some panel loads without a remark", "[viewer][session]") {
  Json older = to_json(full_session());
  Json& leaf = older["layout"]["root"]["parts"][0]["panels"];
  REQUIRE(leaf == Json::array({"heads", "inspector"}));
  leaf = Json::array({"heads"});
  const ReadSession read = session_from_json(older);
  CHECK(read.remarks.empty());
  CHECK(read.session.layout == full_session().layout);
  older["layout"].erase("shown");  // nor had they this
  CHECK(session_from_json(older).remarks.empty());
}

TEST_CASE("a session of a version with more panels loads without them, with a note", "[viewer][session]") {
  const Json now = to_json(full_session());
  Json older = now;
  Json& layout = older["layout"];
  layout["root"]["parts"][0] = {{"bar", "horizontal"},
                                {"share", 0.6},
                                {"parts",
                                 {{{"panels", {"heads", "jobs", "inspector"}}, {"front", "jobs"}},
                                  {{"panels", {"wrongly-evicted"}}, {"front", "wrongly-evicted"}}}}};
  layout["shown"].push_back("jobs");
  layout["maximised"] = "wrongly-evicted";
  older["panels"]["jobs"] = Json::object();
  const ReadSession read = session_from_json(older);
  CHECK(read.remarks.empty());
  CHECK(read.notes == std::vector<std::string>{
                          "session: panels of an earlier version are left out: jobs, wrongly-evicted"});
  CHECK_FALSE(read.session.layout.maximised().has_value());
  CHECK(to_json(read.session)["layout"]["root"] == now["layout"]["root"]);
  layout = {{"root", {{"panels", {"jobs"}}, {"front", "jobs"}}}, {"maximised", nullptr}};
  CHECK(session_from_json(older).session.layout == Layout::standard());
  CHECK(session_from_json(older).remarks.empty());
}

TEST_CASE("what is missing in a session takes its default", "[viewer][session]") {
  CHECK(session_of_text("{}").session == Session{});
  CHECK(session_of_text("{}").remarks.empty());
  const ReadSession some = session_of_text(R"({"theme": "light", "selection": {"layer": 4, "row": null}})");
  CHECK(some.remarks.empty());
  CHECK(some.session.theme == ThemeChoice::light);
  CHECK(some.session.selection.layer == 4);
  CHECK(some.session.layout == Layout::standard());
}

TEST_CASE("each bad key of a session is remarked upon and takes its default", "[viewer][session]") {
  const Json good = to_json(full_session());
  const Json bad_values[] = {Json(-1),
                             Json("nonsense"),
                             Json(1e300),
                             Json::array({1}),
                             Json::array({"a", 3, -4}),
                             Json({{"odd", 1}}),
                             Json(std::numeric_limits<std::uint64_t>::max()),
                             Json(true)};
  // Every value at every depth outside "panels", replaced by each of these.
  const Json flat = good.flatten();
  int tried = 0, remarked = 0;
  for (const auto& item : flat.items()) {
    if (item.key().rfind("/panels", 0) == 0) continue;
    for (Json::json_pointer at(item.key()); !at.empty(); at = at.parent_pointer())
      for (const Json& value : bad_values) {
        Json json = good;
        if (json[at] == value) continue;
        json[at] = value;
        const ReadSession read = session_from_json(json);
        ++tried;
        remarked += read.remarks.empty() ? 0 : 1;
        for (const std::string& remark : read.remarks) {
          CHECK(remark.find('\n') == std::string::npos);
          CHECK(remark.rfind("session", 0) == 0);
        }
        // What was read can be saved and read again.
        CHECK(session_of_text(text_of(read.session)).session == read.session);
      }
  }
  CHECK(tried > 500);
  CHECK(remarked > tried * 7 / 10);  // the others are values that the key may have

  const auto read = [&](const char* pointer, const Json& value) {
    Json json = good;
    json[Json::json_pointer(pointer)] = value;
    return session_from_json(json);
  };
  CHECK(remarks_on(read("/theme", "pink"), "session.theme: expected a known name, found \"pink\""));
  CHECK(read("/theme", "pink").session.theme == ThemeChoice::system);
  CHECK(read("/theme", "pink").session.selection == full_session().selection);
  CHECK(remarks_on(read("/text_size", 1e6),
                   "session.text_size: expected a number from 4 to 96, found 1000000.0"));
  CHECK(remarks_on(read("/selection/row", -2), "session.selection.row"));
  CHECK_FALSE(read("/selection/row", -2).session.selection.row.has_value());
  CHECK(remarks_on(read("/cameras/nobody", Json::object()), "session.cameras: unknown key \"nobody\""));
  CHECK(remarks_on(read("/cameras/tokens/x/cells_per_pixel", 0), "session.cameras.tokens.x.cells_per_pixel"));
  CHECK(remarks_on(read("/layout/root/share", 7), "session.layout"));
  CHECK(remarks_on(read("/layout/root/parts/0/parts/0/panels/0", "nobody"), "session.layout"));
  CHECK(read("/layout/root/share", 7).session.layout == Layout::standard());
  CHECK(remarks_on(read("/version", 99), "session.version"));
  CHECK(remarks_on(read("/window/width", 3.5), "session.window.width"));
  CHECK(remarks_on(read("/runs", Json::array({"a", 3})), "session.runs"));
  CHECK(remarks_on(read("/more", 3), "session: unknown key \"more\""));
  CHECK(read("/panels/mine", 3).remarks.empty());
}

TEST_CASE("a text that is no session is one remark", "[viewer][session]") {
  for (const std::string& text :
       {std::string(), std::string("{\"runs\": ["), std::string("\xFF\xFE\0\n", 4), std::string("nul")}) {
    const ReadSession read = session_of_text(text);
    CHECK(read.session == Session{});
    REQUIRE(read.remarks.size() == 1);
    CHECK(read.remarks[0].rfind("session: expected JSON, found ", 0) == 0);
    CHECK(read.remarks[0].find('\n') == std::string::npos);
  }
  for (const char* other : {"[1, 2]", "{}", R"({"n_layers": 2})", "", "1", "{"})
    CHECK_FALSE(session_of_text(other).is_session);
  CHECK(session_of_text("[1, 2]").remarks ==
        std::vector<std::string>{"session: expected an object, found [1,2]"});

  // Nested beyond any use: left out, whatever else there is.
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  const ReadSession read = session_of_text("{\"theme\": \"dark\", \"panels\": {\"heads\": " + deep + "}}");
  CHECK(read.session.theme == ThemeChoice::dark);
  CHECK(remarks_on(read, "nested too deep"));
}

TEST_CASE("numbers that JSON does not have and texts that are no UTF-8 do not stop a session",
          "[viewer][session]") {
  Session session;
  session.runs = {"/data/\xFFsick"};
  session.cameras[PanelKind::heads].x.start = std::numeric_limits<double>::quiet_NaN();
  const ReadSession read = session_of_text(text_of(session));
  CHECK(read.session.runs.size() == 1);
  CHECK(read.session.cameras.at(PanelKind::heads) == Camera{});
}
