# manual.awk - writes the manual pages of section 3 from the comments and declarations of the public headers.
# SPDX-License-Identifier: Apache-2.0
#
# usage: awk -v folder=DIR -v date=DATE -v release=TEXT -f manual.awk dlock.h driver.h
#
# Functions without an empty line between them share a page, named after the first; pages of the others' names lead there.
# NAME has the line that stands alone before them, or else the first sentence of the first comment.
# What is defined between two such groups is explained on the page of the second. The header as a whole, with the
# comment that stands alone, is libdlock(3). All of driver.h is one page, dl_driver(3).
#
# It is not Doxygen, which makes one page of 760 lines of the header, runs its lists of statuses together, adds some
# 150 pages such as name(3) and size(3), and leaves lines that groff warns of.

# ---- text -------------------------------------------------------------------------------------------

function escape(text,    parts, n, i, code) {
    gsub(/\\/, "\\e", text)
    # Names and paths are not hyphenated.
    gsub(/[^ ]*([A-Za-z]_|\/)[A-Za-z][^ ]*/, "\\%&", text)
    n = split(text, parts, "`")
    text = parts[1]
    for (i = 2; i <= n; i++) {
        code = !code
        text = text (code ? "\\fB" : "\\fR") parts[i]
    }
    return text ~ /^[.']/ ? "\\&" text : text
}

# A comment, its lines parted by newlines. In it are paragraphs, items that begin with "- ", and items of two columns, at
# least two blanks apart: a word or a list of them, and what it means, which goes on in lines that are indented.
function prose(comment,    lines, n, i, line, indent, at, list, column, text) {
    gsub(/^\n+|\n+$/, "", comment)
    n = split(comment, lines, "\n")
    for (i = 1; i <= n; i++) {
        line = lines[i]
        match(line, /^ */)
        indent = RLENGTH
        line = substr(line, indent + 1)
        at = match(line, /[^ ]  +[^ ]/)
        if (line == "") {
            text = text (list ? ".El\n" : "") ".Pp\n"
            list = ""
        } else if (line ~ /^- / || at || (list == "tag" && indent == column)) {
            if (!list) {
                list = line ~ /^- / ? "bullet" : "tag"
                column = indent
                text = text (text ~ /^$|\.Pp\n$/ ? "" : ".Pp\n") ".Bl -" list (list == "tag" ? " -width Ds" : "") " -compact\n"
            }
            if (list == "bullet") text = text ".It\n" escape(substr(line, 3)) "\n"
            else if (!at) text = text ".It " escape(line) "\n"
            else text = text ".It " escape(substr(line, 1, at)) "\n" escape(substr(line, at + RLENGTH - 1)) "\n"
        } else {
            if (list && indent <= column) {
                text = text ".El\n.Pp\n"
                list = ""
            }
            text = text escape(line) "\n"
        }
    }
    return text (list ? ".El\n" : "")
}

# Its first sentence, for NAME. Names and abbreviations stay as they are.
function summary(comment) {
    gsub(/`/, "", comment)
    gsub(/[ \n]+/, " ", comment)
    sub(/^ /, "", comment)
    if (match(comment, /[;.]( |$)/)) comment = substr(comment, 1, RSTART - 1)
    if (comment ~ /^DL_/) {
        print "manual.awk: what is said first of a function is a status: " comment >"/dev/stderr"
        failed = 1
        exit 1
    }
    gsub(/"/, "\\(dq", comment)
    return comment ~ /^[^ ]*[A-Z][^ ]*[A-Z]/ ? comment : tolower(substr(comment, 1, 1)) substr(comment, 2)
}

# ---- declarations -----------------------------------------------------------------------------------

# What a line of a comment says; `inside` says afterwards whether the comment goes on.
function comment_line(line) {
    inside = line !~ /\*\//
    sub(/ *\*\/.*/, "", line)
    sub(/^ *\/?\*? ?/, "", line)
    return line
}

function item(code, comment) {
    gsub(/  +/, " ", code)
    return ".It Vt " escape(code) "\n" prose(comment)
}

function list_of(items) {
    return items == "" ? "" : ".Bl -tag -width Ds -compact\n" items ".El\n"
}

# The members of a struct or an enum, each with the comment before it or behind it.
function members(code,    lines, n, i, line, at, member, said, items, stop, outer) {
    stop = code ~ /^typedef enum/ ? "[,;]$" : ";$"
    sub(/^[^{]*\{/, "", code)
    sub(/\}[^}]*$/, "", code)
    if (code !~ /\n/) gsub(/, /, ",\n", code)
    n = split(code, lines, "\n")
    for (i = 1; i <= n; i++) {
        line = lines[i]
        at = inside ? 1 : index(line, "/*")
        if (at) {
            said = said (said == "" ? "" : "\n") comment_line(substr(line, at))
            line = substr(line, 1, at - 1)
        }
        gsub(/^ +| +$/, "", line)
        if (line ~ /^DL_STATUS_MAP/) items = items statuses
        if (line == "union {") {
            outer = items
            items = line = ""
        } else if (line ~ /^\} /) {
            items = outer item("union" substr(line, 2, length(line) - 2)) list_of(items)
            line = ""
        }
        if (line != "" && line !~ /^#|^[A-Z_]+\(/) member = member (member == "" ? "" : " ") line
        if (inside || (member !~ stop && i < n)) continue
        gsub(/[;,]$| = .*/, "", member)
        if (member != "") items = items item(member, said)
        member = said = ""
    }
    return list_of(items)
}

# Of the macro that makes the statuses, each of them: X(NAME, number, "text").
function read_statuses(code,    lines, n, i, at) {
    n = split(code, lines, "\n")
    for (i = 2; i <= n; i++) {
        at = index(lines[i], "\"")
        match(lines[i], /[A-Z]+,/)
        statuses = statuses item("DL_" substr(lines[i], RSTART, RLENGTH - 1),
            substr(lines[i], at + 1, match(lines[i], /"\)/) - at - 1))
    }
}

# "type name(arg, arg);" as mdoc has it; the name may be (*name).
function prototype(code,    type, args, n, i, text) {
    sub(/\)[^)]*(__attribute__.*)?$/, "", code)
    match(code, /(\(\*)?dl_[a-z0-9_]+\)?\(/)
    type = substr(code, 1, RSTART - 1)
    gsub(/DL_API |DL_MUST_CHECK | +$/, "", type)
    text = ".Ft \"" type "\"\n.Fo " substr(code, RSTART, RLENGTH - 1) "\n"
    n = split(substr(code, RSTART + RLENGTH), args, ", ")
    for (i = 1; i <= n; i++) text = text ".Fa \"" args[i] "\"\n"
    return text ".Fc\n"
}

# ---- pages ------------------------------------------------------------------------------------------

function end_constants() {
    if (macros != "") define(".Ss Constants\n" prose(macros_about) list_of(macros))
    macros = macros_about = ""
}

# To the page of this group, or, before its first function, to the next page.
function define(text) {
    if (page != "") types[page] = types[page] text
    else waiting = waiting text
}

function begin_page(name, about,    i) {
    page = pages[++page_count] = name
    header[name] = FILENAME
    sub(/.*\//, "", header[name])
    about_line[name] = summary(alone != "" ? alone : about)
    alone = ""
    types[name] = waiting
    for (i in homeless) home[i] = name
    split("", homeless)
    waiting = ""
}

function end_group() {
    end_constants()
    # A comment that stands alone is about the whole header, if it is more than a line, and about the next page if not.
    if (comment ~ /\n/) {
        sub(/^\n/, "", comment)
        title = comment
        sub(/\n.*/, "", title)
        sub(/^[^\n]*\n+/, "", comment)
        calls[whole] = ".Ss " title "\n" prose(comment) calls[whole]
    } else if (comment != "") alone = comment ~ /^----/ ? "" : comment
    comment = ""
    page = whole == "libdlock" ? "" : whole
}

function declare(    flat, name, about) {
    flat = code
    gsub(/\n *(#[^\n]*)?/, " ", flat)
    gsub(/ +/, " ", flat)
    if (code !~ /^#/) end_constants()
    if (code ~ /^#define DL_STATUS_MAP/) {
        read_statuses(code)
    } else if (code ~ /^#define/) {
        split(flat, words, " ")
        about = ""
        if (match(code, /\/\*.*/)) about = comment_line(substr(code, RSTART))
        else if (macros == "" && comment != "") macros_about = comment
        # How structs are filled in is no constant; guards and attributes are nobody's business.
        if (words[2] !~ /_INIT$|_H$|\(|^DL_API$|^DL_MUST_CHECK$|^DL_STATUS_ENUM/ && !seen[words[2]]++)
            macros = macros item(words[2], about)
    } else if (code ~ /^typedef/) {
        match(flat, /dl_[a-z0-9_]+(\)\(|;)/)
        if (code ~ /\{/) match(flat, /dl_[a-z0-9_]+; *$/)
        name = substr(flat, RSTART, RLENGTH)
        sub(/[^a-z0-9_]+$/, "", name)
        if (comment == "" && code !~ /\{/ && match(code, /\/\*.*/)) comment = comment_line(substr(code, RSTART))
        if (page == "") homeless[name]
        home[name] = page
        define(".Ss " name "\n" (code ~ /\(\*/ && code !~ /\{/ ? prototype(flat) ".Pp\n" : "") prose(comment) \
            (code ~ /\{/ ? (comment != "" ? ".Pp\n" : "") members(code) : ""))
    } else if (code ~ /^DL_API/) {
        match(flat, /dl_[a-z0-9_]+\(/)
        name = substr(flat, RSTART, RLENGTH - 1)
        if (page == "") begin_page(name, comment)
        names[page] = names[page] (names[page] == "" ? "" : " ") name
        synopsis[page] = synopsis[page] prototype(flat)
        calls[page] = calls[page] ".Ss " name "\n" prose(comment)
        if (name != page) {
            printf ".so man3/%s.3\n", page > (folder "/" name ".3")
            close(folder "/" name ".3")
        }
        home[name] = page
    }
    comment = code = ""
}

# The other pages that the text of this one names.
function see_also(name,    words, n, i, seen, text) {
    text = calls[name] types[name] synopsis[name]
    gsub(/[^a-z0-9_]+/, " ", text)
    n = split(text, words, " ")
    for (i = 1; i <= n; i++)
        if (words[i] in home) seen[home[words[i]]]
    text = ""
    for (i = 1; i <= page_count; i++)
        if (pages[i] != name && (pages[i] in seen)) text = text ".Xr " pages[i] " 3 ,\n"
    return text
}

function write_page(name,    file, n, i, list, body) {
    file = folder "/" name ".3"
    n = split(names[name], list, " ")
    body = calls[name]
    # Of one function alone nobody has to be told which it is.
    if (n == 1) sub(/^\.Ss [^\n]*\n/, "", body)
    # Ragged on the right: groff 1.23 warns of prototypes that it cannot adjust.
    printf ".ds AD l\n.Dd %s\n.Dt %s 3\n.Os %s\n.Sh NAME\n", date, toupper(name), release > file
    if (n == 0 || list[1] != name) printf ".Nm %s%s\n", name, (n ? " ," : "") > file
    for (i = 1; i <= n; i++) printf ".Nm %s%s\n", list[i], (i < n ? " ," : "") > file
    printf ".Nd %s\n.Sh SYNOPSIS\n.In dlock/%s\n%s", about_line[name], header[name], synopsis[name] > file
    printf ".Sh DESCRIPTION\n" > file
    if (name == "libdlock") {
        printf "Programs are built by\n.Pp\n.Dl cc program.c $(pkg-config --cflags --libs dlock)\n" > file
        printf ".Ss Functions\n.Bl -tag -width Ds -compact\n" > file
        for (i = 1; i <= page_count; i++) {
            if (pages[i] == name) continue
            # Of functions, all; dl_driver(3) is none itself.
            list_all = pages[i] == "dl_driver" ? "dl_driver " names[pages[i]] : names[pages[i]]
            gsub(/ /, " 3 , Xr ", list_all)
            printf ".It Xr %s 3\n%s\n", list_all, about_line[pages[i]] > file
        }
        printf ".El\n" > file
    }
    printf "%s%s", body, (types[name] == "" ? "" : ".Sh TYPES AND CONSTANTS\n" types[name]) > file
    printf ".Sh SEE ALSO\n%s",
        (name == "libdlock" ? ".Xr dlock 1 ,\n.Xr dlock.yaml 5\n.Pp\nWhole programs are in\n.Pa share/doc/dlock/examples\nbelow the prefix (/usr, /usr/local).\n" : see_also(name) ".Xr libdlock 3\n") > file
    close(file)
}

# ---- reading ----------------------------------------------------------------------------------------

FNR == 1 {
    whole = /^\/\* dlock\.h / ? "libdlock" : "dl_driver"
    begin_page(whole, substr($0, index($0, " - ") + 3, length($0) - index($0, " - ") - 5))
    end_group()
    next
}
inside && code == "" { comment = comment "\n" comment_line($0); next }
code == "" && /^$/ { end_group(); next }
code == "" && /^\/\*/ { comment = comment_line($0); next }
code == "" && !/^(#define|typedef|DL_API)/ { next }
{
    code = code (code == "" ? "" : "\n") $0
    if (code ~ /^#/) ended = !/\\$/
    else if (code ~ /^typedef (struct|enum) [a-z_]+ \{/) ended = /^[^ ].*;/
    else ended = /;/
    if (ended) declare()
}
END { for (i = 1; !failed && i <= page_count; i++) write_page(pages[i]) }
