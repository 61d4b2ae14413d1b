# Finds llhttp and makes the target llhttp::llhttp.
#
# Newer Debian releases have the library (libllhttp-dev). Debian 12 ships its C sources inside node-llhttp;
# there they are compiled here, with our warnings off.

find_path(LLHTTP_INCLUDE_DIR llhttp.h PATHS /usr/share/include PATH_SUFFIXES llhttp)
find_library(LLHTTP_LIBRARY llhttp)
find_path(LLHTTP_SOURCE_DIR NAMES llhttp.c PATHS /usr/share/llhttp NO_DEFAULT_PATH)
mark_as_advanced(LLHTTP_INCLUDE_DIR LLHTTP_LIBRARY LLHTTP_SOURCE_DIR)

include(FindPackageHandleStandardArgs)
if(LLHTTP_LIBRARY)
  set(llhttp_origin ${LLHTTP_LIBRARY})
elseif(LLHTTP_SOURCE_DIR)
  set(llhttp_origin ${LLHTTP_SOURCE_DIR})
endif()
find_package_handle_standard_args(Llhttp REQUIRED_VARS llhttp_origin LLHTTP_INCLUDE_DIR)

if(Llhttp_FOUND AND NOT TARGET llhttp::llhttp)
  if(LLHTTP_LIBRARY)
    add_library(llhttp::llhttp UNKNOWN IMPORTED GLOBAL)
    set_target_properties(llhttp::llhttp PROPERTIES IMPORTED_LOCATION ${LLHTTP_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${LLHTTP_INCLUDE_DIR})
  else()
    add_library(llhttp_from_source STATIC ${LLHTTP_SOURCE_DIR}/api.c ${LLHTTP_SOURCE_DIR}/http.c
      ${LLHTTP_SOURCE_DIR}/llhttp.c)
    target_compile_options(llhttp_from_source PRIVATE -w)
    target_include_directories(llhttp_from_source SYSTEM PUBLIC ${LLHTTP_INCLUDE_DIR})
    add_library(llhttp::llhttp ALIAS llhttp_from_source)
  endif()
endif()
