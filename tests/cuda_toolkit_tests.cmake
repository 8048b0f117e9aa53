# Configuring for GPUs by toolkits that are not here.
add_test(NAME "CUDA toolkits and architectures"
         COMMAND ${CMAKE_COMMAND} -DWORK=${CMAKE_CURRENT_BINARY_DIR}/cuda_toolkit "-DNVCC=$<$<BOOL:${KVREPLAY_WITH_CUDA}>:${CMAKE_CUDA_COMPILER}>"
                 -P ${CMAKE_CURRENT_LIST_DIR}/cuda_toolkit/toolkit_test.cmake)
