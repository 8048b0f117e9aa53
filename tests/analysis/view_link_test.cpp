#include "analysis/results/view_link.hpp"

#include "data/error.hpp"
#include "tests/support/catch.hpp"

using namespace kvreplay;

TEST_CASE("a link reads back as what it was made of", "[link]") {
  ViewLink link;
  link.run = "/data/a b/ü&=%#?+'.npz";
  link.dump = "4fa30ac1edacbed7";
  link.panel = "what-if";
  link.layer = 3;
  link.kv_head = 0;
  link.query_head = 1;
  link.row = 1000;
  link.token = 123456789012;
  link.score = "attn";
  link.reference = "exact_remove";
  link.window = 32;
  CHECK(view_link(text_of(link)) == link);
  CHECK(view_link(text_of({.run = "x"})) == ViewLink{.run = "x"});
  // No sign that a shell or a browser takes for its own.
  for (const char c : text_of(link))
    CHECK((std::isalnum(c) != 0 || std::string_view("-_.~/:?&=%").find(c) != std::string_view::npos));
}

TEST_CASE("a link is written as it is documented", "[link]") {
  CHECK(text_of({.run = "/d x", .panel = "heads", .layer = 3, .kv_head = 1}) ==
        "kvreplay://open?run=/d%20x&panel=heads&layer=3&head=1");
  CHECK(view_link("kvreplay://open?head=2&run=%2fd#here") == ViewLink{.run = "/d", .kv_head = 2});
  CHECK(is_view_link("kvreplay://open?"));
  CHECK_FALSE(is_view_link("/data/kvreplay"));
}

TEST_CASE("a bad link is one line that says what is wrong", "[link]") {
  const auto refused = [](const std::string& text, const std::string& word) {
    INFO(text);
    try {
      view_link(text);
      FAIL_CHECK("it was taken");
    } catch (const InputError& error) {
      const std::string line = error.what();
      INFO(line);
      CHECK(line.find('\n') == std::string::npos);
      CHECK(line.find(word) != std::string::npos);
    }
  };
  refused("kvreplay:", "kvreplay://open?run=");
  refused("kvreplay://close?run=x", "kvreplay://open?run=");
  refused("kvreplay://open?", "run=PATH");
  refused("kvreplay://open?run=&layer=1", "run=PATH");
  refused("kvreplay://open?run=x&layer=-1", "'-1'");
  refused("kvreplay://open?run=x&layer=1.5", "'1.5'");
  refused("kvreplay://open?run=x&layer=99999999999999999999", "whole number");
  refused("kvreplay://open?run=x&layer", "whole number");
  refused("kvreplay://open?run=x&run=y", "twice");
  refused("kvreplay://open?run=x&lair=1", "'lair'");
  refused("kvreplay://open?run=%4", "hexadecimal");
  refused("kvreplay://open?run=%zz", "hexadecimal");
  refused("kvreplay://open?run=a%00b", "hexadecimal");
}
