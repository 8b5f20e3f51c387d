# Run by cpack on the files of the packages: strips programs, compresses texts, and gives all the time SOURCE_DATE_EPOCH.
set(top ${CPACK_TEMPORARY_INSTALL_DIRECTORY})
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# As dh_strip does; cpack would leave the static library as it is.
file(GLOB programs ${top}/*/usr/bin/*)
file(GLOB shared ${top}/*/usr/lib/*/*.so.*.*)
file(GLOB static ${top}/*/usr/lib/*/*.a)
set(needless --remove-section=.comment --remove-section=.note)
run(strip ${needless} ${programs})
run(strip --strip-unneeded ${needless} ${shared})
run(strip --strip-debug --enable-deterministic-archives ${needless} ${static})

file(GLOB texts ${top}/*/usr/share/man/man[1-9]/* ${top}/*/usr/share/doc/*/changelog*)
run(gzip -9n ${texts})
if(DEFINED ENV{SOURCE_DATE_EPOCH})
  run(find ${top} -depth -exec touch -h -d @$ENV{SOURCE_DATE_EPOCH} "{}" +)
endif()
