#pragma once

#include "viewer/gl/headless_host.hpp"
#include "viewer/serve/changed_areas.hpp"
#include "viewer/serve/web_event.hpp"

#include <condition_variable>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
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

  /// Events from the driver since the last call.
  std::vector<WebEvent> take_events();
  bool anybody() const;
  /// True if a page has not received the latest picture and is ready to receive it.
  bool somebody_lacks_picture() const;

  using Parts = std::vector<std::vector<std::byte>>;
  /// A picture: `changes` since the one before, or all of it to those who have not seen that one; nothing to
  /// those who have as many still to draw as a line should hold, until they have drawn some.
  void send_picture(const Parts& changes, const std::function<Parts()>& whole);
  /// Text that is sent before every whole picture, for example its size.
  void greet_with(std::string text);
  /// To all, or to the driver alone.
  void send(std::string_view text, bool driver_alone = false);
  /// A file that is offered until the end: its address below the page's.
  std::string offer(const std::filesystem::path& file);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// True if a page of `origin` (a header, may be empty) may talk to a server that was addressed as `host`. The
/// host must be this machine or the proxy `behind`, which forwards requests under its own or this machine's
/// name. A given origin must be the host, if that is this machine, or the proxy.
bool is_own_origin(std::string_view origin, std::string_view host, std::string_view behind = {});

/// Shows a client in browsers: what is drawn without a display goes to them as pictures of what changed, what
/// they say comes back as input. Everything is drawn on the thread that calls run().
class ServeHost : public HeadlessHost {
 public:
  /// Throws InputError where there is no OpenGL 3.3, or where the port is taken. 0: any port. `behind`: the
  /// origin of a proxy (web_server.hpp).
  ServeHost(Client& client, int port, std::string behind = {});

  const WebServer& server() const { return server_; }
  /// Until the client quits, or stop().
  void run();
  /// Ends run(); from any thread, and from a signal's handler.
  static void stop();
  /// Asks for a frame, or to be looked at; from any thread.
  static void wake();
  /// Offers a file that the client wrote to the driver.
  void offer(const std::filesystem::path& file);

 private:
  void take(const WebEvent& event);
  void wait();
  void greet();
  void send_picture();
  void tell_changes();
  WebServer::Parts parts_of(const std::vector<Rgb>& picture, const std::vector<PixelArea>& areas) const;

  static const char* pasted(void* host);
  static void copied(void* host, const char* text);

  WebServer server_;
  std::vector<Rgb> shown_;  ///< picture that all pages have which are not behind
  std::string clipboard_, title_;
  int cursor_ = 0, frames_due_ = 0;
};

/// The page that browsers show it in.
std::string dashboard_page();

}  // namespace kvreplay::viewer
