#pragma once

#include "viewer/serve/web_event.hpp"

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay::viewer {

/// Serves one page and one WebSocket on this machine's own address, to those who know the token: it stands in
/// the page's address, and pages of other sites are refused by their Origin. The first who comes drives; the
/// others watch until he leaves.
class WebServer {
 public:
  /// `wake` is called from threads of the server when there is something to take. `behind`: the origin of a
  /// proxy, "https://hub.example.org", whose pages may talk to it, too; empty: none. Throws InputError where
  /// the port is taken.
  WebServer(int port, std::string page, std::function<void()> wake, std::string behind = {});
  ~WebServer();
  WebServer(const WebServer&) = delete;
  WebServer& operator=(const WebServer&) = delete;

  int port() const;
  /// "http://127.0.0.1:8765/?key=..".
  std::string address() const;

  /// What the driver has said since.
  std::vector<WebEvent> take_events();
  bool anybody() const;
  /// Whether somebody has not seen the latest picture, and could take it now.
  bool somebody_lacks_picture() const;

  using Parts = std::vector<std::vector<std::byte>>;
  /// A picture: `changes` since the one before, or all of it to those who have not seen that one; nothing to
  /// those who have as many still to draw as a line should hold, until they have drawn some.
  void send_picture(const Parts& changes, const std::function<Parts()>& whole);
  /// What goes before a whole picture: its size, say.
  void greet_with(std::string text);
  /// To all, or to the driver alone.
  void send(std::string_view text, bool driver_alone = false);
  /// A file that is offered until the end: its address below the page's.
  std::string offer(const std::filesystem::path& file);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether a page of `origin` (a header, may be empty) may talk to a server that was asked for as `host`: the
/// same place, and this machine, or the proxy `behind` that passes on what it is asked (with its own name as
/// host, or with this machine's).
bool is_own_origin(std::string_view origin, std::string_view host, std::string_view behind = {});

}  // namespace kvreplay::viewer
