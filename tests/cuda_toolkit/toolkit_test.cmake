# What architectures are chosen with toolkits and GPUs that are not here: nvcc and nvidia-smi are scripts. Where NVCC is a real one, a
# project with a kernel is configured by each, and nvcc refuses what that toolkit's would.
#   cmake -DWORK=DIR [-DNVCC=PATH] -P toolkit_test.cmake
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../../sim/cuda/toolkit.cmake)
file(REMOVE_RECURSE ${WORK})

set(known_11.4 35;37;50;52;53;60;61;62;70;72;75;80;86;87)
set(known_11.8 ${known_11.4};89;90)
set(known_12.0 50;52;53;60;61;62;70;72;75;80;86;87;89;90)
set(known_12.4 ${known_12.0};90a)
set(known_12.8 ${known_12.4};100;101;120)
set(known_13.0 75;80;86;87;88;89;90;100;110;103;120;121)

function(write_script path text)
  file(WRITE ${path} "#!/bin/sh\n${text}\n")
  file(CHMOD ${path} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

# nvcc of that toolkit: what it does not know it refuses, the rest is for the real one.
function(make_nvcc toolkit)
  list(JOIN known_${toolkit} " " known)
  write_script(${WORK}/${toolkit}/bin/nvcc "
known='${known}'
case \"$*\" in
  *--list-gpu-arch*) for each in $known; do echo compute_$each; done; exit ;;
esac
for each in $(echo \"$*\" | grep -oE '(compute|sm)_[0-9]+' | grep -oE '[0-9]+$'); do
  case \" $known \" in
    *\" $each \"*) ;;
    *) echo \"nvcc fatal   : Unsupported gpu architecture 'compute_$each'\" >&2; exit 1 ;;
  esac
done
exec ${NVCC} \"$@\"")
endfunction()

set(KVREPLAY_NVIDIA_SMI ${WORK}/nvidia-smi)
function(expect toolkit gpus expected)
  write_script(${KVREPLAY_NVIDIA_SMI} "printf '%s\\n' ${gpus}")
  set(CMAKE_CUDA_COMPILER ${WORK}/${toolkit}/bin/nvcc)
  kvreplay_default_architectures(found)
  if(NOT found STREQUAL expected)
    message(SEND_ERROR "CUDA ${toolkit} where there are '${gpus}': expected ${expected}, found ${found}")
  endif()
endfunction()

foreach(toolkit 11.4 11.8 12.0 12.4 12.8 13.0)
  make_nvcc(${toolkit})
endforeach()
expect(11.4 "" "80")
foreach(toolkit 11.8 12.0 12.4 12.8 13.0)
  expect(${toolkit} "" "80-real;90")
endforeach()
expect(13.0 "7.5" "80-real;90")  # too old
expect(13.0 "9.0 9.0" "90")
expect(12.8 "12.0 8.6" "86-real;120")
expect(12.4 "12.0" "80-real;90")     # the driver compiles 90's PTX for it
expect(12.4 "12.0 8.6" "86")
expect(12.4 "6.1" "80-real;90")
expect(12.4 "'[N/A]'" "80-real;90")  # a driver that does not say
write_script(${KVREPLAY_NVIDIA_SMI} "echo 'NVIDIA-SMI has failed' 8.6; exit 9")
set(CMAKE_CUDA_COMPILER ${WORK}/13.0/bin/nvcc)
kvreplay_seen_architectures(seen)
if(seen)
  message(SEND_ERROR "where nvidia-smi fails: expected no GPU, found ${seen}")
endif()

if(NOT NVCC)
  return()
endif()
# configure(TOOLKIT CUDAARCHS RESULT LINE): LINE is in what CMake says.
function(configure toolkit architectures code line)
  set(ENV{CUDACXX} ${WORK}/${toolkit}/bin/nvcc)
  set(ENV{CUDAARCHS} "${architectures}")
  if(architectures STREQUAL "")
    unset(ENV{CUDAARCHS})
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK}/${toolkit}/build -DKVREPLAY_NVIDIA_SMI=OFF
                  OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE failed)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")  # CMake breaks the lines of errors
  string(FIND "${said}" "${line}" at)
  if((failed AND code EQUAL 0) OR (NOT failed AND NOT code EQUAL 0) OR at LESS 0)
    message(SEND_ERROR "CUDA ${toolkit}, CUDAARCHS '${architectures}': expected '${line}', found\n${said}")
  endif()
endfunction()
configure(11.8 "" 0 "CUDA: kernels for 80-real;90,")
configure(11.8 "86" 0 "CUDA: kernels for 86 ")  # of a folder that is configured already
configure(11.8 "" 0 "CUDA: kernels for 86 ")    # as ninja does it
configure(12.4 "100" 1 "found 100")
configure(12.4 "80;90a" 0 "CUDA: kernels for 80;90a ")
configure(13.0 "" 0 "CUDA: kernels for 80-real;90,")
