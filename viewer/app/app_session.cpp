// What is saved between two starts.

#include "viewer/app/app.hpp"

namespace kvreplay::viewer {

nlohmann::json App::save() const { return {}; }
std::vector<std::string> App::load(const nlohmann::json&) { return {}; }

}  // namespace kvreplay::viewer
