# Light tests compile several at a time: half of the time to compile such a file goes to headers and to templates that
# all of them instantiate. Each file keeps its own helpers, because a unit puts every file into a namespace of its own:
#
#   #include <every header that these files include>
#   namespace a_test { #include "a_test.cpp" }
#   namespace b_test { #include "b_test.cpp" }

# kvreplay_test_units(TARGET SIZE): compiles the target's *_test.cpp in units of SIZE files, if the preset compiles in
# units (CMAKE_UNITY_BUILD). A file that opens a namespace of other code, or has definitions of its own on the command
# line, is compiled by itself.
function(kvreplay_test_units target size)
  if(NOT KVREPLAY_TEST_UNITS)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "^[a-z0-9_]+_test\\.cpp$")
  list(SORT sources)
  set(files)
  foreach(source IN LISTS sources)
    file(STRINGS ${source} opened REGEX "^(namespace (kvreplay|Catch|std)|#define)")
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    if(NOT opened AND NOT definitions)
      list(APPEND files ${source})
    endif()
  endforeach()
  set(unit 0)
  while(files)
    list(SUBLIST files 0 ${size} batch)
    list(REMOVE_ITEM files ${batch})
    set(includes)
    set(bodies "")
    foreach(source IN LISTS batch)
      file(STRINGS ${source} lines REGEX "^#include ")
      list(APPEND includes ${lines})
      get_filename_component(name ${source} NAME_WE)
      string(APPEND bodies "\nnamespace ${name} {\n#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n}\n")
    endforeach()
    list(REMOVE_DUPLICATES includes)
    list(JOIN includes "\n" includes)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_unit_${unit}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${includes}\n${bodies}" @ONLY)
    target_sources(${target} PRIVATE ${file})
    # An include that is added to a test has to reach the head of its unit.
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${batch})
    set_source_files_properties(${batch} PROPERTIES HEADER_FILE_ONLY ON)
    math(EXPR unit "${unit} + 1")
  endwhile()
endfunction()
