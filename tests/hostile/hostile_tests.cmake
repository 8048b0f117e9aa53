# A fixed part of the hostile cases, and the harness itself on trial: ctest -L hostile. Not under sanitizers, whose address space no
# limit fits.
find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_FOUND OR Python3_VERSION VERSION_LESS 3.11 OR KVREPLAY_SANITIZE OR NOT CMAKE_SYSTEM_NAME STREQUAL Linux)
  return()
endif()
add_test(NAME hostile COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/hostile.py --program $<TARGET_FILE:kvreplay>
                              --cases 1350 --jobs 2)
add_test(NAME hostile_harness COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/test_hostile.py)
set_tests_properties(hostile PROPERTIES LABELS hostile PROCESSORS 2)
set_tests_properties(hostile_harness PROPERTIES LABELS hostile)
