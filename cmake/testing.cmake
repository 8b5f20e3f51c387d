# How a test joins the suite: every one goes through tests/count, which counts its cases.
#
# dlock_add_test(NAME kind command...)
#   kind criterion   a Criterion program; each case by a call of its own
#   kind crowd       a Criterion program; all cases by one call
#   kind contract    the contract's plain runner: a test for each driver in the committed table of caps; for some, the
#                    fakes and a driver of each kind, another one through completion queues
#   kind single      one case: exit status 0 passed, 77 skipped, anything else failed
#
# A sanitizer takes its time: of those that are tried both ways, AddressSanitizer has one way and ThreadSanitizer the
# other.
set(DLOCK_CALLED_WITH_ASAN fake-lease fake-count fake-session sqlite mysql-lease)
set(DLOCK_QUEUED_WITH_ASAN fake-notify fake-socket fake-quorum redis-string)

# Sets `out` to the ways in which this build tries the driver: call, queue.
function(dlock_ways out driver)
  set(ways call queue)
  if(driver IN_LIST DLOCK_CALLED_WITH_ASAN)
    set(with_asan call)
  elseif(driver IN_LIST DLOCK_QUEUED_WITH_ASAN)
    set(with_asan queue)
  else()
    set(ways call)
    set(with_asan "")
  endif()
  if(with_asan AND DLOCK_SANITIZE MATCHES address)
    set(ways ${with_asan})
  elseif(with_asan AND DLOCK_SANITIZE MATCHES thread)
    list(REMOVE_ITEM ways ${with_asan})
  endif()
  set(${out} ${ways} PARENT_SCOPE)
endfunction()

function(dlock_add_test name kind)
  if(kind STREQUAL contract)
    set(table ${PROJECT_SOURCE_DIR}/tests/contract/caps.txt)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
    file(STRINGS ${table} lines REGEX "^[a-z]")
    foreach(line IN LISTS lines)
      string(REGEX MATCH "^[^ ]+" driver "${line}")
      if((DLOCK_WITH_SQLITE OR NOT driver STREQUAL sqlite)
         AND (DLOCK_WITH_REDIS OR NOT driver MATCHES "^red(is-|lock)")
         AND (DLOCK_WITH_MYSQL OR NOT driver MATCHES "^mysql-")
         # More nodes run no other code, and sanitizers take their time.
         AND NOT (DLOCK_SANITIZE AND driver MATCHES "^redlock-")
         # An example of a driver, on files.
         AND NOT (DLOCK_SANITIZE MATCHES thread AND driver STREQUAL file-table))
        dlock_ways(ways ${driver})
        if(call IN_LIST ways)
          dlock_add_one_test(${name}-${driver} contract ${ARGN} --driver ${driver})
        endif()
        if(queue IN_LIST ways)
          dlock_add_one_test(${name}-${driver}-queue contract ${ARGN} --door queue --driver ${driver})
        endif()
      endif()
    endforeach()
  else()
    dlock_add_one_test(${name} ${kind} ${ARGN})
  endif()
endfunction()

function(dlock_add_one_test name kind)
  add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/tests/count ${kind} ${name} ${ARGN})
  # tests/count ends a hanging case long before this.
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1500)
endfunction()

# dlock_add_criterion(NAME [CROWD] sources...)
#   A Criterion program that also sees the library's insides: the static library and the tree's headers.
#   CROWD: for many cases that only compute, and so need no limit of their own: starting Criterion for each of them
#   takes longer than they do, above all with a sanitizer.
function(dlock_add_criterion name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "CROWD" "" "")
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE
    ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/tests/support)
  target_link_libraries(${name} PRIVATE dlock_flags dlock_scratch dlock_static PkgConfig::CRITERION ${DLOCK_PRIVATE_LIBS})
  # So that a comparison that fails says what both sides were.
  target_compile_options(${name} PRIVATE "SHELL:-include ${PROJECT_SOURCE_DIR}/tests/support/values.h")
  # Some tests put functions of their own in place of the C library's; shared libraries have to find them.
  set_target_properties(${name} PROPERTIES C_VISIBILITY_PRESET default ENABLE_EXPORTS ON)
  # ThreadSanitizer does not bear Criterion's processes.
  if(NOT DLOCK_SANITIZE MATCHES thread)
    if(arg_CROWD)
      set(kind crowd)
    else()
      set(kind criterion)
    endif()
    dlock_add_test(${name} ${kind} $<TARGET_FILE:${name}>)
  endif()
endfunction()
