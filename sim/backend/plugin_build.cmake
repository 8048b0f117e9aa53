# Writes kPluginBuild (plugin.hpp), by which a plug-in and what loads it know whether they are built alike:
#
#   cmake -DSOURCE=ROOT "-DBUILD=kvreplay 1.2.3, ..." -DTO=FILE -P plugin_build.cmake
cmake_minimum_required(VERSION 3.25)
file(GLOB_RECURSE headers ${SOURCE}/data/*.hpp ${SOURCE}/sim/*.hpp)
set(hashes "")
foreach(header ${headers})
  file(SHA256 ${header} hash)
  string(APPEND hashes ${hash})
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING ${hash} 0 12 hash)
file(WRITE ${TO} "namespace kvreplay {
extern const char kPluginBuild[];
const char kPluginBuild[] = \"${BUILD}, headers ${hash}\";
}  // namespace kvreplay
")
