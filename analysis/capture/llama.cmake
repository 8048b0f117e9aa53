# llama.cpp for `kvreplay capture`: a source tree that -DKVREPLAY_LLAMA_SOURCE=DIR names, else an installed one, else a commit (release
# b10605) that is fetched.
set(KVREPLAY_LLAMA_COMMIT a130532ae1c4c54daaae5527795f5b19c184f269 CACHE STRING "The commit of llama.cpp that is fetched where none is found")
function(kvreplay_find_llama)
  if(NOT KVREPLAY_LLAMA_SOURCE)
    find_package(llama QUIET)
    if(llama_FOUND)
      return()
    endif()
  endif()
  enable_language(C)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)  # options are what is set here
  foreach(part COMMON TESTS TOOLS EXAMPLES SERVER APP UI)
    set(LLAMA_BUILD_${part} OFF)
  endforeach()
  set(BUILD_SHARED_LIBS OFF)
  set(CMAKE_UNITY_BUILD OFF)  # several of its files define the same names
  set(source ${KVREPLAY_LLAMA_SOURCE})
  if(NOT source)
    message(STATUS "llama.cpp: not installed, fetching ${KVREPLAY_LLAMA_COMMIT} (offline: -DKVREPLAY_LLAMA_SOURCE=DIR)")
    find_package(Git REQUIRED)
    # One commit by its full hash: a clone has all 10,000, and a shallow one takes only names.
    set(git ${GIT_EXECUTABLE} -C <SOURCE_DIR>)
    FetchContent_Declare(kvreplay_llama SOURCE_SUBDIR none
      DOWNLOAD_COMMAND ${git} init -q
      COMMAND ${git} fetch -q --depth 1 https://github.com/ggml-org/llama.cpp.git ${KVREPLAY_LLAMA_COMMIT}
      COMMAND ${git} checkout -q FETCH_HEAD)
    FetchContent_MakeAvailable(kvreplay_llama)
    set(source ${kvreplay_llama_SOURCE_DIR})
  endif()
  add_subdirectory(${source} ${PROJECT_BINARY_DIR}/llama EXCLUDE_FROM_ALL)
endfunction()
