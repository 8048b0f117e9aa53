#include "data/error.hpp"
#include "data/mapped_file.hpp"
#include "viewer/serve/serve_host.hpp"
#include "viewer/serve/web_event.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <civetweb.h>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <sys/random.h>
#include <utility>

namespace kvreplay::viewer {
namespace {

constexpr std::size_t kMostWaiting = 4096;  // of a driver's events, while a frame takes long
constexpr int kMostBad = 100;
constexpr std::size_t kMostConnections = 16;
// Pictures on their way to one: so many where they are small, as a line with 100 ms there and back takes to
// be busy, and no more than so many bytes besides the first, or what a hand does is seen late.
constexpr std::size_t kMostUnseen = 8, kMostUnseenBytes = 160 << 10;
constexpr std::uintmax_t kMostOffered = std::uintmax_t{1} << 30;

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw InputError("--serve: there are no random numbers for a token");
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

/// Takes as long whatever is wrong.
bool same(std::string_view a, std::string_view b) {
  unsigned differs = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < b.size(); ++i)
    differs |= static_cast<unsigned>((i < a.size() ? a[i] : 0) ^ b[i]);
  return differs == 0;
}

std::string header(const mg_connection* connection, const char* name) {
  const char* const value = mg_get_header(connection, name);
  return value == nullptr ? "" : value;
}

std::string parameter(const mg_connection* connection, const char* name) {
  const mg_request_info* const info = mg_get_request_info(connection);
  if (info->query_string == nullptr) return "";
  std::array<char, 128> value{};
  const int length =
      mg_get_var(info->query_string, std::strlen(info->query_string), name, value.data(), value.size());
  return length > 0 ? std::string(value.data(), static_cast<std::size_t>(length)) : "";
}

void respond(mg_connection* connection, int status, const char* reason, const char* type,
             std::string_view body, const std::string& more = "") {
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: "
            "no-store\r\nReferrer-Policy: no-referrer\r\n"
            "X-Content-Type-Options: nosniff\r\n%sConnection: close\r\n\r\n",
            status, reason, type, body.size(), more.c_str());
  mg_write(connection, body.data(), body.size());
}

}  // namespace

struct WebServer::State {
  std::string page, token, behind, greeting;
  std::function<void()> wake;
  mg_context* server = nullptr;
  int port = 0;

  struct Connection {
    mg_connection* to;
    std::string partial = {};             // of a message in several frames
    int sent = 0;                         // pictures
    std::deque<std::size_t> unseen = {};  // bytes of those of them that have not been seen
    int bad = 0;                          // messages that no page says
    bool lacks = true;                    // the latest one

    bool keeps_up() const {
      return unseen.size() < kMostUnseen &&
             std::accumulate(unseen.begin(), unseen.end(), std::size_t{0}) < kMostUnseenBytes;
    }
  };
  std::mutex mutex;
  std::vector<Connection> connections;  // the first one drives
  std::vector<WebEvent> events;
  std::map<std::string, std::filesystem::path> offered;  // by their numbers

  bool may(const mg_connection* connection) const {
    // Not called a token in the address: Jupyter's servers, behind which this may stand, take that for
    // theirs.
    return same(parameter(connection, "key"), token) &&
           is_own_origin(header(connection, "Origin"), header(connection, "Host"), behind);
  }

  static State& of(void* data) { return *static_cast<State*>(data); }

  static int request(mg_connection* connection, void* data) {
    State& state = of(data);
    const std::string path = mg_get_request_info(connection)->local_uri;
    if (!state.may(connection)) {
      respond(connection, 403, "Forbidden", "text/plain; charset=utf-8",
              "Expected the address as kvreplay printed it, with its token.\n");
    } else if (path == "/") {
      respond(connection, 200, "OK", "text/html; charset=utf-8", state.page,
              "Content-Security-Policy: default-src 'none'; img-src blob: data:; style-src 'unsafe-inline'; "
              "script-src 'unsafe-inline'; "
              "connect-src 'self'\r\n");
    } else if (const auto file = state.offer_of(path)) {
      state.send_file(connection, *file);
    } else {
      respond(connection, 404, "Not Found", "text/plain; charset=utf-8", "There is nothing here.\n");
    }
    return 1;
  }

  std::optional<std::filesystem::path> offer_of(const std::string& path) {
    const std::scoped_lock lock(mutex);
    const auto at = offered.find(path);
    return at == offered.end() ? std::nullopt : std::optional(at->second);
  }

  static void send_file(mg_connection* connection, const std::filesystem::path& file) {
    try {
      std::string name = file.filename().string();
      std::erase_if(name, [](unsigned char c) { return c < ' ' || c == '"' || c == '\\' || c > 126; });
      respond(connection, 200, "OK", "application/octet-stream", file_text(file, kMostOffered),
              fmt::format("Content-Disposition: attachment; filename=\"{}\"\r\n", name));
    } catch (const InputError& error) {
      respond(connection, 410, "Gone", "text/plain; charset=utf-8", std::string(error.what()) + "\n");
    }
  }

  static int connect(const mg_connection* connection, void* data) {
    State& state = of(data);
    if (!state.may(connection)) return 1;  // refused
    const std::scoped_lock lock(state.mutex);
    return state.connections.size() < kMostConnections ? 0 : 1;
  }

  static void ready(mg_connection* connection, void* data) {
    State& state = of(data);
    {
      const std::scoped_lock lock(state.mutex);
      state.connections.push_back({connection});
    }
    state.tell_roles();
    state.wake();
  }

  static int received(mg_connection* connection, int bits, char* bytes, std::size_t size, void* data) {
    State& state = of(data);
    const int opcode = bits & 0xF;
    if (opcode == MG_WEBSOCKET_OPCODE_CONNECTION_CLOSE) return 0;
    if (opcode != MG_WEBSOCKET_OPCODE_TEXT && opcode != MG_WEBSOCKET_OPCODE_CONTINUATION)
      return opcode == MG_WEBSOCKET_OPCODE_PING || opcode == MG_WEBSOCKET_OPCODE_PONG ? 1 : 0;
    const std::scoped_lock lock(state.mutex);
    const auto at = std::ranges::find(state.connections, connection, &Connection::to);
    if (at == state.connections.end()) return 0;
    if (opcode == MG_WEBSOCKET_OPCODE_TEXT) at->partial.clear();
    if (at->partial.size() + size > kMostMessage) return 0;
    at->partial.append(bytes, size);
    if ((bits & 0x80) == 0) return 1;
    const auto event = web_event(std::exchange(at->partial, {}));
    if (!event) return ++at->bad > kMostBad ? 0 : 1;
    if (event->kind == WebEvent::Kind::seen) {
      if (event->number > at->sent) return 0;
      const auto unseen = static_cast<std::size_t>(at->sent - event->number);
      while (at->unseen.size() > unseen) at->unseen.pop_front();
    } else if (at == state.connections.begin() && state.events.size() < kMostWaiting) {
      state.events.push_back(*event);
    }
    state.wake();
    return 1;
  }

  static void closed(const mg_connection* connection, void* data) {
    State& state = of(data);
    {
      const std::scoped_lock lock(state.mutex);
      if (!state.connections.empty() && state.connections.front().to == connection)
        state.events = {WebEvent{.kind = WebEvent::Kind::blur}};
      std::erase_if(state.connections, [&](const Connection& other) { return other.to == connection; });
    }
    state.tell_roles();
    state.wake();
  }

  void tell_roles() {
    bool first = true;
    for (mg_connection* const to : all()) {
      write(to, MG_WEBSOCKET_OPCODE_TEXT, first ? R"({"drives":true})" : R"({"drives":false})");
      first = false;
    }
  }

  std::vector<mg_connection*> all() {
    const std::scoped_lock lock(mutex);
    std::vector<mg_connection*> found;
    for (const Connection& one : connections) found.push_back(one.to);
    return found;
  }

  /// civetweb holds a connection while it calls received(), which waits for `mutex`: so it is held first
  /// here, too, and nothing is written while `mutex` is. A connection that is held is not given to somebody
  /// else.
  void write(mg_connection* to, int opcode, std::string_view bytes) {
    mg_lock_connection(to);
    bool there = false;
    {
      const std::scoped_lock lock(mutex);
      there = std::ranges::find(connections, to, &Connection::to) != connections.end();
    }
    if (there) mg_websocket_write(to, opcode, bytes.data(), bytes.size());
    mg_unlock_connection(to);
  }
};

WebServer::WebServer(int port, std::string page, std::function<void()> wake, std::string behind)
    : state_(std::make_unique<State>()) {
  state_->behind = std::move(behind);
  state_->page = std::move(page);
  state_->token = random_token();
  state_->wake = std::move(wake);
  static const bool started = mg_init_library(MG_FEATURES_WEBSOCKET) != 0;
  if (!started) throw InputError("--serve: this civetweb knows no WebSockets");
  const std::string ports = fmt::format("127.0.0.1:{}", port);
  const std::array<const char*, 11> options = {"listening_ports",
                                               ports.c_str(),
                                               "num_threads",
                                               "20",
                                               "request_timeout_ms",
                                               "10000",
                                               "websocket_timeout_ms",
                                               "86400000",
                                               "tcp_nodelay",
                                               "1",
                                               nullptr};
  const mg_callbacks callbacks{};
  state_->server = mg_start(&callbacks, nullptr, const_cast<const char**>(options.data()));
  if (state_->server == nullptr)
    throw InputError("--serve", "a free port of this machine", fmt::format("{}, which cannot be had", port));
  mg_server_port found{};
  if (mg_get_server_ports(state_->server, 1, &found) == 1) state_->port = found.port;
  mg_set_request_handler(state_->server, "/", State::request, state_.get());
  mg_set_websocket_handler(state_->server, "/dashboard", State::connect, State::ready, State::received,
                           State::closed, state_.get());
}

WebServer::~WebServer() { mg_stop(state_->server); }

int WebServer::port() const { return state_->port; }
std::string WebServer::address() const {
  return fmt::format("http://127.0.0.1:{}/?key={}", state_->port, state_->token);
}

std::vector<WebEvent> WebServer::take_events() {
  const std::scoped_lock lock(state_->mutex);
  return std::exchange(state_->events, {});
}

bool WebServer::anybody() const {
  const std::scoped_lock lock(state_->mutex);
  return !state_->connections.empty();
}

bool WebServer::somebody_lacks_picture() const {
  const std::scoped_lock lock(state_->mutex);
  return std::ranges::any_of(state_->connections,
                             [](const State::Connection& one) { return one.lacks && one.keeps_up(); });
}

void WebServer::send_picture(const Parts& changes, const std::function<Parts()>& whole) {
  const auto bytes_of = [](const Parts& parts) {
    return std::accumulate(parts.begin(), parts.end(), std::size_t{0},
                           [](std::size_t sum, const auto& part) { return sum + part.size(); });
  };
  const std::optional<Parts> all = somebody_lacks_picture() ? std::optional(whole()) : std::nullopt;
  struct Due {
    mg_connection* to;
    const Parts* parts;
    int number;
  };
  std::vector<Due> due;
  std::string greeting;
  {
    const std::scoped_lock lock(state_->mutex);
    greeting = state_->greeting;
    for (State::Connection& one : state_->connections) {
      const Parts* const parts = !one.lacks ? &changes : all ? &*all : nullptr;
      if (parts == nullptr || parts->empty()) continue;  // it may have come just now
      if (!one.keeps_up()) {
        one.lacks = true;
        continue;
      }
      due.push_back({one.to, parts, ++one.sent});
      one.unseen.push_back(bytes_of(*parts));
      one.lacks = false;
    }
  }
  for (const auto& [to, parts, number] : due) {
    if (parts != &changes) state_->write(to, MG_WEBSOCKET_OPCODE_TEXT, greeting);
    for (const std::vector<std::byte>& part : *parts)
      state_->write(to, MG_WEBSOCKET_OPCODE_BINARY,
                    {reinterpret_cast<const char*>(part.data()), part.size()});
    state_->write(to, MG_WEBSOCKET_OPCODE_TEXT, fmt::format(R"({{"picture":{}}})", number));
  }
}

void WebServer::greet_with(std::string text) {
  const std::scoped_lock lock(state_->mutex);
  state_->greeting = std::move(text);
}

void WebServer::send(std::string_view text, bool driver_alone) {
  for (mg_connection* const to : state_->all()) {
    state_->write(to, MG_WEBSOCKET_OPCODE_TEXT, text);
    if (driver_alone) return;
  }
}

std::string WebServer::offer(const std::filesystem::path& file) {
  const std::scoped_lock lock(state_->mutex);
  std::string address = fmt::format("files/{}", state_->offered.size());
  state_->offered.emplace("/" + address, file);
  return address;
}

bool is_own_origin(std::string_view origin, std::string_view host, std::string_view behind) {
  const std::string_view name = host.substr(0, host.starts_with('[') ? host.find(']') + 1 : host.find(':'));
  const bool own = name == "127.0.0.1" || name == "localhost" || name == "[::1]";
  const bool passed_on = !behind.empty() && host == behind.substr(behind.find("://") + 3);
  if (!own && !passed_on) return false;
  return origin.empty() || (own && origin == "http://" + std::string(host)) ||
         (!behind.empty() && origin == behind);
}

}  // namespace kvreplay::viewer
