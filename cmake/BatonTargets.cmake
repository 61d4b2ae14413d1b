# The few shapes that this project's targets have.

# bt_library(<name> SOURCES <file>... DEPS <target>...)
# One folder, one static library. Without sources it is an INTERFACE library that only hands on its DEPS, so that a
# folder can be linked before its first file is there.
function(bt_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES})
    target_compile_options(${name} PRIVATE ${BT_WARNINGS})
    set(scope PUBLIC)
  else()
    add_library(${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${name} ${scope} ${PROJECT_SOURCE_DIR}/core)
  target_link_libraries(${name} ${scope} ${arg_DEPS})
endfunction()

# bt_load_library(<target> <PkgConfig target> <macro>)
# The target includes its headers and does not link with it: it loads the file that the macro names (base/library.h).
function(bt_load_library target library macro)
  get_target_property(files ${library} INTERFACE_LINK_LIBRARIES)
  list(GET files 0 file)
  execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${file} OUTPUT_VARIABLE text)
  string(REGEX MATCH "SONAME +([^\n]+)" found "${text}")
  if(NOT found)
    message(FATAL_ERROR "${file}: ${CMAKE_OBJDUMP} does not tell its SONAME; is it a shared library?")
  endif()
  target_compile_definitions(${target} PRIVATE ${macro}="${CMAKE_MATCH_1}")
  set_property(GLOBAL APPEND PROPERTY BT_LOADED_LIBRARIES ${file}) # packages recommend them
  target_include_directories(${target} PRIVATE $<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>)
endfunction()

# bt_program(<name> SOURCES <file>... DEPS <target>...)
# A program that is left at the top of the build folder.
function(bt_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_compile_options(${name} PRIVATE ${BT_WARNINGS})
  target_link_libraries(${name} PRIVATE ${arg_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

# bt_embed(<name> TABLE <array> FILES <path from the top folder>...)
# A static library with these files' bytes as an array of struct bt_embedded (script/vm/embedded.h).
function(bt_embed name)
  cmake_parse_arguments(arg "" "TABLE" "FILES" ${ARGN})
  if(NOT TARGET bt_embed)
    add_executable(bt_embed ${PROJECT_SOURCE_DIR}/cmake/embed.c)
    target_compile_options(bt_embed PRIVATE ${BT_WARNINGS})
  endif()
  list(TRANSFORM arg_FILES PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE inputs)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}.c)
  add_custom_command(OUTPUT ${output}
    COMMAND bt_embed ${output} ${arg_TABLE} ${arg_FILES}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    DEPENDS bt_embed ${inputs}
    COMMENT "Embedding ${arg_TABLE}"
    VERBATIM)
  bt_library(${name} SOURCES ${output})
endfunction()
