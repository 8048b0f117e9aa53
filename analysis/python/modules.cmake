# Writes the package's Python modules:
#
#   cmake -DSOURCES=FILE;... -DSCRIPTS=FILE;... -DTO=FOLDER -DSTAMP=FILE -P modules.cmake
#
# SOURCES as they are. Of SCRIPTS, which run as programs and import one another by their files' names, those that people name
# (kvcapture.py, kvresults.py, kvvalidate.py) become kvreplay.capture, kvreplay.results and kvreplay.validate, the others
# kvreplay._scripts.*, and import one another so.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${TO}/_scripts)
file(MAKE_DIRECTORY ${TO}/_scripts)
file(WRITE ${TO}/_scripts/__init__.py "")
foreach(source ${SOURCES})
  file(COPY ${source} DESTINATION ${TO})
endforeach()

set(named kvcapture kvresults kvvalidate)
function(module_of script result)
  string(REGEX REPLACE "^kv" "" short ${script})
  if(script IN_LIST named)
    set(${result} kvreplay.${short} PARENT_SCOPE)
  else()
    set(${result} kvreplay._scripts.${script} PARENT_SCOPE)
  endif()
endfunction()

foreach(script ${SCRIPTS})
  get_filename_component(name ${script} NAME_WE)
  list(APPEND names ${name})
endforeach()
foreach(script ${SCRIPTS})
  get_filename_component(name ${script} NAME_WE)
  file(READ ${script} text)
  foreach(other ${names})
    module_of(${other} module)
    string(REGEX REPLACE "(^|\n)( *)from ${other} import " "\\1\\2from ${module} import " text "${text}")
  endforeach()
  module_of(${name} module)
  string(REPLACE "." "/" file ${module})
  string(REGEX REPLACE "^kvreplay/" "" file ${file})
  file(WRITE ${TO}/${file}.py "${text}")
endforeach()
file(TOUCH ${STAMP})
