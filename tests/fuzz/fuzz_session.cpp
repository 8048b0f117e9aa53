// Any text as a session of the dashboard: remarks, or a session that comes back the same.

#include "viewer/model/session.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

using namespace kvreplay::viewer;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const ReadSession read = session_of_text({reinterpret_cast<const char*>(bytes), size});
  const std::string text = text_of(read.session);
  const ReadSession again = session_of_text(text);
  if (!again.remarks.empty() || text_of(again.session) != text) std::abort();
  return 0;
}
