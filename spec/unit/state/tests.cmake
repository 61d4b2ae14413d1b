# The specs of core/state. suite.c and suite_life.c are one behaviour suite over store.h; redis_server.c starts real servers.

add_library(spec_state STATIC state/redis_server.c state/rig.c state/suite.c state/suite_life.c)
target_compile_options(spec_state PRIVATE ${BT_WARNINGS})
target_include_directories(spec_state PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/state)
target_link_libraries(spec_state PUBLIC bt_state PkgConfig::cmocka)

# bt_state_test(<name>): with the rig; skipped (77) where there is no redis-server.
function(bt_state_test name)
  bt_unit_test(state ${name})
  target_link_libraries(unit_state_${name} PRIVATE spec_state)
  set_tests_properties(unit/state/${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()

# One line per file, sorted.
bt_state_test(redis_fake)
bt_state_test(redis_fault)
bt_state_test(redis_scripts)
bt_state_test(redis_sentinel)
bt_state_test(redis_tls)
bt_state_test(store_local)
bt_state_test(store_redis)
bt_state_test(store_url)
