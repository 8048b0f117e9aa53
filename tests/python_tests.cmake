# Tests in Python, of what is written in it or beside programs that are. Each looks for the packages that it needs and exits with 77
# where one is missing, which CTest reports as skipped; -DPython3_EXECUTABLE=... names an interpreter that has them
# (tests/peers/requirements.txt). The longest takes a minute or two: ctest -LE python leaves them out.
find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_FOUND)
  return()
endif()
foreach(script capture/test_kvcapture_models capture/test_kvcapture_library capture/test_kvcapture_refusals
               capture/test_kvcapture_command_line capture/test_kvcapture_check capture/test_kvcapture_prompts
               capture/test_kvcapture_gguf capture/test_llama_capture capture/test_llama_architectures capture/test_kvcapture_gradients capture/test_kvcapture_gradient_files
               capture/test_kvcapture_gradient_command capture/test_kvcapture_output_path capture/test_kvcapture_encoders
               capture/test_kvcapture_architectures
               capture/test_kvcapture_path capture/test_kvcapture_second_reading capture/test_kvcapture_messages capture/test_packages
               capture/test_gguf_pieces capture/test_help
               capture/test_write_dump capture/test_kvresults capture/test_model_loop capture/test_number_formats capture/test_kvvalidate capture/test_answers
               capture/test_damaged_results research/test_study research/test_engine research/test_claims peers/test_peers peers/test_conform_kvpress
               research/test_intervals research/test_papers research/test_recomputed research/test_answer_record research/test_paper analysis/test_documented_commands analysis/test_recommend_from_model release/test_release release/test_plain_english release/test_comments
               viewer/test_serve viewer/test_serve_browser)
  get_filename_component(name ${script} NAME)
  add_test(NAME ${name}.py COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/${script}.py)
  set_tests_properties(${name}.py PROPERTIES SKIP_RETURN_CODE 77 LABELS python
                                             ENVIRONMENT "KVREPLAY=$<TARGET_FILE:kvreplay>")
endforeach()

# Where torch and the package are of one interpreter, feedback is tested too.
if(KVREPLAY_PYTHON)
  set_property(TEST test_kvvalidate.py APPEND PROPERTY ENVIRONMENT PYTHONPATH=${PROJECT_BINARY_DIR}/python)
endif()

# The package, by the interpreter that it was built for.
if(KVREPLAY_PYTHON)
  foreach(name test_package test_conform test_growing_caches test_press test_notebooks test_show)
    add_test(NAME ${name}.py COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/python/${name}.py)
    set_tests_properties(${name}.py PROPERTIES SKIP_RETURN_CODE 77 LABELS python
                                               ENVIRONMENT PYTHONPATH=${PROJECT_BINARY_DIR}/python)
  endforeach()
endif()

# The proof of a GPU (tests/device), rehearsed on the processor that plays one.
if(KVREPLAY_BENCH)
  add_test(NAME "emulated: the proof of a device, rehearsed"
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/device/prove.py ${PROJECT_BINARY_DIR}/rehearsal
                   --programs $<TARGET_FILE_DIR:kvreplay_emulated> --rehearse)
  set_tests_properties("emulated: the proof of a device, rehearsed" PROPERTIES LABELS python)
endif()
