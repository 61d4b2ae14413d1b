# The specs of transport/. suite.c is one behaviour suite over the public interface: bt_kv_suite_test(<name>) is a program that runs it over one back end.

add_library(spec_transport STATIC transport/fake_gateway.c transport/rig.c transport/suite.c)
target_compile_options(spec_transport PRIVATE ${BT_WARNINGS} -Wno-unused-parameter)
target_include_directories(spec_transport PUBLIC ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/transport)
target_link_libraries(spec_transport PUBLIC bt_transport PkgConfig::cmocka)

# One line per file, sorted.
bt_unit_test(transport auth)
bt_unit_test(transport coalesce)
bt_unit_test(transport copy)
bt_unit_test(transport copy_choose)
bt_unit_test(transport crc32c)
bt_unit_test(transport room_command)
bt_unit_test(transport frame)
bt_unit_test(transport gateway)
bt_unit_test(transport heads)
bt_unit_test(transport hostile)
bt_unit_test(transport mem)
bt_unit_test(transport mem_suite)
bt_unit_test(transport pages)
bt_unit_test(transport partners)
bt_unit_test(transport peers)
bt_unit_test(transport registry)
bt_unit_test(transport registry_body)
bt_unit_test(transport room)
bt_unit_test(transport shm_suite)
bt_unit_test(transport control)
bt_unit_test(transport tcp_suite)
target_link_libraries(unit_transport PRIVATE spec_transport)

# Paths of the back ends without an agent: path_rig.c stands for it.
bt_unit_test(transport shm PROGRAM transport_path)
bt_unit_test(transport shm_death PROGRAM transport_path)
bt_unit_test(transport shm_hostile PROGRAM transport_path)
bt_unit_test(transport shm_wake PROGRAM transport_path)
bt_unit_test(transport tcp PROGRAM transport_path)
bt_unit_test(transport tcp_hostile PROGRAM transport_path)
target_sources(unit_transport_path PRIVATE transport/path_rig.c)

# The part of peers that needs two hosts.
add_test(NAME unit/transport/peers_remote COMMAND spec/unit/transport/remote.sh $<TARGET_FILE:unit_transport> peers
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
math(EXPR timeout "60 * ${BT_TEST_SLOWNESS}")
set_tests_properties(unit/transport/peers_remote PROPERTIES
  TIMEOUT ${timeout} LABELS unit SKIP_RETURN_CODE 77 ENVIRONMENT "${BT_TEST_ENV};BATON_TWO_HOSTS=1")

# Twenty thousand rooms with failures; `make soak` runs many more.
add_test(NAME unit/transport/soak COMMAND bench_kv_soak --rooms 20000)
add_test(NAME unit/transport/soak_restarts COMMAND bench_kv_soak --rooms 5000 --restarts 10 --crc --seed 2)
set_tests_properties(unit/transport/soak unit/transport/soak_restarts PROPERTIES
  TIMEOUT 180 LABELS unit ENVIRONMENT "${BT_TEST_ENV}")

# The shared library shows the public header's functions and nothing else.
add_test(NAME unit/transport/exports COMMAND ${PROJECT_SOURCE_DIR}/spec/unit/transport/check_exports.sh
  $<TARGET_FILE:baton_kv> ${PROJECT_SOURCE_DIR}/transport/baton_kv.h)
set_tests_properties(unit/transport/exports PROPERTIES LABELS unit)

# Verbs: on a provider inside the process here, over libibverbs in a small emulated machine (spec/tools/rdma-vm). What cannot run says why.
# bt_kv_vm_test(<name> <seconds> [ONE_THREAD] <rdma-vm option>... -- <command>...)
# The machine takes both processors for a while: one at a time, and early, beside specs that wait (with PROCESSORS 2 ctest would
# start it last, when two places are free at once). ONE_THREAD: what it varies is the wire; verbs_vm and verbs_vm_rails have its
# threads.
function(bt_kv_vm_test name seconds)
  cmake_parse_arguments(PARSE_ARGV 2 arg "ONE_THREAD" "" "")
  set(labels "rdma$<$<BOOL:${arg_ONE_THREAD}>:;one_thread>")
  if(NOT ibverbs_FOUND)
    add_test(NAME transport/${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: built without libibverbs (Debian package libibverbs-dev)")
    set_tests_properties(transport/${name} PROPERTIES SKIP_REGULAR_EXPRESSION "skipped:" LABELS rdma)
    return()
  endif()
  math(EXPR guest "${seconds} * ${BT_TEST_SLOWNESS}")
  math(EXPR outer "${guest} + 300") # the first run fetches a kernel
  add_test(NAME transport/${name} COMMAND spec/tools/rdma-vm --timeout ${guest} ${arg_UNPARSED_ARGUMENTS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(transport/${name} PROPERTIES
    TIMEOUT ${outer} COST ${outer} LABELS "${labels}" SKIP_RETURN_CODE 77 ENVIRONMENT "${BT_TEST_ENV}"
    RESOURCE_LOCK emulated_machine)
endfunction()

if(ibverbs_FOUND)
  foreach(name verbs verbs_rail verbs_rails)
    bt_unit_test(transport ${name} PROGRAM transport_path)
  endforeach()
  target_sources(unit_transport_path PRIVATE transport/verbs_fake.c)
  # Programs for the emulated machine: their arguments choose what runs.
  foreach(name verbs_fault verbs_real verbs_suite)
    add_executable(unit_transport_${name} transport/${name}_test.c)
    target_compile_options(unit_transport_${name} PRIVATE ${BT_WARNINGS} -Wno-unused-parameter)
    target_include_directories(unit_transport_${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_libraries(unit_transport_${name} PRIVATE bt_transport PkgConfig::cmocka)
    set(${name} ${CMAKE_BINARY_DIR}/bin/unit_transport_${name})
  endforeach()
  target_sources(unit_transport_verbs_real PRIVATE transport/path_rig.c)
  target_link_libraries(unit_transport_verbs_suite PRIVATE spec_transport)
else()
  foreach(name verbs verbs_rail verbs_rails)
    add_test(NAME unit/transport/${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: built without libibverbs (Debian package libibverbs-dev)")
    set_tests_properties(unit/transport/${name} PROPERTIES SKIP_REGULAR_EXPRESSION "skipped:" LABELS unit)
  endforeach()
endif()
bt_kv_vm_test(verbs_vm 300 -- ${verbs_real})
bt_kv_vm_test(verbs_vm_wire 300 ONE_THREAD --two-links -- spec/unit/transport/verbs_wire.sh ${verbs_real})
bt_kv_vm_test(verbs_vm_loss 300 ONE_THREAD --netem "loss 2%" -- spec/unit/transport/verbs_loss.sh ${verbs_real} ${verbs_suite})
bt_kv_vm_test(verbs_vm_faults 300 --two-links -- spec/unit/transport/verbs_faults.sh ${verbs_fault})
bt_kv_vm_test(verbs_vm_suite 300 ONE_THREAD -- ${verbs_suite})
bt_kv_vm_test(verbs_vm_rails 300 --two-links -- env BATON_RDMA_A=rxe0,rxe1 BATON_RDMA_B=rxe1,rxe0 ${verbs_suite})
