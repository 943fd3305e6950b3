# Verbs of a tool, or options of a verb.
_cenote_table() {
    case $1 in
@TABLE@
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
