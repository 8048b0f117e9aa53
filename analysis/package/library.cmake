# The library as others use it, by find_package(kvreplay) where it is installed, or under the same names by add_subdirectory or
# FetchContent: kvreplay::data, kvreplay::sim, kvreplay::analysis.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# kvreplay::<name> is the library kvreplay_<name> by the headers named and by whatever of ours these include. Our own targets link
# the latter: they include "sim/schedule.hpp", and tests put emulated devices in the place of kvreplay_cuda.
function(kvreplay_library name)
  target_link_libraries(kvreplay_${name} PRIVATE $<BUILD_INTERFACE:kvreplay_options>)
  target_compile_features(kvreplay_${name} PUBLIC cxx_std_20)
  add_library(kvreplay_${name}_api INTERFACE)
  add_library(kvreplay::${name} ALIAS kvreplay_${name}_api)
  set_target_properties(kvreplay_${name}_api PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(kvreplay_${name}_api INTERFACE kvreplay_${name})
  if(NOT name STREQUAL data)
    target_link_libraries(kvreplay_${name}_api INTERFACE kvreplay_cuda)
  endif()
  target_include_directories(kvreplay_${name}_api INTERFACE $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
                                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  list(TRANSFORM ARGN PREPEND ${name}/)
  set_property(GLOBAL APPEND PROPERTY KVREPLAY_PUBLIC_HEADERS ${ARGN})
endfunction()

# Once all libraries are there: their public headers, and what `cmake --install` installs.
function(kvreplay_export)
  get_property(headers GLOBAL PROPERTY KVREPLAY_PUBLIC_HEADERS)
  list(JOIN headers , roots)
  set(stamp ${PROJECT_BINARY_DIR}/public_headers)
  set(script ${PROJECT_SOURCE_DIR}/analysis/package/public_headers.cmake)
  add_custom_command(OUTPUT ${stamp} DEPFILE ${stamp}.d DEPENDS ${script} VERBATIM COMMENT "Writing the public headers"
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DTO=${PROJECT_BINARY_DIR}/include -DROOTS=${roots} -DSTAMP=${stamp}
            -P ${script})
  add_custom_target(kvreplay_headers ALL DEPENDS ${stamp})
  set(libraries kvreplay_data kvreplay_sim kvreplay_analysis)
  list(TRANSFORM libraries APPEND _api OUTPUT_VARIABLE apis)
  foreach(api ${apis})
    add_dependencies(${api} kvreplay_headers)
  endforeach()

  if(NOT KVREPLAY_INSTALL)
    return()
  elseif(KVREPLAY_FETCHED)
    message(STATUS "kvreplay: not to be installed, what was fetched would be missing")
    return()
  endif()
  set(to ${CMAKE_INSTALL_LIBDIR}/cmake/kvreplay)
  install(TARGETS ${libraries} ${apis} kvreplay_cuda EXPORT kvreplay-targets)
  install(EXPORT kvreplay-targets NAMESPACE kvreplay:: DESTINATION ${to})
  configure_file(${PROJECT_SOURCE_DIR}/analysis/package/kvreplay-config.cmake.in cmake/kvreplay-config.cmake @ONLY)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/kvreplay-config-version.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/cmake/kvreplay-config.cmake ${PROJECT_BINARY_DIR}/cmake/kvreplay-config-version.cmake
          DESTINATION ${to})
  install(DIRECTORY ${PROJECT_BINARY_DIR}/include/kvreplay TYPE INCLUDE)
  foreach(program kvreplay kvreplay-viewer)
    if(TARGET ${program})
      install(TARGETS ${program} COMPONENT programs)
    endif()
  endforeach()
  include(${PROJECT_SOURCE_DIR}/analysis/package/debian.cmake)
endfunction()
