#pragma once

#include "viewer/gl/headless_host.hpp"
#include "viewer/serve/changed_areas.hpp"
#include "viewer/serve/web_event.hpp"
#include "viewer/serve/web_server.hpp"

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace kvreplay::viewer {

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
  std::vector<Rgb> shown_;  ///< what all have seen who are not behind
  std::string clipboard_, title_;
  int cursor_ = 0, frames_due_ = 0;
};

/// The page that browsers show it in.
std::string dashboard_page();

}  // namespace kvreplay::viewer
