# Writes a library's public headers as others see them:
#
#   cmake -DSOURCE=ROOT -DTO=FOLDER -DROOTS=data/dump.hpp,... -DSTAMP=FILE -P public_headers.cmake
#
# The headers ROOTS and whatever they include of ours, directly or not, go from SOURCE to TO/kvreplay, where "sim/schedule.hpp"
# is <kvreplay/sim/schedule.hpp>: a folder named sim among somebody's include folders would be mistaken for another. Headers that
# are public no more are removed. STAMP.d tells the build tool what was read.
cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" waiting "${ROOTS}")
set(public "")
while(waiting)
  list(POP_FRONT waiting header)
  if(header IN_LIST public)
    continue()
  endif()
  list(APPEND public ${header})
  file(READ ${SOURCE}/${header} text)
  string(REGEX MATCHALL "#include \"[^\"]+\"" includes "${text}")
  list(TRANSFORM includes REPLACE "#include \"(.*)\"" "\\1")
  list(APPEND waiting ${includes})
  string(REGEX REPLACE "#include \"([^\"]+)\"" "#include <kvreplay/\\1>" text "${text}")
  set(written "")
  if(EXISTS ${TO}/kvreplay/${header})
    file(READ ${TO}/kvreplay/${header} written)
  endif()
  if(NOT written STREQUAL text)
    file(WRITE ${TO}/kvreplay/${header} "${text}")
  endif()
endwhile()

file(GLOB_RECURSE there RELATIVE ${TO}/kvreplay ${TO}/kvreplay/*.hpp)
if(there)
  list(REMOVE_ITEM there ${public})
endif()
foreach(header ${there})
  file(REMOVE ${TO}/kvreplay/${header})
endforeach()

list(TRANSFORM public PREPEND " ${SOURCE}/")
string(CONCAT rule "${STAMP}:" ${public} "\n")
file(WRITE ${STAMP}.d "${rule}")
file(TOUCH ${STAMP})
