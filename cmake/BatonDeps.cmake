# What the project links with. A missing dependency is one line that names the Debian package.

find_program(BT_PKG_CONFIG pkg-config)
if(NOT BT_PKG_CONFIG)
  message(FATAL_ERROR "pkg-config not found: install the Debian package pkg-config")
endif()
find_package(PkgConfig REQUIRED QUIET)
find_package(Threads REQUIRED)

# bt_require(<target> <pkg-config module> <Debian package>): makes PkgConfig::<target>.
function(bt_require target module package)
  pkg_check_modules(${target} QUIET IMPORTED_TARGET GLOBAL ${module})
  if(NOT ${target}_FOUND)
    message(FATAL_ERROR "${module} not found: install the Debian package ${package}")
  endif()
endfunction()

bt_require(uv "libuv>=1.44" libuv1-dev)
bt_require(luajit "luajit>=2.1" libluajit-5.1-dev)
bt_require(xxhash "libxxhash>=0.8" libxxhash-dev)
bt_require(hiredis "hiredis>=0.14" libhiredis-dev)
bt_require(openssl "openssl>=3.0" libssl-dev)
bt_require(cares "libcares>=1.18" libc-ares-dev)
bt_require(nghttp2 "libnghttp2>=1.52" libnghttp2-dev)
bt_require(curl "libcurl>=7.77" libcurl4-openssl-dev)
find_package(Llhttp)
if(NOT Llhttp_FOUND)
  message(FATAL_ERROR "llhttp not found: install the Debian package libllhttp-dev or node-llhttp")
endif()
# Optional: without it agents have no verbs back end, and say so (Debian package libibverbs-dev).
pkg_check_modules(ibverbs QUIET IMPORTED_TARGET GLOBAL "libibverbs>=1.14")
# Optional, both or none: engines that register by ZeroMQ (Debian packages libzmq3-dev, and libmsgpack-dev or, since 13,
# libmsgpack-c-dev).
if(BT_ZMQ)
  pkg_check_modules(libzmq QUIET IMPORTED_TARGET GLOBAL "libzmq>=4.3")
  pkg_search_module(msgpack QUIET IMPORTED_TARGET GLOBAL msgpack-c msgpack)
  if(libzmq_FOUND AND msgpack_FOUND)
    set(BT_HAS_ZMQ ON)
  endif()
endif()
if(BT_TESTS)
  bt_require(cmocka "cmocka>=1.1" libcmocka-dev)
  bt_require(jansson "jansson>=2.13" libjansson-dev)
endif()
