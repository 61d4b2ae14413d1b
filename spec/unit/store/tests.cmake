# The specs of core/store. suite.c and suite_life.c are one behaviour suite over store.h; redis_server.c starts real servers.

add_library(spec_store STATIC store/redis_server.c store/rig.c store/suite.c store/suite_life.c)
target_compile_options(spec_store PRIVATE ${BT_WARNINGS} -Wno-unused-parameter)
target_include_directories(spec_store PUBLIC ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/store)
target_link_libraries(spec_store PUBLIC bt_store PkgConfig::cmocka)

# bt_store_test(<name>): skipped (77) where there is no redis-server.
function(bt_store_test name)
  bt_unit_test(store ${name})
  set_tests_properties(unit/store/${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()

# One line per file, sorted.
bt_store_test(redis_cluster)
bt_store_test(redis_fake)
bt_store_test(redis_fault)
bt_store_test(redis_redirect)
bt_store_test(redis_scripts)
bt_store_test(redis_sentinel)
bt_store_test(redis_tls)
bt_store_test(store_local)
bt_store_test(store_redis)
bt_store_test(store_url)
target_link_libraries(unit_store PRIVATE spec_store)
