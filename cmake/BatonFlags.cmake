# Compiler settings that hold for every target of this project.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

add_compile_definitions(_GNU_SOURCE BT_VERSION="${PROJECT_VERSION}")
add_compile_options(-fno-omit-frame-pointer)

set(BT_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes)
if(BT_WERROR)
  list(APPEND BT_WARNINGS -Werror)
endif()

# What distributions ask of network services. No path of the build is left in programs.
if(BT_HARDEN)
  include(CheckPIESupported)
  check_pie_supported()
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  add_compile_options(-fstack-protector-strong -fstack-clash-protection -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
  add_compile_definitions(_FORTIFY_SOURCE=2)
  add_link_options(-Wl,-z,relro -Wl,-z,now)
endif()

if(BT_SANITIZE STREQUAL "address")
  set(sanitize_flags -O1 -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(BT_SANITIZE STREQUAL "thread")
  set(sanitize_flags -O1 -fsanitize=thread)
elseif(NOT BT_SANITIZE STREQUAL "")
  message(FATAL_ERROR "BT_SANITIZE is \"${BT_SANITIZE}\"; it must be empty, address or thread")
endif()

if(BT_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "BT_FUZZ needs clang: set CC=clang, or use the preset fuzz (Debian package clang)")
  endif()
  # Every object reports its coverage; only the fuzz programs get libFuzzer's main().
  list(APPEND sanitize_flags -fsanitize=fuzzer-no-link)
endif()

if(BT_COVERAGE)
  list(APPEND sanitize_flags --coverage)
endif()

if(sanitize_flags)
  add_compile_options(${sanitize_flags})
  add_link_options(${sanitize_flags})
endif()
