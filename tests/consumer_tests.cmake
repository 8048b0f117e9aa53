# What others do with the library: find_package() where it is installed, add_subdirectory() where its sources lie.
if(KVREPLAY_SANITIZE OR NOT KVREPLAY_INSTALL OR KVREPLAY_FETCHED)
  return()
endif()
set(prefix ${CMAKE_CURRENT_BINARY_DIR}/installed)
set(build_and_test ${CMAKE_CTEST_COMMAND} --build-generator ${CMAKE_GENERATOR} --build-and-test)
set(options --build-options -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCMAKE_PREFIX_PATH=${prefix})
set(run --test-command consumer ${PROJECT_SOURCE_DIR}/data/samples/pystdlib-lm)

add_test(NAME "consumer: install" COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix ${prefix})
add_test(NAME "consumer: find_package"
         COMMAND ${build_and_test} ${CMAKE_CURRENT_LIST_DIR}/consumer ${CMAKE_CURRENT_BINARY_DIR}/consumer ${options} ${run})
add_test(NAME "consumer: each public header on its own"
         COMMAND ${build_and_test} ${CMAKE_CURRENT_LIST_DIR}/consumer/headers ${CMAKE_CURRENT_BINARY_DIR}/headers ${options})
# Whole libraries take their time: of those behind data it compiles an object each, without optimisation.
set(objects "")
foreach(file sim/CMakeFiles/kvreplay_sim.dir/simd/softmax_exp.cpp.o analysis/CMakeFiles/kvreplay_analysis.dir/Unity/unity_1_cxx.cxx.o)
  list(APPEND objects --build-target kvreplay/${file})
endforeach()
add_test(NAME "consumer: add_subdirectory"
         COMMAND ${build_and_test} ${CMAKE_CURRENT_LIST_DIR}/consumer ${CMAKE_CURRENT_BINARY_DIR}/consumer_with_sources
                 --build-noclean --build-target lengths ${objects} ${options} -DKVREPLAY_SOURCE=${PROJECT_SOURCE_DIR} -DCMAKE_UNITY_BUILD=ON
                 --test-command lengths ${PROJECT_SOURCE_DIR}/data/samples/pystdlib-lm)
add_test(NAME "consumer: INSTALL.md's program" COMMAND ${CMAKE_CURRENT_BINARY_DIR}/consumer/snippet ${PROJECT_SOURCE_DIR}/data/samples/pystdlib-lm)
set_tests_properties("consumer: install" PROPERTIES FIXTURES_SETUP installed)
set_tests_properties("consumer: find_package" PROPERTIES FIXTURES_SETUP consumer)
set_tests_properties("consumer: INSTALL.md's program" PROPERTIES FIXTURES_REQUIRED consumer)
set_tests_properties("consumer: find_package" "consumer: each public header on its own" PROPERTIES FIXTURES_REQUIRED installed)
set_tests_properties("consumer: find_package" PROPERTIES PASS_REGULAR_EXPRESSION "224 of 896 tokens kept: output error 0\\.3[23]")
set_tests_properties("consumer: add_subdirectory" PROPERTIES PASS_REGULAR_EXPRESSION "896 candidates, 128 decoding steps")
