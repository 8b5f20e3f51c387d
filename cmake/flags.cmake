# What every target of this tree is compiled with; nothing of it reaches users of the library.
#
# dlock_flags          warnings, definitions and sanitizers for programs and objects of this tree
# DLOCK_LINK_OPTIONS   the sanitizers' part for the two libraries, whose link interface is exported
add_library(dlock_flags INTERFACE)
target_compile_definitions(dlock_flags INTERFACE _GNU_SOURCE)
target_compile_options(dlock_flags INTERFACE
  -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wcast-qual
  -Wwrite-strings -Wundef -Wvla -Wformat=2 -fno-omit-frame-pointer)
if(DLOCK_WERROR)
  target_compile_options(dlock_flags INTERFACE -Werror)
endif()

set(DLOCK_LINK_OPTIONS "")
if(DLOCK_SANITIZE)
  set(DLOCK_LINK_OPTIONS -fsanitize=${DLOCK_SANITIZE})
  target_compile_options(dlock_flags INTERFACE -fsanitize=${DLOCK_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(dlock_flags INTERFACE ${DLOCK_LINK_OPTIONS})
endif()
