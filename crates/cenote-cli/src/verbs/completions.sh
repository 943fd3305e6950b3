# Verbs of a tool, or options of a verb.
_cenote_table() {
    case $1 in
@TABLE@
    esac
}

# NAME=VALUE of a property, or NAME= while there is none.
_cenote_settings() {
    local name
    if [[ $2 == *=* ]]; then
        for name in $(_cenote_table "$1 values ${2%%=*}"); do echo "${2%%=*}=$name"; done
    else
        for name in $(_cenote_table "$1 settable"); do echo "$name="; done
    fi
}

# What the operands of zpool and zfs can be: tool, verb, last word, number of operands before, and
# the word that is completed.
_cenote_operands() {
    case $2:$3:$4 in
    *:-O:*) _cenote_settings zfs "$5" ;;
    create:-o:* | clone:-o:* | snapshot:-o:* | import:-o:*) _cenote_settings "$1" "$5" ;;
    set:*:0) _cenote_settings "$1" "$5" ;;
    get:*:0 | inherit:*:0) printf 'all %s' "$(_cenote_table "$1 properties")" ;;
    *)
        if [[ $5 == *@* ]]; then
            _cenote_names zfs snapshot
        else
            _cenote_names "$1" filesystem,volume
        fi
        ;;
    esac
}

# Names of pools or datasets; nobody starts a daemon by pressing Tab.
_cenote_names() {
    cenote daemon status >/dev/null 2>&1 || return
    case $1 in
    zpool) cenote zpool list -H -o name 2>/dev/null ;;
    *) cenote zfs list -H -o name -t "$2" 2>/dev/null ;;
    esac
}
