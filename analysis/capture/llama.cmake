# llama.cpp for `kvreplay capture`: an installed one by find_package(llama), or a source tree that -DKVREPLAY_LLAMA_SOURCE=DIR names.
function(kvreplay_find_llama)
  if(NOT KVREPLAY_LLAMA_SOURCE)
    find_package(llama QUIET)
    if(NOT llama_FOUND)
      message(FATAL_ERROR "KVREPLAY_CAPTURE is ON, but llama.cpp was not found: expected an installed one, or "
                          "-DKVREPLAY_LLAMA_SOURCE=DIR with its source tree")
    endif()
    return()
  endif()
  enable_language(C)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)  # options are what is set here
  foreach(part COMMON TESTS TOOLS EXAMPLES SERVER APP UI)
    set(LLAMA_BUILD_${part} OFF)
  endforeach()
  set(BUILD_SHARED_LIBS OFF)
  set(CMAKE_UNITY_BUILD OFF)  # several of its files define the same names
  add_subdirectory(${KVREPLAY_LLAMA_SOURCE} ${PROJECT_BINARY_DIR}/llama EXCLUDE_FROM_ALL)
endfunction()
