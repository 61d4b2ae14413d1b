# Debian packages (make deb): baton, libbaton-kv0 for engines' connectors, libbaton-kv-dev to build against it.

set(debian_doc ${CMAKE_CURRENT_BINARY_DIR}/debian)
string(TIMESTAMP debian_date "%a, %d %b %Y 00:00:00 +0000" UTC)
execute_process(COMMAND date -R -u -d "${release_date}" OUTPUT_VARIABLE debian_date OUTPUT_STRIP_TRAILING_WHITESPACE)
configure_file(debian/changelog.in debian/changelog.Debian @ONLY)
configure_file(${PROJECT_SOURCE_DIR}/CHANGELOG.md debian/changelog COPYONLY)
execute_process(COMMAND gzip -9nfk changelog.Debian changelog WORKING_DIRECTORY ${debian_doc} COMMAND_ERROR_IS_FATAL ANY)

foreach(pair gateway:baton kv:libbaton-kv0 kv_dev:libbaton-kv-dev)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 component)
  list(GET pair 1 package)
  install(FILES debian/copyright ${debian_doc}/changelog.Debian.gz DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
    COMPONENT ${component})
  install(FILES debian/overrides.${component} DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides RENAME ${package}
    COMPONENT ${component})
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${upper}_FILE_NAME DEB-DEFAULT)
endforeach()
install(FILES ${debian_doc}/changelog.gz DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME baton)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "${BT_MAINTAINER}")
set(CPACK_OUTPUT_FILE_PREFIX ${CMAKE_BINARY_DIR})
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL gateway kv kv_dev)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # the first line of each description is
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_GATEWAY_PACKAGE_SECTION net)
set(CPACK_DEBIAN_GATEWAY_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_GATEWAY_PACKAGE_DEPENDS adduser)
# What is loaded when it is needed (base/library.h), no program tells dpkg-shlibdeps.
get_property(loaded GLOBAL PROPERTY BT_LOADED_LIBRARIES)
set(recommends ca-certificates)
foreach(file ${loaded})
  file(REAL_PATH ${file} file)
  execute_process(COMMAND dpkg -S ${file} OUTPUT_VARIABLE owner COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "^[^:,]+" owner "${owner}")
  string(APPEND recommends ", ${owner}")
endforeach()
set(CPACK_DEBIAN_GATEWAY_PACKAGE_RECOMMENDS "${recommends}")
set(control ${CMAKE_CURRENT_SOURCE_DIR}/debian)
set(CPACK_DEBIAN_GATEWAY_PACKAGE_CONTROL_EXTRA ${control}/postinst ${control}/prerm ${control}/postrm ${control}/conffiles)
set(CPACK_DEBIAN_GATEWAY_DESCRIPTION "gateway for LLM servers that split prefill from decode
Baton sits in front of SGLang, vLLM, vLLM-Ascend, MindIE or TensorRT-LLM
workers, splits each request into a prefill and a decode leg, and speaks the
exact protocol of the engines' KV connector. Lua policies choose the workers;
they are reloaded while traffic flows, and every decision can be explained.

This package has the gateway as a service, and baton-sim, which simulates
workers.")

set(CPACK_DEBIAN_KV_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_KV_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_KV_PACKAGE_CONTROL_EXTRA ${control}/triggers)
set(CPACK_DEBIAN_KV_DESCRIPTION "KV transfer engine of Baton, shared library
Moves pages of KV caches between the engines of a pair, over shared memory,
TCP and RDMA verbs, and lets a Baton gateway see and manage every transfer.")

set(CPACK_DEBIAN_KV_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_KV_DEV_PACKAGE_DEPENDS "libbaton-kv0 (= ${PROJECT_VERSION}-1)")
set(CPACK_DEBIAN_KV_DEV_DESCRIPTION "KV transfer engine of Baton, header
Header and pkg-config file of libbaton_kv, which moves pages of KV caches
between the engines of a pair. The header is the manual.")

include(CPack)
